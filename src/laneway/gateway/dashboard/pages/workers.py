"""Workers: whether they are running, busy, stuck, and of one version."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from laneway.engines.base import WorkerView
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import PageQuery
from laneway.gateway.dashboard.reader import MAX_WORKERS
from laneway.gateway.dashboard.view import View


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    reader = view.reader
    found, now_us = reader.workers(), reader.now_us()
    versions = Counter(
        (each.facts.program, each.facts.version or "–", each.facts.laneway)
        for each in found
        if each.state != "dead"
    )
    coverage = reader.coverage()
    return {
        "workers": [_row(each, now_us) for each in found],
        "is_cut": len(found) == MAX_WORKERS,
        "versions": sorted(versions.items()),
        "unserved": coverage.unserved_pools(reader.overview(), reader.largest()),
        "coverage": coverage,
        "may_operate": view.may("operate"),
    }


def _row(worker: WorkerView, now_us: int) -> dict[str, Any]:
    facts = worker.facts
    oldest = facts.oldest
    return {
        "state": worker.state,
        "facts": facts,
        "part": facts.busy / facts.concurrency if facts.concurrency else 0.0,
        "oldest": oldest,
        "running": None if oldest is None else max(0.0, (now_us - oldest.since_us) / 1e6),
        "started_us": worker.started_us,
        "beat": max(0.0, (now_us - worker.beat_us) / 1e6),
        "is_late": (facts.loop_lag or 0.0) >= 0.5,
    }


PAGE = Page(
    name="workers",
    path="/workers",
    title="Workers",
    key="w",
    build=build,
    query=PageQuery,
    fragments=("list",),
    export=lambda found: [
        {"state": each["state"], **msgspec.structs.asdict(each["facts"])}
        for each in found["workers"]
    ],
    is_whole=True,
)
