"""
The rows that an engine object caches between its transactions.

Cached lanes, tier queues and counters are valid as long as no other connection writes to the store,
which `Connection.version` tells. A process that is alone on its store reads no lane twice; with
several processes each of them reads again. Leases that this object delivered stay cached even then:
deleting the row shows whether a lease is still held, and nothing else of it or of its message
changes until it ends.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, TypeAlias

from laneway.engines.sql.rows import Ended, GroupQueue, Lane, Shard, TierQueue
from laneway.engines.sql.store import Connection
from laneway.engines.sql.tallies import TallyBook

CachedLease: TypeAlias = "tuple[int, int, Ended | None]"
"""
Message, lane, and what settle needs to know of the message; None: nothing, so that its ack only
deletes rows and counts.
"""

MOST_LANES = 20_000
MOST_LEASES = 100_000
"""Beyond these numbers the older half is dropped: 15 MB, and 15 to 30 MB."""


class LaneCache:
    """
    A cache of lanes by number and by name, of tier queues, of the shard's counters, and of leases.
    Call `check` at the beginning of each transaction, and `committed` at its end; use it only under
    the store's lock.
    """

    def __init__(self) -> None:
        self.shard: Shard | None = None
        self.tallies: TallyBook | None = None
        self.tier_queues: dict[int, TierQueue] = {}
        self.tier_queue_names: dict[tuple[str, str], TierQueue] = {}
        """By pool and tier."""
        self.stored_tier_queues: list[tuple[Any, ...]] = []
        """What was written of them last, since the cache was cleared."""
        self.lanes: dict[int, Lane] = {}
        self.names: dict[str, Lane] = {}
        self.groups: dict[int, GroupQueue] = {}
        self.group_numbers: dict[tuple[int, str], int] = {}
        """By tier queue and name."""
        self.has_groups: bool | None = None
        """Whether the store has any group; None: not known."""
        self.own: dict[str, int] = {}
        """By topic: the number of its own policies (0: none), for topics without a lane."""
        self.leases: dict[int, CachedLease] = {}
        """By fence: the leases that this object delivered, as far as they need not be read."""
        self.positions: dict[tuple[Any, ...], dict[tuple[int, str], tuple[Any, ...]]] = {}
        """
        Where the next lease with this filter continues, by tier queue or group and one of its
        indexes.
        """
        self.is_inbox_empty = False
        self.noise, self.noise_us = 0, 0
        """The largest size class of a lane that is not noisy, and when it was read."""
        self._version = -1
        self._commits = -1
        self.was_cold = True
        """Whether the last transaction had to read again what others may have changed."""
        self.reads_lanes = self.has_been_cold = True
        """
        Whether a lease reads lanes with their order, because it has not cached them or the last one
        had not; whether a transaction was cold since the present lease began, or the last one, or
        that lease did not know most of its lanes.
        """
        self.spread = 0.0
        """How many lanes the last lease visited for each message that it delivered."""
        self.alone: Lane | None = None
        """The lane that has filled the last lease alone."""

    def check(self, connection: Connection, commits: int) -> None:
        """
        Forget what others may have changed; call it inside the transaction. `commits`: how many
        this connection has committed.
        """
        self.was_cold = connection.version != self._version or commits != self._commits
        if self.was_cold:
            self.reads_lanes = self.has_been_cold = True
            self.clear()
            self._version = connection.version

    def committed(self, commits: int) -> None:
        """The transaction was committed: the cache is what the store says."""
        self._commits = commits
        if len(self.lanes) > MOST_LANES:
            for number in list(islice(self.lanes, len(self.lanes) - MOST_LANES // 2)):
                del self.names[self.lanes.pop(number).name]
        if len(self.groups) > MOST_LANES:
            self.groups, self.group_numbers = {}, {}
        if len(self.own) > MOST_LANES:
            self.own = {}
        if len(self.leases) > MOST_LEASES:
            for fence in list(islice(self.leases, MOST_LEASES // 2)):
                del self.leases[fence]

    def clear(self) -> None:
        """Drop everything but leases and positions."""
        self.shard = None
        self.tallies = None
        self.tier_queues, self.tier_queue_names, self.stored_tier_queues = {}, {}, []
        self.lanes = {}
        self.names = {}
        self.groups, self.group_numbers, self.has_groups = {}, {}, None
        self.own = {}
        self.is_inbox_empty = False
        self._version = self._commits = -1

    def add_tier_queue(self, tier_queue: TierQueue) -> None:
        self.tier_queues[tier_queue.number] = tier_queue
        self.tier_queue_names[tier_queue.pool, tier_queue.tier] = tier_queue

    def add(self, lane: Lane) -> None:
        self.lanes[lane.lane] = lane
        self.names[lane.name] = lane

    def drop(self, lane: Lane) -> None:
        """Drop a lane: its row is deleted, or wrong."""
        self.lanes.pop(lane.lane, None)
        if self.names.get(lane.name) is lane:
            del self.names[lane.name]
