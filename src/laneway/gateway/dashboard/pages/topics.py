"""Topics: the first ones of an order, filtered."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from laneway.admin.top_topics import ORDERS
from laneway.engines.base import TopicStats
from laneway.gateway.dashboard import words
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import TopicsQuery
from laneway.gateway.dashboard.view import View
from laneway.gateway.problems import Problem
from laneway.gateway.schema import TopicAnswer
from laneway.gateway.wire import topic_fields
from laneway.history.records import bucket_of
from laneway.policy import check_pattern, is_pattern
from laneway.push import table
from laneway.subscriptions import SEPARATOR, is_copy

SHOWN = 50
LOOKED_AT = 250
"""Topics among which those of a state, tier, pool or group are looked for."""

TITLES = {
    "backlog": "backlog",
    "age": "age",
    "rate": "rate",
    "throttled": "held back",
    "failures": "failures",
    "dead": "dead",
    "in-rate": "in-rate",
    "worker-time": "worker time",
    "name": "name",
}
"""The names of orders; those that the engines do not have are left out."""

OWN_COLUMNS = {
    "in-rate": "in",
    "failures": "failed",
    "worker-time": "handlers",
    "throttled": "held back",
}
"""What the list has a column for, if it is ordered by it."""

QUALIFIERS = ("state", "tier", "pool", "group", "bucket")


class Filter(msgspec.Struct):
    """
    What is typed above the list: a pattern, and `state:`, `tier:`, `pool:`, `group:` or `bucket:`
    (of the map on the page Fairness) with a value. A word without `*` is the beginning of a name.
    """

    pattern: str = "*"
    wanted: dict[str, str] = {}

    def takes(self, stats: TopicStats) -> bool:
        """Whether a topic has the state, tier, pool, group and bucket."""
        state = words.topic_state(stats)
        found = {
            "state": state,
            "tier": stats.tier,
            "pool": stats.pool,
            "group": stats.group or "",
            "bucket": str(bucket_of(stats.topic)),
        }
        return all(found[name] == value for name, value in self.wanted.items())


def filter_of(text: str) -> Filter:
    """Read a filter. Raises Problem, BadPolicy."""
    found = Filter()
    for word in re.findall(r'\w+:"[^"]*"|\S+', text):
        name, colon, value = word.partition(":")
        if colon and name in QUALIFIERS:
            found.wanted[name] = value.strip('"')
        elif colon and name.isalpha() and value and not is_pattern(word):
            raise Problem(
                "bad-request",
                f'filter: there is no "{name[:80]}:"; available: {", ".join(QUALIFIERS)}',
            )
        else:
            found.pattern = word if is_pattern(word) else f"{word}*" if word[-1] == "." else word
    check_pattern(found.pattern)
    return found


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    query: TopicsQuery = view.query
    order = query.order
    if order not in ORDERS:
        raise Problem(
            "bad-request", f"order: expected one of {', '.join(ORDERS)}, got {order[:80]}"
        )
    wanted = filter_of(query.filter)
    patterns = tuple(view.caller.narrowed(wanted.pattern))
    most = LOOKED_AT if wanted.wanted else SHOWN + 1
    after = query.after or None
    listed = view.reader.topics(order, patterns, min(most, 200), after)
    topics = [stats for stats in listed if wanted.takes(stats)]
    is_cut = len(topics) > SHOWN
    topics = topics[:SHOWN]
    now_us = view.reader.now_us()
    troubles = _troubles(view, [stats.topic for stats in topics])
    rows = [_row(view, stats, now_us, troubles) for stats in topics]
    return {
        "topics": rows,
        "has_trend": any(len(row["trend"]) > 1 for row in rows),
        "now_us": now_us,
        "order": order,
        "own_column": OWN_COLUMNS.get(order),
        "orders": [(name, title) for name, title in TITLES.items() if name in ORDERS],
        "filter": query.filter,
        "pattern": wanted.pattern if is_pattern(wanted.pattern) and query.filter.strip() else None,
        "looked_at": len(listed) if wanted.wanted else None,
        "next": topics[-1].topic if is_cut and order == "name" else None,
        "is_empty": not listed and not query.filter and not after,
        "may_operate": view.may("operate"),
    }


def _troubles(view: View, topics: list[str]) -> dict[str, str]:
    """By topic: what is wrong with its endpoint."""
    if not view.may("endpoints"):
        return {}
    return table.troubles(view.engine, topics)


def _row(view: View, stats: TopicStats, now_us: int, troubles: dict[str, str]) -> dict[str, Any]:
    age = None if stats.oldest_us is None else max(0.0, (now_us - stats.oldest_us) / 1e6)
    return {
        "stats": stats,
        "state": words.topic_state(stats),
        "age": age,
        "trend": [point.waiting for point in view.points(stats)],
        "is_copy": is_copy(stats.topic),
        "trouble": troubles.get(stats.topic),
        "why": why(stats, now_us) or ("no worker" if _is_unserved(view, stats) else ""),
        "own": own(stats),
        "used": _used(view, stats),
    }


def _is_unserved(view: View, stats: TopicStats) -> bool:
    """Whether messages are ready in a pool that no running worker serves."""
    return bool(
        stats.ready
        and stats.state != "paused"
        and SEPARATOR not in stats.pool  # consumers of HTTP lease there
        and not view.reader.coverage().serves_pool(stats.pool)
    )


def _used(view: View, stats: TopicStats) -> float | None:
    """
    The part of its rate or concurrency that is in use, whichever is larger, or None without one.
    Its policy is a point look-up, so it is read once in 10 seconds.
    """
    known: dict[str, tuple[float | None, int | None]] = view.reader.seldom("limits", dict)
    if stats.topic not in known:
        policy = view.engine.policy_of(stats.topic)
        known[stats.topic] = policy.rate, policy.concurrency
    rate, concurrency = known[stats.topic]
    most = stats.limit or concurrency or 0  # less than 0: it adapts
    parts = [
        *([stats.rate_now / rate] if rate else []),
        *([stats.leased / most] if most > 0 else []),
    ]
    return max(parts) if parts else None


def own(stats: TopicStats) -> str:
    """The value by which the list is ordered, where no other column has it."""
    if stats.in_rate is not None:
        return words.rate(stats.in_rate)
    if stats.failure_rate is not None:
        return f"{stats.failure_rate * 60:.1f}/min"
    if stats.worker_time is not None:
        return f"{stats.worker_time:.1f}"
    return words.span(stats.throttled_us / 1e6)


def why(stats: TopicStats, now_us: int) -> str:
    """Why a topic is held back, and for how long; "" if it is not."""
    if stats.backs_off_until_us is not None and stats.backs_off_until_us > now_us:
        left = (stats.backs_off_until_us - now_us) / 1e6
        return f"next try in {words.span(left)}"
    if stats.state == "full":
        return f"{stats.leased:,} leased"
    return ""


def export(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The topics, with the fields of the API."""
    rows = [topic_fields(row["stats"], found["now_us"]) for row in found["topics"]]
    return [{name: row[name] for name in TopicAnswer.__struct_fields__} for row in rows]


PAGE = Page(
    name="topics",
    path="/topics",
    title="Topics",
    key="t",
    build=build,
    query=TopicsQuery,
    fragments=("list",),
    export=export,
)
