"""
The rows that a transaction works on. The order of fields is that of the columns.

Rows that a call changes many times are dataclasses: setting a field of one takes half of the time
that it takes with a msgspec struct. The others are structs: making one takes a seventh of the time,
and the garbage collector does not visit them. `Lane` is a struct because thousands are cached.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

from laneway.engines.base import Tally
from laneway.engines.shared import adaptive, fairness, gates
from laneway.engines.shared.adaptive import Flow, Share
from laneway.engines.shared.naming import BUCKET, PARTITION
from laneway.engines.shared.states import AT_GATE, IDLE, READY
from laneway.policy import Gate, Resolved
from laneway.topic_groups import GROUP, TOPIC

NO_RANK = -(1 << 53)
"""Less than any rank."""


NONE = 1 << 62
"""As the first time or virtual time of an order: it is empty."""

ANY_RANK = [NONE, 0]
"""In the first places of a lane, see `Lane.expect`."""

MOST_RANKS = 16
"""Ranks of a lane whose first places are stored, besides the first."""


class Lane(msgspec.Struct, eq=False, gc=False):
    """
    A row of `lane`. `tier_queue`: the number of its tier queue; below 0: of its group, negated. The
    fields from `retried` on are stored in `lane.more`, as JSON; those from
    `stored_placing` on are not stored. The places are drawn in `shared.states`.
    """

    lane: int
    name: str
    rule: str
    own: int
    tier_queue: int
    place: int = IDLE
    wake: int | None = None
    vt: int = 0
    gate: str | None = None  # at gates: where it waits; else where it waited last
    turn: int = 0  # its virtual time there
    old: int | None = None
    big: int | None = None
    busy: int | None = None
    slow: int | None = None
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
    first_rank: int = NO_RANK  # with `first_pos`: none of its ready messages has an earlier place
    first_pos: int = 0
    more: str | None = None

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
    held_since: int = 0  # a rate holds it back from then
    held_until: int = 0  # to then, which `throttled` does not count yet; 0: none does
    flow: Flow | None = None  # with concurrency="auto", from its first delivery on
    key_limits: str = ""  # under which messages were parked last, see `Resolved.key_limits`
    keys_recover: int = 0  # when the rates of all its keys have recovered
    gates: str | None = None  # at several gates: all of them, see `gates_key`
    turns: dict[str, int] | None = None  # its virtual times at others than `gate`
    ranks: list[list[int]] | None = None  # further first places, see `expect`
    # of a bucket: messages and bytes that wait of some of its topics, see backlog_limits
    folded: dict[str, list[int]] | None = None

    stored_placing: tuple[Any, ...] = ()  # these columns as they are stored
    stored_classes: tuple[int, ...] = ()
    # what tallies.py has counted of this lane
    counted_published: int = 0
    counted_delivered: int = 0
    counted_done: int = 0
    counted_waiting: int = 0
    counted_rare: tuple[int, int, int, int] = (0, 0, 0, 0)
    admitted: int = 0  # from when on its rate admitted the last delivery
    tally: Tally | None = None  # where it is counted; None: not known, see TallyBook
    placed_by: Resolved | None = None  # the policy by which tier queue and group are right
    policy: Resolved = Resolved()  # that of its rule, if it has none of its own,
    patterns: dict[str, str] | None = None  # under the policies that `Rules.patterns` is for
    is_new: bool = False
    forgotten: bool = False

    @property
    def waiting(self) -> int:
        return self.ready + self.delayed + self.parked

    @property
    def topic(self) -> str | None:
        """Its topic; None for a bucket."""
        return None if self.name[0] == BUCKET else self.rule

    @property
    def gates_key(self) -> str:
        """All gates that its deliveries go through, as it was placed; "": it is at none."""
        return (self.gates or self.gate or "") if self.place == AT_GATE else ""

    def turn_at(self, gate: str) -> int:
        """Its virtual time at a gate."""
        if gate == self.gate:
            return self.turn
        return self.turns.get(gate, 0) if self.turns is not None else 0

    def set_turn(self, gate: str, turn: int) -> None:
        """Set its virtual time at a gate."""
        if gate == self.gate:
            self.turn = turn
        else:
            self.turns = {**(self.turns or {}), gate: turn}

    def wait_at(self, gate: str) -> None:
        if gate == self.gate:
            return
        turn, turns = self.turn_at(gate), dict(self.turns or {})
        turns.pop(gate, None)
        if self.gate is not None and self.turn:
            turns[self.gate] = self.turn
        self.gate, self.turn, self.turns = gate, turn, turns or None

    def expect(self, rank: int, pos: int) -> bool:
        """
        A message becomes ready in this place. Returns whether that changes the first places.

        `first_rank` and `first_pos` are the first place of all; `ranks` are those of higher ranks,
        in order: no ready message is between one rank's messages and the next one's first place.
        `ANY_RANK` at the end: nothing is known of ranks behind the one before.
        """
        first, ranks = (self.first_rank, self.first_pos), self.ranks or []
        if rank <= first[0]:
            if (rank, pos) >= first:
                return False
            if rank < first[0]:
                ranks.insert(0, [*first])
        elif first[0] != NO_RANK or ranks:
            n = bisect_left(ranks, [rank])
            found = ranks[n] if n < len(ranks) else None
            if found == ANY_RANK or (found is not None and found[0] == rank and found[1] <= pos):
                return False
            if found is not None and found[0] == rank:
                found[1] = pos
            else:
                ranks.insert(n, [rank, pos])
            rank, pos = first
        if len(ranks) > MOST_RANKS:
            ranks[MOST_RANKS - 1 :] = [ANY_RANK]
        self.first_rank, self.first_pos, self.ranks = rank, pos, ranks or None
        return True

    def begin_at(self, rank: int, pos: int) -> None:
        """All ready messages before this place were delivered."""
        self.first_rank, self.first_pos = rank, pos
        if self.ranks is not None:
            self.ranks = [each for each in self.ranks if each[0] > rank and self.ready] or None

    def place_below(self, below: int) -> tuple[int, int]:
        """The first place of a rank below this one, as large a rank as it is known for."""
        rank, pos = self.first_rank, self.first_pos
        for each in self.ranks or ():
            if each[0] < below:
                rank, pos = each
        return rank, pos

    def begin_rank_at(self, rank: int, pos: int) -> bool:
        """No ready message of this rank has an earlier position. Returns whether that is news."""
        is_news = rank == self.first_rank and pos > self.first_pos
        if is_news:
            self.first_pos = pos
        for each in self.ranks or ():
            if each[0] == rank and pos > each[1]:
                each[1], is_news = pos, True
        return is_news

    def first_places(self) -> list[tuple[int, int, int]]:
        """Where to read ready messages: from a rank and a position to the last rank."""
        places = [(self.first_rank, self.first_pos)]
        places += [(rank, pos) for rank, pos in self.ranks or () if rank != NONE]
        ends = [rank for rank, _ in places[:-1]]
        return [(*place, end) for place, end in zip(places, [*ends, NONE], strict=True)]

    def count_folded(self, topic: str | None, count: int, size: int) -> None:
        """
        Messages and bytes of a topic came to wait in a bucket; below 0: they left. Topics that are
        not in `folded` are not counted.
        """
        folded = self.folded or {}
        counts = folded.get(topic or "")
        if counts is not None:
            counts[0] += count
            counts[1] += size
            if counts[0] <= 0:
                self.folded = {each: n for each, n in folded.items() if n is not counts} or None

    def hold(self, now: int, until: int) -> None:
        """Count for how long a rate held it back until now; it does so until then."""
        self.throttled += fairness.held_us(self.held_since, self.held_until, now)
        self.held_since, self.held_until = (now, until) if until > now else (0, 0)

    def placing(self) -> tuple[Any, ...]:
        """The columns PLACING, as they are bound."""
        return (
            self.tier_queue,
            self.place,
            self.wake or 0,
            self.vt,
            self.gate or 0,
            self.turn,
            self.old or 0,
        )

    def classes(self) -> tuple[int, ...]:
        """The columns CLASSES, as they are bound."""
        return (
            (self.big or 0, self.busy or 0, self.slow or 0)
            if self.big or self.busy or self.slow
            else (0, 0, 0)
        )

    def counts(self) -> tuple[Any, ...]:
        """The other columns that change, COUNTS, and its number."""
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
            self.first_rank,
            self.first_pos,
            self.more or 0,
            self.lane,
        )

    def set_counted(self) -> None:
        """The lane was just read: what it counts is in the tallies."""
        self.counted_published, self.counted_delivered = self.published, self.delivered
        self.counted_done = self.done
        self.counted_waiting = self.ready + self.delayed + self.parked
        self.counted_rare = (self.retried, self.died, self.merged, self.throttled)

    def unpack(self) -> None:
        for name, value in zip(MORE, msgspec.json.decode(self.more or "[]"), strict=False):
            setattr(self, name, value)
        if self.flow is not None:
            self.flow = msgspec.convert(self.flow, Flow)

    def pack(self) -> None:
        """Encode `more`."""
        values: tuple[Any, ...] = (
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
            self.held_since,
            self.held_until,
        )
        seldom = (
            self.flow,
            self.key_limits,
            self.keys_recover,
            self.gates,
            self.turns,
            self.ranks,
            self.folded,
        )
        if any(seldom):
            values = (*values, *seldom)
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
    first_vt: int = 0  # none of its runnable lanes has an earlier one,
    first_lane: int = 0  # nor, at this virtual time, a smaller number
    first_group_vt: int = 0  # none of its groups with runnable lanes,
    first_gate_vt: int = 0  # and none that is first at an open gate


class GroupTurn(msgspec.Struct, gc=False):
    """
    A row of `group_turn`: the virtual times of a group at a gate, its own and that of its lane
    served last there; and how many of its lanes wait there.
    """

    turn: int = 0
    inner: int = 0
    waiting: int = 0


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
    weight: float = 1.0
    limited: int = 0
    first_vt: int = 0  # none of its runnable lanes has an earlier one

    is_stored: bool = True
    turns: dict[str, GroupTurn] = field(default_factory=dict)
    """By gate, as far as they were read. At its own gate a group is no entry."""


MEAN_OVER = 8
"""A mean duration moves by this part of each new one's difference."""


