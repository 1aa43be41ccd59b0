"""What a page's table shows, as CSV or JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec

from laneway.engines.base import MessageView
from laneway.gateway.http import JSON, Response
from laneway.message import RAW

OCTETS = b"application/octet-stream"

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so would be a formula in a spreadsheet."""


def answer(name: str, rows: Sequence[dict[str, Any]], *, as_csv: bool) -> Response:
    """The rows of a table as a file. `name`: of the page."""
    ending, kind = ("csv", b"text/csv; charset=utf-8") if as_csv else ("json", b"application/json")
    body = _csv(rows).encode(errors="replace") if as_csv else msgspec.json.encode(rows)
    disposition = f'attachment; filename="laneway-{name}.{ending}"'.encode()
    return Response(200, body, kind, [(b"content-disposition", disposition)])


def body_file(view: MessageView) -> Response:
    """
    The whole body of a message as a file; bodies that were merged are one after the other, a line
    each. A browser saves it, and shows none of it as a page.
    """
    body = b"\n".join(view.bodies or [view.body])
    is_raw = (view.headers or {}).get("content-type") == RAW
    ending, kind = ("bin", OCTETS) if is_raw or not _is_json(view) else ("json", JSON)
    disposition = f'attachment; filename="laneway-message.{ending}"'.encode()
    return Response(200, body, kind, [(b"content-disposition", disposition)])


def _is_json(view: MessageView) -> bool:
    try:
        for each in view.bodies or [view.body]:
            msgspec.json.decode(each, type=msgspec.Raw)
    except (ValueError, RecursionError):
        return False
    return len(view.bodies or "1") == 1


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO(newline="")
    if rows:
        writer = csv.writer(file)
        writer.writerow(rows[0])
        writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return file.getvalue()


def _cell(value: Any) -> Any:
    value = msgspec.to_builtins(value)
    if isinstance(value, (list, dict)):
        value = msgspec.json.encode(value).decode()
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
