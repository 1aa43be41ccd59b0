"""What a put has to know of what waits of a topic; see `backlog_limits`."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappush
from typing import NamedTuple

from laneway.engines.sql.rows import Lane, Row
from laneway.policy import Resolved


class Place(NamedTuple):
    """Where a message stands in the order in which the messages of a topic are dropped."""

    priority: int
    since: int
    seq: int
    mid: int

    @staticmethod
    def of(row: Row) -> Place:
        """The place of a message."""
        return Place(row.priority, row.since, row.seq, row.mid)


class Backlog:
    """What waits of a topic, and what the put has for it. `lanes`: their names."""

    def __init__(self, topic: str, policy: Resolved, lanes: Sequence[str]) -> None:
        self.topic, self.policy, self.lanes = topic, policy, lanes
        self.expected, self.expected_bytes = 0, 0
        """What the put adds to it at most; how many messages it probably drops at most."""
        self.folded, self.folded_bytes = 0, 0
        """What waits of a topic in buckets: their lanes have other topics, too."""
        self.places: list[Place] = []
        """A heap: what is dropped first, up to `end`, and what came to wait since."""
        self.end: Place | None = None
        """The last place that was read, or None if all were."""
        self.is_read = False
        """Whether places were read."""
        self.freed: list[tuple[Lane, str]] = []
        """Serial keys whose heads were dropped, and which these hold until the put ends."""

    def came(self, row: Row, size: int) -> None:
        """A message of the topic begins to wait, maybe again."""
        self.resize(1, size)
        if self.is_read:
            heappush(self.places, Place.of(row))

    def resize(self, count: int, size: int) -> None:
        """Count messages and bytes that came to wait; below 0: that left."""
        self.folded += count
        self.folded_bytes += size

    def set_places(self, places: Sequence[Place], end: Place | None) -> None:
        """These are all places up to `end`."""
        self.places, self.end, self.is_read = list(places), end, True
        heapify(self.places)
