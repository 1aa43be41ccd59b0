"""The state of the model: messages, leases, lanes, tier queues and gates; and small functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from laneway.engines.base import (
    ENDED,
    RESULT_TTL_HEADER,
    SIGNALS_HEADER,
    TASK_HEADER,
    LaneState,
)
from laneway.engines.shared.adaptive import Flow, limit_of
from laneway.engines.shared.key_limits import KeyState
from laneway.headers import COST, FLOW
from laneway.message import Draft, Lease
from laneway.policy import Gate, Resolved
from laneway.topic_groups import GROUP
from laneway.units import SECOND

StoredState = Literal["waiting", "leased", "dead"]
MergeKey = tuple[str, str | bytes]
SerialKey = tuple[str, str | None]  # topic and key

# How long an empty lane is remembered, by its tier's `fair_by`.
LINGER_US = {"messages": SECOND, "time": 60 * SECOND}
FIRST_COST_US = SECOND  # expected cost of a message, fair by time, before any has run
STEP = 16  # messages beyond those that the caller can start are divided in steps of this size
RATE_WINDOW_US = 10 * SECOND  # over which `rate_now` is measured
HOLD_US = 60 * SECOND  # how long a gate is held for a delivery of a high cost
HISTORY = 20  # failures in the history of a message
MAX_WAIT_WINDOWS = 10  # default of `max_wait`, in windows
CAN_DELIVER = ("runnable", "at_gate")

COUNTERS = ("published", "delivered", "done", "retried", "died", "merged", "expired", "removed")


@dataclass(eq=False)
class Message:
    """
    A message in the store.

    A waiting message is delayed until housekeeping makes it ready.
    """

    handle: int  # its first number; never changes
    number: int
    id: str
    topic: str
    bodies: list[bytes]
    key: str | None
    priority: int
    at_front: bool
    headers: dict[str, str] | None
    published: int
    since: int
    expires: int | None
    serial: str | None
    merges_by: MergeKey | None
    sticky: bool
    lane: Lane
    state: StoredState = "waiting"
    delayed: bool = False
    is_held_back: bool = False  # parked by the limits of its key
    joined: list[str] = field(default_factory=list)  # ids of messages merged into it
    attempts: int = 0
    deliveries: int = 0
    suspect: bool = False
    unhandled_from: int | None = None
    unhandled_times: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    death: Death | None = None
    signals: set[int] | None = None  # received so far; None: it waits for none

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Its position in its lane: by priority, at_front (latest first), since, number."""
        return (
            (-self.priority, 0, -self.number, 0)
            if self.at_front
            else (-self.priority, 1, self.since, self.number)
        )

    @property
    def serial_key(self) -> SerialKey:
        """The key that it is serial by: keys are per topic."""
        return (self.topic, self.key)

    @property
    def is_end_notice(self) -> bool:
        """Whether it reports the end of another message."""
        return (self.headers or {}).get(TASK_HEADER) == ENDED

    @property
    def size(self) -> int:
        return sum(map(len, self.bodies))

    @property
    def cost(self) -> int:
        """How many permits of rates its delivery uses."""
        return int((self.headers or {}).get(COST, "1"))


@dataclass
class Death:
    """When and why a message became a dead letter."""

    number: int  # dead letters are listed by it
    at: int
    until: int
    reason: str
    error: str | None


@dataclass(eq=False)
class HeldLease:
    """
    A lease.

    `message` None: an at-most-once message is finished, but its lease still counts for concurrency
    and holds the serial key.
    """

    fence: int
    handle: int
    message: Message | None
    lane: Lane
    topic: str
    deadline: int
    granted: int
    charge: int
    started: bool
    gates: tuple[str, ...]
    serial_key: SerialKey | None
    limited_key: SerialKey | None = None  # the key whose slot it holds
    holder: str | None = None  # who has it; None: a worker
    gone: bool = False  # its topic was deleted
    finished: Message | None = None  # the message that was delivered at most once


