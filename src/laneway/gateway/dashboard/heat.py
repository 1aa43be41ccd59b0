"""
Heat maps: time by something else, as paths of an SVG. A path has the cells of one color, and runs
of equal cells are one line, so that a map of thousands of cells is a few kilobytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from laneway.engines.base import WAIT_BOUNDS_US
from laneway.gateway.dashboard import words
from laneway.history.figures import WAIT_BOUNDS, WaitingTimes
from laneway.history.records import HandlerCounts, Row
from laneway.units import SECOND

COLUMNS = 60
"""The maximum number of columns of a map."""

CLASSES = len(WAIT_BOUNDS_US) + 1

AGES = (1, 15, 60, 300, 3600)
"""Seconds: the bounds of the colors of ages; the last color has none."""

PARTS = (0.05, 0.15, 0.35, 0.65)
"""The bounds of the colors of parts of a column; what is above the last has the last one."""


class HeatMap(msgspec.Struct, frozen=True):
    """
    A map of `columns` by `rows` cells. `paths`: (level, path) from the lowest level on; cells of
    level 0 are left out. `start_us`, `end_us`: the time that it shows.
    """

    columns: int
    rows: int
    paths: list[tuple[int, str]]
    start_us: int
    end_us: int


class Columns(msgspec.Struct, frozen=True):
    """The rows of a history, by column of a map. A column may have no rows."""

    rows: list[list[Row]]
    start_us: int
    end_us: int

    def map_of(self, height: int, level: Callable[[list[Row]], Sequence[int]]) -> HeatMap:
        """A map. `level`: of each cell of a column, the lowest cell first."""
        columns = [level(rows) if rows else () for rows in self.rows]
        return HeatMap(len(columns), height, _paths(columns, height), self.start_us, self.end_us)


def columns_of(rows: Sequence[Row], seconds: float, now_us: int) -> Columns:
    """The rows of the last seconds by column."""
    length = round(seconds * SECOND)
    start_us = now_us - length
    found: list[list[Row]] = [[] for _ in range(COLUMNS)]
    for row in rows:
        place = (row.at_us - start_us) * COLUMNS // length
        if place < COLUMNS:
            found[max(0, place)].append(row)
    return Columns(found, start_us, now_us)


def _paths(columns: Sequence[Sequence[int]], height: int) -> list[tuple[int, str]]:
    """By level: lines along the time, each in the middle of its row, the lowest row last."""
    lines: dict[int, list[str]] = {}
    for row in range(height):
        levels = [column[row] if row < len(column) else 0 for column in columns]
        start = 0
        for place in range(1, len(levels) + 1):
            if place == len(levels) or levels[place] != levels[start]:
                if levels[start]:
                    line = f"M{start} {height - row - 1}h{place - start}"
                    lines.setdefault(levels[start], []).append(line)
                start = place
    return [(level, "".join(found)) for level, found in sorted(lines.items())]


# Levels


_LEVELS = [0] + [
    1 + sum(bound_us / SECOND > age for age in AGES) for bound_us in (*WAIT_BOUNDS_US, 1 << 60)
]
"""The level of a class of `Row.ages`."""


def age_levels(ages: bytes) -> list[int]:
    """The levels of ages by class, see `Row.ages`."""
    return [_LEVELS[each] for each in ages]


def part_levels(counts: Sequence[int]) -> list[int]:
    """The levels of the parts that counts have of all."""
    total = sum(counts)
    return [1 + sum(count / total > bound for bound in PARTS) if count else 0 for count in counts]


def sums(lists: Iterable[Sequence[int]]) -> list[int]:
    """The sums of lists of counts by class."""
    found = [0] * CLASSES
    for each in lists:
        for place, count in enumerate(each):
            found[place] += count
    return found


def quantile(counts: Sequence[int], part: float) -> str:
    """The bound under which this part of what was counted was, as text."""
    times = WaitingTimes(WAIT_BOUNDS, [*counts])
    if not times.count:
        return "–"
    found = times.quantile(part)
    return f"over {words.bound(WAIT_BOUNDS[-1])}" if found is None else words.bound(found)


def handler_rows(columns: Columns, seconds: float) -> list[dict[str, Any]]:
    """The handlers that ran, each with a map, in descending order of working time."""
    totals: dict[str, HandlerCounts] = {}
    for rows in columns.rows:
        for row in rows:
            for name, counts in row.handlers.items():
                if name in totals:
                    totals[name].add(counts)
                else:
                    totals[name] = msgspec.structs.replace(counts)
    found = [
        {
            "name": name,
            "count": total.count,
            "rate": total.count / seconds,
            "failed": total.failed,
            "failed_part": min(1.0, total.failed / total.count) if total.count else None,
            "median": quantile(total.counts, 0.5),
            "p95": quantile(total.counts, 0.95),
            "time": _working_time(total.counts),
        }
        for name, total in totals.items()
    ]
    return sorted(found, key=lambda each: (-each["time"], each["name"]))


def _working_time(counts: Sequence[int]) -> float:
    """About how many seconds it took in all."""
    bounds = (*WAIT_BOUNDS_US, 2 * WAIT_BOUNDS_US[-1])
    return sum(count * bound for count, bound in zip(counts, bounds, strict=False)) / SECOND


def handler_map(columns: Columns, name: str) -> HeatMap:
    """How long a handler took over time: a row by class of durations."""
    return columns.map_of(
        CLASSES,
        lambda rows: part_levels(
            sums(row.handlers[name].counts for row in rows if name in row.handlers)
        ),
    )
