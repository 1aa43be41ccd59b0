"""
A transaction: the lanes, tier queues and gates that it has read, and what it will write at its end.

A lane is read once, changed in memory and written once, however often a call touches it; the same
holds for tier queues, gates and the shard's counters. `place` is the one rule for a lane's place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

from laneway.engines.base import MOST_SPARE_DROPS
from laneway.engines.shared import adaptive, fairness, gates
from laneway.engines.shared.naming import (
    AFTER_PARTITIONS,
    BUCKET,
    PARTITION,
    first_partition_on,
    generated_id,
    lane_name,
    partitions_on,
)
from laneway.engines.shared.refusals import LINGER_US
from laneway.engines.shared.size_classes import WINDOW_US
from laneway.engines.shared.states import ASLEEP, AT_GATE, FULL, IDLE, PAUSED, RUNNABLE
from laneway.engines.sql import gate_order, key_limits
from laneway.engines.sql.backlog import Backlog
from laneway.engines.sql.changes import LaneChanges
from laneway.engines.sql.group_queues import GroupQueues
from laneway.engines.sql.lane_cache import LaneCache
from laneway.engines.sql.rows import (
    NONE,
    GateState,
    GroupQueue,
    Lane,
    Row,
    Shard,
    TierQueue,
    to_json,
)
from laneway.engines.sql.statements import GRANT, KEYS_OF_LANES, Statements
from laneway.engines.sql.store import Connection, Place, Read
from laneway.engines.sql.tallies import TallyBook
from laneway.engines.sql.touched_rows import (
    EventTable,
    IdentTable,
    LeaseEndTable,
    MessageTable,
    ParkedTable,
    PartTable,
    PlaceTable,
    SerialKeyTable,
    Table,
    TimedTable,
    TimerTable,
)
from laneway.message import Draft
from laneway.policy import GATE_SEPARATOR, Layers, PolicyTable, Resolved, gate_names
from laneway.subscriptions import base_of
from laneway.tiers import TierLayers
from laneway.topic_groups import GROUP, TOPIC, group_of

MOST_RESOLVED = 200_000
"""Topics whose policy is cached."""

MOST_SETS = 20_000
"""Different sets of topics' own policies that are cached."""

_SERVED = (RUNNABLE, AT_GATE)
"""The places of lanes that have a position in their tier queue."""

_stored = attrgetter(
    *("vt", "carry", "mean", "delivered", "first_vt", "first_lane", "first_group_vt"),
    *("first_gate_vt", "number"),
)
"""What `tier_queue_write` writes of a tier queue."""


class Rules:
    """
    What an engine object caches between transactions: the policies, the tiers and the namespace's
    limits. `version` is the shard's `policy_version` at which they were read.
    """

    def __init__(
        self,
        tier_layers: TierLayers,
        random: Callable[[], float],
        place: Place | None = None,
    ) -> None:
        self.place = place
        self.tier_layers = tier_layers
        self.tiers = tier_layers.in_force()
        self.random = random
        self.version = -1
        self.policy_table = PolicyTable(self.tiers)
        self._resolved: dict[tuple[tuple[str, ...], int, str], Resolved] = {}
        self.max_backlog: int | None = None
        self.max_backlog_bytes: int | None = None
        self.on_full = "refuse"
        self._by_topic = _ByTopic(self.policy_table)
        self.of: Callable[[str], Resolved] = self._by_topic.__getitem__
        """The policy of a topic without one of its own, or of a bucket's pattern."""
        self.owned: dict[tuple[str, int], Resolved] = {}
        """The policy of a topic that has one of its own, by topic and number of its set."""
        self.patterns: dict[str, str] = {}
        """
        The most specific pattern of topics, by the topics' stem; another object when policies have
        changed.
        """
        self.sets: dict[int, Layers] = {}
        """By number: the layers of a set of own policies, see `own_set`."""

    def refresh(self, connection: Connection, version: int) -> None:
        """Read policies and tiers again if they are older than `version`."""
        if version != self.version:
            self.set_tiers(TierLayers.read(connection.one("setting_read", "tiers")[0]))
            rows = connection.all("policies")
            self.policy_table.load(
                [(layer, pattern, json.loads(fields)) for layer, pattern, fields in rows]
            )
            self.changed()
            self.version = version

    def set_tiers(self, layers: TierLayers) -> None:
        """Use these tiers from now on."""
        self.tier_layers = layers
        self.tiers = self.policy_table.tiers = layers.in_force()
        self.policy_table.forget_resolved()
        self.changed()

    @property
    def has_backlog_limit(self) -> bool:
        """Whether the namespace as a whole is limited."""
        return self.max_backlog is not None or self.max_backlog_bytes is not None

    def changed(self) -> None:
        """The policies were changed: forget what was resolved from them."""
        self._by_topic.clear()
        self.owned.clear()
        self._resolved.clear()
        self.patterns = {}

    def pattern_of(self, rule: str) -> str:
        """The most specific pattern of a topic, or the pattern of a bucket; "*": none."""
        stem = rule.rpartition(".")[0]
        pattern = self.patterns.get(stem)
        if pattern is None:
            if len(self.patterns) >= MOST_SETS:
                self.patterns.clear()
            pattern = self.patterns[stem] = self.policy_table.pattern_of(rule)
        return pattern

    def resolve_own(self, topic: str, own: int, layers: Layers) -> Resolved:
        """The policy of a topic with this set of its own."""
        if len(self.owned) >= MOST_RESOLVED:
            self.owned.clear()
        policy = self._shared(self.policy_table.covering(topic), topic, own, layers)
        self.owned[topic, own] = policy
        return policy

    def _shared(self, covering: tuple[str, ...], topic: str, own: int, layers: Layers) -> Resolved:
        """
        Topics with equal sets under the same patterns share one policy object, except that
        subscriptions have another one than topics.
        """
        key = (covering, own, self.policy_table.copy_kind(topic))
        policy = self._resolved.get(key)
        if policy is None:
            if len(self._resolved) >= MOST_SETS:
                self._resolved.clear()
            policy = self._resolved[key] = self.policy_table.resolve_own(topic, layers)
        return policy

    def cache_set(self, own: int, layers: Layers) -> None:
        if len(self.sets) >= MOST_SETS:
            self.sets.clear()
        self.sets[own] = layers

    def invalidate(self) -> None:
        """Read the policies again at the next transaction: a change may have been rolled back."""
        self.version = -1
        self.sets.clear()


