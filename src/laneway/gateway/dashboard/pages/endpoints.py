"""Endpoints: which receivers fail, and why."""

from __future__ import annotations

from typing import Any

import msgspec

from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.pages.endpoint import judged
from laneway.gateway.dashboard.queries import EndpointsQuery
from laneway.gateway.dashboard.view import View
from laneway.policy import check_pattern, is_pattern
from laneway.push import delivery_log, table
from laneway.push.endpoint import STATES, EndpointInfo, list_endpoints

SHOWN = 50

JUDGED = 20
"""Attempts that a row's answer and times are of."""

TROUBLES = ("open", "disabled", "failing", "busy")


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    query: EndpointsQuery = view.query
    text = query.filter.strip()
    pattern = check_pattern(f"{text}*" if text.endswith(".") else text or "*")
    found, following = _listed(view, pattern, query.state or None, query.after)
    counts = _counts(view, pattern)
    if not (query.state or query.after):
        found = _troubled(view, pattern, counts) + found
    shown = list({each.topic: each for each in found}.values())[: 2 * SHOWN]
    return {
        "endpoints": shown,
        "answers": _answers(view, tuple(each.topic for each in shown)),
        "filter": query.filter,
        "state": query.state,
        "states": STATES,
        "counts": counts,
        "next": following,
        "is_pattern": is_pattern(pattern),
        "is_empty": not (found or following or text or query.state or query.after),
    }


def _counts(view: View, pattern: str) -> dict[str, str]:
    """How many endpoints that the caller may see have each state but "healthy"."""
    patterns = tuple(view.caller.narrowed(pattern))

    def read() -> dict[str, str]:
        found: dict[str, str] = {}
        for state in STATES:
            if state != "healthy":
                count = sum(table.count(view.engine, state, pattern=each) for each in patterns)
                found[state] = f"{count:,}" + ("+" if count >= table.MAX_COUNTED else "")
        return found

    return view.reader.seldom(("endpoint states", patterns), read)


def _troubled(view: View, pattern: str, counts: dict[str, str]) -> list[EndpointInfo]:
    """The first endpoints that need somebody: they come before the others, which are by name."""
    found: list[EndpointInfo] = []
    for state in TROUBLES:
        if counts[state] != "0" and len(found) < SHOWN:
            found += _listed(view, pattern, state, "")[0]
    return found[:SHOWN]


def _answers(view: View, topics: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The last answer of each topic's endpoint, and the median and 95th of its last times."""

    def read(topic: str) -> dict[str, Any]:
        last = delivery_log.newest(view.engine, topic, JUDGED)
        times = [(entry.result == "acked", max(entry.ms, default=0.0) / 1000) for entry in last]
        return {"last": last[0].status or last[0].error if last else None, **judged(times)}

    return view.reader.seldom(
        ("answers of endpoints", topics), lambda: {topic: read(topic) for topic in topics}
    )


def _listed(
    view: View, pattern: str, state: str | None, after: str
) -> tuple[list[EndpointInfo], str | None]:
    """A page of endpoints that the caller may see, and after which topic the next one begins."""
    patterns = tuple(view.caller.narrowed(pattern))
    key = "endpoints", patterns, state, after

    def read() -> tuple[list[EndpointInfo], str | None]:
        return list_endpoints(view.engine, patterns, limit=SHOWN, after=after, state=state)

    # Among healthy ones, up to 10,000 endpoints are read for a page.
    return view.reader.once(key, read) if state is None else view.reader.seldom(key, read)


PAGE = Page(
    name="endpoints",
    path="/endpoints",
    title="Endpoints",
    key="e",
    build=build,
    query=EndpointsQuery,
    fragments=("list",),
    export=lambda found: [msgspec.structs.asdict(each) for each in found["endpoints"]],
    scope="endpoints",
)
