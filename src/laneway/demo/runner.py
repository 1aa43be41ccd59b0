"""Runs the demo: publishes, watches the worker, and reports."""

from __future__ import annotations

import io
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.live import Live

from laneway import Laneway
from laneway.demo.logs import Growing, Handled
from laneway.demo.merchants import (
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
from laneway.demo.report import (
    AFTER,
    ARRIVING,
    BEFORE,
    DURING,
    SHARING,
    Phase,
    Seen,
    promises,
    quiet_only,
    report,
    shares_between,
)
from laneway.demo.view import Scene, picture
from laneway.engines.base import Overview
from laneway.errors import LanewayError
from laneway.live import rate_between
from laneway.message import Message
from laneway.presenting import json_text
from laneway.printable import escaped
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import NoServer, Server

QUIET_RATE = 500.0
"""Messages a second of all ordinary merchants together."""

GATHER = 0.01
"""
Messages that the ordinary merchants publish within this many seconds share a transaction, as those
of a web server's threads would.
"""

SHARE_TOPICS = 20
"""Topics of each tier in the phase that measures the tiers' shares."""

SPECIAL = 4
"""
The merchants with a special role: the flood, the failing one, the slow one, the best seller.
"""

LOOK_EVERY = 0.5

START_SECONDS = 60.0
"""The longest time until the worker starts."""


class DemoFailed(LanewayError):
    """The demo could not run."""


class Trickle(threading.Thread):
    """Publishes for the ordinary merchants, at random moments, in a `with` block."""

    def __init__(self, app: Laneway, topics: list[str], seed: int) -> None:
        super().__init__(daemon=True)
        self._app = app
        self._topics = topics
        self._random = random.Random(seed)
        self._published = 0
        self._stop_asked = threading.Event()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        """Nothing is published into a store that is removed, even after Ctrl-C."""
        self._stop_asked.set()
        self.join()

    def run(self) -> None:
        due = time.monotonic()
        while not self._stop_asked.wait(GATHER):
            orders: list[Message] = []
            while due <= time.monotonic():
                orders.append(
                    Message(
                        self._random.choice(self._topics), {"order": self._published + len(orders)}
                    )
                )
                due += self._random.expovariate(QUIET_RATE)
            if orders:
                self._app.publish_many(orders, progress=False)
                self._published += len(orders)


def _valkey(durability: str) -> Server:
    if durability == "fsync":
        return Server(appendonly="yes", appendfsync="always")
    return Server()


@contextmanager
def _server(engine: str, durability: str) -> Iterator[Server | PostgresServer | None]:
    """Start a server for the demo, unless it runs on a file."""
    os.environ[DURABILITY_VARIABLE] = durability
    if engine == "sqlite":
        yield None
        return
    try:
        server = PostgresServer() if engine == "postgres" else _valkey(durability)
    except NoServer as error:
        raise DemoFailed(str(error)) from error
    with server:
        os.environ[URL_VARIABLE] = server.url
        try:
            yield server
        finally:
            del os.environ[URL_VARIABLE]


def run(
    *,
    engine: str = "sqlite",
    durability: str = "fsync",
    seconds: float = 30.0,
    merchants: int = 1_000,
    flood: int = 200_000,
    seed: int = 1,
    as_json: bool = False,
    svg: Path | None = None,
) -> int:
    """
    Run the demo. Returns the exit code: 0 if every promise was kept. `svg`: a file for a picture of
    the last screen.
    """
    with (
        _server(engine, durability) as server,
        tempfile.TemporaryDirectory(prefix="laneway-demo-") as folder,
    ):
        app = make_app(Path(folder))
        store = app.engine  # opened before the processes are started, because it may fail
        with open(
            f"{folder}/worker.log", "w", encoding="utf-8"
        ) as log:  # not on the screen: one merchant always fails
            worker = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                [
                    sys.executable,
                    "-m",
                    "laneway",
                    "worker",
                    "laneway.demo.merchants:app",
                    "-c",
                    str(WORKERS),
                    "--log-level",
                    "error",
                ],
                env={**os.environ, FOLDER_VARIABLE: folder},
                stderr=log,
            )
        probe = subprocess.Popen(  # noqa: S603  # our own
            [sys.executable, "-m", "laneway.demo.probe", f"{folder}/lags.log"],
            process_group=0,  # Ctrl-C is for this process, which ends the probe
        )
        began = time.time()
        own = [os.getpid(), worker.pid, probe.pid, *([] if server is None else [server.pid])]
        stage = _Stage(app, Path(folder), merchants, own, quiet=as_json)
        try:
            with stage:
                _Play(app, worker, seconds, flood, stage).play(seed)
        except DemoFailed as error:
            log_lines = Path(folder, "worker.log").read_text(encoding="utf-8").strip().splitlines()
            raise DemoFailed(f"{error}: {log_lines[-1]}" if log_lines else str(error)) from error
        finally:
            probe.kill()
            probe.wait()
            worker.send_signal(signal.SIGTERM)
            worker.wait()
        took = time.time() - began
        stage.read()
        found = report(store, stage.seen, took)
        if not as_json:
            _print_figures(found)
        stage.close(found)
        if svg is not None:
            save_picture(stage.scene, svg)
        app.close()
    if as_json:
        click.echo(json_text(found))
    else:
        _print_verdict(found)
    return 0 if found["promises held"] else 1


