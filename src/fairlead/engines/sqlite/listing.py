"""Lists of topics: by name, page by page, and the top by backlog, age, rate or throttling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.engines import classes
from fairlead.engines.sqlite import views
from fairlead.engines.sqlite.rows import BUCKET, PARTITION
from fairlead.errors import UsageError
from fairlead.policy import check_pattern, matches

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.engines.base import TopicStats
    from fairlead.engines.sqlite.rows import Lane
    from fairlead.engines.sqlite.turn import Turn

FEW = 1000
"""Up to so many lanes all are looked at, and so many candidates of a top list are."""

ORDERS = ("name", "backlog", "age", "rate", "throttled")
_INDEX = {"backlog": "lanes_big", "age": "lanes_old", "rate": "lanes_busy", "throttled": "lanes_slow"}
_LAST = "\U0010ffff"


def topics(turn: Turn, order: str, pattern: str, limit: int, after: str | None) -> list[TopicStats]:
    """Topics of the pattern in the order asked for."""
    if order not in ORDERS:
        raise UsageError(f"topics: expected order to be one of {', '.join(ORDERS)}, got {order!r}")
    check_pattern(pattern)
    if order == "name":
        return [views.topic_stats(turn, name) for name in _names(turn, pattern, limit, after)]
    lanes = _candidates(turn, order, pattern)
    measure = _MEASURES[order]
    best: dict[str, float] = {}
    for lane in lanes:
        worth = measure(turn, lane)
        for topic in views.topics_in(turn, lane):
            if matches(pattern, topic):
                best[topic] = best.get(topic, 0.0) + worth
    # Partitions and buckets add up or share: sort a little more than asked for by what the topics really have.
    names = sorted(best, key=lambda name: (-best[name], name))[: limit * 2 + 10]
    found = [views.topic_stats(turn, name) for name in names]
    key = _STAT_MEASURES[order]
    found.sort(key=lambda stats: (-key(turn, stats), stats.topic))
    return [stats for stats in found if key(turn, stats) > 0][:limit]


def _names(turn: Turn, pattern: str, limit: int, after: str | None) -> list[str]:
    """Names of topics that have something, one by one from three indexes: the cost is that of those listed."""
    if pattern != "*" and not pattern.endswith(".*"):
        return [pattern] if (after is None or pattern > after) and _has_something(turn, pattern) else []
    prefix = pattern[:-1]
    found: list[str] = []
    last = max(after or "", prefix)
    while len(found) < limit:
        steps = [name for query in ("lane_name_next", "folded_topic_next", "dead_topic_next") if (name := _next(turn, query, last)) is not None]
        name = min(steps, default=None)
        if name is None or not name.startswith(prefix):
            break
        found.append(name)
        last = name
    return found


def _next(turn: Turn, query: str, after: str) -> str | None:
    """The next topic's name; lanes of a partitioned topic come as one, those of buckets not at all."""
    at = max(after, BUCKET + _LAST) if query == "lane_name_next" else after
    while (step := turn.one(query, at)) is not None:
        name = str(step[0]).partition(PARTITION)[0]
        if name != after:
            return name
        at = after + PARTITION + _LAST
    return None


def _has_something(turn: Turn, topic: str) -> bool:
    stats = views.topic_stats(turn, topic)
    return bool(stats.waiting or stats.leased or stats.dead or any(lane.topic == topic for lane in views.lanes_of(turn, topic)))


def _candidates(turn: Turn, order: str, pattern: str) -> list[Lane]:
    if turn.shard.lanes <= FEW:
        return views.all_lanes(turn)
    low, high = ("", _LAST) if pattern == "*" else (pattern.removesuffix("*"), pattern.removesuffix("*") + _LAST)
    rows = turn.all(_INDEX[order], low, high, FEW)
    return [turn.keep(row) for row in rows] or [turn.keep(row) for row in turn.all("lanes_all", FEW)]


def _age(turn: Turn, lane: Lane) -> float:
    oldest = views.oldest_in(turn, lane)
    return turn.now - oldest + 1 if oldest is not None else 0.0


_MEASURES: dict[str, Callable[[Turn, Lane], float]] = {
    "backlog": lambda _, lane: lane.waiting,
    "age": _age,
    "rate": lambda turn, lane: classes.rate(turn.now, lane.seen, lane.lately, lane.before),
    "throttled": lambda _, lane: lane.throttled,
}
_STAT_MEASURES: dict[str, Callable[[Turn, TopicStats], float]] = {
    "backlog": lambda _, stats: stats.waiting,
    "age": lambda turn, stats: turn.now - stats.oldest_us + 1 if stats.oldest_us is not None else 0,
    "rate": lambda _, stats: stats.rate_now,
    "throttled": lambda _, stats: stats.throttled_us,
}
