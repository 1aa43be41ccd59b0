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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from fairlead.cli.session import leave, print_json
from fairlead.cli.top import look, picture
from fairlead.demo.merchants import (
    BEST_SELLER,
    BROKEN,
    DURABILITY_VARIABLE,
    FLOOD,
    FOLDER_VARIABLE,
    SHARE_LATENCY,
    SLOW,
    TIERS,
    URL_VARIABLE,
    WORKERS,
    make_app,
)
from fairlead.demo.report import Handled, Phase, report
from fairlead.errors import FairleadError
from fairlead.message import Message
from fairlead.servers import NoServer, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fairlead import Fairlead

QUIET_RATE = 500.0
"""Messages a second of all ordinary merchants together."""

GATHER = 0.01
"""What the ordinary merchants publish within so many seconds shares a transaction, as the threads of a web server would."""

SHARE_TOPICS = 20
"""Topics of each tier in the phase that measures the tiers' shares."""

START_SECONDS = 20.0
"""How long the worker may take to start."""


class DemoFailed(FairleadError):
    """The demo could not be played."""


class Trickle(threading.Thread):
    """Publishes for the ordinary merchants, at random moments, until stopped."""

    def __init__(self, app: Fairlead, topics: list[str], seed: int) -> None:
        super().__init__(daemon=True)
        self._app = app
        self._topics = topics
        self._random = random.Random(seed)
        self._published = 0
        self.stop = threading.Event()

    def run(self) -> None:
        due = time.monotonic()
        while not self.stop.wait(GATHER):
            orders: list[Message] = []
            while due <= time.monotonic():
                orders.append(Message(self._random.choice(self._topics), {"order": self._published + len(orders)}))
                due += self._random.expovariate(QUIET_RATE)
            if orders:
                self._app.publish_many(orders, progress=False)
                self._published += len(orders)


@contextmanager
def _server(engine: str, durability: str) -> Iterator[None]:
    """A server for the demo alone, where it is not played on a file."""
    os.environ[DURABILITY_VARIABLE] = durability
    if engine == "sqlite":
        yield
        return
    try:
        server = Server(appendonly="yes", appendfsync="always") if durability == "fsync" else Server()
    except NoServer as error:
        leave(str(error), 1)
    with server:
        os.environ[URL_VARIABLE] = server.url
        try:
            yield
        finally:
            del os.environ[URL_VARIABLE]


def run(*, engine: str = "sqlite", durability: str = "fsync", seconds: float, merchants: int, flood: int, seed: int, as_json: bool) -> int:
    """The whole demo; returns the exit code: 0 if all that was promised held."""
    with _server(engine, durability), tempfile.TemporaryDirectory(prefix="fairlead-demo-") as folder:
        app = make_app(Path(folder))
        worker = subprocess.Popen(  # noqa: S603  # our own interpreter and module
            [sys.executable, "-m", "fairlead", "worker", "fairlead.demo.merchants:app", "-c", str(WORKERS), "--log-level", "error"],
            env={**os.environ, FOLDER_VARIABLE: folder},
        )
        began = time.time()
        try:
            phases = _Play(app, worker, seconds, flood, quiet=as_json).play(merchants, seed)
        except DemoFailed as error:
            leave(str(error), 1)
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


