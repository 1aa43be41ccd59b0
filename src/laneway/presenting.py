"""
How the engines' answers are shown to people and scripts: JSON, tables as text, times, durations,
sizes, and policy settings in words.

The command line and the demo share these functions. None of them prints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from laneway.engines.base import TopicStats
from laneway.message import RAW
from laneway.policy import AUTO, FIELDS, gate_names
from laneway.printable import escaped, escaped_json
from laneway.units import SECOND, in_words, rate_text

WIDEST = 60
"""Characters of a table's cell up to which the other rows are aligned with it."""

# JSON


def json_text(value: Any) -> str:
    """
    One JSON document, indented, control characters escaped.

    A body appears as the JSON it is; one that was published as bytes appears as text. Infinity and
    NaN, which JSON does not have, become null.
    """
    return escaped_json(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """Dicts, lists, strings and numbers for any view of an engine, bodies decoded."""
    builtins = msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True, enc_hook=str)
    return _decoded(builtins)


def _decoded(value: Any, *, raw: bool = False) -> Any:
    if isinstance(value, dict):
        headers = value.get("headers")
        raw = isinstance(headers, dict) and headers.get("content-type") == RAW
        return {name: _decoded(each, raw=raw) for name, each in value.items()}
    if isinstance(value, list):
        return [_decoded(each, raw=raw) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if not isinstance(value, bytes):
        return value
    if not raw:
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # written by another program, or its headers are wrong
    return value.decode(errors="replace")


# Text


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """
    A table, head first. Columns of numbers are aligned to the right; cells are escaped. A cell over
    `WIDEST` shifts only the rest of its own row.
    """
    cells = [[cell(value) for value in row] for row in rows]
    right = [
        all(isinstance(row[n], (int, float)) or row[n] is None for row in rows)
        for n in range(len(columns))
    ]
    widths = [
        max([len(name), *(len(row[n]) for row in cells if len(row[n]) <= WIDEST)])
        for n, name in enumerate(columns)
    ]
    return [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in (list(columns), *cells)
    ]


def cell(value: Any) -> str:
    """One value of a table: "-" for None, yes and no, numbers with separators."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return escaped(str(value))


def beginning(body: Any, most: int = 60) -> str:
    """The first characters of a body."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    return text if len(text) <= most else text[: most - 3] + "…"


def topic_state(stats: TopicStats) -> str:
    """The state of a topic; one that has delayed messages only is "scheduled", not "idle"."""
    return "scheduled" if stats.state == "idle" and stats.delayed else stats.state


# Times, durations, sizes


def moment(us: int | None) -> str | None:
    """
    An engine's time (microseconds since 1970) as UTC: 2026-12-24 17:00:00Z. A later one than the
    year 9999 is its end: a rate may shut a topic for longer.
    """
    if us is None:
        return None
    try:
        at = datetime.fromtimestamp(us / 1e6, UTC)
    except (OverflowError, ValueError, OSError):
        at = datetime.max.replace(tzinfo=UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S") + "Z"


def duration(seconds: float | None) -> str | None:
    """A duration as `units.in_words` writes it, or None."""
    return None if seconds is None else in_words(seconds)


def exact_duration(seconds: float) -> str:
    """A duration without loss: 1 min, 1 h 30 min, 14 d, 250 ms."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:g} ms"
    parts, rest = [], seconds
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count:g} {unit}")
    if rest or not parts:
        parts.append(f"{round(rest, 6):g} s")
    return " ".join(parts)


def exact_size(count: int) -> str:
    """Bytes in the largest unit that shows them without loss."""
    for unit, factor in (
        ("GiB", 1 << 30),
        ("GB", 10**9),
        ("MiB", 1 << 20),
        ("MB", 10**6),
        ("KiB", 1 << 10),
        ("kB", 1000),
    ):
        if count >= factor and count % factor == 0:
            return f"{count // factor:,} {unit}"
    return f"{count:,} bytes"


# Policy settings

DURATIONS = [name for name, field in FIELDS.items() if field.unit == "duration"]
"""The settings that are durations."""


def setting_in_seconds(name: str, value: Any) -> Any:
    """A setting of a resolved policy, where durations are microseconds, in seconds."""
    if value is None:
        return None
    if name in FIELDS and value == FIELDS[name].forever:
        return "forever"
    if name == "gate":
        names = gate_names(value)
        return names if len(names) > 1 else names[0]
    if name == "concurrency" and value == AUTO:
        return "auto"
    return value / SECOND if name in DURATIONS else value


def setting_in_words(name: str, value: Any) -> str:
    """A policy setting as people write it; `value` of a duration is seconds."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    unit = FIELDS[name].unit if name in FIELDS else None
    if unit is not None and not isinstance(value, str):
        return {"duration": exact_duration, "rate": rate_text, "bytes": exact_size}[unit](value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if name == "max_backlog_bytes":
        return exact_size(value)
    if name == "backoff":
        return backoff_in_words(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings_in_words(fields: dict[str, Any]) -> str:
    """Policy settings in one line: rate 50/s, lease 2 min."""
    return ", ".join(f"{name} {setting_in_words(name, value)}" for name, value in fields.items())


def backoff_in_words(value: Any) -> str:
    """The delays between attempts: a list, or how they grow."""
    if isinstance(value, list | tuple):
        return ", ".join(
            exact_duration(each) if isinstance(each, int | float) else str(each) for each in value
        )
    if not isinstance(value, dict):
        return str(value)
    if value.get("delays"):
        return backoff_in_words(value["delays"]) + ("; ± 20 %" if value.get("jitter", True) else "")
    base, factor, cap = value.get("base", 1.0), value.get("factor", 2.0), value.get("cap", 3600.0)
    growth = (
        exact_duration(base)
        if factor == 1 or base >= cap
        else f"{exact_duration(base)}, times {factor:g} at each attempt,"
        f" at most {exact_duration(cap)}"
    )
    return f"{growth}; drawn between 0 and that" if value.get("jitter", True) else growth