def save_picture(scene: Scene, path: Path) -> None:
    """Save the last screen as an SVG file without web fonts."""
    console = Console(
        record=True, width=110, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(picture(scene, 110))
    drawn = console.export_svg(title="make demo")
    path.write_text(
        re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL).replace("Fira Code", "monospace"),
        encoding="utf-8",
    )


class _Play:
    """The phases of the demo, one after the other."""

    def __init__(
        self,
        app: Laneway,
        worker: subprocess.Popen[bytes],
        seconds: float,
        flood: int,
        stage: _Stage,
    ) -> None:
        self._app = app
        self._worker = worker
        self._seconds = seconds
        self._flood = flood
        self._stage = stage

    def play(self, seed: int) -> None:
        draw = random.Random(seed)
        ordinary = [
            f"push.{draw.choice(list(TIERS))}.m{n}" for n in range(self._stage.scene.merchants)
        ]
        with Trickle(self._app, ordinary, seed):
            self._phases(len(ordinary))
        self._stage.watch("the end", 1.0)

    def _phases(self, ordinary: int) -> None:
        self._get_ready()
        self._phase(BEFORE, f"{ordinary:,} quiet merchants, one that fails, one that is slow", 0.2)
        self._phase(
            ARRIVING,
            f"one merchant publishes {self._flood:,} messages in one burst",
            0.02,
            self._publish_flood,
        )
        self._phase(DURING, f"{self._flood:,} messages of one merchant wait", 0.26)
        self._phase(AFTER, self._stop_flood(), 0.17)
        self._stage.watch("publishing for all three tiers", 0.5, self._publish_shares)
        self._phase(SHARING, "all three tiers have more to do than the worker can", 0.15)

    def _phase(
        self, name: str, title: str, part: float, act: Callable[[], object] | None = None
    ) -> None:
        began, before, used_before = time.time(), self._app.engine.overview(), used(self._stage.own)
        self._stage.shares_since = before if name == SHARING else None
        self._stage.watch(title, self._seconds * part, act)
        now_used = used(self._stage.own)
        others = (
            None if used_before is None or now_used is None else now_used.others_since(used_before)
        )
        self._stage.ended(
            name, Phase(began, time.time(), before, self._app.engine.overview(), others)
        )

    def _get_ready(self) -> None:
        """Publish for the special merchants, and wait until the worker handles messages."""

        def act() -> None:
            _publish(self._app, (Message(BROKEN, {"order": n}) for n in range(100)))
            _publish(self._app, (Message(BEST_SELLER, {"order": n}) for n in range(5_000)))
            _publish(self._app, (Message(SLOW, {"order": n}) for n in range(400)))
            deadline = time.monotonic() + START_SECONDS
            while not self._app.engine.overview().done:
                if self._worker.poll() is not None:
                    raise DemoFailed(
                        f"the demo's worker ended with exit code {self._worker.returncode}"
                    )
                if time.monotonic() > deadline:
                    raise DemoFailed(
                        f"the demo's worker has handled nothing within {START_SECONDS:g} s"
                    )
                time.sleep(0.05)

        self._stage.watch("getting ready", self._seconds * 0.06, act)

    def _publish_flood(self) -> None:
        _publish(self._app, (Message(FLOOD, {"order": n}) for n in range(self._flood)))

    def _stop_flood(self) -> str:
        """
        Pause the flood if messages of it are left: half a minute may be too short for it. Returns a
        title for the next phase.
        """
        left = self._app.topic(FLOOD).stats().waiting
        if not left:
            return "after the flood: all of it was handled"
        self._app.topic(FLOOD).pause()
        return f"after the flood: it is paused, {left:,} messages of it wait"

    def _publish_shares(self) -> None:
        """Publish more for each tier than its share of what the worker can handle."""
        each = {
            tier: int(share / sum(TIERS.values()) * WORKERS / SHARE_LATENCY * self._seconds * 0.25)
            for tier, share in TIERS.items()
        }
        _publish(
            self._app,
            (
                Message(f"share.{tier}.{n % SHARE_TOPICS}", n)
                for tier, number in each.items()
                for n in range(number)
            ),
        )


def _publish(app: Laneway, messages: Iterable[Message]) -> None:
    app.publish_many(messages, progress=False)