class _Play:
    """The acts of the demo, one after the other."""

    def __init__(self, app: Fairlead, worker: subprocess.Popen[bytes], seconds: float, flood: int, *, quiet: bool) -> None:
        self._app = app
        self._worker = worker
        self._seconds = seconds
        self._flood = flood
        self._window = _Window(app, quiet=quiet)

    def play(self, merchants: int, seed: int) -> dict[str, Phase]:
        draw = random.Random(seed)
        ordinary = [f"push.{draw.choice(list(TIERS))}.m{n}" for n in range(merchants - 4)]
        trickle = Trickle(self._app, ordinary, seed)
        trickle.start()
        phases: dict[str, Phase] = {}
        with self._window as window:
            self._get_ready()
            phases["before the flood"] = self._phase("before the flood", 0.2)
            phases["during the flood"] = self._phase(f"one merchant publishes {self._flood:,} messages at once", 0.28, self._publish_flood)
            phases["after the flood"] = self._phase(self._stop_flood(), 0.17)
            title = "all three tiers have more to do than the worker can"
            window.watch("publishing for all three tiers", 0.5, self._publish_shares)
            phases["while all tiers had work"] = self._phase(title, 0.15)
            trickle.stop.set()
            trickle.join()
            window.watch("the end", 1.0)
        return phases

    def _phase(self, title: str, part: float, act: Callable[[], object] | None = None) -> Phase:
        began, before = time.time(), self._app.engine.overview()
        self._window.watch(title, self._seconds * part, act)
        return Phase(began, time.time(), before, self._app.engine.overview())

    def _get_ready(self) -> None:
        """What the special merchants have from the beginning, and a worker that works."""

        def act() -> None:
            _publish(self._app, (Message(BROKEN, {"order": n}) for n in range(100)))
            _publish(self._app, (Message(BEST_SELLER, {"order": n}) for n in range(5_000)))
            _publish(self._app, (Message(SLOW, {"order": n}) for n in range(400)))
            deadline = time.monotonic() + START_SECONDS
            while not self._app.engine.overview().done:
                if self._worker.poll() is not None:
                    raise DemoFailed(f"the demo's worker ended with exit code {self._worker.returncode}")
                if time.monotonic() > deadline:
                    raise DemoFailed(f"the demo's worker has handled nothing within {START_SECONDS:g} s")
                time.sleep(0.05)

        self._window.watch("getting ready", self._seconds * 0.06, act)

    def _publish_flood(self) -> None:
        _publish(self._app, (Message(FLOOD, {"order": n}) for n in range(self._flood)))

    def _stop_flood(self) -> str:
        """Half a minute may be too short for all of it: what is left waits, paused. Returns what happened."""
        left = self._app.topic(FLOOD).stats().waiting
        if not left:
            return "after the flood: all of it was handled"
        self._app.topic(FLOOD).pause()
        return f"after the flood: it is paused, {left:,} messages of it wait"

    def _publish_shares(self) -> None:
        """For each tier more than its share of what the worker can do, were it alone."""
        each = {tier: int(share / sum(TIERS.values()) * WORKERS / SHARE_LATENCY * self._seconds * 0.25) for tier, share in TIERS.items()}
        _publish(self._app, (Message(f"share.{tier}.{n % SHARE_TOPICS}", n) for tier, number in each.items() for n in range(number)))


def _publish(app: Fairlead, messages: Iterable[Message]) -> None:
    app.publish_many(messages, progress=False)


class _Window:
    """The live view; plain lines where there is no terminal, nothing with --json."""

    def __init__(self, app: Fairlead, *, quiet: bool) -> None:
        self._app = app
        self._console = Console()
        self._quiet = quiet
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if self._console.is_terminal and not quiet else None
        self._before = app.engine.overview()
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> _Window:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False)
        if self._live is not None:
            self._live.stop()

    def watch(self, what: str, seconds: float, act: Callable[[], object] | None = None) -> None:
        """Show what happens for a while, and until the act, which is done meanwhile, is over. Raises what it raises."""
        if self._live is None and not self._quiet:
            self._console.print(f"{what} …", highlight=False, soft_wrap=True)
        acting = None if act is None else self._threads.submit(act)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 or (acting is not None and not acting.done()):
            if self._live is not None:
                self._draw(self._live, what, left)
            time.sleep(min(max(left, 0.05), 0.5))
        if acting is not None:
            acting.result()

    def _draw(self, live: Live, what: str, left: float) -> None:
        seen = look(self._app, self._before, "backlog", 8)
        self._before = seen.now
        grid = Table.grid()
        grid.add_row(f"[bold]{what}[/bold]" + (f" ({left:.0f} s)" if left > 0 else ""))
        grid.add_row(picture(seen, self._console.width))
        live.update(grid, refresh=True)


def _print(found: dict[str, Any]) -> None:
    for title, rows in found.items():
        if not isinstance(rows, dict):
            continue
        click.secho(f"\n{title}", bold=True)
        width = max(map(len, rows), default=0)
        for name, value in rows.items():
            click.echo(f"  {name.ljust(width)}  {value}")
    click.echo()
    if found["promises held"]:
        click.secho("Every promise held.", bold=True)
    else:
        click.secho("A promise was broken: see above.", bold=True, fg="red")
