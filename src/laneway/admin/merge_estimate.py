"""Whether merging would pay: how often the keys of waiting messages repeat, from a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.admin.views import stats_of

if TYPE_CHECKING:
    from laneway.admin.views import Stats
    from laneway.engines.base import FullEngine, MessageView

TOPICS = 50
"""The topics with the largest backlogs that are looked at; more if more are asked for."""

SAMPLED = 200
"""Messages of each that are read: the next ones."""


def top(engine: FullEngine, pattern: str, limit: int) -> list[Stats]:
    """
    List topics of which merging would save most messages, by the part of the sample that repeats
    times the backlog. Topics without a repeat are left out.
    """
    found = engine.topic_list(order="backlog", pattern=pattern, limit=max(TOPICS, limit))
    now_us = engine.time_us()
    topics = []
    for each in found:
        stats = stats_of(each, now_us)
        views = engine.topic_peek(stats.topic, limit=SAMPLED)
        stats.sampled = len(views)
        repeated = len(views) - len({_same(view) for view in views})
        stats.repeats = repeated / len(views) if views else 0.0
        if repeated:
            topics.append(stats)
    topics.sort(key=lambda stats: (-(stats.repeats or 0.0) * stats.waiting, stats.topic))
    return topics[:limit]


def _same(view: MessageView) -> tuple[bool, str | bytes]:
    """What messages that merge have in common: the key, or, without one, the body."""
    return (True, view.key) if view.key is not None else (False, view.body)