class _ByTopic(dict[str, Resolved]):
    """The resolved policies by topic; a missing one is resolved when it is read."""

    def __init__(self, policy_table: PolicyTable) -> None:
        super().__init__()
        self._policy_table = policy_table

    def __missing__(self, topic: str) -> Resolved:
        if len(self) >= MOST_RESOLVED:
            self.clear()
        policy = self[topic] = self._policy_table.resolve(topic)
        return policy


def rebased(lane: Lane, policy: Resolved, now: int) -> int:
    """The lane's TAT under its policy's rate, which may have changed."""
    return fairness.rebase(lane.tat, now, policy.lane_rate, policy.lane_burst, lane.owes)


class Transaction(Statements):
    """
    A unit of work on one store, within one transaction.

    All changes of lanes, tier queues, gates, counters and messages' rows go through it; `flush`
    writes them. Leases are written at once, by name of a statement. Without a `lane_cache` it is a
    view: it reads for itself and is never flushed.

    What its caller does after the commit: notify `pools_to_notify` (with `has_arrivals`), one
    waiter of `pools_with_more`, and the listeners of `changed_results`. What it does before:
    publish `end_notices`.
    """

    def __init__(
        self,
        connection: Connection,
        rules: Rules,
        clock: int,
        lane_cache: LaneCache | None = None,
    ) -> None:
        super().__init__(connection)
        self.rules = rules
        self.lane_cache = lane_cache = lane_cache or LaneCache()
        if lane_cache.shard is None:
            lane_cache.shard = Shard(*connection.one("shard_read"))
            for row in connection.all("tier_queues"):
                lane_cache.add_tier_queue(TierQueue(*row))
            lane_cache.stored_tier_queues = list(map(_stored, lane_cache.tier_queues.values()))
        self.shard = lane_cache.shard
        self.tier_queues = lane_cache.tier_queues
        self.clock = clock
        self.now = max(clock, self.shard.now)
        rules.refresh(connection, self.shard.policy_version)
        self.min_number = 0  # the least sequence number or fence that may be assigned next
        self.on_wake: Callable[[int | None], None] | None = None
        """Is called after the commit, with when housekeeping is due again."""
        self.pools_to_notify: set[str] = set()
        """Where a lane has become runnable."""
        self.pools_with_more: set[str] = set()
        """Where a lease has left something, now or soon, that another waiter should lease."""
        self.first_asleep = NONE  # when the first lane wakes that was written asleep
        self.has_arrivals = False
        self.has_due_later = False  # some of what was put is not due yet
        self.backlogs: dict[str, Backlog] = {}  # of limited topics, during a put
        self.spare_drops = MOST_SPARE_DROPS
        self.end_notices: list[Draft] = []
        # The message that is being settled, if its handler reported its end; and with an outcome?
        self.reported_by_handler: tuple[int, bool] | None = None
        self.letters: dict[str, int] = {}  # by topic: dead letters, more or less, not written yet
        self.changed_results: list[str] = []  # names; see `result_name`
        # Lanes that became runnable, or came to a gate, in this transaction; indexes lack them.
        self.came_up: list[Lane] = []
        self._has_departures = False  # indexes list a lane that is no longer there
        self._absent: set[str] = set()  # names without a lane
        self._new_lanes: set[int] = set()  # created in this transaction
        self._changes = LaneChanges()
        self.grown = (
            self._changes.grown
        )  # lanes of which only `ready`, `bytes` and `published` changed
        self.groups = GroupQueues(self)
        self._gates: dict[str, GateState | None] = {}
        self._gates_in: dict[str, list[GateState]] = {}
        self._dirty_gates: dict[str, GateState] = {}
        self._gate_tier_queues: set[tuple[int, str]] = set()
        self._lowest_turns: dict[tuple[int | None, str | None], int] = {}
        self._reopened_groups: set[int] = set()  # other gates where they are first are open
        self._left_topics: dict[str, int] = {}  # with the tier queue of a lane, or 0
        self._last_lane: int | None = None

    # The rows of messages, by table

    @cached_property
    def messages(self) -> MessageTable:
        return MessageTable(self)

    @cached_property
    def ready(self) -> PlaceTable:
        return PlaceTable(self, "ready", 4, write="ready_insert", delete="ready_delete")

    @cached_property
    def parked(self) -> ParkedTable:
        return ParkedTable(self)

    @cached_property
    def key_parked(self) -> ParkedTable:
        return ParkedTable(self, "key_parked")

    @cached_property
    def key_states(self) -> Table:
        """(lane, key) → see `key_limits.StoredKeyState`."""
        return TimedTable(
            self,
            "key_state",
            2,
            read="key_states_read",
            write="key_state_write",
            delete="key_state_delete",
        ).timed_by(self.shard, 3)

    @cached_property
    def parts(self) -> PartTable:
        return PartTable(self)

    @cached_property
    def idents(self) -> IdentTable:
        return IdentTable(self).timed_by(self.shard, 2)

    @cached_property
    def events(self) -> EventTable:
        """(time, kind, message) → ()."""
        return EventTable(self, self.shard)

    @cached_property
    def lease_ends(self) -> LeaseEndTable:
        """(time, first fence) → (last fence,)."""
        return LeaseEndTable(self, self.shard)

    @cached_property
    def timers(self) -> TimerTable:
        """(lane,) → (time,), which is no later than that of its first delayed message."""
        return TimerTable(self, self.shard)

    @cached_property
    def serial_keys(self) -> SerialKeyTable:
        return SerialKeyTable(self, self._new_lanes)

    @cached_property
    def merge_keys(self) -> Table:
        """(lane, merge key) → (message,)."""
        return Table(
            self,
            "merge_key",
            2,
            read="merge_keys_read",
            write="merge_key_write",
            delete="merge_key_delete",
            converts=True,
            absent=self._new_lanes,
        )

    @cached_property
    def edges(self) -> Table:
        """(topic, merge key) → (until,)."""
        return TimedTable(
            self, "edge", 2, read="edges_read", write="edge_write", delete="", converts=True
        ).timed_by(self.shard, 0)

    @cached_property
    def notes(self) -> Table:
        """(message,) → (unhandled since or None, how often, history)."""
        return Table(
            self,
            "note",
            1,
            read="notes_read",
            write="note_write",
            delete="note_delete",
            converts=True,
        )

    @cached_property
    def dead_letters(self) -> Table:
        """(message,) → (topic, died, until, reason, error)."""
        return Table(
            self,
            "dead",
            1,
            read="dead_letters_read",
            write="dead_insert",
            delete="dead_delete",
            converts=True,
        )

    @cached_property
    def kept(self) -> Table:
        """(id, topic, slot) → (until, whether the id was generated, body)."""
        return TimedTable(self, "kept", 3, write="kept_write", delete="", converts=True).timed_by(
            self.shard, 0
        )

    @cached_property
    def signals(self) -> Table:
        """(message, number of a signal that came) → ()."""
        return Table(self, "came", 2, read="came_read", write="came_insert", delete="")

    @cached_property
    def has_followers(self) -> bool:
        """Whether a message has followers, see `message_ends`."""
        return self.one("followers_any") is not None

    def expect_ready(self, lane: Lane, row: Row) -> None:
        """The message becomes ready in the lane, maybe before all others."""
        if lane.expect(row.rank, row.pos):
            self.touch(lane)

    def expect_event(self, at: int) -> None:
        """There is an event at this time."""
        self.shard.first_event = min(self.shard.first_event, at)

    def expect_lease_end(self, at: int) -> None:
        """Leases run out then."""
        self.shard.first_end = min(self.shard.first_end, at)

    def next_seq(self) -> int:
        """Assign the next sequence number."""
        shard = self.shard
        if shard.seq < self.min_number:  # noqa: PLR1730  # `max` would cost half of the call
            shard.seq = self.min_number
        shard.seq = seq = shard.seq + 1
        return seq

    def last_fence(self) -> int:
        """The fence before the next one."""
        self.shard.fence = max(self.shard.fence, self.min_number)
        return self.shard.fence

    def id_of(self, row: Row) -> str:
        """The message's own id, else its generated id."""
        return row.id if row.id is not None else generated_id(self.shard.nonce, row.mid)

    @property
    def tallies(self) -> TallyBook:
        book = self.lane_cache.tallies
        if book is None:
            book = self.lane_cache.tallies = TallyBook(self.shard.tallies)
            if self.shard.tallies is None:
                book.fill(self)
        return book

    # Policies

    def policy_of(self, lane: Lane) -> Resolved:
        if lane.patterns is not self.rules.patterns:  # not known, or policies have changed
            lane.policy, lane.patterns = self.rules.of(lane.rule), self.rules.patterns
        return self._owned(lane.rule, lane.own) if lane.own else lane.policy

    def policy(self, topic: str) -> Resolved:
        """The policy of a topic, or of a bucket's pattern."""
        if self.shard.own and (own := self.own_of(topic)):
            return self._owned(topic, own)
        return self.rules.of(topic)

    def policies(self, topics: Sequence[str]) -> list[Resolved]:
        """The policies of several topics; own ones are read together."""
        if not self.shard.own:
            return list(map(self.rules.of, topics))
        self.load_own(dict.fromkeys(topics))
        return list(map(self.policy, topics))

    def _owned(self, topic: str, own: int) -> Resolved:
        policy = self.rules.owned.get((topic, own))
        if policy is None:
            policy = self.rules.resolve_own(topic, own, self.own_layers(own))
        return policy

    def own_of(self, topic: str) -> int:
        """The number of the topic's set of own policies; 0: it has none."""
        lane_cache = self.lane_cache
        lane = lane_cache.names.get(topic)
        if lane is not None:
            return lane.own
        own = lane_cache.own.get(topic)
        if own is None:
            own = lane_cache.own[topic] = 0 if self.is_shared(topic) else self.stored_own_of(topic)
        return own

    def stored_own_of(self, topic: str) -> int:
        """The number of the topic's set that is stored, whether it counts or not."""
        row = self.one("own_read", topic)
        return row[0] if row is not None else 0

    def is_shared(self, topic: str) -> bool:
        """
        Whether the topic's policy is among those of patterns, because it decides which shards its
        messages go to. Its own policy, if it still has one, does not count.
        """
        return bool(self.rules.policy_table.layers(topic))

    def load_own(self, topics: Iterable[str]) -> None:
        """Read the lanes of these topics, and their own policies, all in three statements."""
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
            lane_cache.own.update(
                (topic, own)
                for topic, own in self.all("own_read_many", self.array(wanted))
                if not self.is_shared(topic)
            )
        numbers = {self.own_of(topic) for topic in topics} - self.rules.sets.keys() - {0}
        if numbers:
            for number, layers in self.all("own_sets_read", self.array(list(numbers))):
                self.rules.cache_set(number, json.loads(layers))

    def own_layers(self, own: int) -> Layers:
        """The layers of a set of own policies; 0: none."""
        if not own:
            return {}
        layers = self.rules.sets.get(own)
        if layers is None:
            layers = json.loads(self.one("own_set_read", own)[0])
            self.rules.cache_set(own, layers)
        return layers

    # Lanes

    def lane_of(
        self, policy: Resolved, topic: str, spread_by: bytes | None, number: int
    ) -> tuple[str, str]:
        """
        The lane of a message, see `lane_name`. One that any partition may have gets one of those
        that are on this shard.
        """
        place = self.rules.place
        if place is not None and place.shards > 1 and policy.partitions > 1 and spread_by is None:
            first = first_partition_on(place.shard, place.shards, topic)
            here = max(1, partitions_on(place.shard, place.shards, topic, policy.partitions))
            number = first + number % here * place.shards
        return lane_name(policy, topic, spread_by, number)

    def load_names(
        self, names: Iterable[str], *, creates: bool = False, inbox: bool = False
    ) -> None:
        """
        Read lanes by name, all in one statement. `creates`: missing ones will be created. `inbox`:
        they are those of the inbox's messages.
        """
        known = self.lane_cache.names
        wanted = [name for name in names if name not in known and name not in self._absent]
        if not wanted:
            return
        if creates and self._last_lane is None:
            self.prefetch("lane_last")
        if inbox:
            rows = self.all("inbox_lanes")
        elif len(wanted) == 1:
            rows = self.all("lane_by_name", wanted[0])
        else:
            rows = self.all("lanes_by_name", self.array(wanted))
        self.cache_lanes(rows)
        if inbox or len(rows) < len(wanted):
            self._absent.update(name for name in wanted if name not in known)

    def load_numbers(self, numbers: Iterable[int]) -> None:
        """Read lanes by number, all in one statement."""
        known = self.lane_cache.lanes
        wanted = [number for number in numbers if number not in known]
        if len(wanted) == 1:
            rows = self.all("lane_by_number", wanted[0])
        else:
            rows = self.all("lanes_by_number", self.array(wanted)) if wanted else []
        self.cache_lanes(rows)

    def cache_lanes(self, rows: Sequence[Sequence[Any]]) -> None:
        """Cache the lanes of these rows, with the groups of theirs."""
        lanes = [self.cached_lane(row) for row in rows]
        if lanes and self.groups.exist():
            self.groups.load_of(lanes)

    def cached_lane(self, row: Sequence[Any]) -> Lane:
        """The lane of a row; a cached one is preferred, because it may have unwritten changes."""
        lane = self.lane_cache.lanes.get(row[0])
        if lane is None:
            lane = Lane(*row)
            lane.rule = row[2] or row[1]
            if lane.more is not None:
                lane.unpack()
            lane.set_counted()
            lane.stored_placing, lane.stored_classes = lane.placing(), lane.classes()
            self.lane_cache.add(lane)
        return lane

    def lane(self, number: int) -> Lane:
        """The lane of a number, which exists."""
        lane = self.lane_cache.lanes.get(number)
        if lane is None:
            self.load_numbers([number])
            lane = self.lane_cache.lanes[number]
        return lane

    def find_lane(self, name: str) -> Lane | None:
        lane = self.lane_cache.names.get(name)
        if lane is None and name not in self._absent:
            self.load_names([name])
            lane = self.lane_cache.names.get(name)
        return lane

    def lanes_named(self, names: Sequence[str]) -> list[Lane]:
        """Those of these lanes that exist."""
        self.load_names(names)
        return [lane for lane in map(self.find_lane, names) if lane is not None]

    def ensure_lane(self, name: str, rule: str) -> Lane:
        """The lane of a name, created if it does not exist; `rule`: whose policy it has."""
        existing = self.lane_cache.names.get(name) or self.find_lane(name)
        if existing is not None:
            existing.forgotten = False
            if (
                self.shard.own
                and name != rule
                and name[0] != BUCKET
                and existing.own != (own := self.own_of(rule))
            ):
                existing.own = own  # the lane is from an earlier time with partitions
                self.run("lane_own", own, existing.lane)
            return existing
        own = self.own_of(rule) if self.shard.own and name[0] != BUCKET else 0
        policy = self._owned(rule, own) if own else self.rules.of(rule)
        tier_queue = self.tier_queue(policy.pool, policy.tier)
        group_name = group_of(policy.group, rule) if policy.group is not None else None
        group = self.groups.of(tier_queue, group_name) if group_name is not None else None
        lane = Lane(
            self.next_lane(),
            name,
            rule,
            own,
            tier_queue.number,
            vt=tier_queue.vt,
            seen=self.now,
            placed_by=policy,
            is_new=True,
        )
        if group is not None:
            self.groups.join(lane, group)
        self.lane_cache.add(lane)
        self._new_lanes.add(lane.lane)
        self._changes.dirty[lane.lane] = lane
        self.shard.lanes += 1
        return lane

    def next_lane(self) -> int:
        """The number of a new lane or group."""
        if self._last_lane is None:
            self._last_lane = self.one("lane_last")[0] or 0
            if self.groups.exist():
                self._last_lane = max(self._last_lane, self.one("group_last")[0] or 0)
        self._last_lane += 1
        return self._last_lane

    def touch(self, lane: Lane) -> None:
        """The lane was changed: write it at the end."""
        self._changes.dirty[lane.lane] = lane

    def touch_shrunk(self, lane: Lane) -> None:
        """Like `touch`, where only `leased` and `done` changed (and an idle lane's `wake`)."""
        if lane.place != IDLE:
            self._changes.shrunk[lane.lane] = lane
            return
        policy = self.policy_of(lane)
        if (
            lane.ready
            or lane.need
            or policy.paused
            or policy.shared is not None
            or lane.placed_by is not policy
        ):
            self.place(lane)
        else:
            lane.wake = self._forgotten_at(lane, policy)
            self._changes.ended[lane.lane] = lane

    def tier_queue(self, pool: str, tier: str) -> TierQueue:
        """The tier queue of a pool and tier, created if it does not exist."""
        tier_queue = self.find_tier_queue(pool, tier)
        if tier_queue is None:
            number = self.one("tier_queue_insert", pool, tier)[0]
            tier_queue = TierQueue(number, pool, tier, 0, 0, 0, 0)
            self.lane_cache.add_tier_queue(tier_queue)
        return tier_queue

    def find_tier_queue(self, pool: str, tier: str) -> TierQueue | None:
        return self.lane_cache.tier_queue_names.get((pool, tier))

    def tier_queue_of(self, lane: Lane) -> TierQueue:
        number = lane.tier_queue
        return self.tier_queues[number if number > 0 else self.groups.get(-number).tier_queue]

    def tier_queue_at(self, number: int) -> TierQueue:
        """The tier queue of a number; below 0: that of a group's number."""
        return self.tier_queues[number if number > 0 else self.groups.get(-number).tier_queue]

    def group_of(self, lane: Lane) -> GroupQueue | None:
        return None if lane.tier_queue > 0 else self.groups.get(-lane.tier_queue)

    def first_place(self, number: int, *, of_groups: bool = False) -> tuple[int, int]:
        """
        A virtual time and a number: all runnable lanes of a tier queue (below 0: of a group), or
        all its groups, are behind it.
        """
        if number < 0:
            return self.groups.get(-number).first_vt, -1
        tier_queue = self.tier_queues[number]
        if of_groups:
            return tier_queue.first_group_vt, -1
        return tier_queue.first_vt, tier_queue.first_lane - 1

    def begins_at(self, number: int, vt: int, first: int, *, of_groups: bool = False) -> None:
        """The first stored one has this virtual time and number, see `first_place`."""
        if number < 0:
            group = self.groups.get(-number)
            if vt != group.first_vt:
                group.first_vt = vt
                self.groups.touch(group)
        elif of_groups:
            self.tier_queues[number].first_group_vt = vt
        else:
            tier_queue = self.tier_queues[number]
            tier_queue.first_vt, tier_queue.first_lane = vt, first

    def fair_by_time(self, tier_queue: TierQueue) -> bool:
        """Whether its lanes share the workers' time instead of the number of messages."""
        tier = self.rules.tiers.get(tier_queue.tier)
        return tier is not None and tier.fair_by == "time"

    # Gates

    def gate(self, name: str) -> GateState | None:
        if name not in self._gates:
            self.load_gates([name])
        return self._gates[name]

    def has_read_gates(self, key: str) -> bool:
        """Whether the gates of a key are known."""
        return key in self._gates_in or all(name in self._gates for name in gate_names(key))

    def load_gates(self, keys: Iterable[str]) -> None:
        """Read the gates of these keys, all in one statement."""
        known = self._gates
        names = (name for key in keys if key not in self._gates_in for name in gate_names(key))
        wanted = [name for name in dict.fromkeys(names) if name not in known]
        if len(wanted) == 1:
            rows = self.all("gate_read", wanted[0])
        else:
            rows = self.all("gates_read", self.array(wanted)) if wanted else []
        known.update(dict.fromkeys(wanted))
        known.update((row[0], GateState(*row)) for row in rows)

    def gate_keys(self, lanes: Iterable[Lane]) -> set[str]:
        """The keys of the gates of these lanes. Most lanes have no limits, and cost no call."""
        return {
            key
            for lane in lanes
            if lane.patterns is not self.rules.patterns
            or lane.policy.limited
            or lane.tier_queue < 0
            or lane.own
            if (key := self.gate_of(lane, self.policy_of(lane)))
        }

    def gate_of(self, lane: Lane, policy: Resolved) -> str | None:
        """
        The key of the lane's gates: their names, joined by `GATE_SEPARATOR`; None: it has none.
        What the partitions of its topic share is one, and a group with limits.
        """
        key = policy.gate
        if policy.shared is not None:
            own = TOPIC + lane.rule
            key = own if key is None else key + GATE_SEPARATOR + own
        if lane.tier_queue < 0:
            group = self.groups.get(-lane.tier_queue)
            if group.limited:
                own = GROUP + group.name
                return own if key is None else key + GATE_SEPARATOR + own
        return key

    def is_limited(self, lane: Lane, policy: Resolved) -> bool:
        """Whether the lane or its group has a rate, a concurrency or a gate."""
        if policy.limited or lane.tier_queue > 0:
            return policy.limited
        return bool(self.groups.get(-lane.tier_queue).limited)

    def limits_of(self, lane: Lane, policy: Resolved) -> tuple[bool, str | None]:
        """As `is_limited` and `gate_of`, at once."""
        if policy.shared is not None or (
            lane.tier_queue < 0 and self.groups.get(-lane.tier_queue).limited
        ):
            return self.is_limited(lane, policy), self.gate_of(lane, policy)
        return policy.limited, policy.gate

    def gates_in(self, key: str | None) -> list[GateState]:
        """The gates of a key; None: none. One that is not defined admits nothing."""
        if key is None:
            return []
        found = self._gates_in.get(key)
        if found is None:
            found = self._gates_in[key] = [
                self.gate(name) or GateState(name, '{"concurrency": 0}', None, 0, 0, 0, None)
                for name in gate_names(key)
            ]
        return found

    @staticmethod
    def largest_cost(policy: Resolved, states: Iterable[GateState]) -> int:
        """
        The most that a delivery of a lane with this policy and these gates is charged. A message
        may cost more if it was accepted before the limit was lowered. What the partitions of a
        topic share says nothing: the policy does.
        """
        of_gates = [
            state.whole.largest_cost for state in states if not state.name.startswith(TOPIC)
        ]
        return min([policy.largest_cost, *of_gates])

    def free_gates(self, key: str, took_us: int) -> None:
        """A lease that went through the gates of this key ended, after that time."""
        for state in self.gates_in(key):
            state.free(took_us)
            self._dirty_gates[state.name] = state

    def cached_gate(self, row: Sequence[Any]) -> GateState:
        """The gate of a row; one that was read before is preferred."""
        gate = self._gates.get(row[0])
        if gate is None:
            gate = self._gates[row[0]] = GateState(*row)
        return gate

    def ensure_gate(self, name: str) -> GateState:
        """The gate of a name, created if it is not defined; it will be written."""
        gate = self.gate(name)
        if gate is None:
            gate = self._gates[name] = GateState(name, None, None, 0, 0, 0, None)
            self._gates_in.clear()
        self._dirty_gates[name] = gate
        return gate

    def topic_gate(
        self, topic: str, policy: Resolved, *, was_empty: bool = False
    ) -> GateState | None:
        """
        The gate that the topic's partitions share; set, if it has other limits. None: they share no
        limits. `was_empty`: the number of partitions may be another one, too.
        """
        limits, name = policy.shared, TOPIC + topic
        if limits is None:
            return None
        gate = self.gate(name)
        place, part = self.rules.place, limits
        is_divided = place is not None and place.shards > 1
        if gate is not None and gate.whole == limits and not (was_empty and is_divided):
            return gate
        if place is not None and is_divided:  # copies are where their messages are
            partitions = self.policy(base_of(topic)).partitions
            here = partitions_on(place.shard, place.shards, topic, partitions)
            number = first_partition_on(place.shard, place.shards, topic)
            count = min(place.shards, partitions)
            part = gates.part_of_topic(limits, here, partitions, number, count)
        operator = None if part is limits else to_json(part).decode()
        if gate is not None and gate.whole == limits and gate.operator == operator:
            return gate
        gate = self.ensure_gate(name)
        if gate.granted is not None:
            granted = gates.rescaled(gate.here, gate.whole, limits, part)
            gate.granted = to_json(granted).decode()
            gate.has_new_grant = True
        gate.code, gate.operator = to_json(limits).decode(), operator
        gate.set_limits()
        gate.rebase(self.now)
        return gate

    def _end_topic_gates(self) -> None:
        """Delete gates of topics whose last partition was forgotten, unless they have grants."""
        topics, self._left_topics = self._left_topics, {}
        for topic, tier_queue in topics.items():
            gate = self.gate(TOPIC + topic)
            if gate is None or gate.granted is not None:
                continue
            if self.one("lane_exists_between", topic + PARTITION, topic + AFTER_PARTITIONS) is None:
                self.run("gate_delete", gate.name)
                if tier_queue < 0:
                    self.groups.end_turn(-tier_queue, gate.name)
                self._gates[gate.name] = None
                self._dirty_gates.pop(gate.name, None)
                self._gates_in.clear()

    def topic_left(self, topic: str) -> None:
        """Delete the gate that the topic's partitions shared at the end, unless it has some."""
        self._left_topics.setdefault(topic, 0)

    def _lane_left(self, name: str, tier_queue: int) -> None:
        """The lane of this name was forgotten, which was in this tier queue or group."""
        topic, separator, _ = name.partition(PARTITION)
        if separator and not name.startswith(BUCKET):
            self._left_topics[topic] = tier_queue

    def touch_gate(self, gate: GateState) -> None:
        """The gate was changed: write it at the end."""
        self._dirty_gates[gate.name] = gate

    # Placing

    def place(self, lane: Lane, *, was_visited: bool = False, was_refused: bool = False) -> None:
        """Determine the lane's place; the rule is docs/specification.md, "Placing"."""
        self._changes.dirty[lane.lane] = lane
        policy = self.policy_of(lane)
        if lane.placed_by is not policy and self._is_elsewhere(lane, policy):
            self._move(lane, policy)
        if lane.key_limits and lane.key_limits != policy.key_limits and lane.parked:
            key_limits.limits_changed(self, lane, policy)
        tier_queue = self.tier_queue_of(lane)
        place, wake = self._place_of(lane, policy, was_visited=was_visited, was_refused=was_refused)
        if lane.held_until and not self._is_held(lane, policy, place):
            lane.hold(self.now, 0)
        if lane.tier_queue < 0 and place != lane.place:
            self._place_in_group(lane, place, tier_queue)
        key = (self.gate_of(lane, policy) or "") if place == AT_GATE else ""
        was, before = lane.place, lane.gates_key if lane.place == AT_GATE else ""
        comes_up = was != place and place in _SERVED
        if was in _SERVED and (place != was or key != before):
            self._has_departures = True
        if comes_up:
            self.came_up.append(lane)
            if (place == RUNNABLE or was != RUNNABLE) and lane.tier_queue > 0:
                lane.vt = max(lane.vt, tier_queue.vt)
        if key or before:
            self._place_at_gates(lane, before, key, place)
        if comes_up and (not key or self._is_open(lane.gate)):
            self.pools_to_notify.add(tier_queue.pool)
        lane.place, lane.wake = place, wake

    def _place_at_gates(self, lane: Lane, before: str, key: str, place: int) -> None:
        """The lane leaves its gates, or comes to some: `before` and `key` are their keys."""
        if before:
            self.moves_at_gate(lane)
            if key == before:
                return
            if not key:
                gate_order.end_holds(self, lane, before)
        if before and key and lane.gate in gate_names(key):
            gate_order.change(self, lane, key)
        else:
            if before:
                gate_order.leave(self, lane)
                gate_order.count(self, before, -1)
            lane.gates = None
            if key:
                gate_order.arrive(self, lane, key)
                gate_order.count(self, key, 1)
        if key:
            lane.place = place
            self.moves_at_gate(lane)

    def _is_elsewhere(self, lane: Lane, policy: Resolved) -> bool:
        """Whether the lane is not in the tier queue, or not in the group, of its policy."""
        tier_queue, group = self.tier_queue_of(lane), self.group_of(lane)
        is_elsewhere = (
            tier_queue.pool != policy.pool
            or tier_queue.tier != policy.tier
            or group_of(policy.group, lane.rule) != (group.name if group is not None else None)
        )
        lane.placed_by = None if is_elsewhere else policy
        return is_elsewhere

    def _place_in_group(self, lane: Lane, place: int, tier_queue: TierQueue) -> None:
        """A lane of a group gets another place."""
        group = self.groups.get(-lane.tier_queue)
        comes = place in _SERVED and lane.place not in _SERVED
        if comes or (place == RUNNABLE and lane.place == AT_GATE):
            # neither sleeping nor waiting at a gate earns credit
            if not group.runnable:
                group.vt = max(group.vt, tier_queue.vt)
            lane.vt = max(lane.vt, group.inner_vt)
        group.runnable += (place == RUNNABLE) - (lane.place == RUNNABLE)
        self.groups.touch(group)

    def moves_at_gate(self, lane: Lane) -> None:
        """The lane comes to the gate where it waits, leaves it, or has another position there."""
        self.moves_in(self.tier_queue_of(lane).number, lane.gate or "")

    def moves_in(self, tier_queue: int, gate: str) -> None:
        """Another entry of the tier queue may be first at the gate."""
        self._gate_tier_queues.add((tier_queue, gate))

    def _is_open(self, gate: str | None) -> bool:
        """Whether a worker that is notified of a lane at this gate can lease from it."""
        return all(state.is_open(self.now) for state in self.gates_in(gate))

    def _place_of(
        self, lane: Lane, policy: Resolved, *, was_visited: bool, was_refused: bool
    ) -> tuple[int, int | None]:
        """The place, see `shared.states`, and when the lane has to be placed or forgotten."""
        now = self.now
        shared = None
        if policy.shared is not None:
            was_empty = lane.place == IDLE and not lane.leased
            shared = self.topic_gate(lane.rule, policy, was_empty=was_empty)
        is_used = policy.lane_rate and not fairness.recovered(lane.tat, now)
        if is_used:
            lane.tat = rebased(lane, policy, now)
        elif lane.owes and fairness.recovered(lane.tat, now):
            lane.owes = 0
        if policy.paused and lane.waiting:
            return PAUSED, None
        if not lane.ready:
            if lane.need:
                lane.need = 1 if lane.leased or lane.delayed or lane.parked else 0
            return IDLE, self._forgotten_at(lane, policy, shared)
        if lane.back_off_step and lane.back_off_until > now:
            return ASLEEP, lane.back_off_until
        concurrency = policy.lane_concurrency
        if lane.back_off_step:
            concurrency = 1
        elif concurrency is not None and policy.lane_adapts:
            concurrency = adaptive.limit_of(lane.flow, policy.min_concurrency, concurrency)
        if concurrency is not None and lane.leased >= concurrency:
            return FULL, None
        if is_used:
            permit = fairness.next_permit_us(
                lane.tat, now, policy.lane_rate, policy.lane_burst, lane.need or 1
            )
            if permit > now:
                if permit != lane.held_until:
                    lane.hold(now, permit)
                return ASLEEP, permit
        if (policy.gate is None and shared is None) and (
            lane.tier_queue > 0 or self.gate_of(lane, policy) is None
        ):
            return RUNNABLE, None
        if lane.place in _SERVED and not was_visited:
            return lane.place, None
        states = self.gates_in(self.gate_of(lane, policy))
        if not all(state.has_spare(now, state.claimed) for state in states):
            stays = shared is None and not was_refused and self._is_far_ahead(lane, policy, states)
            return RUNNABLE if stays else AT_GATE, None
        for state in states:
            state.claimed += 1
            self.touch_gate(state)
        return RUNNABLE, None

    def _is_far_ahead(self, lane: Lane, policy: Resolved, states: Sequence[GateState]) -> bool:
        """
        Whether the tier serves the lane, or its group, so late that a gate whose first lane it is
        would have to wait for it: it stays in the order of its tier.
        """
        tier_queue, group = self.tier_queue_of(lane), self.group_of(lane)
        vt, weight = (lane.vt, policy.weight) if group is None else (group.vt, group.weight)
        return (
            weight <= fairness.SMALL_WEIGHT
            and vt - tier_queue.vt >= fairness.stride(1, fairness.SMALL_WEIGHT)
            and all(state.granted is None for state in states)  # grants move to waiting lanes
            and not self.fair_by_time(tier_queue)
        )

    def _is_held(self, lane: Lane, policy: Resolved, place: int) -> bool:
        """Whether a rate may hold the lane back at its new place: its own, or its topic's."""
        if place == ASLEEP:
            return not (lane.back_off_step and lane.back_off_until > self.now)
        return place == AT_GATE and policy.shared is not None

    def _forgotten_at(
        self, lane: Lane, policy: Resolved, shared: GateState | None = None
    ) -> int | None:
        """When the lane, which has no ready messages, is deleted; None: it has others."""
        if lane.leased or lane.delayed or lane.parked:
            return None
        if lane.place == IDLE and lane.wake is not None:
            at = lane.wake
        elif lane.flow is not None or (shared is not None and shared.flow is not None):
            at = self.now + adaptive.KEPT_US
        else:
            by_time = self.fair_by_time(self.tier_queue_of(lane))
            at = self.now + LINGER_US["time" if by_time else "messages"]
        if lane.back_off_step:
            at = max(at, lane.back_off_until)
        if policy.lane_rate:
            at = max(at, -(-rebased(lane, policy, self.now) // fairness.TICKS))
        if shared is not None:
            at = max(at, -(-shared.tat // fairness.TICKS))
        return max(at, lane.keys_recover) if lane.keys_recover else at

    def _move(self, lane: Lane, policy: Resolved) -> None:
        """
        Move the lane to the pool, tier and group of its policy; it begins there like a new one.
        """
        if key := lane.gates_key:
            self.moves_at_gate(lane)
            gate_order.end_holds(self, lane, key)
            gate_order.leave(self, lane)
            gate_order.count(self, key, -1)
        lane.gates = lane.turns = None
        lane.turn = 0
        self._has_departures = True
        if lane.tier_queue < 0:
            self.groups.leave(lane)
        tier_queue = self.tier_queue(policy.pool, policy.tier)
        lane.tally = lane.placed_by = None
        lane.tier_queue, lane.vt, lane.place, lane.wake, lane.gate = (
            tier_queue.number,
            tier_queue.vt,
            IDLE,
            None,
            None,
        )
        group_name = group_of(policy.group, lane.rule)
        if group_name is not None:
            self.groups.join(lane, self.groups.of(tier_queue, group_name))

    def allowance(self, lane: Lane, policy: Resolved) -> int:
        """How many of its ready messages the lane's own limits admit now."""
        allowed = lane.ready
        if not (policy.limited or lane.back_off_step):
            return allowed
        concurrency = policy.lane_concurrency
        if lane.back_off_step:
            concurrency = 1
        elif concurrency is not None and policy.lane_adapts:
            concurrency = adaptive.limit_of(lane.flow, policy.min_concurrency, concurrency)
        if concurrency is not None:
            allowed = min(allowed, concurrency - lane.leased)
        if policy.lane_rate and allowed > 0:
            permits = int(policy.lane_burst)
            if not fairness.recovered(lane.tat, self.now):
                tat = rebased(lane, policy, self.now)
                permits = fairness.permits(tat, self.now, policy.lane_rate, policy.lane_burst)
                if lane.need > 1 and not fairness.admits(
                    tat, self.now, policy.lane_rate, policy.lane_burst, lane.need
                ):
                    permits = 0
            allowed = min(allowed, permits)
        return max(allowed, 0)

    def forget(self, lane: Lane) -> None:
        """Delete the lane's row at the end, unless it is needed again."""
        lane.forgotten = True
        self._lane_left(lane.name, lane.tier_queue)
        self._changes.dirty[lane.lane] = lane

    @property
    def changed_lanes(self) -> int:
        """How many lanes were changed and are not written yet."""
        return len(self._changes.dirty)

    def forget_idle(self, most: int) -> None:
        """Delete the rows of idle lanes whose time has come, without reading them."""
        forgotten = self.all("lanes_forget", self.shard.first_idle, self.now, most)
        self.forget_keys([number for number, _, _ in forgotten])
        self.groups.load({-tier_queue for _, _, tier_queue in forgotten if tier_queue < 0})
        cached = [lane for row in forgotten if (lane := self.lane_cache.lanes.get(row[0]))]
        if cached:  # counted while they are in their groups, which may end with them
            self.tallies.count(self, cached)
        for lane in cached:
            lane.forgotten = True
            self._changes.dirty.pop(lane.lane, None)
            self.lane_cache.drop(lane)
        self.shard.lanes -= len(forgotten)
        for _, name, tier_queue in forgotten:
            if tier_queue < 0:
                self.groups.lose(self.groups.get(-tier_queue), 1)
            self._absent.add(name)
            self._lane_left(name, tier_queue)

    def forget_keys(self, lanes: Sequence[int]) -> None:
        """Delete what is left of the keys of lanes that are deleted."""
        if lanes:
            for name in KEYS_OF_LANES:
                self.run(name, self.array(lanes))

    # Writing

    def write_rows(self) -> None:
        """Write what statements of this transaction may read: all but tier queues and counters."""
        for table in self.tables.values():
            table.write()
        if self.letters:
            self.run_many("dead_count_add", list(self.letters.items()))
            self.run("dead_count_forget")
            self.letters = {}
        self._write_lanes()
        if self._left_topics:
            self._end_topic_gates()
        self._flush_gates()

    def flush(self) -> None:
        """Write everything that changed; the transaction may then be committed."""
        self.write_rows()
        tier_queues = list(map(_stored, self.tier_queues.values()))
        if tier_queues != self.lane_cache.stored_tier_queues:
            self.lane_cache.stored_tier_queues = tier_queues
            self.run_many("tier_queue_write", tier_queues)
        s = self.shard
        s.now = self.now
        if (tallies := self.tallies).has_changed:
            s.tallies = tallies.encode()
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
            s.first_event,
            s.first_end,
            s.first_timer,
            s.first_asleep,
            s.first_idle,
            s.first_wake,
            s.first_sweep,
            s.tallies,
        )

    def flush_departures(self) -> None:
        """
        Write lanes if one has left the indexes that lease reads. Lanes that came to them need no
        write: lease reads `came_up` too.
        """
        if self._has_departures or self._dirty_gates or self.groups.dirty:
            self._has_departures = False
            self._write_lanes()
            self._flush_gates()

    def _write_lanes(self) -> None:
        tallies, changes = self.tallies, self._changes
        if changes.dirty:
            tallies.count(self, changes.dirty.values())
        if changes.grown:
            tallies.count_grown(self, changes.grown.values())
        if changes.shrunk:
            tallies.count_done(self, changes.shrunk.values())
        if changes.ended:
            tallies.count_done(self, changes.ended.values())
        if self.lane_cache.has_groups is not False:
            for lane in self._changes.dirty.values():
                if lane.forgotten and lane.tier_queue < 0:
                    tier_queue = self.tier_queue_of(lane)
                    self.groups.leave(lane)
                    lane.tier_queue = tier_queue.number
        self.changed_results += self._changes.write(self)

    def count_deliveries(self, lane: Lane, taken: int) -> None:
        """Count deliveries, also in the windows of the lane's recent rate."""
        elapsed = self.now - lane.seen
        if elapsed >= WINDOW_US:
            lane.before = lane.lately if elapsed < 2 * WINDOW_US else 0
            lane.lately, lane.seen = 0, self.now
        lane.lately += taken
        lane.delivered += taken
        self.shard.delivered += taken

    def _flush_gates(self) -> None:
        if self._dirty_gates:
            self.reopen(list(self._dirty_gates.values()))
        self.groups.write()
        if self._gate_tier_queues or self._reopened_groups:
            self._write_gate_entries()
        for gate in self._dirty_gates.values():
            if gate.has_new_grant:
                self.run("setting_write", GRANT + gate.name, gate.granted)
                gate.has_new_grant = False
            self.run(
                "gate_write",
                gate.name,
                gate.code,
                gate.operator,
                gate.tat,
                gate.leased,
                gate.open,
                gate.wake,
                gate.need,
                gate.held_until,
                gate.owes,
                to_json(gate.flow).decode() if gate.flow is not None else None,
                gate.turn,
                gate.mean,
                gate.holder,
                gate.waiting,
                gate.claimed,
                gate.held_turn,
            )
            self.shard.expect_wake(gate.wake)
        self._dirty_gates.clear()

    def _write_gate_entries(self) -> None:
        """Write what is first at each gate where that may have changed."""
        moved, self._gate_tier_queues = self._gate_tier_queues, set()
        has_groups = bool(moved) and self.groups.exist()
        gates = {name: self.gate(name) for _, name in moved}
        self.reopen(
            [gate for gate in gates.values() if gate and gate.is_open(self.now) != gate.open]
        )
        reads: list[Read] = []
        for number, name in moved:
            own = self.groups.find(number, name[1:]) if name.startswith(GROUP) else None
            owner = number if own is None else -own.number
            lowest = self._lowest_turns.pop((owner, name), NONE)
            reads.append(("gate_entry_read", name, owner, lowest, number))
        for (_, name, listed, _, number), rows in zip(reads, self.pages(reads), strict=True):
            owner, gate, (turn, lane, vt, *before) = listed, gates[name], rows[0]
            first_turn = NONE if turn is None else turn
            if owner > 0 and has_groups:
                group = self.one("group_at_gate", name, number)
                if group is not None and (lane is None or group < (turn, lane)):
                    owner = -group[1]
                    _, lane, vt = self.one("gate_head", name, owner)
            entry = [owner, vt, lane, gate.open if gate is not None else 0, first_turn]
            if lane is None:
                self.run_many("gate_entry_delete", [(number, name)])
            elif entry != before:
                self.run("gate_entry_write", number, name, *entry)
                if entry[3]:
                    self._opens(owner, vt)
            else:
                continue
            self._reopened_groups.update(-each for each in (owner, before[0] or 0) if each < 0)
        if self._reopened_groups:
            self.run("groups_reopen", self.array(list(self._reopened_groups)))
            self._reopened_groups.clear()

    def _opens(self, owner: int, vt: int) -> None:
        """A gate where a lane of this tier queue, or group, is first is open."""
        if owner > 0:
            tier_queue = self.tier_queues[owner]
            tier_queue.first_gate_vt = min(tier_queue.first_gate_vt, vt)

    def has_turn(self, lane: Lane) -> None:
        """The lane has a position at a gate, maybe before all others."""
        key = lane.tier_queue, lane.gate
        self._lowest_turns[key] = min(self._lowest_turns.get(key, NONE), lane.turn)

    def reopen(self, gates: Iterable[GateState]) -> None:
        """Determine whether the gates are open; a gate that opens wakes its pools."""
        changed: dict[int, list[str]] = {0: [], 1: []}
        for gate in gates:
            is_open = gate.is_open(self.now)
            gate.wake = gate.opens(self.now)
            if gate.wake is not None:
                gate.rebase(self.now)
            self._dirty_gates[gate.name] = gate
            if is_open != gate.open:
                gate.open = int(is_open)
                changed[gate.open].append(gate.name)
        for opens, names in changed.items():
            found = self.all("gate_entries_open_set", opens, self.array(names)) if names else ()
            for number, owner, vt in found:
                if opens:
                    self._opens(owner, vt)
                    self.pools_to_notify.add(self.tier_queues[number].pool)
                if owner < 0:
                    self._reopened_groups.add(-owner)
