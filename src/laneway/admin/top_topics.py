"""
The top lists of topics: those of the engines, and the one by worker time.

Worker time is what the workers say in their heartbeats: how many handlers each topic keeps busy.
So counting it costs a message nothing, and any engine has it.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, Literal, get_args

from laneway.engines.base import TopicOrder
from laneway.engines.shared import listing
from laneway.policy import check_policy_pattern, matches

if TYPE_CHECKING:
    from collections.abc import Callable

    from laneway.engines.base import FullEngine, TopicStats

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
"""The most topics in a list by worker time."""


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
