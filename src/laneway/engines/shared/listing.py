"""Lists of topics: by name, page by page, and the top by backlog, age, rate and others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from laneway.engines.base import TopicStats
from laneway.engines.shared.recent import KINDS
from laneway.errors import UsageError
from laneway.policy import check_policy_pattern, is_pattern, matches
from laneway.subscriptions import base_of, is_copy

FEW = 1000
"""
Up to this number of lanes, all are read. If there are more, this number of an index's first lanes
are compared with a pattern.
"""

CANDIDATES = 250
"""Lanes, and topics in buckets, that are read exactly for a top list of up to 50 topics."""

MOST = 1 << 30
"""A larger limit of a top list counts as this one: multiples of it fit an engine's integers."""

LEASED = 1 << 20
"""So many leases and more count alike among topics with the same backlog."""


def backlog(waiting: int, leased: int) -> float:
    """What waits; among topics with the same backlog, such as none, the leases decide."""
    return waiting + min(leased, LEASED) / (2 * LEASED)


MEASURES: dict[str, Callable[[TopicStats, int], float]] = {
    "backlog": lambda stats, _: backlog(stats.waiting, stats.leased),
    "age": lambda stats, now_us: now_us - stats.oldest_us + 1 if stats.oldest_us is not None else 0,
    "rate": lambda stats, _: stats.rate_now,
    "throttled": lambda stats, _: stats.throttled_us,
    "in-rate": lambda stats, _: stats.in_rate or 0.0,
    "failures": lambda stats, _: stats.failure_rate or 0.0,
    "dead": lambda stats, _: stats.dead,
}
"""
What each top list is sorted by. An engine has one entry for each in its own `ORDERS`, which says
how it finds the candidates.
"""

ORDERS = ("name", *MEASURES)
"""All orders of `topics`."""


class Candidate(NamedTuple):
    """
    A lane's topic, the lane's value in an order, and whether that is the exact value of the topic.
    """

    topic: str
    worth: float
    is_exact: bool


class Source(Protocol):
    """What an engine reads of its topics."""

    now_us: int

    def next_name(self, after: str) -> str | None:
        """The next topic by name that has anything."""

    def has_something(self, topic: str) -> bool:
        """Whether the topic has messages, dead letters or a lane."""

    def stats(self, topics: Sequence[str]) -> list[TopicStats]:
        """The stats of several topics, read together."""

    def recent(self, order: str, topics: Sequence[str]) -> Mapping[str, float]:
        """Recent events a second of topics, of an order of `recent.KINDS`; absent: none."""

    def candidates(self, order: str, pattern: str, most: int) -> Iterable[Candidate]:
        """
        About the first `most` of an order. The values of a topic that comes twice are added.

        The cost must not grow with the number of topics.
        """


def topics(
    source: Source, order: str, pattern: str, limit: int, after: str | None
) -> list[TopicStats]:
    """Topics of the pattern in the order asked for."""
    if order not in ORDERS:
        raise UsageError(f"topics: expected order to be one of {', '.join(ORDERS)}, got {order!r}")
    check_policy_pattern(pattern)
    if order == "name":
        return source.stats(_names(source, pattern, limit, after))
    measure = MEASURES[order]
    listed = source.stats(
        _first(source, order, pattern, limit) if is_pattern(pattern) else [pattern]
    )
    if order in KINDS:
        rates = source.recent(order, [stats.topic for stats in listed])
        for stats in listed:
            rate = rates.get(stats.topic, 0.0)
            if order == "in-rate":
                stats.in_rate = rate
            else:
                stats.failure_rate = rate
    listed.sort(key=lambda stats: (-measure(stats, source.now_us), stats.topic))
    return [stats for stats in listed if measure(stats, source.now_us) > 0][:limit]


def _first(source: Source, order: str, pattern: str, limit: int) -> list[str]:
    """
    The topics that may be the top ones: some more than `limit` if a lane is a part of its topic.

    Those of a pattern of subscriptions, like `orders.*#audit`, are found among the first ones that
    its pattern of topics covers, because they have no index of their own.
    """
    covering = base_of(pattern)
    most = max(CANDIDATES if covering == pattern else FEW, 5 * min(limit, MOST))
    best: dict[str, float] = {}
    is_exact = True
    for topic, worth, exactly in source.candidates(order, covering, most):
        if worth > 0 and matches(pattern, topic):
            best[topic] = best.get(topic, 0.0) + worth
            is_exact = is_exact and exactly
    return sorted(best, key=lambda name: (-best[name], name))[: limit if is_exact else limit + 20]


def common_prefix(one: str, other: str) -> str | None:
    """The common prefix of the topics that both patterns cover; None: there are none."""
    short, long = sorted((one.removesuffix("*"), other.removesuffix("*")), key=len)
    return long if long.startswith(short) else None


def _names(source: Source, pattern: str, limit: int, after: str | None) -> list[str]:
    """Topics by name, one by one: the cost depends on `limit` only."""
    if is_pattern(pattern) and is_copy(pattern):
        raise UsageError(
            f"topics: {pattern:.80} has no list by name; take another order, or list"
            f" {base_of(pattern):.80} by name"
        )
    if not is_pattern(pattern):
        return (
            [pattern]
            if (after is None or pattern > after) and source.has_something(pattern)
            else []
        )
    prefix = pattern[:-1]
    names: list[str] = []
    last = max(after or "", prefix)
    while len(names) < limit:
        name = source.next_name(last)
        if name is None or not name.startswith(prefix):
            break
        names.append(name)
        last = name
    return names
