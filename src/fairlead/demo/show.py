"""Runs the demo: publishes, watches the worker, and reports."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table

from fairlead.cli.session import print_json
from fairlead.cli.top import look, picture
from fairlead.demo.merchants import BEST_SELLER, BROKEN, FLOOD, FOLDER_VARIABLE, SLOW, TIERS, make_app
from fairlead.demo.report import Handled, report
from fairlead.message import Message

if TYPE_CHECKING:
    from fairlead import Fairlead
    from fairlead.engines.base import Overview

QUIET_RATE = 500.0
"""Messages a second of all ordinary merchants together."""

SHARE_TOPICS = 20
"""Topics of each tier in the phase that measures the tiers' shares."""

SHARE_MESSAGES = 50_000
"""Messages of each tier in that phase: more than the worker can do in it."""


class Phases(msgspec.Struct):
    """When what began (seconds since 1970), and what was seen at these moments."""

    quiet: float = 0.0
    flood: float = 0.0
    flood_over: float = 0.0
    shares_from: Overview | None = None
    shares_to: Overview | None = None


class Trickle(threading.Thread):
    """Publishes for the ordinary merchants, evenly, until stopped."""

    def __init__(self, app: Fairlead, topics: list[str], seed: int) -> None:
        super().__init__(daemon=True)
        self._app = app
        self._topics = topics
        self._random = random.Random(seed)
        self.stop = threading.Event()
        self.published = 0

    def run(self) -> None:
        due = time.monotonic()
        while not self.stop.is_set():
            self._app.publish(self._random.choice(self._topics), {"order": self.published})
            self.published += 1
            due += self._random.expovariate(QUIET_RATE)
            self.stop.wait(max(0.0, due - time.monotonic()))


def run(*, seconds: float, merchants: int, flood: int, seed: int, as_json: bool) -> int:
    """The whole demo; returns the exit code: 0 if all that was promised held."""
    with tempfile.TemporaryDirectory(prefix="fairlead-demo-") as folder:
        app = make_app(Path(folder))
        worker = subprocess.Popen(
            [sys.executable, "-m", "fairlead", "worker", "fairlead.demo.merchants:app", "--log-level", "error"],
            env={**os.environ, FOLDER_VARIABLE: folder},
        )
        began = time.time()
        try:
            phases = _play(app, seconds, merchants, flood, seed, quiet=as_json)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait()
        took = time.time() - began
        handled = [Handled.read(line) for path in Path(folder).glob("handled.*.log") for line in path.read_text().splitlines()]
        found = report(app.engine, phases, handled, took)
        app.close()
    if as_json:
        print_json(found)
    else:
        _print(found)
    return 0 if found["promises held"] else 1


def _play(app: Fairlead, seconds: float, merchants: int, flood: int, seed: int, *, quiet: bool) -> Phases:
    draw = random.Random(seed)
    ordinary = [f"push.{draw.choice(list(TIERS))}.m{n}" for n in range(merchants - 4)]
    phases = Phases()
    trickle = Trickle(app, ordinary, seed)
    trickle.start()
    with _Window(app, quiet=quiet) as window:
        window.watch("getting ready", seconds * 0.06)
        app.publish_many((Message(BROKEN, {"order": n}) for n in range(100)), progress=False)
        app.publish_many((Message(BEST_SELLER, {"order": n}) for n in range(5_000)), progress=False)
        app.publish_many((Message(SLOW, {"order": n}) for n in range(400)), progress=False)
        phases.quiet = time.time()
        window.watch("before the flood", seconds * 0.2)
        phases.flood = time.time()
        app.publish_many((Message(FLOOD, {"order": n}) for n in range(flood)), progress=False)
        window.watch(f"one merchant has published {flood:,} messages", seconds * 0.25)
        phases.flood_over = time.time()
        _measure_shares(app, phases, window, seconds * 0.18)
        trickle.stop.set()
        trickle.join()
        window.watch("the end", 1.0)
    return phases


def _measure_shares(app: Fairlead, phases: Phases, window: _Window, seconds: float) -> None:
    """Let every tier have more to do than the workers can."""
    app.publish_many((Message(f"share.{tier}.{n % SHARE_TOPICS}", n) for n in range(SHARE_MESSAGES) for tier in TIERS), progress=False)
    window.watch("all three tiers have more to do than the workers can", 0.5)
    phases.shares_from = app.engine.overview()
    window.watch("all three tiers have more to do than the workers can", seconds)
    phases.shares_to = app.engine.overview()


class _Window:
    """The live view; plain lines where there is no terminal, nothing with --json."""

    def __init__(self, app: Fairlead, *, quiet: bool) -> None:
        self._app = app
        self._console = Console()
        self._quiet = quiet
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal and not quiet else None
        self._before = app.engine.overview()

    def __enter__(self) -> _Window:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update("", refresh=True)
            self._live.stop()

    def watch(self, what: str, seconds: float) -> None:
        """Show for a while what happens."""
        if self._live is None and not self._quiet:
            self._console.print(f"{what} …")
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.5))
            if self._live is not None:
                seen = look(self._app, self._before, "backlog", 8)
                self._before = seen.now
                grid = Table.grid()
                grid.add_row(f"[bold]{what}[/bold]  ({left:.0f} s)")
                grid.add_row(picture(seen, self._console.width))
                self._live.update(grid, refresh=True)


def _print(found: dict[str, Any]) -> None:
    console = Console()
    for title, rows in found.items():
        if not isinstance(rows, dict):
            continue
        listed = Table(title=title, title_justify="left", show_header=False)
        for name, value in rows.items():
            listed.add_row(name, str(value))
        console.print(listed)
    console.print("Every promise held." if found["promises held"] else "[bold red]A promise was broken: see above.[/bold red]")
