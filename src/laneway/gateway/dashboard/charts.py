"""The history as series of charts, and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from laneway.engines.base import WorkerView
from laneway.gateway import problems
from laneway.gateway.dashboard import heat
from laneway.history.figures import WAIT_BOUNDS, HistoryRow, WaitingTimes
from laneway.history.records import Row
from laneway.units import SECOND

RANGES: dict[str, float] = {
    "15m": 900,
    "1h": 3600,
    "6h": 6 * 3600,
    "1d": 86_400,
    "7d": 7 * 86_400,
    "60d": 60 * 86_400,
}
"""The ranges of charts, in seconds."""

SHORTEST = 10
"""The shortest part of a range that charts show, in seconds: that of a row."""

DEPLOY_SECONDS = 60
"""Versions that began to run within this are one mark."""

POINTS = 120
"""Most points of a series; a chart is about 500 pixels wide."""


LEAST_PART = 1 / 3
"""A last point of a smaller part of its time is shown with the one before: it would be noise."""


def seconds_of(name: str) -> float:
    """The seconds of a range. Raises Problem."""
    if name not in RANGES:
        raise problems.Problem(
            "bad-request", f"range: expected one of {', '.join(RANGES)}, got {name:.80}"
        )
    return RANGES[name]


class Window(NamedTuple):
    """A part of the history that charts show, in Unix seconds."""

    start: int
    end: int

    @property
    def seconds(self) -> int:
        """Its length."""
        return self.end - self.start

    def moved(self, parts: float) -> Window:
        """The window that begins `parts` lengths later."""
        by = round(self.seconds * parts)
        return Window(self.start + by, self.end + by)

    def part(self, rows: list[HistoryRow]) -> list[HistoryRow]:
        """The rows that began in it."""
        return [row for row in rows if self.start <= row.start < self.end]


def window_of(start: int | None, end: int | None) -> Window | None:
    """The window of a page's parameters `from` and `to`, or None if both lack. Raises Problem."""
    if start is None and end is None:
        return None
    if start is None or end is None or not SHORTEST <= end - start <= max(RANGES.values()):
        raise problems.Problem(
            "bad-request",
            f"expected from and to as Unix seconds, {SHORTEST} s to 60 days apart, got {start} and"
            f" {end}",
        )
    return Window(start, end)


def seconds_since(start: float, now: float) -> float:
    """
    The shortest range that reaches back to a time: rows of it are kept at the finest step, and
    pages that look at different parts of it share what they read.
    """
    return next(
        (length for length in RANGES.values() if length >= now - start), max(RANGES.values())
    )


class _Bin:
    """Rows that are shown as one point."""

    def __init__(self, row: HistoryRow) -> None:
        self.start = row.start
        self.rows = [row]

    def per_second(self, *names: str) -> float:
        seconds = sum(row.seconds for row in self.rows)
        count = sum(getattr(row, name) for row in self.rows for name in names)
        return round(count / seconds, 4) if seconds else 0.0

    @property
    def waiting(self) -> int:
        return self.rows[-1].waiting


def _bins(rows: list[HistoryRow], step: float, seconds: float) -> list[_Bin]:
    width = max(step, seconds / POINTS)
    found: list[_Bin] = []
    for row in rows:
        if found and row.start - found[-1].start < width:
            found[-1].rows.append(row)
        else:
            found.append(_Bin(row))
    if len(found) > 1 and sum(row.seconds for row in found[-1].rows) < LEAST_PART * width:
        *_, before, last = found
        before.rows += last.rows
        found.pop()
    return found


def _waits(bins: list[_Bin], stored: Sequence[Row], which: str) -> list[float | None]:
    """By bin: the time that 95% of the messages waited less than, or None without a message."""
    place = {row.start: n for n, each in enumerate(bins) for row in each.rows}
    found: list[list[Sequence[int]]] = [[] for _ in bins]
    for row in stored:
        if (n := place.get(row.begin_us / SECOND)) is not None:
            found[n] += [getattr(each, which) for each in row.waits]
    return [waited(WaitingTimes(WAIT_BOUNDS, heat.sums(counts))) for counts in found]


def waited(times: WaitingTimes) -> float | None:
    """The seconds that 95% of the messages waited less than, or None without a message."""
    return (times.quantile(0.95) or WAIT_BOUNDS[-1]) if times.count else None


def charts_of(
    rows: list[HistoryRow], stored: Sequence[Row], step: float, seconds: float
) -> dict[str, Any]:
    """
    The variables of the four charts: the times, and each chart's title, unit and series.
    `stored`: the rows with their waiting times. `step`: of the rows. `seconds`: how long they are
    together.
    """
    bins = _bins(rows, step, seconds)
    return {
        "x": [round(each.start) for each in bins],
        "charts": [
            {
                "name": "waits",
                "title": "Waiting time until delivery: 95% of the messages waited less",
                "unit": "s",
                "series": [
                    {"name": "quiet topics", "values": _waits(bins, stored, "others")},
                    {"name": "noisiest 1%", "values": _waits(bins, stored, "noisy")},
                ],
            },
            {
                "name": "flow",
                "title": "Messages per second",
                "unit": "/s",
                "series": [
                    {"name": "in", "values": [each.per_second("published") for each in bins]},
                    {"name": "out", "values": [each.per_second("done", "died") for each in bins]},
                ],
            },
            {
                "name": "waiting",
                "title": "Waiting",
                "unit": "",
                "series": [{"name": "waiting", "values": [each.waiting for each in bins]}],
            },
            {
                "name": "failures",
                "title": "Failures per second",
                "unit": "/s",
                "series": [
                    {"name": "retried", "values": [each.per_second("retried") for each in bins]},
                    {"name": "dead", "values": [each.per_second("died") for each in bins]},
                ],
            },
        ],
    }


def deployments(workers: list[WorkerView], since: float) -> list[dict[str, Any]]:
    """When each version of a program began to run, as far as its workers still exist."""
    began: dict[str, float] = {}
    for worker in workers:
        facts = worker.facts
        if facts.version:
            name = f"{facts.program} {facts.version}"
            at = worker.started_us / 1e6
            began[name] = min(at, began.get(name, at))
    found: list[dict[str, Any]] = []
    for name, at in sorted(began.items(), key=lambda each: each[1]):
        if at <= since:
            continue
        if found and at - found[-1]["at"] < DEPLOY_SECONDS:
            found[-1]["name"] += f", {name}"
        else:
            found.append({"at": round(at), "name": name})
    return found
