"""Lists of topics: by name, page by page, and the top by backlog, age, rate or throttling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fairlead.errors import UsageError
from fairlead.policy import check_pattern, matches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.engines.base import TopicStats

FEW = 1000
"""Up to so many lanes all are looked at, and so many candidates of a top list are."""

ORDERS = ("name", "backlog", "age", "rate", "throttled")


class Source(Protocol):
    """What an engine can tell of its topics."""

    now_us: int

    def next_name(self, after: str) -> str | None:
        """The next topic that has something, by name."""
        ...

    def has_something(self, topic: str) -> bool:
        """Whether it waits, is leased, dead, or remembered."""
        ...

    def stats(self, topic: str) -> TopicStats:
        """One topic."""
        ...

    def candidates(self, order: str, pattern: str) -> Iterable[tuple[str, float]]:
        """Topics, and what they are worth in that order; one that is named twice is worth both together."""
        ...


def topics(source: Source, order: str, pattern: str, limit: int, after: str | None) -> list[TopicStats]:
    """Topics of the pattern in the order asked for."""
    if order not in ORDERS:
        raise UsageError(f"topics: expected order to be one of {', '.join(ORDERS)}, got {order!r}")
    check_pattern(pattern)
    if order == "name":
        return [source.stats(name) for name in _names(source, pattern, limit, after)]
    best: dict[str, float] = {}
    for topic, worth in source.candidates(order, pattern):
        if matches(pattern, topic):
            best[topic] = best.get(topic, 0.0) + worth
    # Partitions and buckets add up or share: sort a little more than asked for by what the topics really have.
    names = sorted(best, key=lambda name: (-best[name], name))[: limit * 2 + 10]
    found = [source.stats(name) for name in names]
    found.sort(key=lambda stats: (-measure(order, stats, source.now_us), stats.topic))
    return [stats for stats in found if measure(order, stats, source.now_us) > 0][:limit]


def measure(order: str, stats: TopicStats, now_us: int) -> float:
    """What a topic is sorted by."""
    if order == "backlog":
        return stats.waiting
    if order == "age":
        return now_us - stats.oldest_us + 1 if stats.oldest_us is not None else 0
    return stats.rate_now if order == "rate" else stats.throttled_us


def _names(source: Source, pattern: str, limit: int, after: str | None) -> list[str]:
    """One by one: the cost is that of those listed."""
    if pattern != "*" and not pattern.endswith(".*"):
        return [pattern] if (after is None or pattern > after) and source.has_something(pattern) else []
    prefix = pattern[:-1]
    found: list[str] = []
    last = max(after or "", prefix)
    while len(found) < limit:
        name = source.next_name(last)
        if name is None or not name.startswith(prefix):
            break
        found.append(name)
        last = name
    return found
