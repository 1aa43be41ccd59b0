"""What this engine can tell of its topics, for `fairlead.engines.listing`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.engines import classes, listing
from fairlead.engines.naming import BUCKET, PARTITION
from fairlead.engines.sqlite import views

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlead.engines.base import TopicStats
    from fairlead.engines.sqlite.rows import Lane
    from fairlead.engines.sqlite.turn import Turn

_INDEX = {"backlog": "lanes_big", "age": "lanes_old", "rate": "lanes_busy", "throttled": "lanes_slow"}
_NAMES = ("lane_name_next", "folded_topic_next", "dead_topic_next")
_LAST = "\U0010ffff"


def topics(turn: Turn, order: str, pattern: str, limit: int, after: str | None) -> list[TopicStats]:
    """Topics of the pattern in the order asked for."""
    return listing.topics(_Topics(turn), order, pattern, limit, after)


class _Topics:
    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.now_us = turn.now

    def stats(self, topic: str) -> TopicStats:
        return views.topic_stats(self._turn, topic)

    def has_something(self, topic: str) -> bool:
        stats = self.stats(topic)
        own = (lane.topic == topic for lane in views.lanes_of(self._turn, topic))
        return bool(stats.waiting or stats.leased or stats.dead or any(own))

    def next_name(self, after: str) -> str | None:
        """The first of three indexes."""
        return min((name for query in _NAMES if (name := self._next(query, after)) is not None), default=None)

    def _next(self, query: str, after: str) -> str | None:
        """The next topic's name; lanes of a partitioned topic come as one, those of buckets not at all."""
        at = max(after, BUCKET + _LAST) if query == "lane_name_next" else after
        while (step := self._turn.one(query, at)) is not None:
            name = str(step[0]).partition(PARTITION)[0]
            if name != after:
                return name
            at = after + PARTITION + _LAST
        return None

    def candidates(self, order: str, pattern: str) -> Iterator[tuple[str, float]]:
        for lane in self._lanes(order, pattern):
            worth = self._worth(order, lane)
            for topic in views.topics_in(self._turn, lane):
                yield topic, worth

    def _worth(self, order: str, lane: Lane) -> float:
        if order == "backlog":
            return lane.waiting
        if order == "age":
            oldest = views.oldest_in(self._turn, lane)
            return self.now_us - oldest + 1 if oldest is not None else 0.0
        return classes.rate(self.now_us, lane.seen, lane.lately, lane.before) if order == "rate" else lane.throttled

    def _lanes(self, order: str, pattern: str) -> list[Lane]:
        turn = self._turn
        if turn.shard.lanes <= listing.FEW:
            return views.all_lanes(turn)
        prefix = pattern.removesuffix("*")
        rows = turn.all(_INDEX[order], prefix, prefix + _LAST, listing.FEW) or turn.all("lanes_all", listing.FEW)
        return [turn.keep(row) for row in rows]
