"""
One transaction's work: what it has read of lanes, tiers and gates, and what it will write back at
its end.

Lanes are read once, changed in memory and written once, however often a call comes by; the same
holds for tiers, gates and the shard's counters. `place` is the one rule that says where a lane
stands.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.engines.shared import fairness, gates
from laneway.engines.shared.naming import BUCKET, generated_id
from laneway.engines.shared.refusals import LINGER_US
from laneway.engines.shared.size_classes import WINDOW_US
from laneway.engines.shared.states import ASLEEP, AT_GATE, FULL, IDLE, PAUSED, RUNNABLE
from laneway.engines.sqlite.changes import LaneChanges
from laneway.engines.sqlite.lane_cache import LaneCache
from laneway.engines.sqlite.rows import GateState, Lane, Row, Shard, TierQueue
from laneway.engines.sqlite.statements import SQL, Statements
from laneway.policy import PolicyBook, Resolved
from laneway.tiers import TierLayers

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence

    from laneway.message import Draft
    from laneway.policy import Layers

MOST_RESOLVED = 200_000
"""Topics whose policy is kept at hand."""

MOST_SETS = 20_000
"""Different sets of topics' own policies that are kept at hand."""

_dumps = msgspec.json.Encoder().encode


class Rules:
    """
    What an engine object keeps between transactions: the policies as last read, the tiers, the
    namespace's limits.
    """

    def __init__(self, tier_layers: TierLayers, random: Callable[[], float]) -> None:
        self.tier_layers = tier_layers
        self.tiers = tier_layers.in_force()
        self.random = random
        self.version = -1
        self.book = PolicyBook(self.tiers)
        self._resolved: dict[tuple[tuple[str, ...], int], Resolved] = {}
        self.max_backlog: int | None = None
        self.max_backlog_bytes: int | None = None
        self.on_full = "refuse"
        self._by_topic = _ByTopic(self.book)
        self.of: Callable[[str], Resolved] = self._by_topic.__getitem__
        """What holds for a topic without a policy of its own (or for the pattern of a bucket)."""
        self.owned: dict[tuple[str, int], Resolved] = {}
        """What holds for a topic that has one, by the topic and the number of its set."""
        self.sets: dict[int, Layers] = {}
        """What the numbers mean."""

    def refresh(self, connection: sqlite3.Connection, version: int) -> None:
        if version != self.version:
            self.set_tiers(
                TierLayers.read(connection.execute(SQL["setting_read"], ("tiers",)).fetchone()[0])
            )
            rows = connection.execute(SQL["policies"]).fetchall()
            self.book.load(
                [(layer, pattern, json.loads(fields)) for layer, pattern, fields in rows]
            )
            self.changed()
            self.version = version

    def set_tiers(self, layers: TierLayers) -> None:
        """These hold from here on."""
        self.tier_layers = layers
        self.tiers = self.book.tiers = layers.in_force()
        self.book.forget_resolved()
        self.changed()

    @property
    def has_backlog_limit(self) -> bool:
        """Whether the namespace as a whole is limited."""
        return self.max_backlog is not None or self.max_backlog_bytes is not None

    def changed(self) -> None:
        """The book was changed: what was resolved before no longer holds."""
        self._by_topic.clear()
        self.owned.clear()
        self._resolved.clear()

    def resolve_own(self, topic: str, own: int, layers: Layers) -> Resolved:
        """What holds for a topic with this set of its own."""
        if len(self.owned) >= MOST_RESOLVED:
            self.owned.clear()
        found = self.owned[topic, own] = self._shared(self.book.covering(topic), topic, own, layers)
        return found

    def _shared(self, covering: tuple[str, ...], topic: str, own: int, layers: Layers) -> Resolved:
        """Topics with equal sets under the same patterns share one."""
        found = self._resolved.get((covering, own))
        if found is None:
            if len(self._resolved) >= MOST_SETS:
                self._resolved.clear()
            found = self._resolved[covering, own] = self.book.resolve_own(topic, layers)
        return found

    def know_set(self, own: int, layers: Layers) -> None:
        """Remember what a number means."""
        if len(self.sets) >= MOST_SETS:
            self.sets.clear()
        self.sets[own] = layers

    def forget(self) -> None:
        """Read the policies anew next time: a change was rolled back, or is being made."""
        self.version = -1
        self.sets.clear()