class _Stage:
    """
    The display: a live view; plain lines if the output is not a terminal, nothing with --json.
    """

    def __init__(
        self, app: Laneway, folder: Path, merchants: int, own: list[int], *, quiet: bool
    ) -> None:
        self.seen = Seen(handled=[], phases={}, lags=[])
        self.scene = Scene(merchants - SPECIAL, promises=promises(app.engine, self.seen))
        self.shares_since: Overview | None = None
        self.own = own
        self._app = app
        self._console = Console()
        self._quiet = quiet
        self._looks_of_flood = 0
        self._live = (
            Live(console=self._console, auto_refresh=False, transient=True)
            if self._console.is_terminal and not quiet
            else None
        )
        self._before = app.engine.overview()
        self._threads = ThreadPoolExecutor(1)
        self._handled, self._lags = Growing(folder, "handled.*.log"), Growing(folder, "lags.log")

    def __enter__(self) -> _Stage:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False)
        if self._live is not None:
            self._live.stop()

    def close(self, found: dict[str, Any]) -> None:
        """Show the end, with all promises judged."""
        self.scene.title, self.scene.left = (
            "the demo is over; waits before, during and after the flood",
            0.0,
        )
        self.scene.promises = promises(self._app.engine, self.seen, is_over=True)
        parts = [self.seen.phases[name] for name in (BEFORE, AFTER) if name in self.seen.phases]
        if len(parts) == 2:  # later phases overload the worker on purpose
            began, ended = parts[0].began, parts[1].ended
            self.scene.phase_waits = [
                each.wait
                for each in quiet_only(self.seen.handled)
                if began <= each.published < ended
            ]
            self.scene.keep_looks(self._looks_of_flood)
        self.scene.sentence = found["in one sentence"]
        if self._live is not None:
            self._console.print(picture(self.scene, self._console.width))
        elif not self._quiet and self.scene.sentence:
            say(self.scene.sentence, bold=True)

    def watch(self, what: str, seconds: float, act: Callable[[], object] | None = None) -> None:
        """
        Update the display for so many seconds, and until `act`, which runs meanwhile, has returned.
        Raises the errors of `act`.
        """
        self.scene.begin(what)
        if self._live is None and not self._quiet:
            self._console.print(f"{what} …", highlight=False, soft_wrap=True)
        acting = None if act is None else self._threads.submit(act)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 or (acting is not None and not acting.done()):
            self.scene.left = left
            self._look()
            time.sleep(min(max(left, 0.05), LOOK_EVERY))
        if acting is not None:
            acting.result()

    def ended(self, name: str, phase: Phase) -> None:
        """A phase is over: judge the promises that it decides."""
        self.seen.phases[name] = phase
        self.read()
        if name == AFTER:
            self._looks_of_flood = len(self.scene.backlogs)
        self.scene.promises = promises(self._app.engine, self.seen)

    def read(self) -> list[float]:
        """
        Read the logs of the other processes. Returns the new waits of the quiet merchants.
        """
        new = [Handled.read(line) for line in self._handled.lines()]
        self.seen.handled += new
        self.seen.lags += [
            (float(moment), float(late)) for moment, late in map(str.split, self._lags.lines())
        ]
        return [each.wait for each in quiet_only(new)]

    def _look(self) -> None:
        waits, now, scene = self.read(), self._app.engine.overview(), self.scene
        scene.look(waits, self._app.engine.topic_stats(FLOOD).waiting)
        scene.rate, scene.done, scene.dead = (
            rate_between(self._before, now, "done"),
            now.done,
            now.dead,
        )
        since = self.shares_since
        if since is not None:
            scene.shares, scene.shares_count = shares_between(since, now), True
        elif not scene.shares_count:
            scene.shares = shares_between(self._before, now)
        self._before = now
        if self._live is not None:
            self._live.update(picture(scene, self._console.width), refresh=True)


def say(text: str = "", **style: Any) -> None:
    """Print one line, control characters escaped."""
    click.secho(escaped(text), **style)


def _print_figures(found: dict[str, Any]) -> None:
    for title, rows in found.items():
        if not isinstance(rows, dict):
            continue
        say()
        say(title, bold=True)
        width = max(map(len, rows), default=0)
        for name, value in rows.items():
            say(f"  {name.ljust(width)}  {value}")
    say()


def _print_verdict(found: dict[str, Any]) -> None:
    if not found["promises held"]:
        say("A promise was broken: see above.", bold=True, fg="red")
    elif found["all judged"]:
        say("Every promise held.", bold=True, fg="green")
    else:
        say(
            "Every promise that could be judged held; the machine was too busy for the others, see"
            " above.",
            bold=True,
            fg="yellow",
        )


class Used(msgspec.Struct, frozen=True):
    """
    Ticks of all processors since the machine started: total, busy, and busy with our processes.
    """

    total: int
    busy: int
    own: int

    def others_since(self, before: Used) -> float:
        """The share of all processors that other programs used between two samples."""
        total = self.total - before.total
        return (
            max(0.0, min(1.0, (self.busy - before.busy - (self.own - before.own)) / total))
            if total > 0
            else 0.0
        )


def used(processes: Iterable[int]) -> Used | None:
    """A sample of the machine and these processes; None where /proc is missing."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        own = {each for process in processes for each in _with_children(process)}
        return Used(sum(ticks), sum(ticks) - ticks[3] - ticks[4], sum(map(_ticks_of, own)))
    except (OSError, ValueError, IndexError):
        return None


def _with_children(process: int) -> list[int]:
    """A process and its children that run, like those of a PostgreSQL server."""
    with open(f"/proc/{process}/task/{process}/children", encoding="ascii") as file:
        return [process, *map(int, file.read().split())]


def _ticks_of(process: int) -> int:
    with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
