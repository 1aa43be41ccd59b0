"""Audit: who changed what through the API, the pages and the command line."""

from __future__ import annotations

from typing import Any

import msgspec

from laneway.admin import audit_log
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import AuditQuery
from laneway.gateway.dashboard.view import View

SHOWN = 50


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    before = view.query.before
    found = view.reader.once(
        ("audit", before), lambda: audit_log.newest(view.engine, SHOWN, before)
    )
    return {
        "changes": [
            {
                "number": number,
                "change": change,
                "request": _request(change.request),
                "can_undo": change.pattern is not None,
            }
            for number, change in found
        ],
        "next": found[-1][0] if len(found) == SHOWN else None,
    }


def _request(request: msgspec.Raw) -> str:
    text = bytes(request).decode(errors="replace")
    return "" if text == "null" else text


PAGE = Page(
    name="audit",
    path="/audit",
    title="Audit",
    key="a",
    build=build,
    query=AuditQuery,
    fragments=("list",),
    scope="admin",
    is_whole=True,
)