@dataclass(eq=False)
class Lane:
    """A lane. `topic` None: a bucket; `rule`: the topic, or the bucket's pattern."""

    number: int
    name: str
    rule: str
    topic: str | None
    tier_queue: TierQueue
    group: GroupQueue | None
    virtual: int
    place: LaneState = "idle"
    timer: int = 0  # while it has delayed messages: none is due before
    wake: int | None = None  # asleep: until when; idle: when it is forgotten
    gates: tuple[str, ...] = ()  # while it is at a gate: all that its deliveries go through
    gate: str = ""  # that at which it waits
    turns: dict[str, int] = field(default_factory=dict)  # its virtual times at gates
    tat: int = 0
    need: int = 1  # the permits that its next message needs, if the rate stopped it
    owes: int = 1  # the cost of its last delivery
    back_off_us: int = 0  # above 0: the topic backs off, or probes
    backs_off_until: int = 0
    back_off_fence: int = 0
    mean: int = 0  # moving mean of the cost of a message; 0: unknown
    flow: Flow | None = None  # what concurrency="auto" knows of the destination
    counts: Counter[str] = field(default_factory=Counter)
    throttled: int = 0  # without the time since `held_since`
    held_since: int = 0
    held_until: int = 0  # a rate holds ready messages back until then; 0: none does
    window_from: int = 0
    in_window: int = 0
    in_window_before: int = 0
    # by topic and merge key: the message that new ones join
    collectors: dict[tuple[str, str, str | bytes], Message] = field(default_factory=dict)
    holders: dict[SerialKey, Message | HeldLease] = field(default_factory=dict)
    key_states: dict[SerialKey, KeyState] = field(default_factory=dict)
    key_limits: str = ""  # under which messages were parked last
    keys_recover: int = 0  # when the rates of all keys have recovered


@dataclass(eq=False)
class TierQueue:
    """The lanes of one tier of one pool."""

    pool: str
    tier: str
    virtual: int = 0  # of the lane served last
    carry: int = 0
    mean: int = 0
    delivered: int = 0


@dataclass(eq=False)
class GroupQueue:
    """
    The lanes of one group in a tier queue. It exists while it has lanes.

    `virtual`: its own, among the lanes and groups of the tier queue. `inner`: of the lane served
    last in it.
    """

    number: int
    name: str
    tier_queue: TierQueue
    virtual: int
    inner: int = 0
    turns: dict[str, int] = field(default_factory=dict)  # its virtual times at gates
    inner_turns: dict[str, int] = field(default_factory=dict)  # of its lanes served last there


@dataclass(eq=False)
class GateState:
    """A gate: a limit that topics share."""

    name: str
    code: Gate | None = None
    operator: Gate | None = None
    tat: int = 0
    leased: int = 0
    wake: int | None = None  # when it opens by the clock
    turn: int = 0  # the virtual time there of the entry served last
    mean: int = 0  # moving mean of the time between a lease and its end; 0: unknown
    holder: int = 0  # the number of the lane that it is held for
    need: int = 0  # the permits that are held
    held_until: int = 0
    held_turn: int = 0  # the holder's turn there
    owes: int = 1  # the cost of its last delivery
    claimed: int = 0  # lanes that are runnable because it has spare, about
    flow: Flow | None = None  # of a topic whose partitions share a concurrency that adapts

    @property
    def concurrency(self) -> int | None:
        """How many leases it admits now."""
        least, most = self.limits.least, self.limits.concurrency
        return most if least is None or most is None else limit_of(self.flow, least, most)

    @property
    def limits(self) -> Gate:
        if self.name.startswith(GROUP):
            return (self.operator or Gate()).over(self.code or Gate())
        return self.operator or self.code or Gate()


class Candidate(NamedTuple):
    """
    A lane that can deliver, and its position: the virtual time and number of the lane or its group,
    those of the lane in its group. `gate`: where it waits.
    """

    virtual: int
    number: int
    inner: int
    inner_number: int
    lane: Lane
    gate: str | None


@dataclass
class Call:
    """One call of `lease`: what it may still take, and what it has taken."""

    startable: int
    record_start: bool
    max_lease_us: int | None = None
    priorities: tuple[int, int] | None = None
    holder: str | None = None
    leases: list[Lease] = field(default_factory=list)
    taken: list[tuple[str, Lease | None]] = field(default_factory=list)
    """By tier; None: the message had expired."""
    visited: list[Lane] = field(default_factory=list)
    left_out: set[Lane] = field(default_factory=set)
    """Lanes that deliver nothing more."""
    refused: set[Lane] = field(default_factory=set)
    """Lanes that delivered nothing when they were visited last."""
    moves: Counter[Lane] = field(default_factory=Counter)
    """How often lanes have moved from one gate to another."""
    tier_queues: list[TierQueue] = field(default_factory=list)
    """Those that have shares, whose lanes take turns at gates."""
    claims: dict[str, int] = field(default_factory=dict)
    """What tiers are owed, as `fairness.carries`."""
    left: dict[TierQueue, int] = field(default_factory=dict)
    """How many messages tiers may still take of the part that they were given."""
    yields: bool = True
    """Whether a lane lets one of another tier go before it at a gate."""
    has_yielded: bool = False
    yielded: dict[str, float] = field(default_factory=dict)
    """Tiers that have let others go first, and their shares."""
    withheld: bool = False


