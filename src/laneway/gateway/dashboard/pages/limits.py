"""Limits: what binds now, of gates, groups, rates, back-offs and pauses."""

from __future__ import annotations

from typing import Any

from laneway.engines.base import TopicStats
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import PageQuery
from laneway.gateway.dashboard.view import View
from laneway.history.records import Row
from laneway.policy import DISABLED, is_pattern

LOOKED_AT = 100
SHOWN = 20
MOST_GATES = 100

HELD_SECONDS = 3600.0
"""The page shows the part of this time in which topics waited for a gate."""


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    reader = view.reader
    now_us = reader.now_us()
    first: dict[str, TopicStats] = {}
    for stats in (
        *reader.topics("throttled", ("*",), LOOKED_AT),
        *reader.topics("backlog", ("*",), LOOKED_AT),
    ):
        first.setdefault(stats.topic, stats)
    gates, groups = reader.gates(), reader.groups()
    held = gates_held(reader.rows(HELD_SECONDS))
    return {
        "gates": [
            _limit(each, now_us) | {"held": held.get(each["name"], 0.0)}
            for each in gates[:MOST_GATES]
        ],
        "gates_left": max(0, len(gates) - MOST_GATES),
        "groups": [_limit(each, now_us) for each in groups[:MOST_GATES]],
        "groups_left": max(0, len(groups) - MOST_GATES),
        "held": [
            stats
            for stats in sorted(first.values(), key=lambda each: -each.throttled_us)
            if stats.throttled_us and stats.state == "asleep" and not _backs_off(stats, now_us)
        ][:SHOWN],
        "backing_off": [stats for stats in first.values() if _backs_off(stats, now_us)][:SHOWN],
        "full": [stats for stats in first.values() if stats.state == "full"][:SHOWN],
        "paused": [
            (stats, DISABLED in reader.policies().why(stats.topic))
            for stats in [each for each in first.values() if each.state == "paused"][:SHOWN]
        ],
        "paused_patterns": _paused_patterns(view)[:SHOWN],
        "looked_at": len(first),
        "may_operate": view.may("operate"),
    }


def gates_held(rows: list[Row]) -> dict[str, float]:
    """By gate: the part of the time in which topics waited for it, as far as samples saw it."""
    whole = sum(row.end_us - row.begin_us for row in rows)
    held: dict[str, int] = {}
    for row in rows:
        for name, us in row.gates.items():
            held[name] = held.get(name, 0) + us
    return {name: min(1.0, us / whole) for name, us in held.items()} if whole else {}


def _backs_off(stats: TopicStats, now_us: int) -> bool:
    return stats.backs_off_until_us is not None and stats.backs_off_until_us > now_us


def _limit(gate: dict[str, Any], now_us: int) -> dict[str, Any]:
    concurrency = gate["concurrency"]
    next_us = gate["next_permit_us"]
    return {
        **gate,
        "part": gate["leased"] / concurrency if concurrency else None,
        "next_in": None if next_us is None or next_us <= now_us else (next_us - now_us) / 1e6,
    }


def _paused_patterns(view: View) -> list[str]:
    rows = view.reader.policies().rows()
    return sorted(
        {pattern for _, pattern, fields in rows if fields.get("paused") and is_pattern(pattern)}
    )


PAGE = Page(
    name="limits",
    path="/limits",
    title="Limits",
    key="l",
    build=build,
    query=PageQuery,
    fragments=("gates", "groups", "topics"),
    is_whole=True,
)
