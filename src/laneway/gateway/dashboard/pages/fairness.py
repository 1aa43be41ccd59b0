"""Fairness: whether tiers get what they are due, and who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from laneway.gateway.dashboard import charts, heat, words
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.pages.now import tiers_of
from laneway.gateway.dashboard.queries import RangeQuery
from laneway.gateway.dashboard.reader import COMPARED_LANES
from laneway.gateway.dashboard.view import View
from laneway.history.figures import WAIT_BOUNDS, WaitingTimes
from laneway.history.records import AGE_BUCKETS, Row, oldest_ages

NAMED_BUCKETS = 8
"""The number of buckets of topics that are named next to the map."""

CURVE_POINTS = 100
"""Points of a Lorenz curve: more are not seen."""


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    reader = view.reader
    seconds = charts.seconds_of(view.query.range)
    history = reader.history(seconds)
    noisy, others = history.noisy, history.others
    columns = heat.columns_of(reader.rows(seconds), seconds, reader.now_us())
    groups: dict[str, list[float]] = {}
    for tier, rate in reader.lane_rates():
        if rate > 0:
            groups.setdefault(tier, []).append(rate)
    return {
        "range": view.query.range,
        "ranges": list(charts.RANGES),
        "tiers": [
            tier | {"over_time": _parts_over_time(columns, tier["name"])}
            for tier in tiers_of(view.engine.tiers, reader.overview(), history)
        ],
        "ages": columns.map_of(AGE_BUCKETS, _ages),
        "oldest_buckets": _oldest_buckets(columns),
        "buckets": list(range(AGE_BUCKETS)),
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
        "compared": COMPARED_LANES,
        "may_operate": view.may("operate"),
    }


def _parts_over_time(columns: heat.Columns, tier: str) -> list[float | None]:
    """By column: the part of the deliveries that a tier got, or None without deliveries."""
    found: list[float | None] = []
    for rows in columns.rows:
        delivered = [(cell.tier, cell.delivered) for row in rows for cell in row.cells]
        total = sum(count for _, count in delivered)
        own = sum(count for name, count in delivered if name == tier)
        found.append(own / total if total else None)
    return found


def _ages(rows: list[Row]) -> list[int]:
    """By bucket of topics: the level of the age of its oldest message."""
    found = b""
    for row in rows:
        found = oldest_ages(found, row.ages)
    return heat.age_levels(found)


def _oldest_buckets(columns: heat.Columns) -> list[dict[str, Any]]:
    """The buckets with the oldest messages now, as far as they are older than the first bound."""
    last = next((rows[-1] for rows in reversed(columns.rows) if rows and rows[-1].ages), None)
    if last is None:
        return []
    found = [
        {"bucket": bucket, "level": level, "class": age}
        for bucket, (age, level) in enumerate(
            zip(last.ages, heat.age_levels(last.ages), strict=True)
        )
        if level > 1
    ]
    found.sort(key=lambda each: (-each["class"], each["bucket"]))
    return [each | {"age": _age_text(each["class"])} for each in found[:NAMED_BUCKETS]]


def _age_text(age: int) -> str:
    """A class of `Row.ages` in words."""
    if age > len(WAIT_BOUNDS):
        return f"over {words.bound(WAIT_BOUNDS[-1])}"
    low = words.bound(WAIT_BOUNDS[age - 2]) if age > 1 else "0 s"
    return f"{low} to {words.bound(WAIT_BOUNDS[age - 1])}"


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
    """The Lorenz curve, as points of an SVG of 100 by 100: the smallest values' part of all."""
    sums = list(accumulate(sorted(values)))
    count, total = len(sums), sums[-1] or 1.0
    steps = min(count, CURVE_POINTS)
    ends = [round(count * n / steps) for n in range(1, steps + 1)]
    points = [f"{100 * end / count:.1f},{100 - 100 * sums[end - 1] / total:.1f}" for end in ends]
    return " ".join(["0,100", *points])


PAGE = Page(
    name="fairness",
    path="/fairness",
    title="Fairness",
    key="f",
    build=build,
    query=RangeQuery,
    fragments=("tiers", "ages", "waits", "evenness"),
    is_whole=True,
)