def is_past(time: int | None, now: int) -> bool:
    return time is not None and time <= now


def first_of(most: int, things: Iterable[Any], key: Callable[[Any], Any]) -> list[Any]:
    return sorted(things, key=key)[:most]


def earliest_and_latest(most: int, things: Iterable[Any], key: Callable[[Any], Any]) -> list[Any]:
    """The first ones in an order; if there are too many, half of them are the last ones."""
    ordered = sorted(things, key=key)
    return (
        ordered
        if len(ordered) <= most
        else ordered[: most - most // 2] + ordered[len(ordered) - most // 2 :]
    )


def size_of(messages: Iterable[Message]) -> int:
    return sum(message.size for message in messages)


def explicit_due(draft: Draft, now: int) -> int | None:
    """When the publisher wants it delivered; `at` precedes `delay`."""
    if draft.at_us is not None:
        return max(draft.at_us, now)
    return now + draft.delay_us if draft.delay_us > 0 else None


def has_copies(policy: Resolved) -> bool:
    """Whether the topic's messages are copied, or are not stored in the topic itself."""
    return bool(policy.subscriptions) or not policy.own_backlog


def copies_of(draft: Draft, policy: Resolved) -> list[Draft]:
    """The copies for the subscriptions whose `where` the headers match, by name."""
    if draft.signal is not None:
        return []
    headers = draft.headers or {}
    copies = []
    for subscription in policy.subscriptions:
        is_taken = all(
            any(
                headers[header].startswith(value[:-1])
                if value.endswith("*")
                else headers[header] == value
                for value in values
            )
            for header, values in subscription.where
            if header in headers
        ) and all(header in headers for header, _ in subscription.where)
        if is_taken:
            copies.append(
                msgspec.structs.replace(
                    draft,
                    topic=f"{draft.topic}#{subscription.name}",
                    headers={
                        name: text
                        for name, text in headers.items()
                        if name not in (RESULT_TTL_HEADER, SIGNALS_HEADER, FLOW)
                    }
                    or None,
                )
            )
    return copies


def merge_key(key: str | None, body: bytes) -> MergeKey:
    """The key, or the body of a message without a key."""
    return ("key", key) if key is not None else ("body", body)


def spread_by(key: str | None, merges_by: MergeKey | None) -> bytes | None:
    """
    What chooses the partition: the key, else the body that it merges by, else (None) the number.
    """
    if key is not None:
        return key.encode()
    return merges_by[1] if merges_by is not None and isinstance(merges_by[1], bytes) else None


def lane_shape(policy: Resolved) -> tuple[Any, ...]:
    """The policy fields that choose a message's lane."""
    return (policy.partitions, policy.buckets, policy.buckets_pattern)


def signals_needed(headers: Mapping[str, str] | None) -> int:
    """How many signals a message waits for."""
    return int((headers or {}).get(SIGNALS_HEADER, "0"))


def moving_mean(mean: int, cost: int) -> int:
    """The mean after another value: it moves by an eighth of the difference."""
    return max(1, mean + (cost - mean) // 8)


def rate_now(lane: Lane, now: int) -> float:
    """
    Deliveries a second over the last ten seconds.

    The present window counts whole, the one before by the part of it that is in those seconds.
    """
    elapsed = now - lane.window_from
    present, before = (
        (lane.in_window, lane.in_window_before) if elapsed < RATE_WINDOW_US else (0, lane.in_window)
    )
    into = elapsed if elapsed < RATE_WINDOW_US else elapsed - RATE_WINDOW_US
    return (
        (present + before * max(0, RATE_WINDOW_US - into) / RATE_WINDOW_US)
        * SECOND
        / RATE_WINDOW_US
    )
