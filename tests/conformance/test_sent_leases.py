"""Messages that their publish leases to a worker that waits, on the engines that do so."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from laneway.engines.base import FullEngine, Settings, WorkListener
from laneway.engines.postgres import wakeup as postgres_wakeup
from laneway.engines.sql import inbox, listeners
from laneway.engines.sql.wakeup import LEAST_STARTABLE, SENT_LEASE_SECONDS
from laneway.engines.sqlite import wakeup as sqlite_wakeup
from laneway.engines.sqlite.engine import SqliteEngine
from laneway.message import Batch, Draft, Lease, Settlement
from laneway.units import SECOND
from laneway.working.options import Options
from tests.conformance.conftest import ENGINES, SHARDED

Opened = Callable[[], FullEngine]

USUAL_SECONDS = SENT_LEASE_SECONDS
SENT_LEASE_SECONDS = 30.0
"""Longer than usual: a busy machine may not run a test for a while."""


@pytest.fixture(params=["sqlite file", "postgres", "postgres 4 schemas"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens engines, each as a process of its own has one."""
    engines: list[FullEngine] = []

    def open_one() -> FullEngine:
        engines.append((ENGINES | SHARDED)[request.param](tmp_path, Settings()))
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
    for each in (inbox, listeners, postgres_wakeup, sqlite_wakeup):
        monkeypatch.setattr(each, "SENT_LEASE_SECONDS", SENT_LEASE_SECONDS)


def received(listener: WorkListener, count: int = 1) -> list[Lease]:
    """What is leased to it: together or one after the other."""
    leases: list[Lease] = []
    while len(leases) < count:
        batch = listener.poll(4.0, LEAST_STARTABLE)
        assert isinstance(batch, Batch)
        leases += batch.leases
    assert len(leases) == count
    return leases


def assert_is_healthy(engine: FullEngine) -> None:
    assert [check for check in engine.doctor() if not check.ok] == []


def test_a_publish_leases_to_a_waiting_worker(
    engine: FullEngine, worker: FullEngine, listener: WorkListener
) -> None:
    """With all that a lease has; nobody else gets it."""
    (receipt,) = engine.put([Draft("a", b"1", headers={"h": "x"}, priority=3)])
    (lease,) = received(listener)
    assert (lease.id, lease.topic, lease.body) == (receipt.id, "a", b"1")
    assert (lease.headers, lease.priority) == ({"h": "x"}, 3)
    assert (lease.attempt, lease.deliveries, lease.suspect) == (1, 1, False)
    assert not engine.lease(10).leases
    assert (engine.overview().leased, engine.overview().waiting) == (1, 0)
    assert worker.settle([Settlement(lease.handle, lease.fence)]) == ["acked"]
    assert worker.settle([Settlement(lease.handle, lease.fence)]) != ["acked"]
    assert (engine.overview().leased, engine.overview().done) == (0, 1)
    assert_is_healthy(engine)


def test_fences_grow(engine: FullEngine, worker: FullEngine, listener: WorkListener) -> None:
    """Through leases of both kinds."""
    fences = []
    for number in range(3):
        engine.put([Draft("a", b"%d" % number)])
        fences += [lease.fence for lease in received(listener)]
        engine.put([Draft("a", b""), Draft("a", b"")])
        fences += [lease.fence for lease in worker.lease(10).leases]
        assert listener.poll(4.0, LEAST_STARTABLE) is True
    assert len(fences) == 9
    assert fences == sorted(set(fences))
    assert_is_healthy(engine)


def test_several_messages_of_a_topic(
    engine: FullEngine, worker: FullEngine, listener: WorkListener
) -> None:
    """Each is leased, and the counts are right."""
    for number in range(3):
        engine.put([Draft("a", b"%d" % number, priority=number)])
    leases = received(listener, 3)
    assert [lease.body for lease in leases] == [b"0", b"1", b"2"]
    assert engine.overview().leased == 3
    settlements = [Settlement(lease.handle, lease.fence, "retry") for lease in leases[:2]]
    assert worker.settle(settlements) == ["retried", "retried"]
    assert (engine.overview().leased, engine.overview().waiting) == (1, 2)
    assert_is_healthy(engine)


@pytest.mark.parametrize(
    "fields", [{"rate": 5}, {"concurrency": 1}, {"paused": True}, {"delivery": "at_most_once"}]
)
def test_limits_are_the_lease_calls(
    engine: FullEngine, listener: WorkListener, fields: dict[str, object]
) -> None:
    """A message whose topic has limits is not leased by its publish."""
    engine.policy_set("code", "a.*", fields)
    engine.put([Draft("a.b", b"")])
    assert not isinstance(listener.poll(0.1, LEAST_STARTABLE), Batch)
    assert engine.overview().leased == 0


