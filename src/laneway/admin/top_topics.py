"""
The top lists of topics: those of the engines, the one by worker time, and the one by repeats.

Worker time is what workers report in their heartbeats: how many handlers each topic keeps busy.
Counting it adds no cost per message, and every engine has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Literal, get_args

from laneway import arguments
from laneway.admin.views import Stats, stats_of
from laneway.engines.base import FullEngine, MessageView, TopicOrder, TopicStats
from laneway.engines.shared import listing
from laneway.policy import PolicyTable, check_policy_pattern, matches

ListOrder = Literal[TopicOrder, "worker-time"]
"""The orders of lists of topics."""

ORDERS: tuple[ListOrder, ...] = get_args(ListOrder)

MEASURES: dict[str, Callable[[TopicStats, int], float]] = {
    **listing.MEASURES,
    "worker-time": lambda stats, _: stats.worker_time or 0.0,
}
"""What each top list is sorted by; the second argument is the store's time in microseconds."""

MAX_WORKERS = 200
"""Workers whose heartbeats are read."""

MAX_TOPICS = 50
"""The maximum number of topics in a list by worker time."""

REPEATING_TOPICS = 50
"""
How many topics with the largest backlogs are sampled for the list by repeats; more for a larger
`limit`.
"""

SAMPLED = 200
"""How many of each topic's next messages are read."""


def topics(
    engine: FullEngine,
    order: ListOrder,
    *,
    pattern: str = "*",
    limit: int = 20,
    after: str | None = None,
) -> list[TopicStats]:
    """List topics, see `Admin.topic_list`. Raises UsageError, BadPolicy."""
    if order != "worker-time":
        return engine.topic_list(order=order, pattern=pattern, limit=limit, after=after)
    check_policy_pattern(pattern)
    busy: dict[str, float] = {}
    for worker in engine.workers(limit=MAX_WORKERS):
        if worker.state == "dead":
            continue
        for topic, handlers in worker.facts.busy_topics.items():
            if matches(pattern, topic):
                busy[topic] = busy.get(topic, 0.0) + handlers
    first = nsmallest(min(limit, MAX_TOPICS), busy, key=lambda topic: (-busy[topic], topic))
    found = []
    for topic in first:
        stats = engine.topic_stats(topic)
        stats.worker_time = busy[topic]
        found.append(stats)
    return found


def first_of(
    found: Iterable[TopicStats], order: ListOrder, now_us: int, limit: int
) -> list[TopicStats]:
    """The first topics of several lists, which may have the same topics."""
    unique = {stats.topic: stats for stats in found}.values()
    if order == "name":
        return sorted(unique, key=lambda stats: stats.topic)[:limit]
    measure = MEASURES[order]
    return sorted(unique, key=lambda stats: (-measure(stats, now_us), stats.topic))[:limit]


def listed(
    engine: FullEngine,
    order: ListOrder | Literal["repeats"],
    pattern: str,
    limit: int,
    after: str | None,
) -> list[Stats]:
    """`Laneway.topics`: check the arguments, and list topics with their ages."""
    arguments.choice("topics", "order", order, (*ORDERS, "repeats"))
    arguments.whole("topics", "limit", limit)
    check_policy_pattern(pattern)
    if order == "repeats":
        return _by_repeats(engine, pattern, limit)
    after = None if after is None else arguments.name("topics", "after", after)
    found = topics(engine, order, pattern=pattern, limit=limit, after=after)
    now_us = engine.time_us()
    return [stats_of(stats, now_us) for stats in found]


def _by_repeats(engine: FullEngine, pattern: str, limit: int) -> list[Stats]:
    """
    The topics in which merging would save most messages, by the sample's repeated part times the
    backlog. Topics without a repeat are left out.
    """
    found = engine.topic_list(order="backlog", pattern=pattern, limit=max(REPEATING_TOPICS, limit))
    now_us = engine.time_us()
    repeating = []
    for each in found:
        stats = stats_of(each, now_us)
        views = engine.topic_peek(stats.topic, limit=SAMPLED)
        stats.sampled = len(views)
        repeated = len(views) - len({_same(view) for view in views})
        stats.repeats = repeated / len(views) if views else 0.0
        if repeated:
            repeating.append(stats)
    repeating.sort(key=lambda stats: (-(stats.repeats or 0.0) * stats.waiting, stats.topic))
    return repeating[:limit]


def _same(view: MessageView) -> tuple[bool, str | bytes]:
    """The value that merging messages share: the key, or the body if they have no key."""
    return (True, view.key) if view.key is not None else (False, view.body)


# Find a topic by a part of its name


MOST_PATTERNS = 50
"""Policy patterns whose star is replaced by the search text."""


def beginnings(policies: PolicyTable) -> list[str]:
    """The texts before the star in the first policy patterns."""
    patterns = {pattern for _, pattern, _ in policies.rows() if pattern.endswith(".*")}
    return [pattern[:-1] for pattern in sorted(patterns)[:MOST_PATTERNS]]


def is_known(stats: TopicStats) -> bool:
    """Whether the store holds data of the topic, or remembers that it did."""
    return bool(stats.published or stats.waiting or stats.leased or stats.dead)
