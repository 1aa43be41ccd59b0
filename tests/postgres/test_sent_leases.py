"""Messages that their publish leases to a worker of another process: the notification."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from laneway import Laneway, Message
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.postgres import wakeup
from laneway.engines.postgres.address import schema_of
from laneway.engines.postgres.connecting import ServerConnection
from laneway.engines.postgres.engine import PostgresEngine
from laneway.engines.postgres.wakeup import StoreWorkListener
from laneway.engines.sql import inbox
from laneway.engines.sql.wakeup import LEAST_STARTABLE
from laneway.message import Batch, Draft, Lease, Settlement
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import until
from laneway.units import SECOND

Opened = Callable[..., FullEngine]
Forked = Callable[[Callable[[], object]], int]


@pytest.fixture(autouse=True)
def _every_message_may_be_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def worker(server: PostgresServer, opened: Opened) -> PostgresEngine:
    engine = opened(server.url)
    assert isinstance(engine, PostgresEngine)
    return engine


@pytest.fixture
def engine(server: PostgresServer, opened: Opened, worker: PostgresEngine) -> PostgresEngine:
    """The publisher's, which has read the policies."""
    engine = opened(server.url, namespace=worker.namespace)
    assert isinstance(engine, PostgresEngine)
    engine.tick()
    return engine


@pytest.fixture
def listener(worker: PostgresEngine) -> Iterator[StoreWorkListener]:
    """The worker's, which waits."""
    listener = worker.work_listener()
    assert isinstance(listener, StoreWorkListener)
    assert listener.poll(0.0, LEAST_STARTABLE) is False
    yield listener
    listener.close()


def received(listener: StoreWorkListener) -> Lease:
    batch = listener.poll(30.0, LEAST_STARTABLE)
    assert isinstance(batch, Batch)
    (lease,) = batch.leases
    return lease


def put(engine: FullEngine, body: bytes, **options: object) -> None:
    engine.put([Draft("a", body, **options)])  # type: ignore[arg-type]


def leased(engine: FullEngine) -> list[Lease]:
    """What can be leased, once something can."""
    leases: list[Lease] = []

    def finds() -> bool:
        leases.extend(engine.lease(10).leases)
        return bool(leases)

    until(finds, "it is leased")
    return leases


def test_the_event_loop_receives(engine: PostgresEngine, listener: StoreWorkListener) -> None:
    """Its file becomes readable, and `receive` returns what `poll` would."""
    file = listener.duplicate_file()
    put(engine, b"1")
    found: list[Batch | bool] = []

    def receives() -> bool:
        found.append(listener.receive())
        return isinstance(found[-1], Batch)

    until(receives, "the lease comes")
    assert isinstance(found[-1], Batch)
    assert [each.body for each in found[-1].leases] == [b"1"]
    generation = listener.generation
    listener.close()
    assert listener.generation > generation
    assert os.read(file, 100).strip(b"!") == b""  # its end is readable, too
    assert listener.receive() is False
    os.close(file)


def test_a_worker_of_the_same_process(worker: PostgresEngine, listener: StoreWorkListener) -> None:
    """It gets the lease without a notification."""
    worker.tick()
    with worker._wakeup._presence.lock:  # the thread that listens receives nothing
        put(worker, b"1")
        assert received(listener).body == b"1"
    assert not worker.lease(10).leases


def test_a_worker_that_stops_before_the_lease_comes(
    engine: PostgresEngine, worker: PostgresEngine, listener: StoreWorkListener
) -> None:
    """The message is released, and others get it."""
    receive = worker._wakeup._receive_lease

    def stopped(text: str) -> None:
        listener.pause()
        receive(text)

    worker._wakeup._receive_lease = stopped  # type: ignore[method-assign]
    put(engine, b"1")
    (lease,) = leased(engine)
    assert (lease.body, lease.deliveries, lease.attempt, lease.suspect) == (b"1", 2, 1, False)
    assert [check for check in engine.doctor() if not check.ok] == []


def test_a_worker_that_can_start_no_more(
    engine: PostgresEngine, listener: StoreWorkListener
) -> None:
    """Each lease takes a slot; what comes without one is released."""
    listener.room = 1
    put(engine, b"1")
    put(engine, b"2")
    (lease,) = leased(engine)
    assert (lease.body, lease.deliveries) == (b"2", 2)
    assert received(listener).body == b"1"


