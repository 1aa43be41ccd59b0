"""
Rates by the wall clock, with workers in several processes and busy processes beside them.

A visit that is up to 50 ms late loses no permit. The machine's delays are measured by a probe
process beside the workers: every 20 ms it does 2 ms of work and records how late it ended. The
bound of a window is that of the specification, less the time that the probe lost. If that is more
than `JUDGED` of the window, the bound says little about rates, and another window is measured.
The machine may also stop a worker and not the probe: a window with too few deliveries is measured
again, and the test fails if all of them have too few. No window may have too many.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from laneway import Laneway, Message
from laneway.testing.servers import Server, until

SOURCE = str(Path(__file__).parents[2] / "src")
WINDOW, WINDOWS = 3.0, 4
"""Seconds of a window, and how many are measured at most."""

JUDGED = 0.05
WORKERS = 2
CASES: dict[str, tuple[float, dict[str, Any], float]] = {
    "whole": (25, {}, 0.0),
    "parts": (100, {"partitions": 4}, 0.0),
    "slow": (10, {}, 0.35),
}
"""By namespace: rate, further fields of the policy, and how long a handler runs."""

WORKER = """
import sys, time
from laneway import Laneway

app = Laneway(sys.argv[1], namespace=sys.argv[2], durability="memory")


@app.handler("a")
def handle(message):
    time.sleep(float(sys.argv[3]))


print("ready", flush=True)
app.run_worker(concurrency=4)
"""
BUSY = "while True: pass"
PROBE = """
import time
late = 0.0
tick = time.monotonic()
while True:
    tick += 0.02
    time.sleep(max(0.0, tick - time.monotonic()))
    began = time.thread_time()
    while time.thread_time() < began + 0.002:
        pass
    over = time.monotonic() - tick - 0.002
    if over > 0.025:  # a visit takes two such steps: it wakes up, and it leases
        late += over - 0.025
        tick = time.monotonic()
    print(late, flush=True)
"""


@dataclass
class Sample:
    """How many messages were delivered; read between two moments."""

    before: float
    delivered: int
    after: float


class Program:
    """
    A Python program that ends with the block; `last` is the last line that it printed, `lines` how
    many it has printed.
    """

    def __init__(self, text: str, *arguments: str) -> None:
        self._text, self._arguments = text, arguments
        self.last = ""
        self.lines = 0

    def __enter__(self) -> Program:
        command = [sys.executable, "-c", self._text, *self._arguments]
        environment = {**os.environ, "PYTHONPATH": SOURCE}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.last = line.strip()
                self.lines += 1

    def next_line(self) -> str:
        """A line that began after this call: the one being printed now may have begun before."""
        lines = self.lines
        until(lambda: self.lines > lines + 1, "two lines of the program", 60.0)
        return self.last


@pytest.mark.parametrize("store", ["sqlite", "valkey"])
def test_rates_hold_on_a_busy_machine(tmp_path: Path, store: str) -> None:
    """
    Deliveries are at most rate · T + burst, and at least 0.99 · rate · T - 1 as far as the machine
    keeps up.
    """
    with ExitStack() as stack:
        server = stack.enter_context(Server()) if store == "valkey" else None
        url = server.url if server is not None else f"sqlite:///{tmp_path}/q.db"
        apps = {name: stack.enter_context(backlog(url, name)) for name in CASES}
        programs = [
            Program(WORKER, url, name, str(seconds))
            for name, (_, _, seconds) in CASES.items()
            for _ in range(WORKERS)
        ]
        for program in programs:
            stack.enter_context(program)
        until(lambda: all(program.last == "ready" for program in programs), "all workers", 60.0)
        until(
            lambda: all(sample(app).delivered > 5 for app in apps.values()),
            "deliveries everywhere",
            60.0,
        )
        for _ in range(os.cpu_count() or 1):
            stack.enter_context(Program(BUSY))
        probe = stack.enter_context(Program(PROBE))
        until(lambda: probe.last, "the probe", 60.0)
        lost: list[float] = []
        late: list[str] = []
        while len(lost) < WINDOWS:
            seconds, missed = measure(apps, probe)
            lost.append(seconds / WINDOW)
            if lost[-1] <= JUDGED:
                if not missed:
                    return
                late.append(missed)
    assert len(late) < 2, late
    parts = ", ".join(f"{part:.0%}" for part in lost)
    pytest.skip(f"too busy a machine to judge rates: the probe lost {parts} of the windows")


def backlog(url: str, name: str) -> Laneway:
    """The application of a namespace, with more messages than all windows deliver."""
    app = Laneway(url, namespace=name, durability="memory")
    rate, fields, _ = CASES[name]
    app.policy("a", rate=rate, **fields)
    # Keys that load the partitions evenly.
    count = int(rate * (WINDOW * WINDOWS + 120))
    app.publish_many((Message("a", n, key=f"k{n % 1_000}") for n in range(count)), progress=False)
    return app


def sample(app: Laneway) -> Sample:
    before = time.monotonic()
    delivered = app.topic("a").stats().delivered
    return Sample(before, delivered, time.monotonic())


def measure(apps: dict[str, Laneway], probe: Program) -> tuple[float, str]:
    """
    Measure one window, and check that it has no more deliveries than the rates admit. Returns the
    seconds that the probe lost in it, and which namespaces have too few deliveries.
    """
    lost_before = float(probe.last)
    first = {name: sample(app) for name, app in apps.items()}
    time.sleep(WINDOW)  # the window itself
    last = {name: sample(app) for name, app in apps.items()}
    lost = float(probe.next_line()) - lost_before  # with a delay that has not ended yet
    missed = []
    for name, (rate, fields, _) in CASES.items():
        parts = fields.get("partitions", 1)
        delivered = last[name].delivered - first[name].delivered
        longest, shortest = (
            last[name].after - first[name].before,
            last[name].before - first[name].after,
        )
        assert delivered <= rate * longest + parts + rate / 20, name
        least = 0.99 * rate * (shortest - lost) - parts
        if delivered < least:
            missed.append(f"{name}: {delivered} of {least:.0f} in {shortest:.2f} s less {lost:.2f}")
    return lost, ", ".join(missed)
