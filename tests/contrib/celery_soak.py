"""
Celery with this transport and result backend, while workers are killed and the store is restarted:
`python -m tests.contrib.celery_soak --minutes 60 --store valkey` (or `sqlite`, `postgres`).

Each task notes its number. One of two workers is killed every `--kill` seconds, and the server
every `--restart` seconds. Prints how many tasks were lost, and exits with 1 if one was, or if a
worker ended on its own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from celery import Celery, chord
from kombu.exceptions import OperationalError

import laneway.contrib.kombu
from laneway import EngineUnavailable
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import Server

__all__ = ["laneway"]

END_SECONDS = 300
"""How long the last tasks may take."""

CHORD = 5
"""How many tasks a chord waits for."""

app = Celery("soak", broker=os.environ.get("BROKER"), backend=os.environ.get("BROKER"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    worker_prefetch_multiplier=4,
)


@app.task(name="note")
def note(number: int) -> None:
    with open(os.environ["NOTES"], "a") as file:
        file.write(f"{number}\n")


class Workers:
    """Two workers; `kill` replaces one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = self.ended = 0
        self.running = [self._start(), self._start()]

    def _start(self) -> subprocess.Popen[bytes]:
        name = f"worker{self.started}"
        self.started += 1
        command = [sys.executable, "-m", "celery", "-A", __spec__.name, "worker", "-c", "2"]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, "--max-tasks-per-child", "100", "-n", f"{name}@soak"],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the older worker with its children, and start another one."""
        self.check()
        self._kill(self.running.pop(0))
        self.running.append(self._start())

    def check(self) -> None:
        """Count and replace workers that ended on their own."""
        for index, each in enumerate(self.running):
            if each.poll() is not None:
                self.ended += 1
                print(f"a worker ended with {each.returncode}", flush=True)
                self.running[index] = self._start()

    def stop(self) -> None:
        """Kill both."""
        for each in self.running:
            self._kill(each)

    def _kill(self, worker: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def publish(first: int, count: int) -> None:
    """Publish tasks with these numbers: most alone, some of them with a countdown or in a chord."""
    numbers = list(range(first, first + count))
    while numbers:
        try:
            if len(numbers) > CHORD and first % 4 == 0:
                *header, body = numbers[: CHORD + 1]
                chord([note.si(each) for each in header])(note.si(body))
                del numbers[: CHORD + 1]
                first += 1
            else:
                note.apply_async((numbers[0],), countdown=2 if numbers[0] % 10 == 0 else None)
                del numbers[0]
        except (OperationalError, EngineUnavailable, OSError):
            time.sleep(0.2)


def noted() -> Counter[int]:
    """How often each task has run."""
    path = Path(os.environ["NOTES"])
    return Counter(map(int, path.read_text().split())) if path.exists() else Counter()


def run(store: Server | PostgresServer | None, options: argparse.Namespace, folder: Path) -> int:
    """Publish, kill and restart for the given time. Returns the exit status."""
    workers = Workers(folder)
    published = kills = restarts = 0
    begin = time.monotonic()
    end, kill_at, restart_at = (
        begin + seconds for seconds in (60 * options.minutes, options.kill, options.restart)
    )
    try:
        while (now := time.monotonic()) < end:
            publish(published, options.rate)
            published += options.rate
            if now >= kill_at:
                workers.kill()
                kills, kill_at = kills + 1, now + options.kill
            if store is not None and now >= restart_at:
                store.kill()
                time.sleep(1)
                store.start()
                restarts, restart_at = restarts + 1, now + options.restart
            time.sleep(max(0.0, now + 1 - time.monotonic()))
        deadline = time.monotonic() + END_SECONDS
        while len(noted()) < published and time.monotonic() < deadline:
            workers.check()
            time.sleep(1)
    finally:
        workers.stop()
    seen = noted()
    lost = sorted(set(range(published)) - set(seen))
    print(
        f"{options.store}, {(time.monotonic() - begin) / 60:.0f} min: {published} tasks,"
        f" {kills} killed workers, {restarts} restarts of the server: {len(lost)} lost,"
        f" {sum(count > 1 for count in seen.values())} ran more than once,"
        f" {workers.ended} workers ended on their own"
    )
    if lost:
        print("lost:", *lost[:50])
    return 1 if lost or workers.ended else 0


def main() -> int:
    """Run it with a store of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--store", choices=("valkey", "sqlite", "postgres"), default="valkey")
    parser.add_argument("--rate", type=int, default=20, help="tasks a second")
    parser.add_argument("--kill", type=float, default=20, help="seconds between killed workers")
    parser.add_argument("--restart", type=float, default=90, help="seconds between restarts")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store: Server | PostgresServer | None = None
        if options.store == "valkey":
            store = stack.enter_context(Server(appendonly="yes", appendfsync="always"))
        elif options.store == "postgres":
            store = stack.enter_context(PostgresServer())
        url = f"sqlite:///{folder}/jobs.db" if store is None else store.url
        os.environ.update(BROKER=f"laneway+{url}", NOTES=f"{folder}/notes")
        app.conf.broker_url = app.conf.result_backend = os.environ["BROKER"]
        return run(store, options, folder)


if __name__ == "__main__":
    sys.exit(main())
