"""Future: schedules with their last firings, and when delayed messages are due."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from laneway.engines.base import FullEngine, TopicStats
from laneway.gateway.dashboard import words
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import FutureQuery
from laneway.gateway.dashboard.view import View
from laneway.schedules import store
from laneway.units import SECOND

SHOWN = 100
LOOKED_AT = 100
MOST_DELAYED = 20
"""Topics whose delayed messages are counted by when they are due."""

WITH_FIRINGS = 40
"""Schedules of a page whose last firings are read."""


class Unit(NamedTuple):
    """The length of a bar, and how many there are."""

    seconds: int
    bars: int


UNITS = {"minute": Unit(60, 60), "hour": Unit(3600, 48), "day": Unit(86_400, 30)}

MISSED = {
    "skip": "is left out",
    "one": "fires once for all",
    "all": "fires for each",
}


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    after = view.query.after or None
    planned: list[store.Planned] = view.reader.once(
        ("schedules", after), lambda: store.planned(view.engine, SHOWN, after)
    )
    firings = _firings(view, [each.name for each in planned[:WITH_FIRINGS]])
    now = datetime.fromtimestamp(view.reader.now_us() / 1e6, UTC)
    topics = view.reader.topics("backlog", ("*",), LOOKED_AT)
    delayed = sorted((stats for stats in topics if stats.delayed), key=lambda each: -each.delayed)
    unit = UNITS[view.query.by]
    counts = _due(view, [stats.topic for stats in delayed[:MOST_DELAYED]], unit)
    return {
        "by": view.query.by,
        "units": list(UNITS),
        "due": counts[:-1],
        "due_later": counts[-1],
        "due_topics": MOST_DELAYED,
        "due_left": len(delayed) > MOST_DELAYED,
        "due_most": max(counts[:-1], default=0),
        "due_bins": _bins(counts[:-1], unit, view.reader.now_us()),
        "due_end_us": _ends(unit, view.reader.now_us())[-1],
        "as_table": view.query.table,
        "schedules": [
            {
                "plan": each,
                "when": words.schedule(each.when),
                "next_us": each.next_at.timestamp() * 1e6,
                "left": (each.next_at - now).total_seconds(),
                "missed": MISSED.get(each.missed, each.missed),
                "firings": firings.get(each.name, []),
            }
            for each in planned
        ],
        "next": planned[-1].name if len(planned) == SHOWN else None,
        "delayed": view.reader.seldom(("delayed",), lambda: _delayed(view.engine, delayed)),
        "looked_at": len(topics),
        "may_operate": view.may("operate"),
    }


def _delayed(engine: FullEngine, topics: list[TopicStats]) -> list[tuple[TopicStats, int | None]]:
    """The topics with most delayed messages, and when the next one of each is due."""
    found = []
    for stats in topics[:MOST_DELAYED]:
        first = engine.topic_peek(stats.topic, limit=1, state="delayed")
        found.append((stats, first[0].since_us if first else None))
    return found


def _ends(unit: Unit, now_us: int) -> list[int]:
    """The ends of the bars: whole minutes, hours or days of UTC."""
    length = unit.seconds * SECOND
    return [(now_us // length + n + 1) * length for n in range(unit.bars)]


def _due(view: View, topics: list[str], unit: Unit) -> list[int]:
    """How many messages of these topics are due by bar, and later."""
    ends = _ends(unit, view.reader.now_us())

    def read() -> list[int]:
        counts = [0] * (len(ends) + 1)
        for topic in topics:
            for place, count in enumerate(view.engine.delayed_counts(topic, ends)):
                counts[place] += count
        return counts

    return view.reader.seldom(("due", unit.seconds, tuple(topics)), read)


def _bins(counts: list[int], unit: Unit, now_us: int) -> list[tuple[int, int]]:
    """The bars that have messages: when each begins, in microseconds, and how many they are."""
    ends = _ends(unit, now_us)
    length = unit.seconds * SECOND
    return [(end - length, count) for end, count in zip(ends, counts, strict=True) if count]


def _firings(view: View, names: list[str]) -> dict[str, list[store.Firing]]:
    """The last firings of schedules by name; they change seldom, and each takes two calls."""
    return view.reader.seldom(
        ("firings", tuple(names)),
        lambda: {name: store.last_firings(view.engine, name) for name in names},
    )


PAGE = Page(
    name="future",
    path="/future",
    title="Future",
    key="u",
    build=build,
    query=FutureQuery,
    fragments=("schedules", "due", "delayed"),
    is_whole=True,
)
