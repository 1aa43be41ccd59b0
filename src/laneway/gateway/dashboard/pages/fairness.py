"""Fairness: whether tiers get what they are due, and who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway.gateway.dashboard import charts
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.pages.now import tiers_of
from laneway.gateway.dashboard.queries import RangeQuery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.gateway.dashboard.view import View
    from laneway.history.figures import WaitingTimes

COMPARED = 200
"""Topics with the largest backlogs whose rates are compared."""


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    reader = view.reader
    seconds = charts.seconds_of(view.query.range)
    history = reader.history(seconds)
    noisy, others = history.noisy, history.others
    topics = reader.topics("backlog", ("*",), COMPARED)
    groups: dict[str, list[float]] = {}
    for stats in topics:
        if stats.state == "runnable" and stats.rate_now > 0:
            groups.setdefault(stats.tier, []).append(stats.rate_now)
    return {
        "range": view.query.range,
        "ranges": list(charts.RANGES),
        "tiers": tiers_of(view.engine.tiers, reader.overview(), history),
        "classes": _classes(noisy, others),
        "quantiles": [
            {
                "part": part,
                "noisy": _bound(noisy, part),
                "others": _bound(others, part),
            }
            for part in (0.5, 0.95, 0.99)
        ],
        "noisy": noisy.count,
        "others": others.count,
        "evenness": [
            {"tier": tier, "index": jain(rates), "count": len(rates), "curve": lorenz(rates)}
            for tier, rates in sorted(groups.items())
            if len(rates) > 1
        ],
        "compared": len(topics),
        "may_operate": view.may("operate"),
    }


def _bound(times: WaitingTimes, part: float) -> float | str | None:
    """The bound of a quantile; a text if it is beyond the last one."""
    if not times.count:
        return None
    return times.quantile(part) or f"over {times.bounds[-1] / 3600:g} h"


def _classes(noisy: WaitingTimes, others: WaitingTimes) -> list[dict[str, Any]]:
    """The classes of waiting times in which there is something."""
    found = []
    bounds: list[float | None] = [*noisy.bounds, None]
    for bound, loud, quiet in zip(bounds, noisy.counts, others.counts, strict=True):
        if loud or quiet:
            found.append(
                {
                    "bound": bound,
                    "noisy": loud / noisy.count if noisy.count else 0.0,
                    "others": quiet / others.count if others.count else 0.0,
                }
            )
    return found


def jain(values: Sequence[float]) -> float:
    """
    Jain's index: 1 if all are equal, 1/n if one has everything.

    Jain, Chiu, Hawe: A quantitative measure of fairness and discrimination, 1984.
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def lorenz(values: Sequence[float]) -> str:
    """The Lorenz curve, as points of an SVG of 100 by 100: the part of all that the least have."""
    total, running = sum(values) or 1.0, 0.0
    points = ["0,100"]
    for n, value in enumerate(sorted(values), 1):
        running += value
        points.append(f"{100 * n / len(values):.1f},{100 - 100 * running / total:.1f}")
    return " ".join(points)


PAGE = Page(
    name="fairness",
    path="/fairness",
    title="Fairness",
    key="f",
    build=build,
    query=RangeQuery,
    fragments=("tiers", "waits", "evenness"),
    is_whole=True,
)
