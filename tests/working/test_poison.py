"""
Messages that kill their worker become dead letters within their retries, and their neighbors run.
Real processes, real SIGKILLs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from laneway import Laneway
from tests.conformance.valkey_setups import server

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE = 1.5
SECONDS = 300.0

NATIVE = """
import ctypes, os, signal, time
from laneway import Laneway

app = Laneway({url!r}, namespace={namespace!r})
app.policy("*", lease={lease}, retries=1, backoff=0)

def note(text):
    with open("notes", "a") as file:
        file.write(text + "\\n")

@app.handler("*")
def work(message):
    note(f"{{message.body}}")
    if message.body == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if message.body == "exit":
        os._exit(3)
    if message.body == "crash":
        ctypes.string_at(0)
    time.sleep(0.05)  # the work
"""

CELERY = """
import os, signal, time
from laneway.compat.celery import Celery

app = Celery("tasks", broker={url!r}, namespace={namespace!r})
app.laneway.policy("*", lease={lease})

@app.task
def kill():
    with open("notes", "a") as file:
        file.write("kill\\n")
    os.kill(os.getpid(), signal.SIGKILL)

@app.task
def fine(n):
    time.sleep(0.05)  # the work
    return n

@app.task(time_limit=2)
def spin():
    with open("notes", "a") as file:
        file.write("spin\\n")
    while True:
        pass
"""

RQ = """
import os, signal

def kill():
    with open("notes", "a") as file:
        file.write("kill\\n")
    os.kill(os.getppid(), signal.SIGKILL)

def fine(n):
    return n

def work(url, namespace):
    from laneway import Laneway
    from laneway.compat.rq import Worker
    app = Laneway(url, namespace=namespace)
    app.policy("*", lease=1.5)
    Worker(["jobs"], connection=app).work(concurrency=4)
"""


ONE = pytest.mark.parametrize("store", ["sqlite"], indirect=True)
"""How a library's tasks end does not depend on the store; messages are tested on both."""


@pytest.fixture(params=["sqlite", "valkey"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, object]:
    url = f"sqlite:///{tmp_path}/q.db" if request.param == "sqlite" else server().url
    return {"url": url, "namespace": uuid4().hex, "lease": LEASE}


def work_until(folder: Path, command: list[str], done: Callable[[], object]) -> int:
    """Run workers, each after the death of the one before; returns how many died."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
        "LANEWAY_URL": "",
    }
    died = 0
    deadline = time.monotonic() + SECONDS
    process = subprocess.Popen([sys.executable, *command], cwd=folder, env=environment)
    try:
        while not done():
            assert time.monotonic() < deadline, f"it did not happen; {died} workers died"
            if process.poll() is not None:
                died += 1
                process = subprocess.Popen([sys.executable, *command], cwd=folder, env=environment)
            time.sleep(0.02)  # the worker is another process
    finally:
        process.kill()
        process.wait()
    return died


def test_a_message_that_kills_its_worker(tmp_path: Path, store: dict[str, object]) -> None:
    """
    Each of three kinds becomes a dead letter after its retries; neighbors are handled, and no
    attempt of theirs is counted.
    """
    (tmp_path / "program.py").write_text(NATIVE.format(**store))
    with Laneway(str(store["url"]), namespace=str(store["namespace"])) as app:
        app.policy("*", lease=LEASE, retries=1, backoff=0)
        for body in ("kill", "exit", "crash"):
            app.publish("bad", body)
        for n in range(10):
            app.publish("good", n)
        command = ["-m", "laneway", "worker", "program:app", "-c", "4"]
        died = work_until(
            tmp_path,
            command,
            lambda: app.topic("bad").stats().dead == 3 and app.topic("good").stats().waiting == 0,
        )
        assert app.topic("good").stats().dead == 0
        # The first death of each says of nobody who did it; then each is tried alone, as often as
        # its retries allow.
        assert died <= 3 * 3
        notes = (tmp_path / "notes").read_text().split()
        assert all(notes.count(body) <= 3 for body in ("kill", "exit", "crash"))
        # Each first death may come before the worker has settled a neighbor that it handled.
        assert all(notes.count(str(n)) <= 1 + 3 for n in range(10))


@ONE
def test_a_celery_task_that_kills_its_worker(
    tmp_path: Path, store: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It fails with WorkerLostError although its retries have no end; a task over its time limit fails
    once; their neighbors end.
    """
    name = f"poison_{store['namespace']}"
    (tmp_path / f"{name}.py").write_text(CELERY.format(**store))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    program = __import__(name)
    with program.app:
        bad, slow = program.kill.delay(), program.spin.delay()
        good = [program.fine.delay(n) for n in range(5)]
        jobs = [bad, slow, *good]
        died = work_until(
            tmp_path,
            ["-m", "laneway", "worker", f"{name}:app"],
            lambda: all(job.ready() for job in jobs),
        )
        assert [job.get(timeout=60) for job in good] == [0, 1, 2, 3, 4]
        assert (bad.state, slow.state) == ("FAILURE", "FAILURE")
        assert type(bad.get(propagate=False)).__name__ == "WorkerLost"
        assert type(slow.get(propagate=False)).__name__ == "TimeLimit"
    assert died <= 3
    notes = (tmp_path / "notes").read_text().split()
    assert notes.count("kill") <= 3


@ONE
def test_a_celery_task_over_its_time_limit_is_not_retried(
    tmp_path: Path, store: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs once and ends as FAILURE, never as RETRY."""
    name = f"slow_{store['namespace']}"
    (tmp_path / f"{name}.py").write_text(CELERY.format(**{**store, "lease": 60}))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    program = __import__(name)
    with program.app:
        slow = program.spin.delay()
        assert program.app.run_worker(burst=True).died == 1
        assert slow.state == "FAILURE"
        assert type(slow.get(propagate=False)).__name__ == "TimeLimit"
    assert (tmp_path / "notes").read_text() == "spin\n"


@ONE
def test_an_rq_job_that_kills_its_worker(
    tmp_path: Path, store: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails, because it has no retries; its neighbors end."""
    from laneway.compat.rq import Queue

    name = f"rq_{store['namespace']}"
    (tmp_path / f"{name}.py").write_text(RQ)
    monkeypatch.syspath_prepend(tmp_path)
    functions = __import__(name)
    with Laneway(str(store["url"]), namespace=str(store["namespace"])) as app:
        app.policy("*", lease=LEASE)
        queue = Queue("jobs", connection=app)
        bad = queue.enqueue(functions.kill)
        good = [queue.enqueue(functions.fine, n) for n in range(5)]
        command = ["-c", f"import {name}; {name}.work({store['url']!r}, {store['namespace']!r})"]
        died = work_until(
            tmp_path,
            command,
            lambda: all(job.get_status() in ("finished", "failed") for job in [bad, *good]),
        )
        assert bad.get_status() == "failed"
        assert [job.return_value() for job in good] == [0, 1, 2, 3, 4]
    assert died <= 3
    assert (tmp_path / "notes").read_text().count("kill") <= 3
