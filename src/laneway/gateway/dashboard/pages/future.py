"""Future: schedules, and topics with delayed messages."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from laneway import presenting
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import FutureQuery
from laneway.schedules import store

if TYPE_CHECKING:
    from laneway.engines.base import FullEngine, TopicStats
    from laneway.gateway.dashboard.view import View
    from laneway.schedules.store import Planned

SHOWN = 100
LOOKED_AT = 200
SHOWN_TOPICS = 20
_EVERY = re.compile(r"^every ([\d.]+) s$")
MISSED = {
    "skip": "missed firings are left out",
    "one": "one firing makes up for all that were missed",
    "all": "every missed firing is made up for",
}


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    after = view.query.after or None
    planned: list[Planned] = view.reader.once(
        ("schedules", after), lambda: store.planned(view.engine, SHOWN, after)
    )
    now = datetime.fromtimestamp(view.reader.now_us() / 1e6, UTC)
    topics = view.reader.topics("backlog", ("*",), LOOKED_AT)
    return {
        "schedules": [
            {
                "plan": each,
                "when": _EVERY.sub(_in_words, each.when),
                "next_us": each.next_at.timestamp() * 1e6,
                "left": (each.next_at - now).total_seconds(),
                "missed": MISSED.get(each.missed, each.missed),
            }
            for each in planned
        ],
        "next": planned[-1].name if len(planned) == SHOWN else None,
        "delayed": view.reader.seldom(("delayed",), lambda: _delayed(view.engine, topics)),
        "looked_at": len(topics),
        "may_operate": view.may("operate"),
    }


def _in_words(every: re.Match[str]) -> str:
    return f"every {presenting.exact_duration(float(every[1]))}"


def _delayed(engine: FullEngine, topics: list[TopicStats]) -> list[tuple[TopicStats, int | None]]:
    """The topics with most delayed messages, and when the next one of each is due."""
    most = sorted((each for each in topics if each.delayed), key=lambda each: -each.delayed)
    found = []
    for stats in most[:SHOWN_TOPICS]:
        first = engine.topic_peek(stats.topic, limit=1, state="delayed")
        found.append((stats, first[0].since_us if first else None))
    return found


PAGE = Page(
    name="future",
    path="/future",
    title="Future",
    key="u",
    build=build,
    query=FutureQuery,
    fragments=("schedules", "delayed"),
    is_whole=True,
)
