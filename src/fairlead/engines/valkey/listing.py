"""What this engine can tell of its topics, for `fairlead.engines.listing`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.engines import classes, listing
from fairlead.engines.naming import BUCKET, PARTITION
from fairlead.engines.valkey import views
from fairlead.engines.valkey.views import LAST_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlead.engines.base import TopicStats
    from fairlead.engines.valkey.records import Lane
    from fairlead.engines.valkey.views import View

_INDEX = {"backlog": "top:big", "age": "top:old", "rate": "top:busy", "throttled": "top:slow"}


def topics(view: View, order: str, pattern: str, limit: int, after: str | None) -> list[TopicStats]:
    """Topics of the pattern in the order asked for."""
    return listing.topics(_Topics(view), order, pattern, limit, after)


class _Topics:
    def __init__(self, view: View) -> None:
        self._view = view
        self.now_us = view.now

    def stats(self, topic: str) -> TopicStats:
        return views.topic_stats(self._view, topic)

    def has_something(self, topic: str) -> bool:
        stats = self.stats(topic)
        own = (views.topic_of_lane(lane.name) == topic for _, lane in views.lanes_of(self._view, topic))
        return bool(stats.waiting or stats.leased or stats.dead or any(own))

    def next_name(self, after: str) -> str | None:
        steps = [name for shard in range(self._view.space.shards) for kind in ("names", "folded", "dead_topics")
                 if (name := self._next(shard, kind, after)) is not None]  # fmt: skip
        return min(steps, default=None)

    def _next(self, shard: int, kind: str, after: str) -> str | None:
        """The next topic's name; lanes of a partitioned topic come as one, those of buckets not at all."""
        at = after.encode()
        if kind == "names":
            at = max(at, BUCKET.encode() + LAST_NAME)
        while page := self._view.space.read(shard, "ZRANGE", kind, b"(" + at, "+", "BYLEX", "LIMIT", 0, 1):
            name = str(page[0].decode().partition(PARTITION)[0])
            if name != after:
                return name
            at = (after + PARTITION).encode() + LAST_NAME
        return None

    def candidates(self, order: str, pattern: str) -> Iterator[tuple[str, float]]:
        for shard, lane in self._lanes(order, pattern):
            worth = self._worth(order, shard, lane)
            for topic in self._topics_in(shard, lane):
                yield topic, worth

    def _worth(self, order: str, shard: int, lane: Lane) -> float:
        if order == "backlog":
            return lane.waiting
        if order == "age":
            oldest = views.oldest_in(self._view, shard, lane)
            return self.now_us - oldest + 1 if oldest is not None else 0.0
        return classes.rate(self.now_us, lane.seen, lane.lately, lane.before) if order == "rate" else lane.throttled

    def _lanes(self, order: str, pattern: str) -> Iterator[tuple[int, Lane]]:
        if sum(counters.lanes for counters in self._view.counters) <= listing.FEW:
            yield from views.all_lanes(self._view)
            return
        prefix = "" if pattern == "*" else pattern.removesuffix("*")
        for shard in range(self._view.space.shards):
            names = self._listed(shard, order)
            for name in names:
                if name.startswith((prefix, BUCKET)) and (lane := views.read_lane(self._view, shard, name)) is not None:
                    yield shard, lane

    def _listed(self, shard: int, order: str) -> list[str]:
        """The first of an index; where it is short, lanes that may be as old or as large are the first of those that wait for their turn."""
        space = self._view.space
        found = space.read(shard, "ZRANGE", _INDEX[order], 0, listing.FEW - 1, *(() if order == "age" else ("REV",)))
        names = [name.decode() for name in found]
        for band in range(1, len(self._view.counters[shard].bands) + 1):
            if len(names) < listing.FEW:
                members = space.read(shard, "ZRANGE", f"run:{band}", 0, listing.FEW - len(names) - 1)
                names += [member[7:].decode() for member in members]
        return list(dict.fromkeys(names))

    def _topics_in(self, shard: int, lane: Lane) -> list[str]:
        """The topics whose messages are in a lane."""
        topic = views.topic_of_lane(lane.name)
        if topic is not None:
            return [topic]
        pattern = lane.name[1:].partition(PARTITION)[0].removesuffix("*").encode()
        folded = self._view.space.read(shard, "ZRANGE", "folded", b"[" + pattern, b"(" + pattern + LAST_NAME, "BYLEX", "LIMIT", 0, listing.FEW)
        return [name.decode() for name in folded]