class _ByTopic(dict[str, Resolved]):
    """What was resolved before; whoever asks for a topic that is not there finds it."""

    def __init__(self, book: PolicyBook) -> None:
        super().__init__()
        self._book = book

    def __missing__(self, topic: str) -> Resolved:
        if len(self) >= MOST_RESOLVED:
            self.clear()
        found = self[topic] = self._book.resolve(topic)
        return found


class Transaction(Statements):
    """A transaction in progress. Everything that changes lanes goes through here."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        rules: Rules,
        clock: int,
        lane_cache: LaneCache | None = None,
    ) -> None:
        super().__init__(connection)
        self.rules = rules
        self.lane_cache = lane_cache = lane_cache or LaneCache()
        if lane_cache.shard is None:
            lane_cache.shard = Shard(*connection.execute(SQL["shard_read"]).fetchone())
            lane_cache.tier_queues = {
                row[0]: TierQueue(*row) for row in connection.execute(SQL["tier_queues"])
            }
        self.shard = lane_cache.shard
        self.tier_queues = lane_cache.tier_queues
        self.clock = clock
        self.now = max(clock, self.shard.now)
        rules.refresh(connection, self.shard.policy_version)
        self.least = 0  # number that may be given out
        self.pools_to_notify: set[str] = set()
        self.has_arrivals = False
        self.end_notices: list[
            Draft
        ] = []  # to be put at the end: of messages of whose end others wait to hear
        self.reported_by_handler: tuple[int, bool] | None = (
            # the message that is settled now, where its handler tells of its end; with an outcome?
            None
        )
        self.changed_ids: list[str] = []  # ids of messages of which something is kept now
        self.came_up: list[Lane] = []  # lanes that became runnable, or came to a gate, in this turn
        self._went_down = False  # one of them no longer is, or is somewhere else
        self._absent: set[str] = set()  # names without a lane
        self._changes = LaneChanges()
        self._gates: dict[str, GateState | None] = {}
        self._dirty_gates: dict[str, GateState] = {}
        self._gate_tier_queues: set[tuple[str, int]] = set()
        self._last_lane: int | None = None
        self._tier_queue_by_name = {
            (tier_queue.pool, tier_queue.tier): tier_queue
            for tier_queue in self.tier_queues.values()
        }
        self._tier_queues_stood = list(map(msgspec.structs.astuple, self.tier_queues.values()))

    def next_seq(self) -> int:
        shard = self.shard
        if shard.seq < self.least:  # noqa: PLR1730  # `max` would cost half of the call
            shard.seq = self.least
        shard.seq = seq = shard.seq + 1
        return seq

    def last_fence(self) -> int:
        """The fence before the next one."""
        self.shard.fence = max(self.shard.fence, self.least)
        return self.shard.fence

    def id_of(self, row: Row) -> str:
        """The message's own id, else its generated id."""
        return row.id if row.id is not None else generated_id(self.shard.nonce, row.mid)

    # Policies

    def rule(self, lane: Lane) -> Resolved:
        """What holds for a lane."""
        return self._owned(lane.rule, lane.own) if lane.own else self.rules.of(lane.rule)

    def policy(self, topic: str) -> Resolved:
        """What holds for a topic."""
        if self.shard.own and (own := self.own_of(topic)):
            return self._owned(topic, own)
        return self.rules.of(topic)

    def policies(self, topics: Sequence[str]) -> list[Resolved]:
        """What holds for each of them."""
        if not self.shard.own:
            return list(map(self.rules.of, topics))
        self.load_own(dict.fromkeys(topics))
        return list(map(self.policy, topics))

    def _owned(self, topic: str, own: int) -> Resolved:
        found = self.rules.owned.get((topic, own))
        return (
            found if found is not None else self.rules.resolve_own(topic, own, self.own_layers(own))
        )

    def own_of(self, topic: str) -> int:
        """The number of the topic's own policy; 0: it has none."""
        lane_cache = self.lane_cache
        lane = lane_cache.names.get(topic)
        if lane is not None:
            return lane.own
        found = lane_cache.own.get(topic)
        if found is None:
            row = self.one("own_read", topic)
            found = lane_cache.own[topic] = row[0] if row is not None else 0
        return found

    def load_own(self, topics: Iterable[str]) -> None:
        """
        Read the lanes of these topics, and the policies of their own, all in three statements.
        """
        topics = list(topics)
        self.load_names(topics)
        lane_cache = self.lane_cache
        wanted = [
            topic
            for topic in topics
            if topic not in lane_cache.names and topic not in lane_cache.own
        ]
        if wanted:
            lane_cache.own.update(dict.fromkeys(wanted, 0))
            lane_cache.own.update(self.all("own_read_many", _dumps(wanted)))
        numbers = {self.own_of(topic) for topic in topics} - self.rules.sets.keys() - {0}
        if numbers:
            for number, layers in self.all("own_sets_read", _dumps(list(numbers))):
                self.rules.know_set(number, json.loads(layers))

    def own_layers(self, own: int) -> Layers:
        """What a number means; 0: nothing."""
        if not own:
            return {}
        found = self.rules.sets.get(own)
        if found is None:
            found = json.loads(self.one("own_set_read", own)[0])
            self.rules.know_set(own, found)
        return found

    # Lanes

    def load_names(self, names: Iterable[str]) -> None:
        """Read lanes by name, all in one statement."""
        known = self.lane_cache.names
        wanted = [name for name in names if name not in known and name not in self._absent]
        if len(wanted) == 1:
            rows = self.all("lane_by_name", wanted[0])
        else:
            rows = self.all("lanes_by_name", _dumps(wanted)) if wanted else []
        for row in rows:
            self.keep(row)
        if len(rows) < len(wanted):
            self._absent.update(name for name in wanted if name not in known)

    def load_numbers(self, numbers: Iterable[int]) -> None:
        known = self.lane_cache.lanes
        wanted = [number for number in numbers if number not in known]
        if len(wanted) == 1:
            rows = self.all("lane_by_number", wanted[0])
        else:
            rows = self.all("lanes_by_number", _dumps(wanted)) if wanted else []
        for row in rows:
            self.keep(row)

    def keep(self, row: Sequence[Any]) -> Lane:
        """The lane of a row; the one in hand if it was read before, for that is newer."""
        found = self.lane_cache.lanes.get(row[0])
        if found is None:
            found = Lane(*row)
            found.rule = row[2] or row[1]
            if found.more is not None:
                found.unpack()
            found.stood = found.standing()
            self.lane_cache.keep(found)
        return found

    def lane(self, number: int) -> Lane:
        found = self.lane_cache.lanes.get(number)
        if found is None:
            self.load_numbers([number])
            found = self.lane_cache.lanes[number]
        return found

    def find_lane(self, name: str) -> Lane | None:
        found = self.lane_cache.names.get(name)
        if found is None and name not in self._absent:
            self.load_names([name])
            found = self.lane_cache.names.get(name)
        return found

    def make_lane(self, name: str, rule: str) -> Lane:
        """The lane of that name, made if there is none."""
        found = self.find_lane(name)
        if found is not None:
            if found.forgotten:
                found.forgotten = False
            if (
                name != rule
                and self.shard.own
                and name[0] != BUCKET
                and found.own != (own := self.own_of(rule))
            ):
                found.own = own  # it was left from when the topic had partitions before
                self.run("lane_own", own, found.lane)
            return found
        if self._last_lane is None:
            self._last_lane = self.one("lane_last")[0] or 0
        self._last_lane += 1
        own = self.own_of(rule) if self.shard.own and name[0] != BUCKET else 0
        policy = self._owned(rule, own) if own else self.rules.of(rule)
        tier_queue = self.tier_queue(policy.pool, policy.tier)
        lane = Lane(
            self._last_lane,
            name,
            rule,
            own,
            tier_queue.number,
            vt=tier_queue.vt,
            seen=self.now,
            is_new=True,
        )
        self.lane_cache.keep(lane)
        self._changes.dirty[lane.lane] = lane
        self.shard.lanes += 1
        return lane

    def touch(self, lane: Lane) -> None:
        """The lane has changed and is to be written."""
        self._changes.dirty[lane.lane] = lane

    def grew(self, lane: Lane) -> None:
        """Only `ready`, `bytes` and `published` have changed."""
        self._changes.grown[lane.lane] = lane

    def shrank(self, lane: Lane) -> None:
        """Only `leased` and `done` have changed, and of an idle lane when it is forgotten."""
        if lane.place == IDLE:
            policy, tier_queue = self.rule(lane), self.tier_queues[lane.tier_queue]
            if (
                lane.ready
                or policy.paused
                or tier_queue.pool != policy.pool
                or tier_queue.tier != policy.tier
            ):
                self.place(lane)
                return
            _, lane.wake = self._where(lane, policy, tier_queue)
            self._changes.ended[lane.lane] = lane
        else:
            self._changes.shrunk[lane.lane] = lane

    def tier_queue(self, pool: str, tier: str) -> TierQueue:
        found = self._tier_queue_by_name.get((pool, tier))
        if found is None:
            number = self.one("tier_queue_insert", pool, tier)[0]
            found = TierQueue(number, pool, tier, 0, 0, 0, 0)
            self.tier_queues[number] = self._tier_queue_by_name[pool, tier] = found
        return found

    def find_tier_queue(self, pool: str, tier: str) -> TierQueue | None:
        return self._tier_queue_by_name.get((pool, tier))

    def fair_by_time(self, tier_queue: TierQueue) -> bool:
        tier = self.rules.tiers.get(tier_queue.tier)
        return tier is not None and tier.fair_by == "time"

    # Gates

    def gate(self, name: str) -> GateState | None:
        if name not in self._gates:
            row = self.one("gate_read", name)
            self._gates[name] = GateState(*row) if row else None
        return self._gates[name]

    def keep_gate(self, row: Sequence[Any]) -> GateState:
        found = self._gates.get(row[0])
        if found is None:
            found = self._gates[row[0]] = GateState(*row)
        return found

    def make_gate(self, name: str) -> GateState:
        found = self.gate(name)
        if found is None:
            found = self._gates[name] = GateState(name, None, None, 0, 0, 1, None)
        self._dirty_gates[name] = found
        return found

    def touch_gate(self, gate: GateState) -> None:
        self._dirty_gates[gate.name] = gate

    # Placing

    def place(self, lane: Lane) -> None:
        """Put the lane where it belongs now; the rule of docs/specification.md, "Placing"."""
        self._changes.dirty[lane.lane] = lane
        policy = self.rule(lane)
        tier_queue = self.tier_queues[lane.tier_queue]
        if tier_queue.pool != policy.pool or tier_queue.tier != policy.tier:
            tier_queue = self._move(lane, policy)
        place, wake = self._where(lane, policy, tier_queue)
        gate = policy.gate if place == AT_GATE else None
        if lane.place in (RUNNABLE, AT_GATE) and (place != lane.place or gate != lane.gate):
            self._went_down = True
        if lane.place == AT_GATE and (place != AT_GATE or gate != lane.gate):
            self._gate_tier_queues.add((lane.gate or "", lane.tier_queue))
        if place in (RUNNABLE, AT_GATE):
            if lane.place != place:
                self.came_up.append(lane)
                if lane.place not in (RUNNABLE, AT_GATE):
                    lane.vt = max(lane.vt, tier_queue.vt)
                self._ring_for(tier_queue, gate)
            if gate is not None:
                self._gate_tier_queues.add((gate, lane.tier_queue))
        lane.place, lane.wake, lane.gate = place, wake, gate

    def _ring_for(self, tier_queue: TierQueue, gate: str | None) -> None:
        if gate is not None:
            state = self.gate(gate)
            if state is None or not state.room(self.now):
                return
        self.pools_to_notify.add(tier_queue.pool)

    def _where(self, lane: Lane, policy: Resolved, tier_queue: TierQueue) -> tuple[int, int | None]:
        now = self.now
        is_used = policy.rate is not None and not fairness.recovered(lane.tat, now)
        if is_used:
            lane.tat = fairness.rebase(lane.tat, now, policy.lane_rate, policy.lane_burst)
        if policy.paused and lane.waiting:
            return PAUSED, None
        if not lane.ready:
            return IDLE, (
                None
                if lane.leased or lane.delayed or lane.parked
                else self._forgotten_at(lane, policy, tier_queue)
            )
        if lane.rest_step and lane.rest_until > now:
            return ASLEEP, lane.rest_until
        concurrency = policy.lane_concurrency
        if lane.rest_step:
            concurrency = 1
        if concurrency is not None and lane.leased >= concurrency:
            return FULL, None
        if is_used:
            permit = fairness.next_permit_us(lane.tat, now, policy.lane_rate, policy.lane_burst)
            if permit > now:
                if lane.place != ASLEEP or lane.wake != permit:
                    lane.throttled += permit - max(
                        now, lane.wake or 0 if lane.place == ASLEEP else 0
                    )
                return ASLEEP, permit
        if policy.gate is not None:
            return AT_GATE, None
        return RUNNABLE, None

    def _forgotten_at(self, lane: Lane, policy: Resolved, tier_queue: TierQueue) -> int:
        if lane.place == IDLE and lane.wake is not None:
            at = lane.wake
        else:
            at = self.now + LINGER_US["time" if self.fair_by_time(tier_queue) else "messages"]
        if lane.rest_step:
            at = max(at, lane.rest_until)
        if policy.rate is not None:
            at = max(at, -(-lane.tat // fairness.TICKS))
        return at

    def _move(self, lane: Lane, policy: Resolved) -> TierQueue:
        """To another pool or tier: the lane begins there like one that wakes up."""
        if lane.place == AT_GATE:
            self._gate_tier_queues.add((lane.gate or "", lane.tier_queue))
        self._went_down = True
        tier_queue = self.tier_queue(policy.pool, policy.tier)
        lane.tier_queue, lane.vt, lane.place, lane.wake, lane.gate = (
            tier_queue.number,
            tier_queue.vt,
            IDLE,
            None,
            None,
        )
        return tier_queue

    def allowance(self, lane: Lane, policy: Resolved) -> int:
        """How many of its ready messages the lane's own limits admit now."""
        allowed = lane.ready
        if not (policy.limited or lane.rest_step):
            return allowed
        concurrency = 1 if lane.rest_step else policy.lane_concurrency
        if concurrency is not None:
            allowed = min(allowed, concurrency - lane.leased)
        if policy.rate is not None and allowed > 0:
            permits = int(policy.lane_burst)
            if not fairness.recovered(lane.tat, self.now):
                tat = fairness.rebase(lane.tat, self.now, policy.lane_rate, policy.lane_burst)
                permits = fairness.permits(tat, self.now, policy.lane_rate, policy.lane_burst)
            allowed = min(allowed, permits)
        return max(allowed, 0)

    def forget(self, lane: Lane) -> None:
        """Drop the lane's row."""
        lane.forgotten = True
        self._changes.dirty[lane.lane] = lane

    @property
    def changed_lanes(self) -> int:
        """How many lanes this turn has changed and not written yet."""
        return len(self._changes.dirty)

    def forget_idle(self, most: int) -> None:
        """Drop the rows of idle lanes whose time has come, unread."""
        for number, name in self.all("lanes_forget", self.now, most):
            self.shard.lanes -= 1
            lane = self.lane_cache.lanes.get(number)
            if lane is not None:
                lane.forgotten = True
                self._changes.dirty.pop(number, None)
                self.lane_cache.drop(lane)
            self._absent.add(name)

    # Writing

    def flush(self) -> None:
        """Write everything back; the transaction may then be committed."""
        self._write_lanes()
        self._flush_gates()
        tier_queues = list(map(msgspec.structs.astuple, self.tier_queues.values()))
        if tier_queues != self._tier_queues_stood:
            self._tier_queues_stood = tier_queues
            self.run_many(
                "tier_queue_write",
                [(b.vt, b.carry, b.mean, b.delivered, b.number) for b in self.tier_queues.values()],
            )
        s = self.shard
        s.now = self.now
        self.run(
            "shard_write",
            s.seq,
            s.fence,
            self.now,
            s.policy_version,
            s.waiting,
            s.bytes,
            s.leased,
            s.dead,
            s.published,
            s.delivered,
            s.done,
            s.retried,
            s.died,
            s.merged,
            s.expired,
            s.removed,
            s.lanes,
            s.own,
        )

    def flush_what_went_down(self) -> None:
        """
        Before the indexes are asked who is served: what came up in this turn is known without them,
        what left them has to be written.
        """
        if self._went_down or self._dirty_gates:
            self._went_down = False
            self._write_lanes()
            self._flush_gates()

    def _write_lanes(self) -> None:
        self.changed_ids += self._changes.write(self, self.shard, self.lane_cache, self.now)

    def count_deliveries(self, lane: Lane, taken: int) -> None:
        """Keep the lane's recent rate."""
        elapsed = self.now - lane.seen
        if elapsed >= WINDOW_US:
            lane.before = lane.lately if elapsed < 2 * WINDOW_US else 0
            lane.lately, lane.seen = 0, self.now
        lane.lately += taken
        lane.delivered += taken
        self.shard.delivered += taken

    def _flush_gates(self) -> None:
        for gate in list(self._dirty_gates.values()):
            self.reopen(gate)
        for name, tier_queue in self._gate_tier_queues:
            state = self.gate(name)
            head = self.one("gate_head", name, tier_queue)
            if head is None:
                self.run("gate_entry_delete", tier_queue, name)
            else:
                is_open = int(state is not None and state.room(self.now) > 0)
                self.run("gate_entry_write", tier_queue, name, head[0], head[1], is_open)
        self._gate_tier_queues.clear()
        for gate in self._dirty_gates.values():
            self.run(
                "gate_write",
                gate.name,
                gate.code,
                gate.operator,
                gate.tat,
                gate.leased,
                gate.open,
                gate.wake,
            )
        self._dirty_gates.clear()

    def reopen(self, gate: GateState) -> None:
        """Whether it is open now; where its rate shuts it, when it opens."""
        is_open = gate.room(self.now) > 0
        gate.wake = gates.opens_us(gate.limits, gate.tat, gate.leased, self.now)
        if gate.wake is not None:
            gate.rebase(self.now)
        if is_open and not gate.open:
            for (number,) in self.all("gate_entries_of", gate.name):
                self.pools_to_notify.add(self.tier_queues[number].pool)
        gate.open = int(is_open)
        self._dirty_gates[gate.name] = gate
        self.run("gate_entries_open_set", gate.open, gate.name, gate.open)
