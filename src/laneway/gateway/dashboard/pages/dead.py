"""Dead: dead letters by what failed, then the list, to redrive or drop them."""

from __future__ import annotations

import time
from typing import Any

from laneway.admin.fingerprints import DeadGroup, fingerprint_of, grouped
from laneway.engines.base import MessageView
from laneway.gateway import operations
from laneway.gateway.dashboard import words
from laneway.gateway.dashboard.actions import MOST_TOPICS
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import DeadQuery
from laneway.gateway.dashboard.view import View
from laneway.policy import check_topic
from laneway.units import SECOND

LOOKED_AT = 500
"""Letters that are grouped, the oldest ones. They are read every 10 seconds."""

SHOWN = 50
BARS = 24
"""Bars of the chart of a group."""

LATELY_US = 600 * SECOND
MOST_OPERATIONS = 10


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    query: DeadQuery = view.query
    topic = check_topic(query.topic) if query.topic else None
    if topic is not None:
        view.caller.check_topic(topic)
    letters = _letters(view, topic, query.after)
    chosen = [
        (number, each)
        for number, each in letters
        if not query.fingerprint or fingerprint_of(each.reason, each.error) == query.fingerprint
    ]
    is_cut = len(letters) == LOOKED_AT
    return {
        "topic": topic,
        "fingerprint": query.fingerprint,
        "groups": _groups([each for _, each in letters]),
        "operations": _operations(view),
        "chosen_topics": _topics(topic, query.fingerprint, chosen),
        "letters": chosen[:SHOWN],
        "is_cut": is_cut,
        "looked_at": len(letters),
        "next": letters[-1][0] if is_cut else None,
        "after": query.after,
        "needs_topic": topic is None and not view.caller.sees_all,
        "own": _own(view) if topic is None and not view.caller.sees_all else [],
        "may_operate": view.may("operate"),
    }


def _groups(letters: list[MessageView]) -> list[tuple[DeadGroup, list[int]]]:
    """The groups, each with how many died over time, from the first letter to the last one."""
    died = [each.died_us or 0 for each in letters]
    first, last = min(died, default=0), max(died, default=0)
    found = {group.fingerprint: (group, [0] * BARS) for group in grouped(letters)}
    for each in letters:
        place = ((each.died_us or 0) - first) * BARS // (last - first + 1)
        found[fingerprint_of(each.reason, each.error)][1][place] += 1
    return list(found.values())


def _operations(view: View) -> list[tuple[str, operations.Operation]]:
    """The operations that run, and those that have ended lately."""
    caller, now_us = view.caller, time.time_ns() // 1000
    found = view.reader.once("operations", lambda: operations.newest(view.engine))
    return [
        (operation_id, each)
        for operation_id, each in found
        if each.kind != "doctor"
        and (each.ended_us is None or now_us - each.ended_us < LATELY_US)
        and (caller.sees_all or (each.topic is not None and caller.covers(each.topic)))
    ][:MOST_OPERATIONS]


def _topics(
    topic: str | None, fingerprint: str, chosen: list[tuple[int, MessageView]]
) -> list[str]:
    """The topics whose dead letters the form selects; empty for all."""
    if topic is not None:
        return [topic]
    return sorted({each.topic for _, each in chosen})[:MOST_TOPICS] if fingerprint else []


def _letters(view: View, topic: str | None, after: int) -> list[tuple[int, MessageView]]:
    if topic is None and not view.caller.sees_all:
        return []
    return view.reader.seldom(
        ("dead", topic, after),
        lambda: [
            (number, _without_body(each))
            for number, each in view.engine.dead_list(topic, limit=LOOKED_AT, after=after)
        ],
    )


def _without_body(message: MessageView) -> MessageView:
    """The list does not show bodies, so it keeps none."""
    message.body, message.bodies = b"", None
    return message


def _own(view: View) -> list[tuple[str, int]]:
    """The caller's topics that have dead letters, of the first by backlog and by name."""
    patterns = tuple(view.caller.narrowed("*"))
    found = {
        stats.topic: stats.dead
        for order in ("backlog", "name")
        for stats in view.reader.topics(order, patterns, 100)
        if stats.dead
    }
    return sorted(found.items())


def export(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The dead letters."""
    return [
        {
            "id": each.id,
            "topic": each.topic,
            "key": each.key,
            "died_at": None if each.died_us is None else words.iso(each.died_us),
            "attempts": each.attempts,
            "reason": each.reason,
            "error": each.error,
        }
        for _, each in found["letters"]
    ]


PAGE = Page(
    name="dead",
    path="/dead",
    title="Dead",
    key="d",
    build=build,
    query=DeadQuery,
    fragments=("operations", "groups", "letters"),
    export=export,
)