def test_a_worker_that_was_stopped_for_longer_than_the_lease(
    engine: PostgresEngine, worker: PostgresEngine, listener: StoreWorkListener
) -> None:
    """The lease has ended, so it does not begin the message; others get it."""
    clock = worker._wakeup._clock
    worker._wakeup._clock = lambda: clock() + 3_600 * SECOND
    put(engine, b"1")
    assert not isinstance(listener.poll(0.3, LEAST_STARTABLE), Batch)
    (lease,) = engine.lease(10, now_us=clock() + 3_600 * SECOND).leases
    assert (lease.body, lease.deliveries) == (b"1", 2)


def test_nothing_is_leased_to_a_killed_process(
    server: PostgresServer, engine: PostgresEngine, forked: Forked
) -> None:
    """Its row is still there, and its lock is not."""

    def wait() -> None:
        own = open_engine(server.url, Settings(namespace=engine.namespace))
        own.work_listener().poll(0.0, LEAST_STARTABLE)
        threading.Event().wait()

    pid = forked(wait)
    table = f'"{schema_of(engine.namespace)}".sleeper'
    kinds = f"SELECT kind FROM {table} ORDER BY kind"
    until(lambda: server.execute(kinds) == [("a",), ("l",)], "it takes leases")
    put(engine, b"1")
    assert engine.overview().leased == 1
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = 1279348300"
    until(lambda: not server.execute(locks), "the server has seen it")
    assert server.execute(kinds) == [("a",), ("l",)]
    put(engine, b"2")
    assert [each.body for each in engine.lease(10).leases] == [b"2"]


