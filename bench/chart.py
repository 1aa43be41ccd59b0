"""
The charts, as SVG without fonts and scripts, readable on light and dark pages: tasks per second
that one worker drains over 1 to 10,000 queues, Laneway beside its peers; and a soak.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

LEFT, COLUMN, BAR, ROW, TOP = 248, 160, 94, 23, 92
"""Pixels: the names, a column, its longest bar, a row, and the head."""

STORES = ("SQLite", "Valkey", "PostgreSQL")

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
  .page { fill: #ffffff; stroke: #d1d9e0; } .text { fill: #1f2328; } .muted { fill: #59636e; }
  .ours { fill: #0969da; } .peer { fill: #9aa6b2; } .track { fill: #eef1f4; }
  .title { font-size: 16px; font-weight: 600; } .head { font-weight: 600; }
  .strong { font-weight: 600; } .small { font-size: 11.5px; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #3d444d; } .text { fill: #f0f6fc; } .muted { fill: #9198a1; }
    .ours { fill: #4493f8; } .peer { fill: #656c76; } .track { fill: #1b222b; }
  }
"""


def drain_chart(rows: Sequence[dict[str, Any]], notes: Sequence[str]) -> str:
    """Bars of each peer (rows of `bench.peers`) for each number of queues, on one linear scale."""
    columns = [name for name in rows[0] if name.endswith(" queues/s")]
    largest = max(number(row[column]) for row in rows for column in columns)
    height = TOP + ROW * len(rows) + 18 + 17 * len(notes)
    width = LEFT + COLUMN * len(columns) + 8
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
        '<title id="title">Tasks per second that one worker drains over 1 to 10,000 queues</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        _text(18, 31, "Tasks per second drained by one worker", "title text"),
        _text(
            18, 52, "The same 10,000 tasks over more and more queues. Longer is better.", "muted"
        ),
    ]
    for n, column in enumerate(columns):
        count = column.removesuffix("/s")
        title = "1 queue" if count == "1 queues" else count
        lines.append(_text(LEFT + n * COLUMN, TOP - 12, title, "head text"))
    for n, row in enumerate(sorted(rows, key=_rank)):
        lines += _row(row, columns, TOP + n * ROW, largest)
    bottom = TOP + len(rows) * ROW + 22
    lines += [_text(18, bottom + 17 * n, note, "small muted") for n, note in enumerate(notes)]
    return "\n".join([*lines, "</svg>", ""])


def soak_chart(engine: str, series: dict[str, Sequence[float]], notes: str) -> str:
    """A line for each quantity of a soak over its time; each on a scale of its own from 0."""
    plot, row, left = 560, 44, 270
    width, height = left + plot + 110, TOP - 18 + row * len(series)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
        f'<title id="title">Quantities of a soak on {escape(engine)} over its time</title>',
        f"<style>{STYLE} .line {{ fill: none; stroke: #0969da; stroke-width: 1.5; }}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        _text(18, 31, f"Soak on {engine}", "title text"),
        _text(18, 52, f"{notes} Each scale begins at 0; its end is at the right.", "muted"),
    ]
    for n, (name, values) in enumerate(series.items()):
        y, largest = TOP - 26 + n * row, max(*values, 1e-9)
        step = plot / max(1, len(values) - 1)
        points = " ".join(
            f"{left + k * step:.1f},{y + (row - 12) * (1 - value / largest):.1f}"
            for k, value in enumerate(values)
        )
        lines += [
            _text(18, y + 22, name, "text"),
            f'<rect class="track" x="{left}" y="{y}" width="{plot}" height="{row - 12}" rx="2"/>',
            f'<polyline class="line" points="{points}"/>',
            _text(left + plot + 8, y + 22, _number(largest), "small muted"),
        ]
    return "\n".join([*lines, "</svg>", ""])


def _row(row: dict[str, Any], columns: Sequence[str], y: int, largest: float) -> list[str]:
    is_ours = row[""].startswith("Laneway")
    name, store = name_of(row), _store(row["settings"])
    name += " *" if "date" in row else ""
    weight = "strong text" if is_ours else "text"
    span = f'<tspan class="small muted" dx="6" font-weight="400">{escape(store)}</tspan>'
    lines = [f'<text x="18" y="{y + 15}" class="{weight}">{escape(name)}{span}</text>']
    for n, column in enumerate(columns):
        x, value = LEFT + n * COLUMN, number(row[column])
        if not value:
            lines.append(_text(x, y + 15, "not possible", "small muted"))
            continue
        length = max(1.5, BAR * value / largest)
        kind = "ours" if is_ours else "peer"
        lines += [
            f'<rect class="track" x="{x}" y="{y + 4}" width="{BAR}" height="14" rx="2"/>',
            f'<rect class="{kind}" x="{x}" y="{y + 4}" width="{length:.1f}" height="14" rx="2"/>',
            _text(x + BAR + 7, y + 15, shown(row[column]), weight),
        ]
    return lines


def _rank(row: dict[str, Any]) -> tuple[bool, list[float]]:
    """Sort key: Laneway first, then by the rate over the most queues."""
    values = [-number(value) for name, value in row.items() if name.endswith(" queues/s")]
    return not row[""].startswith("Laneway"), values[::-1]


def _store(settings: str) -> str:
    """The store of a peer, as in its settings; whether it runs on Node."""
    found = [word for word in ("Node", *STORES) if word in settings]
    return ", ".join(found)


def _text(x: int, y: int, text: str, kind: str) -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'


def name_of(row: dict[str, Any]) -> str:
    """The name of a peer, without its version and store."""
    words = [word for word in str(row[""]).split() if not word[0].isdigit()]
    return " ".join(words).removesuffix(" on Valkey")


def number(value: object) -> float:
    """A figure, also one marked ~; 0 where there is none."""
    try:
        return float(str(value).lstrip("~").replace(",", ""))
    except ValueError:
        return 0.0


def shown(value: object) -> str:
    """A figure with three significant digits; one marked ~ was measured over a limited time."""
    if isinstance(value, str) and value.startswith("~"):
        return f"~{float(value[1:].replace(',', '')):,.0f}"
    return rounded(value) if isinstance(value, float) else f"{value:,}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else rounded(value)


def rounded(value: float) -> str:
    """Three significant digits."""
    digits = 3 - len(str(int(abs(value))))
    if value == 0 or abs(value) >= 100:
        return f"{round(value, min(digits, 0)):,.0f}"
    return f"{value:,.{max(digits, 0) if abs(value) >= 1 else 2}f}"
