"""
Programs around Celery with this transport, as they are:
`python -m tests.contrib.celery_programs valkey` (or `sqlite`, `postgres`: the store of the queues).

Install celery-once, celery-singleton, celery-redbeat, django-celery-beat, django-celery-results and
flower first. Prints a line for each of them, and exits with 1 if one does not work. Locks and
redbeat's schedules are always in a Valkey server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import Server, free_port

SECONDS = 60
FOLDER = "tests.contrib.celery_programs"
failures: list[str] = []


def check(what: str, is_so: Callable[[], Any]) -> None:
    """Wait until something is so, and print it."""
    deadline, error = time.monotonic() + SECONDS, ""
    while time.monotonic() < deadline:
        try:
            if is_so():
                print("ok  ", what, flush=True)
                return
        except Exception as raised:  # it may not have started yet
            error = repr(raised)
        time.sleep(0.1)
    print("FAIL", what, error, flush=True)
    failures.append(what)


@contextmanager
def process(app: str, *words: str) -> Iterator[None]:
    """A command of Celery that runs during the block."""
    command = [sys.executable, "-m", "celery", "-A", f"{FOLDER}.{app}", *words]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        started.terminate()
        started.wait(SECONDS)


def lines(text: str) -> int:
    """How many tasks have noted this."""
    path = Path(os.environ["NOTES"])
    return path.read_text().split("\n").count(text) if path.exists() else 0


def with_celery() -> None:
    """Beat, celery-once, celery-singleton, redbeat and Flower."""
    from celery_once import AlreadyQueued  # type: ignore[import-not-found]

    from tests.contrib.celery_programs import shop  # reads the environment

    with process("shop", "worker", "-c", "2", "-E"):
        with process("shop", "beat", "-s", f"{os.environ['NOTES']}.beat"):
            check("beat", lambda: lines("tick") >= 3)
        first = shop.once.delay(1)
        try:
            shop.once.delay(1)
            failures.append("celery-once")
        except AlreadyQueued:
            first.get(timeout=SECONDS)
            check("celery-once", lambda: shop.once.delay(1))
        one, same = shop.single.delay(7), shop.single.delay(7)
        check("celery-singleton", lambda: one.id == same.id and one.get(timeout=SECONDS) == 7)
        before = lines("tick")
        with process("shop", "beat", "-S", "redbeat.RedBeatScheduler"):
            check("redbeat", lambda: lines("tick") >= before + 3)
        port = free_port()
        with process("shop", "flower", f"--port={port}"):
            check("flower", lambda: is_in_flower(port, shop.add))


def is_in_flower(port: int, add: Any) -> bool:
    """Whether Flower shows the worker and a task."""
    add.delay(1, 2).get(timeout=SECONDS)
    workers, tasks = (
        json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{name}"))
        for name in ("workers", "tasks")
    )
    return bool(workers) and any(each["state"] == "SUCCESS" for each in tasks.values())


def with_django() -> None:
    """django-celery-beat and django-celery-results."""
    import django  # reads the environment
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    from django_celery_beat.models import (  # type: ignore[import-not-found]
        IntervalSchedule,
        PeriodicTask,
    )
    from django_celery_results.models import (  # type: ignore[import-not-found]
        TaskResult,
    )

    from tests.contrib.celery_programs import site

    every = IntervalSchedule.objects.create(every=1, period="seconds")
    PeriodicTask.objects.create(interval=every, name="often", task=site.tick.name)
    with process("site", "worker", "-c", "1"), process("site", "beat"):
        check("django-celery-beat", lambda: lines("site") >= 2)
        result = site.add.delay(2, 3)
        rows = TaskResult.objects.filter(task_id=result.id, status="SUCCESS")
        check("django-celery-results", lambda: result.get(timeout=SECONDS) == 5 and rows.exists())


def main() -> int:
    """Run them all."""
    kind = sys.argv[1] if len(sys.argv) > 1 else "valkey"
    with ExitStack() as stack:
        server = stack.enter_context(Server())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        store = {"valkey": server.url, "sqlite": f"sqlite:///{folder}/jobs.db"}
        if kind == "postgres":
            store[kind] = stack.enter_context(PostgresServer()).url
        os.environ.update(
            REDIS=server.url.replace("valkey://", "redis://"),
            BROKER=f"laneway+{store[kind]}",
            NOTES=f"{folder}/notes",
            DATABASE=f"{folder}/site.db",
            DJANGO_SETTINGS_MODULE=f"{FOLDER}.settings",
            FLOWER_UNAUTHENTICATED_API="1",
        )
        with_celery()
        with_django()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
