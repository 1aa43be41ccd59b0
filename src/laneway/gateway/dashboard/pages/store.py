"""Store: what keeps the messages, and how much it has."""

from __future__ import annotations

import time
from typing import Any

from laneway.engines.base import FullEngine, StorePart
from laneway.gateway import operations
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import PageQuery
from laneway.gateway.dashboard.reader import Reader
from laneway.gateway.dashboard.view import View
from laneway.history.records import TIME
from laneway.printable import redacted
from laneway.store_metrics import TOTALS


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    reader = view.reader
    overview = reader.overview()
    url = getattr(view.runtime, "url", "")
    recent = reader.history(900)
    return {
        "capabilities": view.engine.capabilities,
        "answers_in": reader.once("answers in", lambda: _answers_in(view.engine)),
        "parts": _parts(reader),
        "recent": recent,
        "overview": overview,
        "url": redacted(str(url)),
        "counters": [(name, getattr(overview, name)) for name in TOTALS],
        "patterns": len({pattern for _, pattern, _ in reader.policies().rows()}),
        "gates": len(reader.gates()),
        "groups": len(reader.groups()),
        "now_us": overview.now_us,
        "doctor": _doctor(reader),
        "calm": ("fine", "intact"),
        "can_check": hasattr(view.engine, "doctor_steps"),
        "may_check": view.may("admin"),
    }


def _doctor(reader: Reader) -> tuple[str, operations.Operation] | None:
    """The doctor's last check, with its id."""
    found = reader.once("operations", lambda: operations.newest(reader.engine))
    return next((each for each in found if each[1].kind == "doctor"), None)


def _parts(reader: Reader) -> list[StorePart]:
    """The files or servers; empty for a third-party engine that does not report them."""
    read = getattr(reader.engine, "store_parts", None)
    return reader.seldom("store parts", read) if read is not None else []


def _answers_in(engine: FullEngine) -> float:
    """How many seconds a small read takes from here."""
    began = time.perf_counter()
    engine.history_read([TIME])
    return time.perf_counter() - began


PAGE = Page(
    name="store",
    path="/store",
    title="Store",
    key="s",
    build=build,
    query=PageQuery,
    fragments=("figures", "doctor"),
    is_whole=True,
)
