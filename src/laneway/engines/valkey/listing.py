"""
What this engine reads of its topics, for `laneway.engines.shared.listing`, and how fast a sample of
lanes delivers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from laneway.engines.base import LaneRate, TopicStats
from laneway.engines.shared import listing, size_classes, views as shared_views
from laneway.engines.shared.listing import CANDIDATES, FEW, Candidate
from laneway.engines.shared.naming import BUCKET, PARTITION
from laneway.engines.shared.recent import KINDS, rate_of
from laneway.engines.valkey import record_formats, views
from laneway.engines.valkey.connection import ShardReads
from laneway.engines.valkey.namespace import Namespace
from laneway.engines.valkey.record_formats import Lane
from laneway.engines.valkey.views import LAST_NAME, Command, Reads, View, together
from laneway.topic_groups import GROUP

Lanes = Sequence[tuple[int, Lane]]


NAMES, NAMES_OF_SHARD = 128, 8
"""Names that one page has: NAMES over all shards, and at least NAMES_OF_SHARD of each."""


class _Order(NamedTuple):
    """
    How a top list is found.

    `key`: the sorted set of lanes by size class; `is_falling`: the largest first; `worths`: the
    measures of lanes; `folded`: the measure of a topic in a bucket, None: buckets have none by
    topic.
    """

    key: str
    is_falling: bool
    worths: Callable[[View, Lanes], list[float]]
    folded: Callable[[int, str], Reads[float]] | None = None


def _backlogs(_view: View, lanes: Lanes) -> list[float]:
    return [listing.backlog(lane.waiting, lane.leased) for _, lane in lanes]


def _rates(view: View, lanes: Lanes) -> list[float]:
    return [
        size_classes.rate(view.times[shard], lane.seen, lane.lately, lane.before)
        for shard, lane in lanes
    ]


def _throttled(view: View, lanes: Lanes) -> list[float]:
    return [shared_views.throttled_us(lane, view.times[shard]) for shard, lane in lanes]


def _ages(view: View, lanes: Lanes) -> list[float]:
    oldest = views.oldest_of(view, lanes)
    return [
        view.times[shard] - since + 1 if since is not None else 0
        for (shard, _), since in zip(lanes, oldest, strict=True)
    ]


def _folded_backlog(_now: int, topic: str) -> Reads[float]:
    everything, leased = yield [("ZCARD", f"t:{topic}"), ("ZLEXCOUNT", f"t:{topic}", b"[l", b"(m")]
    return listing.backlog(int(everything) - int(leased), int(leased))


def _folded_age(now: int, topic: str) -> Reads[float]:
    oldest = min((yield from views.oldest_folded(topic)), default=None)
    return now - oldest + 1 if oldest is not None else 0


ORDERS = {
    "backlog": _Order("top:big", True, _backlogs, _folded_backlog),
    "age": _Order("top:old", False, _ages, _folded_age),
    "rate": _Order("top:busy", True, _rates),
    "throttled": _Order("top:slow", True, _throttled),
}
"""
By the names of `laneway.engines.shared.listing.MEASURES`, of those that are read of lanes. The
others have sorted sets of topics.
"""


def topics(view: View, order: str, pattern: str, limit: int, after: str | None) -> list[TopicStats]:
    return listing.topics(_Topics(view), order, pattern, limit, after)


class _Names:
    """The names of topics in one index of a shard, read page by page in their order."""

    def __init__(self, shard: int, kind: str, page: int) -> None:
        self.shard = shard
        self._kind = kind
        self._page = page
        self._names: list[str] = []
        self._last: bytes | None = None
        """Behind what was read so far; None: nothing was."""
        self._has_more = True

    def next(self, after: str) -> str | None:
        """The next topic's name, of those that were read."""
        at = bisect_right(self._names, after)
        return self._names[at] if at < len(self._names) else None

    def missing_behind(self, after: str) -> bytes | None:
        """Behind which name a page has to be read before `next`; None: nothing has to."""
        if not self._has_more or self.next(after) is not None:
            return None
        first = after.encode()
        if self._kind == "names":  # lanes of buckets are left out
            first = max(first, BUCKET.encode() + LAST_NAME)
        return first if self._last is None else max(first, self._last)

    def page_behind(self, space: Namespace, after: bytes) -> Command:
        key = space.key(self.shard, self._kind)
        return ("ZRANGE", key, b"(" + after, "+", "BYLEX", "LIMIT", 0, self._page)

    def add(self, names: Sequence[bytes]) -> None:
        """Add a page. A partitioned topic comes once; its other lanes are skipped."""
        topics = [name.decode().partition(PARTITION)[0] for name in names]
        self._names = list(dict.fromkeys([*self._names, *topics]))
        self._has_more = len(names) == self._page
        if topics:
            self._last = (topics[-1] + PARTITION).encode() + LAST_NAME