@pytest.mark.parametrize("opened", ["sqlite file", "postgres"], indirect=True)
def test_a_message_that_waits_is_leased_first(engine: FullEngine, worker: FullEngine) -> None:
    """So the next message is not leased by its publish, of whatever topic."""
    engine.put([Draft("a", b"1")])
    listener = worker.work_listener()
    assert listener.poll(0.0, LEAST_STARTABLE) is True
    engine.put([Draft("a", b"2")])
    engine.put([Draft("b", b"3")])
    assert listener.poll(4.0, LEAST_STARTABLE) is not False
    assert sorted(lease.body for lease in worker.lease(10).leases) == [b"1", b"2", b"3"]
    listener.close()


def test_a_worker_with_few_slots_leases_itself(
    engine: FullEngine, worker: FullEngine, listener: WorkListener
) -> None:
    assert listener.poll(0.0, LEAST_STARTABLE - 1) is False
    engine.put([Draft("a", b"1")])
    assert listener.poll(4.0, LEAST_STARTABLE - 1) is True
    assert len(worker.lease(10).leases) == 1


def test_a_worker_extends_its_lease(
    engine: FullEngine, worker: FullEngine, listener: WorkListener
) -> None:
    """By the whole length that the policy says; the batch says until when it has to."""
    began = time.monotonic()
    engine.put([Draft("a", b"1")])
    batch = listener.poll(4.0, LEAST_STARTABLE)
    assert isinstance(batch, Batch)
    assert batch.until is not None
    assert began < batch.until <= time.monotonic() + SENT_LEASE_SECONDS
    (lease,) = batch.leases
    length = lease.deadline_us - batch.now_us
    assert length == engine.policy_of("a").lease
    assert worker.extend([(lease.handle, lease.fence)], length) == [True]
    later = batch.now_us + round(SENT_LEASE_SECONDS * SECOND) + SECOND
    assert not engine.lease(10, now_us=later).leases
    assert worker.settle([Settlement(lease.handle, lease.fence)]) == ["acked"]


def test_a_policy_with_a_short_lease(
    engine: FullEngine, worker: FullEngine, listener: WorkListener
) -> None:
    """The worker knows that it has to extend the lease sooner."""
    engine.policy_set("code", "a.*", {"lease": 0.5})
    engine.put([Draft("a.b", b"1")])
    batch = listener.poll(4.0, LEAST_STARTABLE)
    assert isinstance(batch, Batch)
    assert batch.until is not None
    assert batch.until <= time.monotonic() + 0.5
    assert not worker.lease(10, now_us=batch.now_us + SECOND // 2 - 1).leases
    assert len(worker.lease(10, now_us=batch.now_us + SECOND // 2).leases) == 1


def test_the_longest_lease_of_a_worker(engine: FullEngine, worker: FullEngine) -> None:
    """A lease that is sent ends no later; a worker with shorter ones leases itself."""
    longest = round(SENT_LEASE_SECONDS * SECOND) + SECOND
    listener = worker.work_listener(max_lease_us=longest)
    assert listener.poll(0.0, LEAST_STARTABLE) is False
    engine.put([Draft("a", b"1")])
    batch = listener.poll(4.0, LEAST_STARTABLE)
    assert isinstance(batch, Batch)
    assert batch.leases[0].deadline_us == batch.now_us + longest
    listener.close()
    listener = worker.work_listener(max_lease_us=SECOND)
    assert listener.poll(0.0, LEAST_STARTABLE) is False
    engine.put([Draft("a", b"2")])
    assert listener.poll(4.0, LEAST_STARTABLE) is True
    listener.close()


# Files of SQLite: the socket of a worker

of_sqlite = pytest.mark.parametrize("opened", ["sqlite file"], indirect=True)


@of_sqlite
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


@of_sqlite
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


@of_sqlite
def test_a_publisher_stays_connected(
    engine: FullEngine, worker: FullEngine, listener: WorkListener
) -> None:
    """As long as the same workers wait."""
    kept: set[socket.socket] = set()
    time.sleep(0.12)  # the folder's modification time says from then on that nobody came
    for number in range(3):
        engine.put([Draft("a", b"%d" % number)])
        (lease,) = received(listener)
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


@of_sqlite
def test_a_worker_that_is_killed_while_a_publisher_is_connected(
    engine: FullEngine, worker: FullEngine, listener: WorkListener
) -> None:
    """Its message can be leased at once."""
    time.sleep(0.12)
    engine.put([Draft("a", b"1")])
    (lease,) = received(listener)
    worker.settle([Settlement(lease.handle, lease.fence)])
    assert len(connected_to(engine)) == 1
    listener._socket.shutdown(socket.SHUT_RD)  # type: ignore[attr-defined]  # as a kill does
    engine.put([Draft("a", b"2")])
    assert not connected_to(engine)
    assert [each.body for each in worker.lease(10).leases] == [b"2"]
    assert_is_healthy(engine)


@of_sqlite
def test_a_publisher_that_dies_before_it_sends(
    engine: FullEngine, listener: WorkListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease ends after `SENT_LEASE_SECONDS`, and the message is delivered again."""
    monkeypatch.setattr(sqlite_wakeup.Wakeup, "send_lease", lambda *_: True)
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
