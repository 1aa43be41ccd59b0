"""One endpoint: its state, its answers, and its settings without the secrets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec

from laneway.errors import Refused
from laneway.gateway.dashboard import words
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.pages.topics import why
from laneway.gateway.dashboard.queries import EndpointQuery
from laneway.gateway.dashboard.view import View
from laneway.gateway.problems import Problem
from laneway.policy import check_topic
from laneway.push import endpoint, table
from laneway.push.delivery_log import RESULTS, AttemptInfo, AttemptPage, attempts

SHOWN = 50
"""Attempts in the table; of the last ones, success and latency are shown."""


SECONDS = ("timeout", "connect_timeout")
"""Settings that are durations."""

NOT_SETTINGS = frozenset(
    (
        *("topic", "url", "state", "disabled", "attention", "failing_since", "failures"),
        *("busy_since", "busy"),
        *("last_failure", "created", "changed", "version", "secrets", "headers"),
    )
)
"""Fields of `EndpointInfo` that are not in the table of settings."""


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    query: EndpointQuery = view.query
    topic = check_topic(query.topic)
    view.caller.check_topic(topic)
    info = info_of(view, topic)
    if info is None:
        raise Problem(
            "not-found",
            f'the topic "{topic[:80]}" has no endpoint',
            hint="laneway endpoint set TOPIC URL creates one",
        )
    stats, now_us = view.reader.topic(topic), view.reader.now_us()
    last = _attempts(view, topic)
    by_time = sorted(last.attempts, key=lambda each: each.at)
    is_searched = bool(query.result or query.status or query.id or query.after)
    page = _attempts(view, topic, query) if is_searched else last
    return {
        "topic": topic,
        "info": info,
        "stats": stats,
        "why": why(stats, now_us),
        "judged": judged([(each.result == "acked", _seconds(each)) for each in last.attempts]),
        "last": last.attempts[0] if last.attempts else None,
        "times": [
            round(at, 3)  # those of one batch of the log have the same
            for at in accumulate(
                (each.at for each in by_time), lambda before, at: max(before + 0.001, at)
            )
        ],
        "took": [_seconds(each) for each in by_time],
        "settings": [
            (name, words.span(value) if name in SECONDS else words.setting(name, value))
            for name, value in msgspec.structs.asdict(info).items()
            if name not in NOT_SETTINGS and value not in (None, "", [], {}, False)
        ],
        "attempts": page.attempts,
        "next": page.next,
        "is_cut": page.is_truncated,
        "is_searched": is_searched,
        "query": query,
        "results": RESULTS,
        "shows_bodies": view.shows_bodies,
        "now_us": now_us,
    }


def info_of(view: View, topic: str) -> endpoint.EndpointInfo | None:
    """A topic's endpoint without its secrets, or None if it has none."""

    def read() -> endpoint.EndpointInfo | None:
        try:
            return endpoint.info_of(topic, table.get(view.engine, topic))
        except Refused:
            return None

    return view.reader.once(("endpoint", topic), read)


def _attempts(view: View, topic: str, query: EndpointQuery | None = None) -> AttemptPage:
    """The last attempts, or what a search finds: it may read 10,000, so it is repeated seldom."""
    if query is None:
        return view.reader.once(
            ("attempts", topic), lambda: attempts(view.engine, [topic], limit=SHOWN)
        )
    key = "attempts", topic, query.result, query.status, query.id, query.after
    return view.reader.seldom(
        key,
        lambda: attempts(
            view.engine,
            [topic],
            limit=SHOWN,
            after=query.after or None,
            result=query.result or None,
            status=query.status.strip() or None,
            message_id=query.id.strip() or None,
        ),
    )


def _seconds(attempt: AttemptInfo) -> float:
    return max(attempt.milliseconds.values(), default=0.0) / 1000


def judged(attempts: Sequence[tuple[bool, float]]) -> dict[str, Any]:
    """
    How attempts ended, each by whether it succeeded and its seconds: the part that succeeded, and
    the median and 95th of their seconds.
    """
    seconds = sorted(took for _, took in attempts)
    count = len(seconds)
    return {
        "count": count,
        "success": sum(is_success for is_success, _ in attempts) / count if count else None,
        "median": seconds[count // 2] if count else None,
        "slow": seconds[min(count - 1, int(count * 0.95))] if count else None,
    }


def export(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The attempts; bodies of answers for callers with the scope `bodies`."""
    rows = [msgspec.structs.asdict(each) for each in found["attempts"]]
    return rows if found["shows_bodies"] else [{**row, "body": None} for row in rows]


PAGE = Page(
    name="endpoint",
    path="/endpoint",
    title="Endpoint",
    build=build,
    query=EndpointQuery,
    fragments=("strip", "condition", "attempts"),
    export=export,
    scope="endpoints",
)
