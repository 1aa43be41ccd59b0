"""Future: schedules, and topics with delayed messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import FutureQuery
from laneway.schedules import store

if TYPE_CHECKING:
    from laneway.gateway.dashboard.view import View
    from laneway.schedules.store import Planned

SHOWN = 100
LOOKED_AT = 200
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
                "next_us": each.next_at.timestamp() * 1e6,
                "left": (each.next_at - now).total_seconds(),
                "missed": MISSED.get(each.missed, each.missed),
            }
            for each in planned
        ],
        "next": planned[-1].name if len(planned) == SHOWN else None,
        "delayed": sorted(
            (stats for stats in topics if stats.delayed), key=lambda each: -each.delayed
        )[:20],
        "looked_at": len(topics),
        "may_operate": view.may("operate"),
    }


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
