"""
What an engine object remembers of its file between two of its own transactions.

Lanes, tiers and counters are the same as in the file as long as nobody else writes to it: SQLite's
`data_version` tells. With several processes on one file each of them reads anew; alone, a worker
reads no lane twice. Leases handed out here are remembered too, whoever writes: that one is still
held is seen when its row is deleted.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

    from laneway.engines.sqlite.rows import Lane, Shard, TierQueue

MOST_LANES = 20_000
MOST_LEASES = 100_000
"""Beyond these the older half is forgotten: some 15 MB each."""


class LaneCache:
    """Begins empty; to be used under the store's lock."""

    def __init__(self) -> None:
        self.shard: Shard | None = None
        self.tier_queues: dict[int, TierQueue] = {}
        self.lanes: dict[int, Lane] = {}
        self.names: dict[str, Lane] = {}
        self.own: dict[str, int] = {}
        """By topic: the number of its own policy (0: none) where it has no lane that says so."""
        self.handed: dict[int, tuple[int, int]] = {}
        """
        By fence: message and lane of leases that need nothing but to be deleted when they are
        acked.
        """
        self.places: dict[tuple[int, str | None, tuple[str, ...]], tuple[int, int]] = {}
        """Where leases that pass lanes over go on: by tier_queue, gate and patterns."""
        self._version = -1
        self._commits = -1

    def check(self, connection: sqlite3.Connection, commits: int) -> None:
        """
        Called in a transaction: forget what may have changed. `commits`: how many this connection
        has made.
        """
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version != self._version or commits != self._commits:
            self.forget()
            self._version = version

    def committed(self, commits: int) -> None:
        """The transaction is in the file: what is in hand is what it says."""
        self._commits = commits
        if len(self.lanes) > MOST_LANES:
            for number in list(islice(self.lanes, len(self.lanes) - MOST_LANES // 2)):
                del self.names[self.lanes.pop(number).name]
        if len(self.own) > MOST_LANES:
            self.own = {}
        if len(self.handed) > MOST_LEASES:
            for fence in list(islice(self.handed, MOST_LEASES // 2)):
                del self.handed[fence]

    def forget(self) -> None:
        """All but the leases."""
        self.shard = None
        self.tier_queues = {}
        self.lanes = {}
        self.names = {}
        self.own = {}
        self._version = self._commits = -1

    def keep(self, lane: Lane) -> None:
        """Remember a lane under its number and its name."""
        self.lanes[lane.lane] = lane
        self.names[lane.name] = lane

    def drop(self, lane: Lane) -> None:
        """The lane's row is deleted."""
        self.lanes.pop(lane.lane, None)
        if self.names.get(lane.name) is lane:
            del self.names[lane.name]
