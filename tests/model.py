"""
The behaviour of an engine in plain Python without storage: docs/behaviour.md as a program.

Lists and dicts, sorted and scanned at every question; nothing is indexed, nothing is remembered that could be worked out. It implements
the protocol of `fairlead.engines.base`, so that `tests/stateful` can drive it and an engine with the same random histories. The formulas
(rates, virtual time, shares) and the resolution of policies are shared with the engines; everything else is said here once more.

It reads from the top: what there is · the clock · publishing · waiting · serving · settling · the end of a message · policies · looking.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead.engines import fairness
from fairlead.engines.base import (
    BRING_IN,
    REST_FIRST_US,
    REST_MOST_US,
    STICKY_US,
    UNHANDLED_DEAD_US,
    UNHANDLED_FIRST_US,
    UNHANDLED_MOST_US,
    Explanation,
    MessageView,
    Overview,
    TierStats,
    TopicStats,
)
from fairlead.errors import BadMessage, BadPolicy, TopicInUse, UsageError
from fairlead.message import Batch, Draft, Lease, Receipt, Settlement
from fairlead.policy import DEFAULT_TIERS, FOREVER, Gate, Layer, PolicyBook, Resolved, Tier, check_fields, check_pattern, matches
from fairlead.units import SECOND

LINGER_US = {"messages": SECOND, "time": 60 * SECOND}  # how long a lane with nothing in it is remembered, by what its tier is fair by
FIRST_COST_US = SECOND  # what a message is taken to cost in a tier that is fair by time, before anything is known
STEP = 16  # what is handed out ahead of what the caller can start goes in steps of this size
RATE_WINDOW_US = 10 * SECOND  # over which `rate_now` is measured
HISTORY = 20  # troubles of a message that are remembered
MAX_WAIT_WINDOWS = 10  # default of `max_wait`
CAN_DELIVER = ("runnable", "at_gate")

COUNTERS = ("published", "delivered", "done", "retried", "died", "merged", "expired", "removed")


# What there is


@dataclass(eq=False)
class Message:
    """`state`: waiting, leased or dead. A waiting one is delayed until housekeeping brings it in; then it stands in its lane's order."""

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

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Its place in its lane: priority, at_front (the latest first), since, number."""
        return (-self.priority, 0, -self.number, 0) if self.at_front else (-self.priority, 1, self.since, self.number)

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
    """A lease. `message` None: at most once, the message is finished and its lease keeps the slots (and the serial `line`)."""

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
    band: Band
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
    collectors: dict[tuple[str, str, str | bytes], Message] = field(default_factory=dict)  # whom newcomers join
    holders: dict[tuple[str, str | None], Message | Held] = field(default_factory=dict)  # who holds a serial key


@dataclass(eq=False)
class Band:
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
    visited: list[Lane] = field(default_factory=list)
    withheld: bool = False


class Model:
    """Engine and Desk."""

    def __init__(
        self,
        tiers: dict[str, Tier] | None = None,
        *,
        random: Callable[[], float] = lambda: 1.0,
        max_backlog: int | None = None,
        max_backlog_bytes: int | None = None,
        on_full: str = "refuse",
    ) -> None:
        self.tiers = tiers or {name: Tier.of(share) for name, share in DEFAULT_TIERS.items()}
        self.random = random
        self.max_backlog, self.max_backlog_bytes, self.on_full = max_backlog, max_backlog_bytes, on_full
        self.now = 0
        self.number = 0  # the last sequence number
        self.fence = 0
        self.deaths = 0
        self.lanes_made = 0
        self.counts: Counter[str] = Counter()
        self.messages: list[Message] = []
        self.leases: dict[int, Held] = {}
        self.lanes: dict[str, Lane] = {}
        self.bands: dict[tuple[str, str], Band] = {}
        self.gates: dict[str, GateState] = {}
        self.finished: dict[tuple[str, str], int | None] = {}  # (topic, id): until when it is known, None: for ever
        self.edges: dict[tuple[str, tuple[str, str | bytes]], int] = {}  # edge="leading": when the window of a key ends
        self.book = PolicyBook(self.tiers)
        self.deadlines_given: set[int] = set()

    # The clock

    def _time(self, now_us: int | None) -> int:
        """The clock never goes back."""
        return max(self.now, now_us or 0)

    def tick(self, *, budget: int = BRING_IN, now_us: int | None = None) -> int | None:
        self.now = self._time(now_us)
        self._keep_house(budget)
        return self._next_wake()

    def _keep_house(self, budget: int) -> None:
        """Events one by one, then gates and lanes that wake, then lanes to forget; at most `budget` of each."""
        for _ in range(budget):
            event = self._next_event()
            if event is None or event[0] > self.now:
                break
            event[3](event[4])
        for gate in _first(budget, [gate for gate in self.gates.values() if _is_past(gate.wake, self.now)], lambda gate: (gate.wake, gate.name)):
            self._look_at_gate(gate)
        for lane in _first(budget, self._lanes_to_wake("asleep"), lambda lane: (lane.wake, lane.number)):
            self._place(lane)
        for lane in _first(budget, self._lanes_to_wake("idle"), lambda lane: (lane.wake, lane.number)):
            del self.lanes[lane.name]

    def _next_event(self) -> tuple[int, int, int, Callable[[Any], None], Any] | None:
        """(when, kind, number, what happens, to what): by time, then by kind, then by fence or by the order of acceptance."""
        events: list[tuple[int, int, int, Callable[[Any], None], Any]] = [
            (lease.deadline, 1, lease.fence, self._run_out, lease) for lease in self.leases.values()
        ]
        for message in self.messages:
            if message.state == "waiting" and message.delayed:
                events.append((message.since, 2, message.handle, self._come_due, message))
            if message.state == "waiting" and message.expires is not None:
                events.append((message.expires, 3, message.handle, self._expire_waiting, message))
            if message.death is not None:
                events.append((message.death.until, 4, message.handle, self._forget_dead, message))
        return min(events, key=lambda event: event[:3], default=None)

    def _lanes_to_wake(self, place: str) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.place == place and _is_past(lane.wake, self.now)]

    def _next_wake(self) -> int | None:
        """When there is something to do again. An engine may also name a deadline that a lease had before it was settled or extended."""
        event = self._next_event()
        times = [event[0] if event is not None else None]
        times += [lane.wake for lane in self.lanes.values() if lane.place in ("asleep", "idle")]
        times += [gate.wake for gate in self.gates.values()]
        return max((min(known), self.now)) if (known := [time for time in times if time is not None]) else None

    def _come_due(self, message: Message) -> None:
        message.delayed = False
        if message.lane.place == "idle":
            self._place(message.lane)

    def _expire_waiting(self, message: Message) -> None:
        lane = message.lane
        self._expire(message)
        self._place(lane)

    # Publishing

    def put(self, drafts: Sequence[Draft], *, now_us: int | None = None) -> list[Receipt]:
        if not drafts:
            return []
        self._check_drafts(drafts, self._time(now_us))
        self.now = self._time(now_us)
        return self._put(drafts)

    def _check_drafts(self, drafts: Iterable[Draft], now: int) -> None:
        for draft in drafts:
            policy = self.book.resolve(draft.topic)
            if len(draft.body) > policy.max_body:
                raise BadMessage("over max_body")
            ttl = draft.ttl_us if draft.ttl_us is not None else policy.ttl
            due = _explicit_due(draft, now)
            if ttl is not None and due is not None and due >= now + ttl:
                raise BadMessage("its delay outlasts its ttl")

    def _put(self, drafts: Iterable[Draft]) -> list[Receipt]:
        arrivals: list[Lane] = []
        receipts = [self._accept(draft, self.book.resolve(draft.topic), arrivals) for draft in drafts]
        for lane in arrivals:
            if lane.place == "idle" or not self._ready(lane):
                self._place(lane)
        return receipts

    def _accept(self, draft: Draft, policy: Resolved, arrivals: list[Lane]) -> Receipt:
        """Known, merged, refused or accepted, in this order."""
        if draft.id is not None and self._is_known(draft.topic, draft.id):
            return Receipt(draft.id, draft.topic, "duplicate")
        merges_by = _merges_by(draft.key, draft.body) if policy.merge else None
        name, rule = self._lane_name(policy, draft.topic, _spread_by(draft.key, merges_by), self.number + 1)
        survivor = self._join(self.lanes.get(name), draft, policy, merges_by)
        if survivor is not None:
            arrivals.append(survivor.lane)
            return Receipt(draft.id or survivor.id, draft.topic, "merged", survivor.id)
        if not self._has_room(draft, policy):
            return Receipt(draft.id or "", draft.topic, "refused", None, "full")
        lane = self._make_lane(name, rule)
        arrivals.append(lane)
        return Receipt(self._insert(draft, policy, lane, merges_by).id, draft.topic)

    def _insert(self, draft: Draft, policy: Resolved, lane: Lane, merges_by: tuple[str, str | bytes] | None) -> Message:
        self.number += 1
        ttl = draft.ttl_us if draft.ttl_us is not None else policy.ttl
        message = Message(
            handle=self.number, number=self.number, id=draft.id or f"made-{self.number}", topic=draft.topic, bodies=[draft.body], key=draft.key,
            priority=draft.priority, at_front=draft.at_front, headers=draft.headers or None, published=self.now,
            since=self._first_due(draft, policy, merges_by), expires=self.now + ttl if ttl is not None else None,
            serial=policy.serial if draft.key is not None else None, merges_by=merges_by, sticky=draft.sticky, lane=lane,
        )  # fmt: skip
        self.messages.append(message)
        self._count(lane, "published")
        self._wait(message)
        return message

    def _first_due(self, draft: Draft, policy: Resolved, merges_by: tuple[str, str | bytes] | None) -> int:
        """Its own delay or time goes before the policy's window."""
        due = _explicit_due(draft, self.now)
        if due is not None or merges_by is None or policy.window is None:
            return due or self.now
        if policy.edge == "trailing":
            return self.now + policy.window
        ends = self.edges.get((draft.topic, merges_by), 0)
        due = max(self.now, ends)
        self.edges[draft.topic, merges_by] = due + policy.window
        return due

    def _lane_name(self, policy: Resolved, topic: str, spread_by: bytes | None, number: int) -> tuple[str, str]:
        """A message's lane, and what its policy is resolved for."""
        if policy.buckets is not None and policy.buckets_pattern is not None:
            return f"bucket {zlib.crc32(topic.encode()) % policy.buckets} of {policy.buckets_pattern}", policy.buckets_pattern
        if policy.partitions > 1:
            part = (zlib.crc32(spread_by) if spread_by is not None else number) % policy.partitions
            return f"{topic} part {part}", topic
        return topic, topic

    def _lanes_of(self, topic: str) -> list[Lane]:
        """A topic's lanes as they are (a folded topic: its bucket)."""
        policy = self.book.resolve(topic)
        names = [self._lane_name(policy, topic, None, n)[0] for n in range(policy.partitions)]
        return [self.lanes[name] for name in names if name in self.lanes]

    def _make_lane(self, name: str, rule: str) -> Lane:
        if name not in self.lanes:
            policy = self.book.resolve(rule)
            band = self._band(policy.pool, policy.tier)
            self.lanes_made += 1
            topic = None if name.startswith("bucket ") else rule
            self.lanes[name] = Lane(self.lanes_made, name, rule, topic, band, band.virtual, window_from=self.now)
        return self.lanes[name]

    def _band(self, pool: str, tier: str) -> Band:
        return self.bands.setdefault((pool, tier), Band(pool, tier))

    # Merging

    def _join(self, lane: Lane | None, draft: Draft, policy: Resolved, merges_by: tuple[str, str | bytes] | None) -> Message | None:
        """The waiting message that a new one joins, changed as the policy says; None if it has to queue."""
        message = lane.collectors.get((draft.topic, *merges_by)) if lane is not None and merges_by is not None else None
        if lane is None or message is None or (policy.merge == "all" and len(message.bodies) >= policy.merge_limit):
            return None
        if policy.merge == "all":
            message.bodies.append(draft.body)
        due = self._due_after_join(message, draft, policy)
        if policy.merge == "last":
            self._take_last_word(message, draft, policy)
        if policy.merge == "last" or due != message.since:
            message.since = due
            self._wait(message)
        if draft.id is not None:
            message.joined.append(draft.id)
        message.sticky = message.sticky or draft.sticky
        self._count(lane, "merged")
        return message

    def _due_after_join(self, message: Message, draft: Draft, policy: Resolved) -> int:
        due = _explicit_due(draft, self.now) if policy.merge == "last" else None
        if due is None and policy.debounce and policy.window is not None and message.since > self.now:
            most = policy.max_wait if policy.max_wait is not None else MAX_WAIT_WINDOWS * policy.window
            due = max(self.now, min(message.published + most, self.now + policy.window))
        return due if due is not None else message.since

    def _take_last_word(self, message: Message, draft: Draft, policy: Resolved) -> None:
        message.bodies, message.headers = [draft.body], draft.headers or None
        ttl = draft.ttl_us if draft.ttl_us is not None else policy.ttl
        message.expires = self.now + ttl if ttl is not None else None
        message.attempts = 0
        self._change_priority(message, draft.priority, at_front=draft.at_front)

    def _change_priority(self, message: Message, priority: int, *, at_front: bool) -> None:
        """Another priority gives another number; the old one counts as removed."""
        if (priority, at_front) != (message.priority, message.at_front):
            message.priority, message.at_front = priority, at_front
            self.number += 1
            message.number = self.number

    def _take_in_the_waiting_one(self, message: Message) -> bool:
        """
        A message comes back while another waits under its merge key: that one joins it, as if it had been published later.
        False: they are too many bodies for one, both stay.
        """
        other = message.lane.collectors.get((message.topic, *message.merges_by)) if message.merges_by is not None else None
        if other is None:
            return True
        policy = self.book.resolve(message.topic)
        if policy.merge == "all":
            if len(message.bodies) + len(other.bodies) > policy.merge_limit:
                return False
            message.bodies += other.bodies
        elif policy.merge == "last":
            message.bodies, message.headers, message.expires = other.bodies, other.headers, other.expires
            self._change_priority(message, other.priority, at_front=other.at_front)
        message.joined += [*other.joined, other.id]
        message.sticky = message.sticky or other.sticky
        self._remove(other)
        self._count(message.lane, "merged")
        return True

    # Backlog limits

    def _has_room(self, draft: Draft, policy: Resolved) -> bool:
        """Whether no backlog limit is reached, after dropping the oldest where that is wanted."""
        while True:
            topics = [message for message in self._waiting_all() if message.topic == draft.topic]
            limits = (
                (policy.max_backlog, len(topics), 1, policy.on_full),
                (policy.max_backlog_bytes, _size(topics), len(draft.body), policy.on_full),
                (self.max_backlog, len(self._waiting_all()), 1, self.on_full),
                (self.max_backlog_bytes, _size(self._waiting_all()), len(draft.body), self.on_full),
            )
            over = [(limit, need, on_full) for limit, there, need, on_full in limits if limit is not None and there + need > limit]
            if not over:
                return True
            limit, need, on_full = over[0]
            if on_full != "drop_oldest" or need > limit or not self._drop_oldest(topics):
                return False

    def _drop_oldest(self, among: list[Message]) -> bool:
        """The lowest priority's oldest goes to the dead letters; never one that holds its serial key."""
        may_go = [message for message in among if message.lane.holders.get(message.line) is not message]
        if not may_go:
            return False
        victim = min(may_go, key=lambda message: (message.priority, message.since, message.number))
        lane = victim.lane
        self._count(lane, "removed")
        self._bury(victim, "dropped: the backlog was full", None)
        self._place(lane)
        return True

    # Waiting

    def _wait(self, message: Message, *, collects: bool = True) -> None:
        """It waits from now on: delayed until its `since`, if that is to come. Newcomers of its merge key join it."""
        message.state = "waiting"
        message.delayed = message.since > self.now
        if message.merges_by is not None:
            where = (message.topic, *message.merges_by)
            if collects:
                message.lane.collectors[where] = message

    def _waiting_all(self) -> list[Message]:
        return [message for message in self.messages if message.state == "waiting"]

    def _waiting(self, lane: Lane) -> list[Message]:
        return [message for message in self.messages if message.state == "waiting" and message.lane is lane]

    def _ready(self, lane: Lane) -> list[Message]:
        """What could be handed out, in order."""
        here = [message for message in self._waiting(lane) if not message.delayed and not self._is_parked(message)]
        return sorted(here, key=lambda message: message.order)

    def _is_parked(self, message: Message) -> bool:
        """Whether another one has its serial key: the holder, or while the key is free the first in order of those due."""
        if message.serial is None or message.delayed:
            return False
        holder = message.lane.holders.get(message.line)
        if holder is not None:
            return holder is not message
        due = [one for one in self._waiting(message.lane) if not one.delayed and one.serial is not None and one.line == message.line]
        return message is not min(due, key=lambda one: one.order)

    def _leased(self, lane: Lane) -> int:
        return sum(lease.lane is lane and not lease.gone for lease in self.leases.values())

    # Placing

    def _policy(self, lane: Lane) -> Resolved:
        return self.book.resolve(lane.rule)

    def _place(self, lane: Lane) -> None:
        """Put the lane where it belongs now."""
        policy = self._policy(lane)
        if (lane.band.pool, lane.band.tier) != (policy.pool, policy.tier):
            lane.band = self._band(policy.pool, policy.tier)
            lane.virtual, lane.place, lane.wake = lane.band.virtual, "idle", None
        if policy.rate is not None:
            lane.tat = fairness.rebase(lane.tat, self.now, policy.lane_rate, policy.lane_burst)
        place, wake = self._where(lane, policy)
        if place in CAN_DELIVER and lane.place not in CAN_DELIVER:
            lane.virtual = max(lane.virtual, lane.band.virtual)  # sleeping earns no credit
        lane.place, lane.wake, lane.gate = place, wake, policy.gate if place == "at_gate" else None

    def _where(self, lane: Lane, policy: Resolved) -> tuple[str, int | None]:
        if policy.paused and self._waiting(lane):
            return "paused", None
        if not self._ready(lane):
            return "idle", None if self._waiting(lane) or self._leased(lane) else self._forgotten_at(lane, policy)
        if lane.rest_step and lane.rest_until > self.now:
            return "asleep", lane.rest_until
        if self._slots(lane, policy) <= 0:
            return "full", None
        if policy.rate is not None:
            permit = fairness.next_permit_us(lane.tat, self.now, policy.lane_rate, policy.lane_burst)
            if permit > self.now:
                self._count_throttling(lane, permit)
                return "asleep", permit
        return ("at_gate", None) if policy.gate is not None else ("runnable", None)

    def _forgotten_at(self, lane: Lane, policy: Resolved) -> int:
        at = lane.wake if lane.place == "idle" and lane.wake is not None else self.now + LINGER_US[self.tiers[lane.band.tier].fair_by]
        if lane.rest_step:
            at = max(at, lane.rest_until)
        if policy.rate is not None:
            at = max(at, -(-lane.tat // fairness.TICKS))  # when fairness.recovered
        return at

    def _count_throttling(self, lane: Lane, permit: int) -> None:
        """The time until the permit, as far as it was not counted before."""
        if (lane.place, lane.wake) != ("asleep", permit):
            lane.throttled += permit - max(self.now, lane.wake or 0 if lane.place == "asleep" else 0)

    def _slots(self, lane: Lane, policy: Resolved) -> int:
        """How many more leases its concurrency admits; one at a time while the topic probes."""
        limit = 1 if lane.rest_step else policy.lane_concurrency
        return limit - self._leased(lane) if limit is not None else 1 << 30

    def _allowance(self, lane: Lane, policy: Resolved) -> int:
        """How many messages the lane's own limits let go now."""
        allowed = min(len(self._ready(lane)), self._slots(lane, policy))
        if policy.rate is not None:
            allowed = min(allowed, fairness.permits(lane.tat, self.now, policy.lane_rate, policy.lane_burst))
        return max(allowed, 0)

    # Gates

    def _gate_room(self, name: str) -> int:
        """How many deliveries the gate admits now."""
        gate = self.gates[name]
        room = 1 << 30
        if gate.limits.rate is not None:
            room = fairness.permits(gate.tat, self.now, gate.limits.rate, gate.limits.effective_burst)
        if gate.limits.concurrency is not None:
            room = min(room, gate.limits.concurrency - gate.leased)
        return max(room, 0)

    def _look_at_gate(self, gate: GateState) -> None:
        """When it wakes: it does where its rate alone shuts it."""
        limits = gate.limits
        gate.wake = None
        if not self._gate_room(gate.name) and limits.rate is not None and (limits.concurrency is None or gate.leased < limits.concurrency):
            gate.wake = fairness.next_permit_us(gate.tat, self.now, limits.rate, limits.effective_burst)

    # Serving

    def lease(
        self,
        n: int,
        *,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        startable: int | None = None,
        record_start: bool = False,
        now_us: int | None = None,
    ) -> Batch:
        self.now = self._time(now_us)
        self._keep_house(BRING_IN)
        call = Call(n if startable is None else startable, record_start)
        if topics is None:
            self._serve_pool(call, pool, n)
        else:
            self._serve_topics(call, topics, pool, n)
        for lane in call.visited:
            self._place(lane)
        return Batch(call.leases, self.now, self._next_wake())

    def _serve_pool(self, call: Call, pool: str, room: int) -> None:
        """Strict tiers first; the others by their shares, and what one cannot use is divided again."""
        bands = [self.bands[pool, tier] for tier in self.tiers if (pool, tier) in self.bands]
        for band in bands:
            if self.tiers[band.tier].share == "strict":
                room -= self._serve(call, self._line(band), room)
                if call.withheld:
                    return
        lines: dict[str, list[Lane]] = {}
        shares: dict[str, float] = {}
        for band in bands:
            share = self.tiers[band.tier].share
            if share == "strict":
                continue
            if self._line(band):
                shares[band.tier] = float(share)
            else:
                band.carry = 0
        while room > 0 and shares and not call.withheld:
            step = room if call.startable >= room else call.startable or min(room, STEP)
            room -= self._serve_shares(call, pool, step, shares, lines)

    def _serve_shares(self, call: Call, pool: str, room: int, shares: dict[str, float], lines: dict[str, list[Lane]]) -> int:
        """Divide `room` once; tiers that cannot use their part leave `shares`."""
        bands = {tier: self.bands[pool, tier] for tier in shares}
        carries, divided = {tier: band.carry for tier, band in bands.items()}, dict(shares)
        parts, kept = fairness.split(room, divided, carries)
        taken: dict[str, int] = {}
        for tier, part in parts.items():
            bands[tier].carry = kept[tier]
            if part == 0:
                continue
            lines.setdefault(tier, self._line(bands[tier]))
            taken[tier] = self._serve(call, lines[tier], part)
            if call.withheld:
                break
            if taken[tier] < part:
                del shares[tier]
                bands[tier].carry = 0
        if call.withheld:
            for tier, owed in fairness.settle_carry(divided, carries, taken).items():
                bands[tier].carry = owed
        return sum(taken.values())

    def _line(self, band: Band) -> list[Lane]:
        """The lanes of a tier that can deliver now."""
        return [lane for lane in self.lanes.values() if lane.band is band and self._can_deliver(lane)]

    def _can_deliver(self, lane: Lane) -> bool:
        return lane.place == "runnable" or (lane.place == "at_gate" and lane.gate is not None and self._gate_room(lane.gate) > 0)

    def _serve(self, call: Call, line: list[Lane], room: int) -> int:
        """Visit the lane with the smallest virtual time, again and again, until room or line is used up."""
        lanes, taken = min(room, len(line)), 0
        while taken < room and line:
            lane = min(line, key=lambda one: (one.virtual, one.number))
            line.remove(lane)
            if not call.startable and self._policy(lane).limited:
                call.withheld = True  # passed over, it would starve behind a caller who keeps his buffer full
                break
            got = self._visit(call, lane, room - taken, lanes)
            taken += got
            if got and self._allowance(lane, self._policy(lane)):
                line.append(lane)
        return taken

    def _visit(self, call: Call, lane: Lane, room: int, lanes: int) -> int:
        """Take what all limits admit, and advance the lane's virtual time, in one step."""
        policy = self._policy(lane)
        call.visited.append(lane)
        take = min(room, fairness.chunk(room, lanes, policy.weight), self._allowance(lane, policy))
        if policy.gate is not None:
            take = min(take, self._gate_room(policy.gate))
        if policy.limited:
            take = min(take, call.startable)
        if take <= 0:
            return 0
        call.startable -= take if policy.limited else 0
        if policy.gate is not None:
            self._take_from_gate(self.gates[policy.gate], take)
        self._charge(lane, policy, take)
        for message in self._ready(lane)[:take]:
            self._hand_out(call, message, policy)
        return take

    def _take_from_gate(self, gate: GateState, take: int) -> None:
        gate.leased += take
        if gate.limits.rate is not None:
            gate.tat = fairness.take_permits(gate.tat, self.now, gate.limits.rate, take)
        self._look_at_gate(gate)

    def _charge(self, lane: Lane, policy: Resolved, take: int) -> None:
        band = lane.band
        band.virtual = lane.virtual
        if self._is_fair_by_time(band):
            lane.virtual += fairness.stride_of_work(take * self._expected_cost(lane), policy.weight)
        else:
            lane.virtual += fairness.stride(take, policy.weight)
        if policy.rate is not None:
            lane.tat = fairness.take_permits(lane.tat, self.now, policy.lane_rate, take)
        band.delivered += take
        self._count(lane, "delivered", take)
        elapsed = self.now - lane.window_from
        if elapsed >= RATE_WINDOW_US:
            lane.in_window_before = lane.in_window if elapsed < 2 * RATE_WINDOW_US else 0
            lane.in_window, lane.window_from = 0, self.now
        lane.in_window += take

    def _is_fair_by_time(self, band: Band) -> bool:
        return self.tiers[band.tier].fair_by == "time"

    def _expected_cost(self, lane: Lane) -> int:
        return lane.mean or lane.band.mean or FIRST_COST_US

    def _hand_out(self, call: Call, message: Message, policy: Resolved) -> None:
        lane = message.lane
        if _is_past(message.expires, self.now):  # housekeeping had too much to do to see it before
            self._uncount_hand_out(lane, policy)
            self._expire(message)
            return
        self.fence += 1
        deadline = self.now + policy.lease
        self.deadlines_given.add(deadline)
        charge = self._expected_cost(lane) if self._is_fair_by_time(lane.band) else 0
        started = message.suspect and call.record_start
        line = message.line if message.serial is not None else None
        held = Held(self.fence, message.handle, message, lane, message.topic, deadline, self.now, charge, started, policy.gate, line)
        self.leases[self.fence] = held
        self._stop_waiting(message)
        message.state = "leased"
        if line is not None:
            lane.holders[line] = message
        collects = len(message.bodies) > 1 or (message.merges_by is not None and policy.merge == "all")
        lease = Lease(
            message.handle, self.fence, message.id, message.topic, message.bodies[0], deadline, message.attempts + 1, message.deliveries + 1,
            message.key, message.priority, message.headers, message.published, message.suspect, list(message.bodies) if collects else None,
            policy.limited,
        )  # fmt: skip
        call.leases.append(lease)
        if policy.delivery == "at_most_once":
            self._finish_at_hand_out(held, message)

    def _uncount_hand_out(self, lane: Lane, policy: Resolved) -> None:
        self._count(lane, "delivered", -1)
        if policy.gate is not None:
            self.gates[policy.gate].leased -= 1
            self._look_at_gate(self.gates[policy.gate])

    def _finish_at_hand_out(self, held: Held, message: Message) -> None:
        self._finish(message)
        held.message = None
        if held.line is not None:
            held.lane.holders[held.line] = held

    def _serve_topics(self, call: Call, topics: Sequence[str], pool: str, room: int) -> None:
        """Strictly in the order named, tiers aside."""
        for topic in topics:
            for lane in self._lanes_of(topic):
                if room <= 0 or lane.band.pool != pool or not self._can_deliver(lane):
                    continue
                if not call.startable and self._policy(lane).limited:
                    return
                room -= self._visit(call, lane, room, 1)

    # Leases

    def start(self, leases: Sequence[tuple[int, int]], *, now_us: int | None = None) -> list[bool]:
        self.now = self._time(now_us)
        found = [self._alive(handle, fence) for handle, fence in leases]
        for lease in found:
            if lease is not None:
                lease.started = True
        return [lease is not None for lease in found]

    def extend(self, leases: Sequence[tuple[int, int]], by_us: int, *, now_us: int | None = None) -> list[bool]:
        self.now = self._time(now_us)
        found = [self._alive(handle, fence) for handle, fence in leases]
        for lease in found:
            if lease is not None:
                lease.deadline = max(lease.deadline, self.now + by_us)
                self.deadlines_given.add(lease.deadline)
        return [lease is not None for lease in found]

    def _alive(self, handle: int, fence: int) -> Held | None:
        """A lease is valid until it is settled or taken back, also past its deadline."""
        lease = self.leases.get(fence)
        return lease if lease is not None and lease.handle == handle and not lease.gone else None

    # Settling

    def settle(
        self, settlements: Sequence[Settlement], *, publish: Mapping[int, Sequence[Draft]] | None = None, now_us: int | None = None
    ) -> list[str]:
        if not settlements:
            return []
        follow = {n: self._derived(settlements[n], drafts) for n, drafts in (publish or {}).items()}
        self._check_drafts([draft for drafts in follow.values() for draft in drafts], self._time(now_us))
        self.now = self._time(now_us)
        ended: list[Lane] = []
        answers = [self._settle(settlement, ended) for settlement in settlements]
        for lane in ended:
            self._place(lane)
        self._put([draft for n, answer in enumerate(answers) if answer == "acked" for draft in follow.get(n, ())])
        return answers

    def _derived(self, settlement: Settlement, drafts: Sequence[Draft]) -> list[Draft]:
        """What is published with an ack has ids made of its message's, so that a repeat is a duplicate; none where the lease is lost."""
        lease = self._alive(settlement.handle, settlement.fence)
        if lease is None or settlement.action != "ack":
            return []
        parent = lease.message.id if lease.message is not None else f"made-{lease.handle}"
        return [msgspec.structs.replace(draft, id=draft.id or f"{parent}:{n}", sticky=True) for n, draft in enumerate(drafts)]

    def _settle(self, settlement: Settlement, ended: list[Lane]) -> str:
        lease = self.leases.get(settlement.fence)
        if lease is None or lease.handle != settlement.handle:
            return "lost"
        if lease.gone:
            del self.leases[lease.fence]
            return "gone"
        lane, message = lease.lane, lease.message
        ended.append(lane)
        self._end(lease, settlement.cost_us)
        if settlement.action == "ack" and lane.rest_step and lease.fence > lane.rest_fence:
            lane.rest_step = lane.rest_until = 0
        if settlement.action == "rest":
            self._rest(lease, settlement.delay_us, ended)
        if message is None:
            return {"ack": "acked", "dead": "died"}.get(settlement.action, "released")
        if settlement.action == "ack":
            self._finish(message)
            return "acked"
        message.deliveries += 1
        if settlement.action == "retry":
            return self._retry(message, settlement)
        if settlement.action == "dead":
            reason = settlement.reason or "the handler refused it"
            self._note(message, reason, settlement.error)
            return self._die(message, reason, settlement.error)
        if settlement.action == "unhandled":
            return self._unhandled(message)
        if settlement.action == "release" and not settlement.begun:
            self._return_permit(lease)
        delay = (settlement.delay_us or 0) if settlement.action == "release" else 0
        self._come_back(message, self.now + delay if delay > 0 else None)
        return "released"

    def _end(self, lease: Held, cost_us: int) -> None:
        """Free what the lease held, and put its cost right."""
        del self.leases[lease.fence]
        self._free_gate(lease)
        if lease.message is None:
            self._free_line(lease.lane, lease.line, lease)
        if lease.charge:
            self._correct_cost(lease, cost_us)

    def _free_gate(self, lease: Held) -> None:
        if lease.gate is not None:
            self.gates[lease.gate].leased -= 1
            self._look_at_gate(self.gates[lease.gate])

    def _correct_cost(self, lease: Held, cost_us: int) -> None:
        """Fair by time: the lane pays what its message really took, and is never put behind its tier."""
        lane, band = lease.lane, lease.lane.band
        cost = max(0, min(cost_us, lease.deadline - lease.granted))
        corrected = lane.virtual + fairness.stride_of_work(cost - lease.charge, self._policy(lane).weight)
        lane.virtual = max(corrected, min(band.virtual, lane.virtual))
        if cost:
            lane.mean = _moved(self._expected_cost(lane), cost)
            band.mean = _moved(band.mean or FIRST_COST_US, cost)

    def _retry(self, message: Message, settlement: Settlement) -> str:
        policy = self.book.resolve(message.topic)
        what = settlement.reason or "failed"
        message.attempts += 1
        self._note(message, what, settlement.error)
        if message.attempts > policy.retries:
            return self._die(message, f"retries used up: {what}", settlement.error)
        delay = settlement.delay_us
        if delay is None:
            delay = policy.backoff.delay_us(message.attempts, self.random() if policy.backoff.jitter else 1.0)
        self._count(message.lane, "retried")
        if message.serial == "yield":
            self._free_line(message.lane, message.line, message)
        self._come_back(message, self.now + max(delay, 0))
        return "retried"

    def _unhandled(self, message: Message) -> str:
        if message.unhandled_from is None:
            message.unhandled_from = self.now
        if self.now - message.unhandled_from >= UNHANDLED_DEAD_US:
            reason = "no handler: no worker has had a handler for it for an hour"
            self._note(message, reason, None)
            return self._die(message, reason, None)
        delay = min(UNHANDLED_FIRST_US << min(message.unhandled_times, 16), UNHANDLED_MOST_US)
        message.unhandled_times += 1
        self._come_back(message, self.now + delay)
        return "released"

    def _rest(self, lease: Held, asked: int | None, ended: list[Lane]) -> None:
        """The destination is unwell: all lanes that the topic has rest. Reports from before the rest do not count."""
        lane = lease.lane
        if lease.fence <= lane.rest_fence:
            return
        step = min(lane.rest_step * 2, REST_MOST_US) if lane.rest_step else REST_FIRST_US
        if asked is not None:
            step = max(asked, 1)
        for each in [lane] if lane.topic is None else self._lanes_of(lane.topic):
            each.rest_step, each.rest_until, each.rest_fence = step, self.now + step, self.fence
            ended.append(each)

    def _return_permit(self, lease: Held) -> None:
        policy = self._policy(lease.lane)
        if policy.rate is not None:
            lease.lane.tat = fairness.return_permits(lease.lane.tat, policy.lane_rate, 1)
        gate = self.gates[lease.gate] if lease.gate is not None else None
        if gate is not None and gate.limits.rate is not None:
            gate.tat = fairness.return_permits(gate.tat, gate.limits.rate, 1)
            self._look_at_gate(gate)

    def _come_back(self, message: Message, due: int | None) -> None:
        """It waits again: delayed until `due`, its new since, or at once with its old one. Past its ttl it expires."""
        if _is_past(message.expires, self.now):
            self._expire(message)
            return
        if due is not None:
            message.since = due
        self._wait(message, collects=self._take_in_the_waiting_one(message))

    def _run_out(self, lease: Held) -> None:
        """Nobody settled it in time."""
        if lease.gone:
            del self.leases[lease.fence]
            return
        self._end(lease, lease.deadline - lease.granted)
        if lease.message is not None:
            self._become_suspect(lease.message, started=lease.started)
        self._place(lease.lane)

    def _become_suspect(self, message: Message, *, started: bool) -> None:
        message.deliveries += 1
        message.suspect = True
        if started:
            reason = "lease ran out after its start was recorded"
            message.attempts += 1
            self._note(message, reason, None)
            if message.attempts > self.book.resolve(message.topic).retries:
                self._die(message, reason, None)
                return
        self._come_back(message, None)

    # The end of a message

    def _finish(self, message: Message) -> None:
        """Acked, or handed out at most once: its ids stay known for their window."""
        self._count(message.lane, "done")
        self._remove(message, keep_ids=True)

    def _remove(self, message: Message, *, keep_ids: bool = False) -> None:
        self._stop_waiting(message)
        self._free_line(message.lane, message.line, message)
        self.messages.remove(message)
        if keep_ids:
            self._keep_ids(message)

    def _keep_ids(self, message: Message) -> None:
        window = self.book.resolve(message.topic).dedupe or 0
        if window != FOREVER:
            window = max(window, STICKY_US if message.sticky else 0)
        for each in (message.id, *message.joined):
            if window:
                self.finished[message.topic, each] = None if window == FOREVER else self.now + window

    def _stop_waiting(self, message: Message) -> None:
        """Newcomers of its merge key no longer join it."""
        collectors = message.lane.collectors
        for where in [where for where, collector in collectors.items() if collector is message]:
            del collectors[where]

    def _free_line(self, lane: Lane, line: tuple[str, str | None] | None, holder: Message | Held) -> None:
        """It no longer holds its serial key, if it did."""
        if line is not None and lane.holders.get(line) is holder:
            del lane.holders[line]

    def _die(self, message: Message, reason: str, error: str | None) -> str:
        self._count(message.lane, "died")
        self._bury(message, reason, error)
        return "died"

    def _expire(self, message: Message) -> None:
        self._count(message.lane, "expired")
        if self.book.resolve(message.topic).on_expiry == "drop":
            self._remove(message)
        else:
            self._bury(message, "expired: its ttl ended before it was handed out", None)

    def _bury(self, message: Message, reason: str, error: str | None) -> None:
        self._stop_waiting(message)
        self._free_line(message.lane, message.line, message)
        self.deaths += 1
        message.state = "dead"
        message.delayed = False
        message.death = Death(self.deaths, self.now, self.now + self.book.resolve(message.topic).dead_ttl, reason, error)

    def _forget_dead(self, message: Message) -> None:
        self.messages.remove(message)

    def _note(self, message: Message, what: str, error: str | None) -> None:
        message.history = [*message.history, {"at_us": self.now, "what": what, "error": error}][-HISTORY:]

    def _count(self, lane: Lane, what: str, n: int = 1) -> None:
        lane.counts[what] += n
        self.counts[what] += n

    # Dead letters

    def _dead(self, topic: str | None, ids: Sequence[str] | None, limit: int) -> list[Message]:
        """Those meant, each once: by id in the order named, else the oldest first."""
        if ids is not None:
            found = [self._find(each, topic) for each in ids[:limit]]
            return list(dict.fromkeys(message for message in found if message is not None and message.death is not None))
        dead = [message for message in self.messages if message.death is not None and topic in (None, message.topic)]
        return sorted(dead, key=lambda message: message.death.number if message.death else 0)[:limit]

    def dead_list(self, topic: str | None = None, *, limit: int = 50, after: int = 0) -> list[tuple[int, MessageView]]:
        dead = [(message.death.number, message) for message in self._dead(topic, None, len(self.messages)) if message.death is not None]
        return [(number, self._view(message)) for number, message in dead if number > after][:limit]

    def dead_redrive(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
        spacing_us: int = 0,
        now_us: int | None = None,
    ) -> int:
        self.now = self._time(now_us)
        found = self._dead(topic, ids, limit)
        for n, message in enumerate(found):
            self._put_back(message, self.now + n * spacing_us)
        for message in found:
            self._place(message.lane)
        return len(found)

    def _put_back(self, message: Message, since: int) -> None:
        """With a new number and since; attempts, suspicion and ttl from the start."""
        policy = self.book.resolve(message.topic)
        self.number += 1
        message.number, message.since, message.death = self.number, since, None
        message.attempts, message.suspect, message.unhandled_from, message.unhandled_times = 0, False, None, 0
        message.expires = self.now + policy.ttl if policy.ttl is not None else None
        message.lane = self._make_lane(*self._lane_name(policy, message.topic, _spread_by(message.key, message.merges_by), self.number))
        taken = message.merges_by is not None and (message.topic, *message.merges_by) in message.lane.collectors
        self._wait(message, collects=not taken)

    def dead_drop(self, topic: str | None = None, ids: Sequence[str] | None = None, *, limit: int = 1000, now_us: int | None = None) -> int:
        self.now = self._time(now_us)
        found = self._dead(topic, ids, limit)
        for message in found:
            self._forget_dead(message)
        return len(found)

    # Taking topics away

    def topic_purge(self, topic: str, *, now_us: int | None = None) -> int:
        self.now = self._time(now_us)
        going = [message for message in self._waiting_all() if message.topic == topic]
        for message in going:
            self._count(message.lane, "removed")
            self._remove(message)
        for lane in self._lanes_of(topic):
            self._place(lane)
        return len(going)

    def topic_delete(self, topic: str, *, now_us: int | None = None) -> int:
        removed = self.topic_purge(topic, now_us=now_us) + self.dead_drop(topic, limit=len(self.messages), now_us=now_us)
        lanes = self._lanes_of(topic)
        leases = [lease for lease in self.leases.values() if lease.lane in lanes and not lease.gone]
        for lease in leases:
            if lease.message is not None and lease.topic == topic:
                self._count(lease.lane, "removed")
                self._remove(lease.message)
            elif lease.lane.topic is None:
                continue  # another topic's of the bucket; one that is at most once is nobody's any more
            self._free_line(lease.lane, lease.line, lease)
            lease.gone = True
            self._free_gate(lease)
            removed += 1
        for lane in lanes:
            if lane.topic is None:
                self._place(lane)
            else:
                del self.lanes[lane.name]
        self.finished = {where: until for where, until in self.finished.items() if where[0] != topic}
        self.edges = {where: until for where, until in self.edges.items() if where[0] != topic}
        return removed

    # Policies and gates

    def policies(self) -> PolicyBook:
        return self._copy_of_book()

    def _copy_of_book(self) -> PolicyBook:
        book = PolicyBook(self.tiers)
        book.load(self.book.rows())
        return book

    def policy_of(self, topic: str) -> Resolved:
        return self.book.resolve(topic)

    def policy_set(self, layer: Layer, pattern: str, fields: Mapping[str, Any], *, now_us: int | None = None) -> dict[str, Any]:
        checked = check_fields(pattern, fields)
        if checked.get("gate") is not None and checked["gate"] not in self.gates:
            raise BadPolicy("the gate is not defined")
        return self._change_policy(layer, pattern, checked, now_us)

    def policy_reset(self, layer: Layer, pattern: str, *, now_us: int | None = None) -> bool:
        there = [fields for where, name, fields in self.book.rows() if (where, name) == (layer, pattern)]
        if there:
            self._change_policy(layer, pattern, dict.fromkeys(there[0]), now_us)
        else:
            self.now = self._time(now_us)
        return bool(there)

    def _change_policy(self, layer: Layer, pattern: str, fields: Mapping[str, Any], now_us: int | None) -> dict[str, Any]:
        """The new book has to resolve everywhere, and must not take a topic's messages out of their lanes; then lanes are placed anew."""
        book = self._copy_of_book()
        now = book.put(layer, pattern, fields)
        for name in {pattern, *(name for _, name, _ in book.rows() if matches(pattern, name))}:
            book.resolve(name)
        for topic in self._topics_in_use():
            if matches(pattern, topic) and _shape(book.resolve(topic)) != _shape(self.book.resolve(topic)):
                raise TopicInUse("partitions and buckets change only while a topic is empty")
        self.book, self.now = book, self._time(now_us)
        is_topic = not (pattern == "*" or pattern.endswith(".*"))
        for lane in self._lanes_of(pattern) if is_topic else self._lanes_under(pattern):
            self._place(lane)
        return now

    def _lanes_under(self, pattern: str) -> list[Lane]:
        """An engine with more than `BRING_IN` of them may go on in later calls."""
        return [lane for lane in self.lanes.values() if pattern == lane.rule or matches(pattern, lane.rule.removesuffix(".*"))]

    def _topics_in_use(self) -> set[str]:
        """Topics with something waiting or leased; at most once, as far as the lane is the topic's own."""
        held = {lease.topic for lease in self.leases.values() if not lease.gone and lease.lane.topic is not None}
        return held | {message.topic for message in self.messages if message.state != "dead"}

    def gate_set(self, name: str, gate: Gate, *, layer: Layer = "code", now_us: int | None = None) -> None:
        self.now = self._time(now_us)
        state = self.gates.setdefault(name, GateState(name))
        if layer == "operator":
            state.operator = gate
        else:
            state.code = gate
        if state.limits.rate is not None:
            state.tat = fairness.rebase(state.tat, self.now, state.limits.rate, state.limits.effective_burst)
        self._look_at_gate(state)

    def gate_list(self, *, now_us: int | None = None) -> list[dict[str, Any]]:
        return [self._gate_view(self.gates[name], self._time(now_us)) for name in sorted(self.gates)]

    def _gate_view(self, gate: GateState, now: int) -> dict[str, Any]:
        limits = gate.limits
        burst = limits.effective_burst if limits.rate is not None else None
        permit = fairness.next_permit_us(gate.tat, now, limits.rate, limits.effective_burst) if limits.rate is not None else None
        waiting = sum(lane.gate == gate.name for lane in self.lanes.values())
        return {"name": gate.name, "rate": limits.rate, "burst": burst, "concurrency": limits.concurrency, "leased": gate.leased,
                "next_permit_us": permit, "waiting": waiting}  # fmt: skip

    # Looking

    def _find(self, message_id: str, topic: str | None = None) -> Message | None:
        for message in self.messages:
            if topic in (None, message.topic) and (message.id == message_id or message_id in message.joined):
                return message
        return None

    def _is_known(self, topic: str, message_id: str) -> bool:
        return self._find(message_id, topic) is not None or self._is_finished(topic, message_id, self.now)

    def _is_finished(self, topic: str, message_id: str, now: int) -> bool:
        return (topic, message_id) in self.finished and not _is_past(self.finished[topic, message_id], now)

    def lookup(self, topic: str, ids: Sequence[str], *, now_us: int | None = None) -> dict[str, str]:
        return {each: self._state_of(topic, each, self._time(now_us)) for each in ids}

    def _state_of(self, topic: str, message_id: str, now: int) -> str:
        message = self._find(message_id, topic)
        if message is not None:
            return message.state
        return "finished" if self._is_finished(topic, message_id, now) else "unknown"

    def find(self, message_id: str, topic: str | None = None) -> MessageView | None:
        message = self._find(message_id, topic)
        return self._view(message) if message is not None else None

    def explain(self, message_id: str, topic: str | None = None, *, now_us: int | None = None) -> Explanation:
        """Without its sentences and its guess."""
        message = self._find(message_id, topic)
        if message is None:
            finished = topic is not None and self._is_finished(topic, message_id, self._time(now_us))
            return Explanation(id=message_id, topic=topic, state="finished" if finished else "unknown")
        view = self._view(message)
        ahead = None
        if message.state == "waiting":
            ahead = sum(one.order < message.order for one in self._ready(message.lane)) if not message.delayed else 0
        return Explanation(id=message.id, topic=message.topic, state=view.state, ahead=ahead, message=view)

    def _view(self, message: Message) -> MessageView:
        view = MessageView(
            id=message.id, topic=message.topic, state=self._state_for_people(message), body=message.bodies[0], key=message.key,
            priority=message.priority, headers=message.headers, seq=message.number, published_us=message.published, since_us=message.since,
            expires_us=message.expires, attempts=message.attempts, deliveries=message.deliveries, suspect=message.suspect,
            bodies=list(message.bodies) if len(message.bodies) > 1 else None, history=message.history,
        )  # fmt: skip
        if message.death is not None:
            view.reason, view.error, view.died_us = message.death.reason, message.death.error, message.death.at
        for lease in self.leases.values():
            if lease.message is message and not lease.gone:
                view.fence, view.deadline_us, view.deliveries = lease.fence, lease.deadline, message.deliveries + 1
        return view

    def _state_for_people(self, message: Message) -> str:
        if message.state != "waiting":
            return message.state
        return "delayed" if message.delayed else "parked" if self._is_parked(message) else "ready"

    def topic_peek(self, topic: str, *, limit: int = 10, now_us: int | None = None) -> list[MessageView]:
        """Ready, parked, delayed."""
        waiting = [message for message in self._waiting_all() if message.topic == topic]
        ready = sorted((one for one in waiting if self._state_for_people(one) == "ready"), key=lambda one: one.order)
        parked = sorted((one for one in waiting if self._state_for_people(one) == "parked"), key=lambda one: (one.since, one.number))
        delayed = sorted((one for one in waiting if one.delayed), key=lambda one: (one.since, one.number))
        return [self._view(message) for message in [*ready, *parked, *delayed][:limit]]

    def cursors(self, topic: str) -> dict[int, tuple[int, int]]:
        """Per priority: the last number before the first that was never handed out; before the first that is not finished."""
        lanes = self._lanes_of(topic)
        here = [message for message in self.messages if message.lane in lanes and message.state != "dead"]
        cursors = {}
        for priority in sorted({0, *(message.priority for message in here)}, reverse=True):
            open_ = [message for message in here if message.priority == priority]
            unseen = [message.number for message in open_ if message.state == "waiting" and not message.deliveries]
            cursors[priority] = (min(unseen, default=self.number + 1) - 1, min((one.number for one in open_), default=self.number + 1) - 1)
        return cursors

    def topic_stats(self, topic: str, *, now_us: int | None = None) -> TopicStats:
        stats = self._stats(topic, self._time(now_us))
        stats.cursors = self.cursors(topic)
        return stats

    def _stats(self, topic: str, now: int) -> TopicStats:
        """What waits is the topic's; where it stands and what was counted is its lanes', of which a folded topic has none."""
        policy = self.book.resolve(topic)
        lanes = self._lanes_of(topic)
        own = [lane for lane in lanes if lane.topic is not None]
        mine = [message for message in self.messages if message.topic == topic]
        states = Counter(self._state_for_people(message) for message in mine)
        standing = next((lane for lane in lanes if lane.place != "idle"), None)
        leased = sum(map(self._leased, own)) if policy.buckets is None else states["leased"]
        return TopicStats(
            topic, waiting=states["ready"] + states["delayed"] + states["parked"], ready=states["ready"], delayed=states["delayed"],
            parked=states["parked"], leased=leased, dead=states["dead"], bytes=_size([one for one in mine if one.state == "waiting"]),
            oldest_us=min((one.since for one in mine if self._state_for_people(one) == "ready"), default=None),
            state=standing.place if standing else "idle", wake_us=standing.wake if standing else None, pool=policy.pool, tier=policy.tier,
            throttled_us=sum(lane.throttled for lane in own), rate_now=sum((_rate_now(lane, now) for lane in own), 0.0),
            **{name: sum(lane.counts[name] for lane in own) for name in COUNTERS},
        )  # fmt: skip

    def topic_list(
        self, *, order: str = "name", pattern: str = "*", limit: int = 20, after: str | None = None, now_us: int | None = None
    ) -> list[TopicStats]:
        measures: dict[str, Callable[[TopicStats], float]] = {
            "backlog": lambda stats: stats.waiting,
            "age": lambda stats: now - stats.oldest_us + 1 if stats.oldest_us is not None else 0,
            "rate": lambda stats: stats.rate_now,
            "throttled": lambda stats: stats.throttled_us,
        }
        now = self._time(now_us)
        if order != "name" and order not in measures:
            raise UsageError("there is no such order")
        check_pattern(pattern)
        names = sorted(name for name in self._topics() if matches(pattern, name))
        if order == "name":
            return [self._stats(name, now) for name in names if after is None or name > after][:limit]
        measure = measures[order]
        found = sorted((self._stats(name, now) for name in names), key=lambda stats: (-measure(stats), stats.topic))
        return [stats for stats in found if measure(stats) > 0][:limit]

    def _topics(self) -> set[str]:
        return {message.topic for message in self.messages} | {lane.topic for lane in self.lanes.values() if lane.topic is not None}

    def overview(self, *, now_us: int | None = None) -> Overview:
        waiting = self._waiting_all()
        return Overview(
            now_us=self._time(now_us), topics=len(self.lanes), waiting=len(waiting), bytes=_size(waiting),
            leased=sum(not lease.gone for lease in self.leases.values()), dead=len(self._dead(None, None, len(self.messages))),
            last_number=self.number, tiers=[self._tier_stats(band) for band in self.bands.values()],
            **{name: self.counts[name] for name in COUNTERS},
        )  # fmt: skip

    def _tier_stats(self, band: Band) -> TierStats:
        runnable = sum(lane.band is band and lane.place == "runnable" for lane in self.lanes.values())
        return TierStats(band.pool, band.tier, self.tiers[band.tier].share, band.delivered, runnable)

    def snapshot(self, *, now_us: int | None = None) -> dict[str, Any]:
        now = self._time(now_us)
        return {
            "now_us": now,
            "totals": msgspec.structs.asdict(self.overview(now_us=now_us)),
            "topics": {name: msgspec.structs.asdict(self._stats(name, now)) for name in sorted(self._topics_seen())},
            "messages": [msgspec.structs.asdict(self._view(one)) for one in sorted(self.messages, key=lambda one: one.number)],
            "gates": self.gate_list(now_us=now_us),
            "policies": self.book.rows(),
        }

    def _topics_seen(self) -> set[str]:
        return self._topics()


# Short words for what is asked often


def _is_past(time: int | None, now: int) -> bool:
    return time is not None and time <= now


def _first(most: int, things: Iterable[Any], key: Callable[[Any], Any]) -> list[Any]:
    return sorted(things, key=key)[:most]


def _size(messages: Iterable[Message]) -> int:
    return sum(message.size for message in messages)


def _explicit_due(draft: Draft, now: int) -> int | None:
    """When the publisher said that it is due; `at` goes before `delay`."""
    if draft.at_us is not None:
        return max(draft.at_us, now)
    return now + draft.delay_us if draft.delay_us > 0 else None


def _merges_by(key: str | None, body: bytes) -> tuple[str, str | bytes]:
    """Its key, or its body where it has none."""
    return ("key", key) if key is not None else ("body", body)


def _spread_by(key: str | None, merges_by: tuple[str, str | bytes] | None) -> bytes | None:
    """What picks the partition: the key, else the body that it merges by, else (None) its number."""
    if key is not None:
        return key.encode()
    return merges_by[1] if merges_by is not None and isinstance(merges_by[1], bytes) else None


def _shape(policy: Resolved) -> tuple[Any, ...]:
    """What decides which lane a message goes to."""
    return (policy.partitions, policy.buckets, policy.buckets_pattern)


def _moved(mean: int, cost: int) -> int:
    """A mean moves by an eighth of the difference."""
    return max(1, mean + (cost - mean) // 8)


def _rate_now(lane: Lane, now: int) -> float:
    """Deliveries a second over about the last window of ten seconds: the present one's, and the fading part of the one before."""
    elapsed = now - lane.window_from
    here, before = (lane.in_window, lane.in_window_before) if elapsed < RATE_WINDOW_US else (0, lane.in_window)
    into = elapsed if elapsed < RATE_WINDOW_US else elapsed - RATE_WINDOW_US
    return (here + before * max(0, RATE_WINDOW_US - into) / RATE_WINDOW_US) * SECOND / RATE_WINDOW_US
