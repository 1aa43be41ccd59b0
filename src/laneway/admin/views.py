"""The engine's views of topics and messages, as the public API shows them."""

from __future__ import annotations

from typing import Any

from laneway import codec, units
from laneway.engines.base import MessageView, TopicStats
from laneway.message import Message


class Stats(TopicStats):
    """
    A topic's counters.

    `oldest_age`: seconds that the oldest ready message has waited, or None if no message is ready.
    `now`: the store's time of the counters, in Unix seconds. `repeats`: the fraction (0 … 1) of
    `sampled` waiting messages that would merge into another message of the sample, or None without
    a sample.
    """

    oldest_age: float | None = None
    now: float = 0.0
    repeats: float | None = None
    sampled: int = 0


def stats_of(stats: TopicStats, now_us: int) -> Stats:
    """Add ages in seconds to an engine's counters. `now_us`: the store's time in microseconds."""
    age = None if stats.oldest_us is None else max(0.0, (now_us - stats.oldest_us) / units.SECOND)
    fields = {name: getattr(stats, name) for name in TopicStats.__struct_fields__}
    return Stats(**fields, oldest_age=age, now=now_us / units.SECOND)


def message_of(view: MessageView) -> Message:
    """
    Decode a message view. A body that cannot be decoded is returned as bytes. `attempt`: the next
    one; of a dead letter, the last one.
    """
    body: Any = view.body
    try:
        bodies = [codec.decode(one, view.headers) for one in view.bodies or ()]
        body = bodies or codec.decode(view.body, view.headers)
    except ValueError:
        body = view.body
    return Message(
        view.topic,
        body,
        view.key,
        view.priority,
        id=view.id,
        headers=view.headers,
        attempt=view.attempts + (view.state != "dead"),
        deliveries=view.deliveries,
        published_at=view.published_us / units.SECOND,
    )
