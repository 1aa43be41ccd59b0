"""Workers of Celery itself, in processes of their own."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from celery import chord, group

from laneway.contrib.kombu import apps
from laneway.testing.servers import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    StartWorker = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the tasks, for a store of this test."""
    monkeypatch.setenv("BROKER", f"laneway+sqlite:///{tmp_path}/jobs.db")
    monkeypatch.setenv("BACKEND", f"laneway+sqlite:///{tmp_path}/jobs.db")
    sys.modules.pop("tests.contrib.kombu.tasks", None)
    module = importlib.import_module("tests.contrib.kombu.tasks")
    yield module
    module.app.close()
    module.notes.close()
    apps.close_all()


@contextmanager
def worker(tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of Celery that runs during the block."""
    log = tmp_path / f"worker-{len(list(tmp_path.glob('worker-*')))}.log"
    command = [sys.executable, "-m", "celery", "-A", "tests.contrib.kombu.tasks", "worker"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "-c", "2", "-l", "INFO", *options],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()
        assert "CRITICAL" not in log.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def noted(tasks: Any, count: int) -> list[str]:
    """The next notes of the tasks."""
    found: list[str] = []
    while len(found) < count:
        deliveries = tasks.notes.lease(count - len(found), topics=["notes"], wait=30)
        assert deliveries, f"only {found}"
        found += [delivery.body for delivery in deliveries]
        tasks.notes.ack_many(deliveries)
    return found


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_tasks_run(tasks: Any, tmp_path: Path, pool: str) -> None:
    """Tasks of several queues, with an ETA and with a result; `inspect` and `ping` answer."""
    tasks.say.apply_async(("other",), queue="other")
    for number in range(5):
        tasks.say.delay(str(number))
    due = time.time() + 0.5
    tasks.say.apply_async(("later",), countdown=0.5)
    with worker(tmp_path, "-P", pool, "-Q", "celery,other"):
        found = noted(tasks, 7)
        assert sorted(found) == ["0", "1", "2", "3", "4", "later", "other"]
        assert time.time() >= due
        assert tasks.add.delay(1, 2).get(timeout=30) == 3
        with pytest.raises(ValueError, match="it failed"):
            tasks.fail.delay().get(timeout=30)
        counted = chord([tasks.add.s(n, n) for n in range(5)])(tasks.total.s())
        assert counted.get(timeout=30) == 20
        assert group(tasks.add.s(n, 1) for n in range(3))().get(timeout=30) == [1, 2, 3]
        (answer,) = tasks.app.control.ping(timeout=30, limit=1)
        assert list(answer.values()) == [{"ok": "pong"}]
        inspect = tasks.app.control.inspect(timeout=30, limit=1)
        (registered,) = inspect.registered().values()
        assert "tests.contrib.kombu.tasks.add" in registered


def test_killed_worker(tasks: Any, tmp_path: Path) -> None:
    """
    A late-acknowledged task of a killed worker is delivered to another one soon; a task that runs
    for longer than its lease is not.
    """
    tasks.hold.delay(600)
    with worker(tmp_path, "-P", "solo") as first:
        (began,) = noted(tasks, 1)
        assert began.startswith("first")
        assert tasks.notes.lease(1, topics=["notes"], wait=3) == []
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        begin = time.monotonic()
        with worker(tmp_path, "-P", "solo"):
            (again,) = noted(tasks, 1)
            assert again.startswith("again")
            assert time.monotonic() - begin < 30
        first.returncode = 0


def test_fair_worker(tasks: Any, tmp_path: Path) -> None:
    """A worker of a pattern runs the tasks of queues that nobody has named."""
    for number in range(3):
        tasks.say.apply_async((f"task {number}",), queue=f"customer.{number}")
    with worker(tmp_path, "-P", "solo", "-Q", "customer.*"):
        assert sorted(noted(tasks, 3)) == ["task 0", "task 1", "task 2"]


def test_limits_of_a_topic(tasks: Any, tmp_path: Path) -> None:
    """The policy of a queue's topic holds for Celery's workers."""
    tasks.say.delay("first")
    app = apps.app_of(tasks.app.conf.broker_url, {"durability": "memory"})
    app.policy("celery", paused=True)
    with worker(tmp_path, "-P", "solo"):
        until(lambda: tasks.app.control.ping(timeout=1, limit=1), "the worker answers")
        assert app.topic("celery").stats().waiting == 1
        app.policy("celery", paused=False)
        assert noted(tasks, 1) == ["first"]