class Row(msgspec.Struct, gc=False):
    """
    A row of `message`; the states are drawn in `shared.states`. Few messages have one of the fields
    from `state` on.
    """

    mid: int
    lane: int
    rank: int
    seq: int
    since: int
    published: int
    expires: int | None
    key: str | None
    id: str | None
    headers: str | None
    body: bytes
    serial: int = 0
    state: int = READY
    odd: int = 0
    topic: str | None = None
    mkey: bytes | None = None
    attempts: int = 0
    deliveries: int = 0
    suspect: int = 0
    joined: int = 0
    parts: int = 0
    sticky: int = 0

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
        """
        Whether `note` may have a row of it: leases that ended without an ack write it, and deaths,
        after which a redrive makes the row odd.
        """
        return self.deliveries or self.odd


def line_of(topic: str | None, key: str | None) -> str | None:
    """The serial key of a message with this key; `topic`: set in a bucket."""
    return key if topic is None or key is None else f"{topic}{PARTITION}{key}"


class Ended(msgspec.Struct, gc=False):
    """
    What the end of an acked message needs to know of it, see `leases_and_messages`. `gate`, `slot`,
    `granted`: those of its lease, if the lease is cached.
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
    granted: int = 0

    @property
    def line(self) -> str | None:
        return line_of(self.topic, self.key)


@dataclass(slots=True, eq=False)
class Shard:
    """The row of `shard`: the counters of the whole store."""

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
    first_event: int
    first_end: int
    first_timer: int
    first_asleep: int
    first_idle: int
    first_wake: int
    first_sweep: int
    tallies: Any  # bytes, see tallies.py; None: nothing was counted

    @property
    def firsts(self) -> tuple[int, ...]:
        """
        Before these times there is no event, no end of leases, no timer, no lane that is asleep, no
        idle lane, and nothing of what `first_wake` is for.
        """
        return (
            self.first_event,
            self.first_end,
            self.first_timer,
            self.first_asleep,
            self.first_idle,
            self.first_wake,
        )

    def expect_wake(self, at: int | None) -> None:
        """A gate or a key wakes then, or a known id, a window or a result ends."""
        if at and at < self.first_wake:
            self.first_wake = at


class GateState(msgspec.Struct, gc=False):
    """
    A row of `gate`, with the limits in force.

    `turn`: the virtual time there of the entry that was served last. `mean`: of the time between a
    lease and its end. `holder`, `need`, `held_until`: see `room`; `held_turn`: the turn of the
    holder. `owes`: the cost of its last delivery, if above 1. `waiting`: how many lanes at gates go
    through it. `claimed`: see `gates.has_spare`.
    `granted`: this store's part of the gate, where the namespace has several. `whole`: the
    limits of the gate, `limits`: those of this store, and `here` these without what adapts. `flow`:
    of a topic whose concurrency adapts, from its first delivery on.

    The gate of a topic with partitions is set when its lanes are placed: `code` is the limits of
    the topic, `operator` this store's part of them while nothing is granted.
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
    turn: int = 0
    mean: int = 0
    holder: int = 0
    waiting: int = 0
    claimed: int = 0
    held_turn: int = 0
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
        """What the store has of a limit that adapts."""
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
        Set or end the store's grant. It has as many permits as before, and `more`, so that permits
        that another store used are not used again. Returns those that it has no more.
        """
        had = gates.permits(self.limits, self.tat, now, self.owes)
        self.granted = None if granted is None else to_sorted_json(granted).decode()
        self.has_new_grant = granted is not None
        self.set_limits()
        limits = self.limits
        has = min(had + more, limits.effective_burst) if limits.rate is not None else 0.0
        self.tat, self.owes = gates.with_permits(limits, has, now)
        return had + more - has

    def _use_turn(self, taken: int, left: int) -> None:
        """So many deliveries are from its turn, see `sharded.grants`."""
        granted = msgspec.structs.replace(self.here, left=max(0, left - taken))
        self.granted = to_sorted_json(granted).decode()
        self.has_new_grant = True
        self.set_limits()

    def adapt(self) -> None:
        """The limit that adapts may have changed."""
        self.limits = gates.adapted(self.whole, self.here, self.flow)

    def is_held(self, now: int) -> bool:
        """Whether something is held for the lane `holder`."""
        return now < self.held_until

    def room(self, now: int, lane: int = 0, *, precedes: bool = False) -> int:
        """
        How many deliveries of a lane it admits now, see `gates.room`. `precedes`: nothing is kept
        from it.
        """
        is_holder = now < self.held_until and self.holder == lane
        kept = self.need if now < self.held_until and (is_holder or not precedes) else 0
        return gates.room(
            self.limits, self.tat, self.leased, now, self.owes, kept, is_holder=is_holder
        )

    def has_spare(self, now: int, claimed: int = 0) -> bool:
        """
        Whether it decides nothing now, see `gates.has_spare`. Grants move to the stores where lanes
        wait at a gate, and what the partitions of a topic share is theirs alone: both decide.
        """
        if self.granted is not None or now < self.held_until or self.name.startswith(TOPIC):
            return False
        return gates.has_spare(self.limits, self.tat, self.leased, now, self.owes, claimed)

    @property
    def debt(self) -> gates.Debt:
        """What it owes and keeps."""
        return gates.Debt(self.need, self.held_until, self.owes, self.holder)

    def is_open(self, now: int) -> bool:
        """Whether it admits a delivery of some lane."""
        return self.room(now) > 0 or (now < self.held_until and self.room(now, self.holder) > 0)

    def opens(self, now: int) -> int | None:
        """When it may admit more by the clock alone, see `gates.opens_us`."""
        return gates.opens_us(self.limits, self.tat, self.leased, now, self.debt)

    def interval(self, need: int = 1) -> int:
        """Microseconds between deliveries of `need` permits that it admits, if it is used up."""
        rate_us = 0
        if self.limits.rate is not None:
            rate_us = fairness.interval(self.limits.rate) // fairness.TICKS * max(self.owes, need)
        return max(rate_us, self.mean // max(self.limits.concurrency or 1, 1))

    def time_to_open(self, now: int, lane: int, need: int = 1) -> int:
        """
        Microseconds until it is expected to admit a delivery of the lane that uses `need` permits;
        `gates.FOREVER_US`: not known, or it cannot while it is held for another lane.
        """
        limits, wait = self.limits, 0
        is_kept = now < self.held_until and self.holder != lane
        if limits.rate is not None:
            need += self.need if is_kept else 0
            if is_kept and need > limits.effective_burst:
                return gates.FOREVER_US
            wait = (gates.next_permit_us(limits, self.tat, now, need, self.owes) or now) - now
        if limits.concurrency is not None and self.leased + is_kept >= limits.concurrency:
            if not self.mean:
                return gates.FOREVER_US
            wait = max(wait, self.mean // max(limits.concurrency, 1) // 2)
        return wait

    def next_permit(self, now: int) -> int:
        """When its rate admits the next delivery."""
        return gates.next_permit_us(self.limits, self.tat, now, 1, self.owes) or now

    def clock(self, now: int) -> tuple[int, float, float] | None:
        """TAT, rate and burst, for `fairness.admitted`; None: it has no rate."""
        limits = self.limits
        if limits.rate is None:
            return None
        tat = gates.rebase(limits, self.tat, now, self.owes)
        return tat, limits.rate, limits.effective_burst

    def hold(self, now: int, lane: int, turn: int, need: int, for_us: int) -> None:
        """Keep so many permits, or a slot, for the lane, whose turn here is this."""
        self.holder, self.need, self.held_until, self.held_turn = lane, need, now + for_us, turn

    def hold_for(self, now: int, lane: int, turn: int, wait: int, need: int = 1) -> None:
        """
        Keep permits, or a slot, for the lane while it waits for another gate, if that opens within
        a part of the time of this delivery through this one: so little is lost. Or if others can
        use the rate meanwhile: then until it is the lane's turn there.
        """
        is_held = now < self.held_until
        is_holder = is_held and self.holder == lane
        is_free = not is_held and gates.keeps_up(self.limits, need, self.owes)
        if wait >= gates.FOREVER_US or not (
            is_holder or is_free or 5 * wait <= 3 * self.interval(need)
        ):
            return
        for_us = gates.HOLD_US if is_free else min(3 * wait + gates.LATE_US, gates.HOLD_US)
        if is_holder:  # it may need more permits
            need, for_us = max(need, self.need), max(for_us, self.held_until - now)
        self.hold(now, lane, turn, need, for_us)

    def end_hold(self, lane: int) -> bool:
        """End what is held for the lane; answers whether something was."""
        if self.holder != lane:
            return False
        self.holder = self.need = self.held_until = 0
        return True

    def rebase(self, now: int) -> None:
        """Its rate was changed."""
        self.tat = gates.rebase(self.limits, self.tat, now, self.owes)

    def take(self, lane: int, taken: int, permits: int, largest: int, now: int) -> None:
        """
        So many deliveries of a lane go through it; they use so many permits, one of them `largest`.
        """
        self.leased += taken
        self.claimed = max(0, self.claimed - 1)
        if self.here.left is not None:
            self._use_turn(taken, self.here.left)
        self.tat = gates.take(self.limits, self.tat, permits, now, self.owes)
        if self.limits.rate is not None:
            self.owes = largest if largest > 1 else 0
        self.end_hold(lane)
        if self.whole.least is not None:
            self.flow = self.flow or Flow(changed=now)
            adaptive.delivered(self.flow, self.leased, self.limits.concurrency or 0)

    def free(self, took_us: int) -> None:
        """A lease ended, after so many microseconds."""
        self.leased -= 1
        if self.limits.concurrency is not None:
            took = max(took_us, 1)
            self.mean = max(1, self.mean + (took - self.mean) // MEAN_OVER) if self.mean else took

    def reset(self) -> None:
        """Forget what deliveries have used and costs owe; its leases stay."""
        self.tat = self.owes = 0
        self.end_hold(self.holder)

    def give_back(self, returned: int, since_us: int) -> None:
        """Return the permits of a delivery that never began, taken `since_us` ago."""
        self.tat = gates.give_back(self.limits, self.tat, returned, since_us)


to_json = msgspec.json.Encoder().encode
to_sorted_json = msgspec.json.Encoder(order="sorted").encode
read_headers = msgspec.json.Decoder(dict[str, str]).decode

_LANE = Lane.__struct_fields__
LANE_COLUMNS = _LANE[: _LANE.index("retried")]
MORE = _LANE[len(LANE_COLUMNS) : _LANE.index("stored_placing")]
_NOTHING_MORE = (0,) * MORE.index("flow")  # `flow` and what follows are seldom stored
GROUP_COLUMNS = tuple(each.name for each in fields(GroupQueue))[:-2]
ROW_COLUMNS = Row.__struct_fields__
HEAD_COLUMNS = ROW_COLUMNS[: ROW_COLUMNS.index("state")]


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
    holder: str | None = None


def rank_of(priority: int, *, at_front: bool) -> int:
    """The rank of a message: what its lane is sorted by first, the highest priority first."""
    return -2 * priority + (0 if at_front else 1)
