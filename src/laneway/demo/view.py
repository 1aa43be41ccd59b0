"""
The demo's screen: the quiet merchants' waiting time, the flood's backlog, the tiers, and the
promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from laneway.demo.report import Promise, percentile, target_shares

BLOCKS = "▁▂▃▄▅▆▇█"
WIDE = 100
"""Terminal width from which the promises' figures are shown."""

MARKS = {
    "pending": ("…", "dim"),
    "held": ("✓", "bold green"),
    "broken": ("✗", "bold red"),
    "not judged": ("?", "yellow"),
}


class Scene(msgspec.Struct):
    """The content of the screen. The series have one value for each update; waits are seconds."""

    merchants: int
    title: str = "getting ready"
    left: float = 0.0
    p50s: list[float] = []
    p99s: list[float] = []
    backlogs: list[int] = []
    phase_waits: list[float] = []
    rate: float = 0.0
    done: int = 0
    dead: int = 0
    shares: dict[str, float] = {}
    shares_count: bool = False
    promises: list[Promise] = []
    sentence: str = ""

    def look(self, waits: Sequence[float], backlog: int) -> None:
        """Add a value to each series; without new waits the last values are repeated."""
        ordered = sorted(waits)
        self.p50s.append(percentile(ordered, 0.5) if ordered else (self.p50s or [0.0])[-1])
        self.p99s.append(percentile(ordered, 0.99) if ordered else (self.p99s or [0.0])[-1])
        self.backlogs.append(backlog)
        self.phase_waits += ordered

    def keep_looks(self, first: int) -> None:
        """Keep only the first values of the series."""
        for series in (self.p50s, self.p99s, self.backlogs):
            del series[first:]

    def begin(self, title: str) -> None:
        """Start a new part, with waits of its own."""
        self.title = title
        self.phase_waits = []


def picture(scene: Scene, width: int) -> Any:
    """Render the scene for a terminal of this width; 21 lines."""
    left = f"  {scene.left:.0f} s" if scene.left >= 1 else ""
    head = Text(scene.title, style="bold", no_wrap=True, overflow="ellipsis")
    head.append(left, style="dim")
    return Group(
        head,
        Text(),
        _series(scene, width),
        Text(),
        _tiers(scene, width),
        Text(),
        *_promises(scene, width),
    )


def sparkline(values: Sequence[float], top: float, width: int) -> str:
    """The last values as blocks; `top` is the value of the highest block."""
    shown = values[-width:]
    highest = len(BLOCKS) - 1
    return "".join(
        BLOCKS[min(highest, int(value / top * highest + 0.5)) if top > 0 else 0] for value in shown
    )


def bar(part: float, target: float, width: int) -> tuple[str, str, str]:
    """A bar for a share: the text before, at and after the mark of its target."""
    filled, mark = round(part * width), min(width - 1, round(target * width))
    cells = "".join("█" if n < filled else "·" for n in range(width))
    return cells[:mark], "┃", cells[mark + 1 :]


def _series(scene: Scene, width: int) -> Table:
    """The waits on one scale, so that flat looks flat; the backlog on its own scale."""
    room = max(10, width - 42)
    waits = sorted(scene.phase_waits)
    p50, p99 = (percentile(waits, 0.5), percentile(waits, 0.99)) if waits else (0.0, 0.0)
    top = max([0.1, *scene.p99s[-room:]])
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, width=22)
    grid.add_column(no_wrap=True, justify="right", width=15)
    grid.add_column(no_wrap=True, overflow="crop")
    grid.add_row(f"{scene.merchants:,} quiet merchants", "", "")
    grid.add_row(
        "  wait (p50)",
        Text(f"{p50 * 1000:,.1f} ms", style="bold green"),
        Text(sparkline(scene.p50s, top, room), style="green"),
    )
    grid.add_row(
        "  wait (p99)",
        Text(f"{p99 * 1000:,.1f} ms", style="bold cyan"),
        Text(sparkline(scene.p99s, top, room), style="cyan"),
    )
    backlog = scene.backlogs[-1] if scene.backlogs else 0
    grid.add_row("one merchant floods", "", "")
    flood = sparkline(
        [float(each) for each in scene.backlogs], float(max([1, *scene.backlogs])), room
    )
    grid.add_row("  its backlog", Text(f"{backlog:,}", style="bold red"), Text(flood, style="red"))
    grid.add_row(
        "all together",
        Text(f"{scene.rate:,.0f}/s", style="bold"),
        Text(f"{scene.done:,} handled, {scene.dead:,} dead letters", style="dim"),
    )
    return grid


def _tiers(scene: Scene, width: int) -> Table:
    room = max(10, min(60, width - 42))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, width=22)
    grid.add_column(no_wrap=True, justify="right", width=15)
    grid.add_column(no_wrap=True, overflow="crop")
    for tier, target in target_shares().items():
        part = scene.shares.get(tier, 0.0)
        before, mark, behind = bar(part, target, room)
        style = "blue" if scene.shares_count else "dim"
        line = Text.assemble((before, style), (mark, "bold yellow"), (behind, style))
        grid.add_row(
            f"tier {tier}",
            (
                f"{part:.1%} of {target:.0%}"
                if scene.shares_count
                else Text(f"target {target:.0%}", style="dim")
            ),
            line,
        )
    return grid


def _promises(scene: Scene, width: int) -> list[Text]:
    lines = []
    for promise in scene.promises:
        mark, style = MARKS[promise.state]
        line = Text(f"{mark} ", style=style, no_wrap=True, overflow="ellipsis")
        line.append(promise.name, style="" if promise.state != "pending" else "dim")
        if promise.detail and (width >= WIDE or promise.state in ("broken", "not judged")):
            line.append(f"  {promise.detail}", style="dim")
        lines.append(line)
    if scene.sentence:
        lines += [Text(), Text(scene.sentence, style="bold")]
    return lines
