"""Messages that their publish leases to a worker that waits: its socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings, WorkListener
from laneway.engines.sql import inbox, listeners
from laneway.engines.sql.wakeup import LEAST_STARTABLE, SENT_LEASE_SECONDS
from laneway.engines.sqlite import wakeup
from laneway.engines.sqlite.engine import SqliteEngine
from laneway.message import Batch, Draft, Lease, Settlement
from laneway.units import SECOND
from laneway.working.options import Options

Opened = Callable[[], FullEngine]

USUAL_SECONDS = SENT_LEASE_SECONDS
SENT_LEASE_SECONDS = 30.0
"""Longer than usual: a busy machine may not run a test for a while."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "q.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Opened]:
    """Opens engines, each as a process of its own has one."""
    engines: list[FullEngine] = []

    def open_one() -> FullEngine:
        engines.append(open_engine(f"sqlite:///{path}", Settings()))
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(opened: Opened) -> FullEngine:
    """The publisher's, which has read the policies."""
    engine = opened()
    engine.tick()
    return engine


@pytest.fixture
def worker(opened: Opened) -> FullEngine:
    return opened()


@pytest.fixture
def listener(worker: FullEngine) -> Iterator[WorkListener]:
    """The worker's, which waits."""
    listener = worker.work_listener()
    assert listener.poll(0.0, LEAST_STARTABLE) is False
    yield listener
    listener.close()


@pytest.fixture(autouse=True)
def _every_message_may_be_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "PAUSE_SECONDS", 0.0)
    for each in (inbox, listeners, wakeup):
        monkeypatch.setattr(each, "SENT_LEASE_SECONDS", SENT_LEASE_SECONDS)


def received(listener: WorkListener) -> Lease:
    batch = listener.poll(4.0, LEAST_STARTABLE)
    assert isinstance(batch, Batch)
    (lease,) = batch.leases
    return lease


def assert_is_healthy(engine: FullEngine) -> None:
    assert [check for check in engine.doctor() if not check.ok] == []


def test_a_listener_that_stops_has_received_all(
    engine: FullEngine, worker: FullEngine, listener: WorkListener
) -> None:
    """What is put later is leased by others."""
    engine.put([Draft("a", b"1")])
    batch = listener.pause()
    assert isinstance(batch, Batch)
    assert [lease.body for lease in batch.leases] == [b"1"]
    engine.put([Draft("a", b"2")])
    assert listener.pause() is False
    assert [lease.body for lease in worker.lease(10).leases] == [b"2"]


def test_a_worker_that_stops_meanwhile(
    engine: FullEngine, listener: WorkListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops between the choice and the commit: the message is released at once."""
    assert isinstance(engine, SqliteEngine)
    run_durably = engine._store.run_durably

    def stopping(statement: str, *values: object) -> list[object]:
        assert listener.pause() is False
        return run_durably(statement, *values)

    monkeypatch.setattr(engine._store, "run_durably", stopping)
    engine.put([Draft("a", b"1")])
    (lease,) = engine.lease(10).leases
    assert (lease.body, lease.deliveries, lease.attempt) == (b"1", 2, 1)
    assert not lease.suspect
    assert_is_healthy(engine)


def connected_to(engine: FullEngine) -> list[socket.socket]:
    """The sockets of the publisher that stay connected to workers."""
    assert isinstance(engine, SqliteEngine)
    return list(engine._wakeup._workers.values())


def test_a_publisher_stays_connected(
    engine: FullEngine, worker: FullEngine, listener: WorkListener
) -> None:
    """As long as the same workers wait."""
    kept: set[socket.socket] = set()
    time.sleep(0.12)  # the folder's modification time says from then on that nobody came
    for number in range(3):
        engine.put([Draft("a", b"%d" % number)])
        lease = received(listener)
        worker.settle([Settlement(lease.handle, lease.fence)])
        kept.update(connected_to(engine))
    assert len(kept) == 1
    with closing(worker.work_listener()) as another:
        assert another.poll(0.0, LEAST_STARTABLE) is False
        got: set[WorkListener] = set()
        deadline = time.monotonic() + 60
        while len(got) < 2 and time.monotonic() < deadline:  # each of the two gets some
            for _ in range(20):
                engine.put([Draft("a", b"")])
            for each in (listener, another):
                if isinstance(each.poll(0.1, LEAST_STARTABLE), Batch):
                    got.add(each)
        assert len(got) == 2
    assert_is_healthy(engine)


def test_a_worker_that_is_killed_while_a_publisher_is_connected(
    engine: FullEngine, worker: FullEngine, listener: WorkListener
) -> None:
    """Its message can be leased at once."""
    time.sleep(0.12)
    engine.put([Draft("a", b"1")])
    lease = received(listener)
    worker.settle([Settlement(lease.handle, lease.fence)])
    assert len(connected_to(engine)) == 1
    listener._socket.shutdown(socket.SHUT_RD)  # type: ignore[attr-defined]  # as a kill does
    engine.put([Draft("a", b"2")])
    assert not connected_to(engine)
    assert [each.body for each in worker.lease(10).leases] == [b"2"]
    assert_is_healthy(engine)


def test_a_publisher_that_dies_before_it_sends(
    engine: FullEngine, listener: WorkListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease ends after `SENT_LEASE_SECONDS`, and the message is delivered again."""
    monkeypatch.setattr(wakeup.Wakeup, "send_lease", lambda *_: True)
    length = round(SENT_LEASE_SECONDS * SECOND)
    before = time.time_ns() // 1000
    engine.put([Draft("a", b"1")])
    after = time.time_ns() // 1000
    del listener
    assert not engine.lease(10, now_us=before + length - SECOND).leases
    (lease,) = engine.lease(10, now_us=after + length + SECOND // 10).leases
    assert (lease.body, lease.deliveries, lease.suspect) == (b"1", 2, True)
    assert_is_healthy(engine)


def test_as_long_as_a_lease_that_the_worker_takes() -> None:
    """A worker that is stopped for a moment loses no message, however it came to it."""
    assert Options().heartbeat_timeout == USUAL_SECONDS
