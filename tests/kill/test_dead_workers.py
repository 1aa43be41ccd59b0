"""
Workers that are killed, or stopped, while they hold leases: others get the messages within the
heartbeat timeout, whatever the policy's `lease` says, and a worker that goes on is fenced.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laneway import Delivery, Laneway, Message
from laneway.engines.base import HEARTBEAT_TIMEOUT
from laneway.testing.servers import Server, until
from tests.cluster.processes import files_of, later
from tests.stopping import stop_between_writes

SOURCE = str(Path(__file__).parents[2] / "src")
TIMEOUT = 1.0
"""The workers' heartbeat timeout in seconds."""

SOON = 15.0
"""Seconds that a busy machine may take besides; far less than the policy's `lease`, an hour."""

WORKER = """
import ctypes, os, sys, time
from pathlib import Path
from laneway import Laneway
app = Laneway(sys.argv[1])
@app.handler("a.*")
def slow(message):
    print(f"began {message.id}\\n", end="", flush=True)  # in one write
    while not Path(sys.argv[2]).exists():
        time.sleep(0.05)
@app.handler("holds")
def holds(message):
    # It holds the interpreter until something is written to the pipe that the body names.
    file = os.open(message.body, os.O_RDWR)
    print(f"began {message.id}\\n", end="", flush=True)
    ctypes.PyDLL(None).read(file, ctypes.create_string_buffer(1), 1)
summary = app.run_worker(concurrency=4, heartbeat_timeout=float(sys.argv[3]), grace=0)
print("acked", summary.acked)
"""


@pytest.fixture(params=["sqlite", "sqlite 4 files", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "valkey":
        with Server() as server:
            yield server.url
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/q.db"
    else:
        (tmp_path / "files").mkdir()
        yield f"sqlite:///{tmp_path}/files?shards=4"


@pytest.fixture
def app(url: str) -> Iterator[Laneway]:
    with Laneway(url) as application:
        application.policy("*", lease="1h")
        yield application


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a worker whose handlers run until the file `end` exists."""
    started: list[subprocess.Popen[str]] = []

    def start(timeout: float = TIMEOUT) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, url, str(tmp_path / "end"), str(timeout)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.kill()
        worker.communicate()


def begun(worker: subprocess.Popen[str], count: int) -> None:
    """Wait until the worker has begun so many messages."""
    assert worker.stdout is not None
    for _ in range(count):
        assert worker.stdout.readline().startswith("began")


def taken(app: Laneway, count: int) -> list[Delivery]:
    """Lease so many messages; fails if they do not come in time."""
    deadline = time.monotonic() + TIMEOUT + SOON
    deliveries: list[Delivery] = []
    while len(deliveries) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"only {len(deliveries)} of {count} messages came back"
        deliveries += app.lease(count, wait=left)
    return deliveries


def test_messages_of_a_killed_worker_come_back(app: Laneway, start: Start) -> None:
    """
    Those that ran and those that waited in its buffer; nobody else was awake meanwhile. The list
    shows that the worker died, and the next one runs.
    """
    app.publish_many(Message(f"a.{n}", n) for n in range(6))
    worker = start()
    begun(worker, 4)
    until(lambda: [each.state for each in app.workers()] == ["running"], "the list")
    worker.kill()
    deliveries = taken(app, 6)
    assert sorted(each.body for each in deliveries) == list(range(6))
    app.ack_many(deliveries)
    until(lambda: [each.state for each in app.workers()] == ["dead"], "the list")
    assert app.control.ping(timeout=0.5) == {app.workers()[0].id: None}


def test_stopped_worker_loses_its_leases(
    app: Laneway, url: str, start: Start, tmp_path: Path
) -> None:
    """What it settles when it goes on changes nothing, and it knows that."""
    app.publish_many(Message(f"a.{n}", n) for n in range(3))
    worker = start()
    begun(worker, 3)
    stop_between_writes(worker.pid, *files_of(url))
    try:
        deliveries = taken(app, 3)
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    (tmp_path / "end").touch()
    until(lambda: [each.state for each in app.workers()] == ["running"], "the list")
    app.ack_many(deliveries)
    until(lambda: not any(each.busy or each.leased for each in app.workers()), "the list")
    worker.terminate()
    output, _ = worker.communicate(timeout=SOON)
    overview = app.engine.overview()
    assert (overview.done, overview.waiting, overview.leased) == (3, 0, 0)
    assert output.splitlines()[-1] == "acked 0"


def test_handler_that_holds_the_interpreter(app: Laneway, start: Start, tmp_path: Path) -> None:
    """Another process extends its lease, and the one of a message beside it; each runs once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    worker = start(HEARTBEAT_TIMEOUT)
    app.publish("a.1", 1, id="beside")
    begun(worker, 1)
    app.publish("holds", str(pipe), id="holds")
    begun(worker, 1)

    def deadlines() -> list[int]:
        views = [app.engine.find("beside", "a.1"), app.engine.find("holds", "holds")]
        return [view.deadline_us or 0 for view in views if view is not None]

    first = max(deadlines())
    until(lambda: min(deadlines()) > first, "extended leases")
    pipe.write_bytes(b"1")
    (tmp_path / "end").touch()
    until(lambda: app.engine.overview().done == 2, "the end of both")
    worker.terminate()
    output, _ = worker.communicate(timeout=SOON)
    assert output.splitlines()[-1] == "acked 2"


def test_lease_by_hand_lasts_as_its_policy_says(app: Laneway) -> None:
    """`app.lease` outside a worker has nobody who extends."""
    app.publish("a.1", 1)
    (delivery,) = app.lease(1)
    overview = app.engine.find(delivery.id, "a.1")
    assert overview is not None
    assert overview.deadline_us is not None
    assert overview.deadline_us - app.engine.time_us() > 3000 * 1_000_000


def test_slots_of_keys_come_back(app: Laneway, start: Start) -> None:
    """A killed worker's messages leave their keys, whose next ones are delivered after them."""
    timeout = 60.0  # as long as no test takes: the store's clock is moved
    app.policy("a.*", key_concurrency=1, key_rate="100/s")
    app.publish_many(Message("a.1", number, key=f"k{number % 4}") for number in range(8))
    worker = start(timeout)
    begun(worker, 4)
    assert app.lease(8) == []
    worker.kill()
    worker.wait()
    later(app.engine, timeout)
    first = taken(app, 4)
    assert sorted(each.body for each in first) == [0, 1, 2, 3]
    assert app.lease(8) == []
    app.ack_many(first)
    later(app.engine, 1)  # for the keys' rate
    assert sorted(each.body for each in taken(app, 4)) == [4, 5, 6, 7]