def test_a_worker_that_listens_again_takes_leases(
    server: PostgresServer,
    engine: PostgresEngine,
    worker: PostgresEngine,
    listener: StoreWorkListener,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if its former connection still has the lock for a while."""
    monkeypatch.setattr(wakeup, "BEAT_SECONDS", 0.05)
    presence = worker._wakeup._presence
    locks = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1279348300"
    until(lambda: len(server.execute(locks)) == 1, "it has the lock")
    with presence.lock:
        former, presence._connection = presence._connection, None
        presence._retry_at = 0.0
        assert presence._usable() is not None
        assert not presence._is_locked
    assert former is not None
    former.close()
    until(lambda: presence._is_locked, "it has the lock again")
    put(engine, b"1")
    assert received(listener).body == b"1"


def test_a_lease_that_is_too_long_for_a_notification(
    engine: PostgresEngine, worker: PostgresEngine, listener: StoreWorkListener
) -> None:
    """The worker is notified, and leases the message itself."""
    put(engine, b"1", headers={"h": "x" * 7_000})
    assert listener.poll(30.0, LEAST_STARTABLE) is True
    assert [each.body for each in worker.lease(10).leases] == [b"1"]


@pytest.mark.parametrize("text", ["l", "l1", "lx 1 x default", "l1 2 !!! default", "l1 2 AAAA d"])
def test_a_lease_that_cannot_be_read(
    server: PostgresServer,
    engine: PostgresEngine,
    worker: PostgresEngine,
    listener: StoreWorkListener,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
) -> None:
    """Another version sends it, or another program: the worker looks, and is notified as before."""
    looks = threading.Event()

    def look(*_: object) -> float:
        looks.set()
        return 600.0

    monkeypatch.setattr(worker._wakeup, "look", look)
    channel = worker._wakeup._presence.channel
    server.execute(f"SELECT pg_notify('{channel}', '{text}')")
    until(lambda: listener.poll(0.05, LEAST_STARTABLE) is False and looks.is_set(), "it looks")
    put(engine, b"1")
    assert received(listener).body == b"1"


def test_a_notification_that_another_thread_reads(
    server: PostgresServer,
    worker: PostgresEngine,
    listener: StoreWorkListener,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes with the answer to a statement of that thread; the waiter does not wait longer."""
    presence = worker._wakeup._presence
    reader, writer = os.pipe()
    monkeypatch.setattr(ServerConnection, "fileno", lambda _: reader)  # as if the other was faster
    monkeypatch.setattr(wakeup, "BEAT_SECONDS", 600.0)
    presence._wake()
    monkeypatch.setattr(listener, "_look_at", time.monotonic() + 600.0)
    time.sleep(0.2)  # the thread that listens sleeps with these
    server.execute(f"SELECT pg_notify('{presence.channel}', 'w0 default')")
    presence.notify("nobody", "0 nobody", "", [])
    assert listener.poll(5.0, LEAST_STARTABLE) is True
    monkeypatch.undo()
    presence._wake()
    os.close(writer)


def test_many_publishers_and_workers(
    server: PostgresServer, opened: Opened, worker: PostgresEngine
) -> None:
    """Each message comes to one worker, whatever happens at the same time."""
    engines = [opened(server.url, namespace=worker.namespace) for _ in range(3)]
    listeners = [each.work_listener() for each in (worker, engines[0])]
    seen: list[bytes] = []
    is_over = threading.Event()

    def handle(engine: FullEngine, listener: StoreWorkListener) -> None:
        while not is_over.is_set():
            found = listener.poll(0.05, LEAST_STARTABLE)
            batch = found if isinstance(found, Batch) else engine.lease(10)
            seen.extend(each.body for each in batch.leases)
            engine.settle([_ack(each) for each in batch.leases])
            if len(seen) % 7 == 0:
                found = listener.pause()
                if isinstance(found, Batch):
                    seen.extend(each.body for each in found.leases)
                    engine.settle([_ack(each) for each in found.leases])

    def publish(engine: FullEngine, name: bytes) -> None:
        for n in range(60):
            engine.put([Draft(f"t.{n % 3}", b"%s%d" % (name, n))])

    threads = [
        threading.Thread(target=handle, args=each)
        for each in zip((worker, engines[0]), listeners, strict=True)
    ]
    threads += [
        threading.Thread(target=publish, args=each)
        for each in zip(engines[1:], (b"a", b"b"), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads[2:]:
        thread.join()
    until(lambda: len(seen) >= 120, "all are handled")
    is_over.set()
    for thread in threads:
        thread.join()
    for each in listeners:
        each.close()
    assert sorted(seen) == sorted(b"%s%d" % (name, n) for name in (b"a", b"b") for n in range(60))
    assert [check for check in worker.doctor() if not check.ok] == []


def _ack(lease: Lease) -> Settlement:
    return Settlement(lease.handle, lease.fence)


def test_a_worker_begins_without_a_call(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event loop receives the lease."""
    calls: list[int] = []
    lease = PostgresEngine.lease

    def counted(engine: PostgresEngine, n: int, **options: Any) -> Batch:
        calls.append(n)
        return lease(engine, n, **options)

    monkeypatch.setattr(PostgresEngine, "lease", counted)
    seen: list[tuple[object, int]] = []
    space = uuid.uuid4().hex
    with Laneway(server.url, namespace=space) as app, Laneway(server.url, namespace=space) as other:

        @app.handler("t")
        async def handle(message: Message) -> None:
            seen.append((message.body, len(calls)))

        other.engine.tick()
        worker = app.worker(concurrency=20)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            kinds = f"SELECT kind FROM \"{schema_of(space)}\".sleeper WHERE kind = 'l'"
            for n in range(3):
                until(lambda: server.execute(kinds) == [("l",)], "it waits")
                calls.clear()
                other.publish("t", n)
                until(lambda n=n: len(seen) > n, "it is handled")  # type: ignore[misc]
        finally:
            worker.stop()
            thread.join()
    assert [body for body, _ in seen] == [0, 1, 2]
    assert [count for _, count in seen[1:]] == [0, 0]  # the first put reads the worker's policies


@pytest.fixture
def small() -> Iterator[PostgresServer]:
    """A server whose queue of notifications takes half a megabyte."""
    with PostgresServer(fsync="off", max_notify_queue_pages=64) as server:
        yield server


def test_a_full_queue_of_notifications_refuses_no_put(
    small: PostgresServer, opened: Opened
) -> None:
    """A listener that reads nothing fills it. What is published meanwhile is leased to nobody."""
    worker, publisher = opened(small.url, namespace="n"), opened(small.url, namespace="n")
    listener = worker.work_listener()
    assert isinstance(listener, StoreWorkListener)
    assert listener.poll(0.0, LEAST_STARTABLE) is False
    publisher.tick()
    with psycopg.connect(small.url) as slow, psycopg.connect(small.url, autocommit=True) as other:
        slow.execute("LISTEN slow")
        slow.commit()
        slow.execute("SELECT 1")  # its transaction is open, so the server keeps what it listens to
        with pytest.raises(psycopg.OperationalError, match="too many notifications"):
            other.execute(
                "SELECT pg_notify('slow', n || repeat('x', 7900)) FROM generate_series(1, 99) n"
            )
        put(publisher, b"1")
        assert [lease.body for lease in leased(worker)] == [b"1"]
    listener.close()
