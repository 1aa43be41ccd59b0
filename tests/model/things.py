"""
What there is: messages, leases, lanes, tiers of pools, gates; and short words for what is asked
often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from laneway.engines.base import SIGNALS_HEADER
from laneway.message import Draft, Lease
from laneway.policy import Gate, Resolved
from laneway.units import SECOND

LINGER_US = {
    "messages": SECOND,
    "time": 60 * SECOND,
}  # how long a lane with nothing in it is remembered, by what its tier is fair by
# what a message is taken to cost in a tier that is fair by time, before anything is known
FIRST_COST_US = SECOND
STEP = 16  # what is handed out ahead of what the caller can start goes in steps of this size
RATE_WINDOW_US = 10 * SECOND  # over which `rate_now` is measured
HISTORY = 20  # troubles of a message that are remembered
MAX_WAIT_WINDOWS = 10  # default of `max_wait`
CAN_DELIVER = ("runnable", "at_gate")

COUNTERS = ("published", "delivered", "done", "retried", "died", "merged", "expired", "removed")


@dataclass(eq=False)
class Message:
    """
    `state`: waiting, leased or dead. A waiting one is delayed until housekeeping brings it in; then
    it stands in its lane's order.
    """

    handle: int  # its first number: names it for good
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
    merges_by: tuple[str, str | bytes] | None
    sticky: bool
    lane: Lane
    state: str = "waiting"
    delayed: bool = False
    joined: list[str] = field(default_factory=list)  # ids of others that it took in
    attempts: int = 0
    deliveries: int = 0
    suspect: bool = False
    unhandled_from: int | None = None
    unhandled_times: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    death: Death | None = None
    signals: set[int] | None = None  # those that came, while it waits for some

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Its place in its lane: priority, at_front (the latest first), since, number."""
        return (
            (-self.priority, 0, -self.number, 0)
            if self.at_front
            else (-self.priority, 1, self.since, self.number)
        )

    @property
    def line(self) -> tuple[str, str | None]:
        """Whom it stands in line with, where it is serial: keys are the topic's."""
        return (self.topic, self.key)

    @property
    def size(self) -> int:
        return sum(map(len, self.bodies))


@dataclass
class Death:
    """What makes a message a dead letter."""

    number: int  # the order in which they are listed
    at: int
    until: int
    reason: str
    error: str | None


@dataclass(eq=False)
class Held:
    """
    A lease. `message` None: at most once, the message is finished and its lease keeps the slots
    (and the serial `line`).
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
    gate: str | None
    line: tuple[str, str | None] | None
    gone: bool = False  # its topic was deleted


@dataclass(eq=False)
class Lane:
    """Where a topic's messages wait. `topic` None: a bucket, `rule` is then its pattern."""

    number: int
    name: str
    rule: str
    topic: str | None
    tier_queue: TierQueue
    virtual: int
    place: str = "idle"  # runnable | asleep | full | at_gate | paused | idle
    wake: int | None = None  # asleep: until then; idle: forgotten then
    gate: str | None = None
    tat: int = 0
    rest_step: int = 0  # above 0: the topic rests, or probes
    rest_until: int = 0
    rest_fence: int = 0
    mean: int = 0  # usual cost of a message, 0: not known
    counts: Counter[str] = field(default_factory=Counter)
    throttled: int = 0
    window_from: int = 0
    in_window: int = 0
    in_window_before: int = 0
    collectors: dict[tuple[str, str, str | bytes], Message] = field(
        default_factory=dict
    )  # whom newcomers join
    holders: dict[tuple[str, str | None], Message | Held] = field(
        default_factory=dict
    )  # who holds a serial key


@dataclass(eq=False)
class TierQueue:
    """One tier of one pool."""

    pool: str
    tier: str
    virtual: int = 0  # of the lane picked last
    carry: int = 0
    mean: int = 0
    delivered: int = 0


@dataclass(eq=False)
class GateState:
    """A limit that many topics share."""

    name: str
    code: Gate | None = None
    operator: Gate | None = None
    tat: int = 0
    leased: int = 0
    wake: int | None = None  # when its rate, which alone shuts it, lets the next one through

    @property
    def limits(self) -> Gate:
        return self.operator or self.code or Gate()


@dataclass
class Call:
    """What one `lease` may still hand out, and what it did."""

    startable: int
    record_start: bool
    leases: list[Lease] = field(default_factory=list)
    taken: list[tuple[str, Lease | None]] = field(default_factory=list)
    """By tier; None: it turned out to have expired."""
    visited: list[Lane] = field(default_factory=list)
    withheld: bool = False


def is_past(time: int | None, now: int) -> bool:
    return time is not None and time <= now


def first_of(most: int, things: Iterable[Any], key: Callable[[Any], Any]) -> list[Any]:
    return sorted(things, key=key)[:most]


def size_of(messages: Iterable[Message]) -> int:
    return sum(message.size for message in messages)


def explicit_due(draft: Draft, now: int) -> int | None:
    """When the publisher said that it is due; `at` goes before `delay`."""
    if draft.at_us is not None:
        return max(draft.at_us, now)
    return now + draft.delay_us if draft.delay_us > 0 else None


def merge_key(key: str | None, body: bytes) -> tuple[str, str | bytes]:
    """Its key, or its body where it has none."""
    return ("key", key) if key is not None else ("body", body)


def spread_by(key: str | None, merges_by: tuple[str, str | bytes] | None) -> bytes | None:
    """
    What picks the partition: the key, else the body that it merges by, else (None) its number.
    """
    if key is not None:
        return key.encode()
    return merges_by[1] if merges_by is not None and isinstance(merges_by[1], bytes) else None


def shape(policy: Resolved) -> tuple[Any, ...]:
    """What decides which lane a message goes to."""
    return (policy.partitions, policy.buckets, policy.buckets_pattern)


def signals_needed(headers: Mapping[str, str] | None) -> int:
    """For how many a message waits."""
    return int((headers or {}).get(SIGNALS_HEADER, "0"))


def moved(mean: int, cost: int) -> int:
    """A mean moves by an eighth of the difference."""
    return max(1, mean + (cost - mean) // 8)


def rate_now(lane: Lane, now: int) -> float:
    """
    Deliveries a second over about the last window of ten seconds: the present one's, and the fading
    part of the one before.
    """
    elapsed = now - lane.window_from
    here, before = (
        (lane.in_window, lane.in_window_before) if elapsed < RATE_WINDOW_US else (0, lane.in_window)
    )
    into = elapsed if elapsed < RATE_WINDOW_US else elapsed - RATE_WINDOW_US
    return (
        (here + before * max(0, RATE_WINDOW_US - into) / RATE_WINDOW_US) * SECOND / RATE_WINDOW_US
    )
