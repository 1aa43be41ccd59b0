"""
The rows that a transaction works on. The order of fields is that of the columns.

Rows that a call changes many times are dataclasses: setting a field of one takes a fifth of the
time that it takes with a msgspec struct. The others are structs, which are made faster.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.engines.shared import adaptive, fairness, gates
from laneway.engines.shared.adaptive import Flow
from laneway.engines.shared.naming import BUCKET, PARTITION
from laneway.engines.shared.states import IDLE
from laneway.policy import Gate, Resolved
from laneway.topic_groups import GROUP, TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.engines.base import Tally
    from laneway.engines.shared.adaptive import Share


@dataclass(slots=True, eq=False)
class Lane:
    """
    A row of `lane`. `tier_queue`: the number of its tier queue; below 0: of its group, negated. The
    fields from `retried` on are stored in `lane.more`, as JSON; those from
    `stored_index` on are not stored. The places are drawn in `shared.states`.
    """

    lane: int
    name: str
    rule: str
    own: int
    tier_queue: int
    place: int = IDLE
    wake: int | None = None
    vt: int = 0
    gate: str | None = None
    tat: int = 0
    ready: int = 0
    delayed: int = 0
    parked: int = 0
    leased: int = 0
    bytes: int = 0
    published: int = 0
    delivered: int = 0
    done: int = 0
    seen: int = 0
    lately: int = 0
    before: int = 0
    more: str | None = None
    big: int | None = None
    old: int | None = None
    busy: int | None = None
    slow: int | None = None

    retried: int = 0
    died: int = 0
    merged: int = 0
    expired: int = 0
    removed: int = 0
    throttled: int = 0
    back_off_until: int = 0
    back_off_step: int = 0  # above 0: the topic backs off, or probes its destination
    back_off_fence: int = 0
    mean: int = 0
    watched_until: int = 0  # changes are notified until then, see Wakeup.watch_topic
    # 0: all its messages cost 1; above 1: what the first of them costs, if the rate stopped it
    need: int = 0
    owes: int = 0  # the cost of the last message that it delivered, if above 1
    flow: Flow | None = None  # with concurrency="auto", from its first delivery on
    key_limits: str = ""  # under which messages were parked last, see `Resolved.key_limits`
    keys_recover: int = 0  # when the rates of all its keys have recovered

    stored_index: tuple[Any, ...] = ()  # the indexed columns as they are stored
    # what tallies.py has counted of this lane
    counted_published: int = 0
    counted_delivered: int = 0
    counted_done: int = 0
    counted_waiting: int = 0
    counted_rare: tuple[int, int, int, int] = (0, 0, 0, 0)
    tally: Tally | None = None  # where it is counted; None: not known, see TallyBook
    placed_by: Resolved | None = None  # the policy by which tier queue and group are right
    is_new: bool = False
    forgotten: bool = False

    @property
    def waiting(self) -> int:
        """How many of its messages wait."""
        return self.ready + self.delayed + self.parked

    @property
    def topic(self) -> str | None:
        """Its topic; None for a bucket."""
        return None if self.name[0] == BUCKET else self.rule

    def index_columns(self) -> tuple[Any, ...]:
        """The columns that indexes have: PLACING, then CLASSES."""
        return (
            self.tier_queue,
            self.place,
            self.wake,
            self.vt,
            self.gate,
            self.big,
            self.old,
            self.busy,
            self.slow,
        )

    def counts(self) -> tuple[Any, ...]:
        """The other columns that change: COUNTS."""
        return (
            self.tat,
            self.ready,
            self.delayed,
            self.parked,
            self.leased,
            self.bytes,
            self.published,
            self.delivered,
            self.done,
            self.seen,
            self.lately,
            self.before,
            self.more or 0,
        )

    def set_counted(self) -> None:
        """The lane was just read: what it counts is in the tallies."""
        self.counted_published = self.published
        self.counted_delivered = self.delivered
        self.counted_done = self.done
        self.counted_waiting = self.ready + self.delayed + self.parked
        self.counted_rare = (self.retried, self.died, self.merged, self.throttled)

    def unpack(self) -> None:
        """Decode `more`."""
        for name, value in zip(MORE, msgspec.json.decode(self.more or "[]"), strict=False):
            setattr(self, name, value)
        if self.flow is not None:
            self.flow = msgspec.convert(self.flow, Flow)

    def pack(self) -> None:
        """Encode `more`."""
        values = (
            self.retried,
            self.died,
            self.merged,
            self.expired,
            self.removed,
            self.throttled,
            self.back_off_until,
            self.back_off_step,
            self.back_off_fence,
            self.mean,
            self.watched_until,
            self.need,
            self.owes,
        )
        if self.key_limits or self.keys_recover:
            keys = (self.key_limits, self.keys_recover)
            self.more = msgspec.json.encode((*values, self.flow, *keys)).decode()
            return
        if self.flow is not None:
            self.more = msgspec.json.encode((*values, self.flow)).decode()
            return
        self.more = msgspec.json.encode(values).decode() if values != _NOTHING_MORE else None


@dataclass(slots=True, eq=False)
class TierQueue:
    """A row of `tier_queue`: the lanes of one tier of one pool."""

    number: int
    pool: str
    tier: str
    vt: int
    carry: int
    mean: int
    delivered: int


@dataclass(slots=True, eq=False)
class GroupQueue:
    """A row of `group_queue`: the lanes of one group in a tier queue."""

    number: int
    tier_queue: int
    name: str
    vt: int
    inner_vt: int
    lanes: int = 0
    runnable: int = 0
    at_gate: int = 0
    weight: float = 1.0
    limited: int = 0

    is_stored: bool = True

    @property
    def competing(self) -> int:
        """How many of its lanes are runnable or at a gate."""
        return self.runnable + self.at_gate


class Row(msgspec.Struct, gc=False):
    """A row of `message`; the states are drawn in `shared.states`."""

    mid: int
    lane: int
    state: int
    rank: int
    seq: int
    since: int
    published: int
    expires: int | None
    serial: int
    odd: int
    key: str | None
    id: str | None
    topic: str | None
    mkey: bytes | None
    headers: str | None
    attempts: int
    deliveries: int
    suspect: int
    joined: int
    parts: int
    sticky: int
    body: bytes

    @property
    def pos(self) -> int:
        """Its position in its rank: by since; of messages at the front, the latest first."""
        return self.since if self.rank & 1 else -self.seq

    @property
    def priority(self) -> int:
        return -(self.rank >> 1)

    @property
    def line(self) -> str | None:
        """Its serial key: in a bucket, which has several topics, with its topic."""
        return line_of(self.topic, self.key)

    @property
    def has_note(self) -> int:
        """Whether `note` may have a row of it: leases that ended without an ack write it."""
        return self.deliveries


def line_of(topic: str | None, key: str | None) -> str | None:
    """The serial key of a message with this key; `topic`: set in a bucket."""
    return key if topic is None or key is None else f"{topic}{PARTITION}{key}"


class Ended(msgspec.Struct, gc=False):
    """
    What the end of an acked message needs to know of it, see `leases_and_messages`. `gate`, `slot`:
    those of its lease, if the lease is cached.
    """

    mid: int
    id: str | None
    topic: str | None
    key: str | None
    serial: int
    joined: int
    parts: int
    sticky: int
    since: int
    has_note: int
    gate: str | None = None
    slot: str | None = None

    @property
    def line(self) -> str | None:
        """As `Row.line`."""
        return line_of(self.topic, self.key)


@dataclass(slots=True, eq=False)
class Shard:
    """The row of `shard`: the counters of the whole file."""

    nonce: str
    seq: int
    fence: int
    now: int
    policy_version: int
    waiting: int
    bytes: int
    leased: int
    dead: int
    published: int
    delivered: int
    done: int
    retried: int
    died: int
    merged: int
    expired: int
    removed: int
    lanes: int
    own: int
    tallies: Any  # bytes, see tallies.py; None: nothing was counted


class GateState(msgspec.Struct, gc=False):
    """
    A row of `gate`, with the limits in force.

    `need`, `held_until`, `owes`: see `gates.Debt`.
    `granted`: this file's part of the gate, where the namespace has several files. `whole`: the
    limits of the gate, `limits`: those of this file, and `here` these without what adapts. `flow`:
    of a topic whose concurrency adapts, from its first delivery on.

    The gate of a topic with partitions is set when its lanes are placed: `code` is the limits of
    the topic, `operator` this file's part of them while nothing is granted.
    """

    name: str
    code: str | None
    operator: str | None
    tat: int
    leased: int
    open: int
    wake: int | None
    need: int = 0
    held_until: int = 0
    owes: int = 0
    flow: Any = None  # a Flow; as it is stored: JSON
    granted: str | None = None
    has_new_grant: bool = False
    whole: Gate = Gate()
    here: Gate = Gate()
    limits: Gate = Gate()

    def __post_init__(self) -> None:
        if self.flow is not None:
            self.flow = msgspec.json.decode(self.flow, type=Flow)
        self.set_limits()

    @property
    def share(self) -> Share | None:
        """What the file has of a limit that adapts."""
        return gates.share_of(self.whole, self.here, self.flow, self.leased)

    def set_limits(self) -> None:
        """Read the limits from the layers and the grant."""
        layers = [
            msgspec.json.decode(text, type=Gate) for text in (self.operator, self.code) if text
        ]
        if len(layers) == 2 and self.name.startswith(GROUP):
            self.whole = self.here = layers[0].over(layers[1])
        elif layers:
            self.whole = self.here = layers[0]
            if self.name.startswith(TOPIC):
                self.whole = layers[-1]
        if self.granted is not None:
            self.here = msgspec.json.decode(self.granted, type=Gate)
        self.adapt()

    def grant(self, granted: Gate | None, now: int, more: float = 0.0) -> float:
        """
        Set or end the file's grant. It has as many permits as before, and `more`, so that permits
        that another file used are not used again. Returns those that it has no more.
        """
        had = gates.permits(self.limits, self.tat, now, self.owes)
        self.granted = None if granted is None else _dumps(granted).decode()
        self.has_new_grant = granted is not None
        self.set_limits()
        limits = self.limits
        has = min(had + more, limits.effective_burst) if limits.rate is not None else 0.0
        self.tat, self.owes = gates.with_permits(limits, has, now)
        return had + more - has

    def _use_turn(self, taken: int) -> None:
        """So many deliveries are from its turn, see `sharded.grants`."""
        if self.here.left is not None:
            left = max(0, self.here.left - taken)
            self.granted = _dumps(msgspec.structs.replace(self.here, left=left)).decode()
            self.has_new_grant = True
            self.set_limits()

    def adapt(self) -> None:
        """The limit that adapts may have changed."""
        self.limits = gates.adapted(self.whole, self.here, self.flow)

    def room(self, now: int) -> int:
        """How many deliveries it admits now."""
        need = self.need if now < self.held_until else 1
        return gates.room(self.limits, self.tat, self.leased, now, need, self.owes)

    def opens(self, now: int) -> int | None:
        """When it opens by the clock, see `gates.opens_us`."""
        debt = gates.Debt(self.need, self.held_until, self.owes)
        return gates.opens_us(self.limits, self.tat, self.leased, now, debt)

    def shut_for(self, now: int) -> int:
        """For how long its rate shuts it, as it is counted."""
        at = gates.next_permit_us(self.limits, self.tat, now, 1, self.owes)
        return 0 if at is None else fairness.held_back_us(now, now, at)

    def clock(self, now: int) -> tuple[int, float, float] | None:
        """TAT, rate and burst, for `fairness.admitted`; None: it has no rate."""
        limits = self.limits
        if limits.rate is None:
            return None
        tat = gates.rebase(limits, self.tat, now, self.owes)
        return tat, limits.rate, limits.effective_burst

    def hold(self, cost: int, now: int) -> None:
        """Keep its permits for a delivery of that cost."""
        if now >= self.held_until or cost > self.need:
            self.need = cost
        self.held_until = now + gates.HOLD_US

    def rebase(self, now: int) -> None:
        """Its rate was changed."""
        self.tat = gates.rebase(self.limits, self.tat, now, self.owes)

    def take(self, taken: int, permits: int, largest: int, now: int) -> None:
        """So many deliveries go through it; they use so many permits, one of them `largest`."""
        self.leased += taken
        self._use_turn(taken)
        if self.limits.rate is not None:
            self.tat = gates.take(self.limits, self.tat, permits, now, self.owes)
            self.owes = largest if largest > 1 else 0
        if largest >= self.need:
            self.need = self.held_until = 0
        if self.whole.least is not None:
            self.flow = self.flow or Flow(changed=now)
            adaptive.delivered(self.flow, self.leased, self.limits.concurrency or 0)

    def reset(self) -> None:
        """Forget what deliveries have used and costs owe; its leases stay."""
        self.tat = self.need = self.held_until = self.owes = 0

    def give_back(self, returned: int, since_us: int) -> None:
        """Return the permits of a delivery that never began, taken `since_us` ago."""
        self.tat = gates.give_back(self.limits, self.tat, returned, since_us)


class LaneGates:
    """
    The gates of a lane. A delivery goes through all of them in one step, or is not made.

    `key`: the value of `lane.gate`, `lease.gate` and `gate_entry.gate`: their names, joined by
    `GATE_SEPARATOR`. Lanes with the same gates wait in one index. None among the `states`: a gate
    that is not defined, which admits nothing.
    """

    __slots__ = ("key", "states")

    def __init__(self, key: str, states: Sequence[GateState | None]) -> None:
        self.key = key
        self.states = states

    def room(self, now: int) -> int:
        """How many deliveries all of them admit now."""
        return min([0 if state is None else state.room(now) for state in self.states])

    def largest_cost(self, by_policy: int) -> int:
        """
        The most that a delivery is charged. What the partitions of a topic share says nothing: the
        policy does.
        """
        of_gates = [
            state.whole.largest_cost for state in self.defined if not state.name.startswith(TOPIC)
        ]
        return min([by_policy, *of_gates])

    @property
    def defined(self) -> list[GateState]:
        """Those that are defined."""
        return [state for state in self.states if state is not None]


def _names(row: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(row))


_dumps = msgspec.json.Encoder(order="sorted").encode

_LANE = _names(Lane)
LANE_COLUMNS = _LANE[: _LANE.index("retried")]
MORE = _LANE[len(LANE_COLUMNS) : _LANE.index("stored_index")]
_NOTHING_MORE = (0,) * MORE.index("flow")  # `flow` and what follows are seldom stored
TIER_QUEUE_COLUMNS = _names(TierQueue)
GROUP_COLUMNS = _names(GroupQueue)[:-1]
ROW_COLUMNS = Row.__struct_fields__


class Held(msgspec.Struct, gc=False):
    """A row of `lease`."""

    fence: int
    mid: int
    lane: int
    deadline: int
    granted: int
    charge: int
    started: int
    gate: str | None
    empty: str | None
    gone: int
    slot: str | None = None


def rank_of(priority: int, *, at_front: bool) -> int:
    """The rank of a message: what its lane is sorted by first, the highest priority first."""
    return -2 * priority + (0 if at_front else 1)
