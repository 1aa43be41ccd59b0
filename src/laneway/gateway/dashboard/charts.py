"""The history as series of charts, and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway.gateway import problems

if TYPE_CHECKING:
    from laneway.engines.base import WorkerView
    from laneway.history.figures import History, HistoryRow

RANGES: dict[str, float] = {
    "15m": 900,
    "1h": 3600,
    "6h": 6 * 3600,
    "1d": 86_400,
    "7d": 7 * 86_400,
    "60d": 60 * 86_400,
}
"""The ranges of charts, in seconds."""

DEPLOY_SECONDS = 60
"""Versions that began to run within this are one mark."""

POINTS = 120
"""Most points of a series; a chart is about 500 pixels wide."""


def seconds_of(name: str) -> float:
    """The seconds of a range. Raises Problem."""
    if name not in RANGES:
        raise problems.Problem(
            "bad-request", f"range: expected one of {', '.join(RANGES)}, got {name:.80}"
        )
    return RANGES[name]


class _Bin:
    """Rows that are shown as one point."""

    def __init__(self, row: HistoryRow) -> None:
        self.start = row.start
        self.rows = [row]

    def per_second(self, *names: str) -> float:
        seconds = sum(row.seconds for row in self.rows)
        count = sum(getattr(row, name) for row in self.rows for name in names)
        return round(count / seconds, 2) if seconds else 0.0

    @property
    def waiting(self) -> int:
        return self.rows[-1].waiting

    @property
    def oldest(self) -> float:
        return round(max((row.oldest or 0.0) for row in self.rows), 1)


def _bins(history: History, seconds: float) -> list[_Bin]:
    width = max(history.step, seconds / POINTS)
    found: list[_Bin] = []
    for row in history.rows:
        if found and row.start - found[-1].start < width:
            found[-1].rows.append(row)
        else:
            found.append(_Bin(row))
    return found


def charts_of(history: History, seconds: float) -> dict[str, Any]:
    """The variables of the four charts: the times, and each chart's title, unit and series."""
    bins = _bins(history, seconds)
    return {
        "x": [round(each.start) for each in bins],
        "charts": [
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
                "name": "oldest",
                "title": "Age of the oldest message",
                "unit": "s",
                "series": [{"name": "age", "values": [each.oldest for each in bins]}],
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
    """When each version of a program began to run, as far as its workers are there still."""
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