class _Topics:
    def __init__(self, view: View) -> None:
        self._view = view
        self.now_us = view.now
        page = max(NAMES_OF_SHARD, NAMES // view.space.shards)
        self._names = [
            _Names(shard, kind, page)
            for shard in range(view.space.shards)
            for kind in ("names", "folded", "dead_topics")
        ]

    def stats(self, topics: Sequence[str]) -> list[TopicStats]:
        return views.many_stats(self._view, topics)

    def has_something(self, topic: str) -> bool:
        stats = views.topic_stats(self._view, topic)
        own = (
            views.topic_of_lane(lane.name) == topic for _, lane in views.lanes_of(self._view, topic)
        )
        return bool(stats.waiting or stats.leased or stats.dead or any(own))

    def next_name(self, after: str) -> str | None:
        while missing := [
            (names, behind)
            for names in self._names
            if (behind := names.missing_behind(after)) is not None
        ]:
            space = self._view.space
            reads = ((names.shard, names.page_behind(space, behind)) for names, behind in missing)
            pages = space.server.read_each(ShardReads(reads))
            for (names, _), page in zip(missing, pages, strict=True):
                names.add(page)
        steps = [name for names in self._names if (name := names.next(after)) is not None]
        return min(steps, default=None)

    def recent(self, order: str, topics: Sequence[str]) -> dict[str, float]:
        view, kind = self._view, KINDS[order]
        found = dict.fromkeys(topics, 0.0)
        for shard in range(view.space.shards) if topics else ():
            scores = view.space.read(shard, "ZMSCORE", f"recent:{order}", *topics)
            for topic, score in zip(topics, scores, strict=True):
                if score is not None:
                    found[topic] += rate_of(float(score), view.times[shard], kind)
        return found

    def candidates(self, order: str, pattern: str, most: int) -> Iterator[Candidate]:
        if order in KINDS or order == "dead":
            stem = "" if pattern == "*" else pattern.removesuffix("*")
            for shard in range(self._view.space.shards):
                for name, worth in self._counted(shard, order, stem, most):
                    yield Candidate(name, worth, is_exact=False)
            return
        entry, view = ORDERS[order], self._view
        lanes = list(self._lanes(entry, pattern, most))
        own = [
            (shard, lane, topic)
            for shard, lane in lanes
            if (topic := views.topic_of_lane(lane.name)) is not None
        ]
        for (_, lane, topic), worth in zip(
            own, entry.worths(view, [(shard, lane) for shard, lane, _ in own]), strict=True
        ):
            yield Candidate(topic, worth, is_exact=lane.name == topic)
        buckets = {
            (shard, listing.common_prefix(pattern, lane.name[1:].partition(PARTITION)[0]))
            for shard, lane in lanes
            if lane.name.startswith(BUCKET)
        }
        if entry.folded is not None:
            names = [
                (shard, topic)
                for shard, prefix in buckets
                if prefix is not None
                for topic in self._folded(shard, prefix)
            ]
            worths = together(
                view, [(shard, entry.folded(view.times[shard], topic)) for shard, topic in names]
            )
            yield from (
                Candidate(topic, worth, is_exact=True)
                for (_, topic), worth in zip(names, worths, strict=True)
            )

    def _counted(
        self, shard: int, order: str, prefix: str, most: int
    ) -> Iterator[tuple[str, float]]:
        space, kind = self._view.space, KINDS.get(order)
        key = "top:dead" if kind is None else f"recent:{order}"
        looked_at = max(FEW, most) if prefix else most
        listed = space.read(shard, "ZRANGE", key, 0, looked_at - 1, "REV", "WITHSCORES")
        counted = {
            name.decode(): float(score)
            for name, score in zip(listed[::2], listed[1::2], strict=True)
            if name.decode().startswith(prefix)
        }
        if kind is None and prefix and len(counted) < most:
            first = prefix.encode()
            names = space.read(
                *(shard, "ZRANGE", "dead_topics", b"[" + first, b"(" + first + LAST_NAME),
                *("BYLEX", "LIMIT", 0, most),
            )
            for name in names:
                counted.setdefault(name.decode(), 1.0)
        for topic, score in counted.items():
            yield topic, score if kind is None else rate_of(score, self._view.times[shard], kind)

    def _lanes(self, entry: _Order, pattern: str, most: int) -> Iterator[tuple[int, Lane]]:
        """
        All lanes, if there are few; else the first of the index and, if it is short, others that
        the pattern matches.
        """
        view = self._view
        if sum(counters.lanes for counters in view.counters) <= FEW:
            yield from views.all_lanes(view)
            return
        prefix = "" if pattern == "*" else pattern.removesuffix("*")
        wanted = [
            (shard, name)
            for shard in range(view.space.shards)
            for name in self._listed(shard, entry, prefix, most)
        ]
        for (shard, name), stored in zip(wanted, views.read_stored(view, wanted), strict=True):
            if stored is not None:
                yield shard, record_formats.read_lane(name, stored)

    def _listed(self, shard: int, entry: _Order, prefix: str, most: int) -> list[str]:
        """
        Names of lanes: the first of the index; if these are too few, also buckets, the first
        runnable lanes, and the first lanes with the prefix.
        """
        space = self._view.space
        looked_at = max(FEW, most) if prefix else most
        names = [
            name.decode()
            for name in space.read(
                shard,
                "ZRANGE",
                entry.key,
                0,
                looked_at - 1,
                *(("REV",) if entry.is_falling else ()),
            )
        ]
        names = [name for name in names if name.startswith((prefix, BUCKET))][:most]
        if len(names) < most:
            after, before = (prefix or PARTITION).encode(), prefix.encode() + LAST_NAME
            bucket = BUCKET.encode()
            runnable: list[Command] = [
                ("ZRANGE", f"run:{tier_queue}", 0, looked_at - 1)
                for tier_queue in range(1, len(self._view.counters[shard].tier_queues) + 1)
            ]
            first, named, *tier_queues = space.read_many(
                shard,
                [
                    (
                        "ZRANGE",
                        "names",
                        b"[" + bucket,
                        b"[" + bucket + LAST_NAME,
                        "BYLEX",
                        "LIMIT",
                        0,
                        most,
                    ),
                    ("ZRANGE", "names", b"[" + after, b"[" + before, "BYLEX", "LIMIT", 0, most),
                    *runnable,
                ],
            )
            waiting = [
                name
                for members in tier_queues
                for member in members
                if (name := member[7:].decode()).startswith(prefix) and name[0] != GROUP
            ]
            names = list(
                dict.fromkeys(
                    [
                        *names,
                        *(name.decode() for name in first),
                        *waiting,
                        *(name.decode() for name in named),
                    ]
                )
            )[:most]
        return names

    def _folded(self, shard: int, prefix: str) -> list[str]:
        first, end = b"[" + prefix.encode() if prefix else b"-", b"(" + prefix.encode() + LAST_NAME
        return [
            name.decode()
            for name in self._view.space.read(
                shard, "ZRANGE", "folded", first, end, "BYLEX", "LIMIT", 0, CANDIDATES
            )
        ]


def lane_rates(view: View, limit: int) -> list[LaneRate]:
    """The rates of lanes that can deliver; of each shard as many lanes."""
    shards = range(view.space.shards)
    each = -(-limit // len(shards))
    lanes = together(view, [(shard, _records(each)) for shard in shards])
    return [rate for shard in shards for rate in _rates_on(view, shard, lanes[shard])]


def _records(limit: int) -> Reads[list[bytes]]:
    """The records of the lanes with the largest backlogs, and of any others if these are few."""
    names: list[bytes] = (yield [("ZRANGE", "top:big", 0, limit - 1, "REV")])[0]
    if len(names) == limit:
        return [stored for stored in (yield [("HMGET", "lanes", *names)])[0] if stored is not None]
    # A page of a scan has about as many as asked for, the large ones among them.
    large, (_, page) = yield [
        ("HMGET", "lanes", *(names or [b""])),
        ("HSCAN", "lanes", 0, "COUNT", limit - len(names)),
    ]
    listed = set(names)
    return [
        *(stored for stored in large if stored is not None),
        *(stored for name, stored in zip(page[::2], page[1::2], strict=True) if name not in listed),
    ][:limit]


def _rates_on(view: View, shard: int, stored: Iterable[bytes]) -> list[LaneRate]:
    tier_queues, now = view.counters[shard].tier_queues, view.times[shard]
    counted = (record_formats.read_lane_counts(each) for each in stored)
    return [
        LaneRate(
            tier_queues[each.tier_queue - 1][1],
            size_classes.rate(now, each.seen, each.lately, each.before),
        )
        for each in counted
        if each is not None and each.tier_queue <= len(tier_queues)  # it may be new
    ]
