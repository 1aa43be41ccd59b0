"""Workers that wait in other processes: woken, and after every accident woken again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.postgres import wakeup
from laneway.engines.postgres.address import schema_of
from laneway.engines.postgres.engine import PostgresEngine
from laneway.engines.postgres.schemas import ShardSchema
from laneway.message import Batch, Settlement
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import until
from tests.postgres.conftest import drain, some

Opened = Callable[..., FullEngine]
Forked = Callable[[Callable[[], object]], int]


class Waiter(threading.Thread):
    """Waits for messages, and acks them, until `count` have come."""

    def __init__(self, engine: FullEngine, count: int) -> None:
        super().__init__(daemon=True)
        self.engine, self.count = engine, count
        self.ids: list[str] = []
        self.start()

    def run(self) -> None:
        while len(self.ids) < self.count:
            self.engine.wait(60)
            self.ids += drain(self.engine)

    def end(self) -> None:
        """Stop waiting."""
        self.count = 0
        self.engine.interrupt()
        self.join()


def sleepers(server: PostgresServer, namespace: str) -> list[tuple[str, str]]:
    """Channel and kind of those who wait."""
    return server.execute(f'SELECT channel, kind FROM "{schema_of(namespace)}".sleeper')


def listening(server: PostgresServer) -> list[int]:
    """The backends of connections that listen."""
    return [
        pid
        for (pid,) in server.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'laneway'"
            " AND (query LIKE 'LISTEN%' OR query LIKE '%sleeper%')"
        )
    ]


def test_a_waiter_listens_again_after_its_connection_ends(
    server: PostgresServer, opened: Opened
) -> None:
    """Meanwhile it looks every second; its row is back, and a notification wakes it."""
    engine = opened(server.url)
    space = engine.namespace  # type: ignore[attr-defined]
    publisher = opened(server.url, namespace=space)
    waiter = Waiter(engine, 2)
    until(lambda: len(sleepers(server, space)) == 1, "it waits")
    before = listening(server)
    for pid in before:
        server.execute(f"SELECT pg_terminate_backend({pid})")
    publisher.put(some(1))
    until(lambda: waiter.ids == ["m0"], "it finds the message")
    until(lambda: set(listening(server)) - set(before), "it listens again")
    until(lambda: len(sleepers(server, space)) == 1, "its row is back")
    publisher.put(some(1, start=1))
    waiter.join(30)
    assert waiter.ids == ["m0", "m1"]


def test_a_removed_row_comes_back(
    server: PostgresServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others remove the row of a process that was stopped for long; it still waits."""
    monkeypatch.setattr(wakeup, "BEAT_SECONDS", 0.05)
    engine = opened(server.url)
    space = engine.namespace  # type: ignore[attr-defined]
    waiter = Waiter(engine, 1)
    until(lambda: len(sleepers(server, space)) == 1, "it waits")
    server.execute(f'DELETE FROM "{schema_of(space)}".sleeper')
    until(lambda: len(sleepers(server, space)) == 1, "its row is back")
    opened(server.url, namespace=space).put(some(1))
    waiter.join(30)
    assert waiter.ids == ["m0"]


def test_the_row_of_a_killed_process_ends(
    server: PostgresServer, opened: Opened, forked: Forked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others remove it, and messages go to those who live."""
    engine = opened(server.url)
    space = engine.namespace  # type: ignore[attr-defined]
    pid = forked(lambda: open_engine(server.url, Settings(namespace=space)).wait(60))
    until(lambda: len(sleepers(server, space)) == 1, "it waits")
    ((dead, _),) = sleepers(server, space)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    monkeypatch.setattr(wakeup, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(wakeup, "DEAD_SECONDS", 0.5)
    waiter = Waiter(engine, 1)
    until(lambda: dead not in dict(sleepers(server, space)), "the row ends")
    opened(server.url, namespace=space).put(some(1))
    waiter.join(30)
    assert waiter.ids == ["m0"]


def test_a_fork_while_threads_publish(
    server: PostgresServer, opened: Opened, forked: Forked
) -> None:
    """The child has connections of its own, and the parent's work on."""
    engine = opened(server.url)
    space = engine.namespace  # type: ignore[attr-defined]
    ends = threading.Event()
    accepted: list[str] = []
    forks: list[str] = []
    before = 0

    def publish() -> None:
        while not ends.is_set():
            accepted.extend(each.id for each in engine.put(some(2, start=len(accepted))))

    def child() -> None:
        own = open_engine(server.url, Settings(namespace=space))
        own.put(some(1, start=1_000_000 + before))
        engine.close()
        own.close()
        os._exit(0)

    waiter = Waiter(opened(server.url, namespace=space), 1_000_000)
    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for _ in range(3):
            before = len(accepted)
            until(lambda before=before: len(accepted) > before + 10, "it publishes")  # type: ignore[misc]
            pid = forked(child)
            forks.append(f"m{1_000_000 + before}")
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        ends.set()
        thread.join()
    until(lambda: set(waiter.ids) == {*accepted, *forks}, "all are delivered")
    waiter.end()
    assert len(waiter.ids) == len(set(waiter.ids)), "none twice"


def test_a_waiter_looks_rarely_while_nothing_happens(
    server: PostgresServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pauses between its looks grow, and a notification makes them short again."""
    monkeypatch.setattr(wakeup, "LOOK_AGAIN", 0.01)
    monkeypatch.setattr(wakeup, "LONGEST_PAUSE", 0.08)
    engine = opened(server.url)
    listener = engine.work_listener()
    looks: list[float] = []
    look = engine._wakeup.look  # type: ignore[attr-defined]

    def counted(pool: str, topics: Sequence[str] | None) -> float:
        looks.append(listener._pause)  # type: ignore[attr-defined]
        return float(look(pool, topics))

    engine._wakeup.look = counted  # type: ignore[attr-defined]
    assert listener.poll(0.5) is False
    assert looks[:6] == [0.0, 0.01, 0.02, 0.04, 0.08, 0.08]
    looks.clear()
    opened(server.url, namespace=engine.namespace).put(some(1))  # type: ignore[attr-defined]
    assert listener.poll(30) is True
    assert drain(engine) == ["m0"]
    while listener.poll(0.2):  # if a look has found the message, the notification comes later
        pass
    assert 0.0 in looks
    listener.close()


@pytest.mark.parametrize("shards", [1, 4])
def test_a_killed_connection_makes_a_waiter_look(
    server: PostgresServer, opened: Opened, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    """What is published before it listens again is found then, however long its pauses are."""
    monkeypatch.setattr(wakeup, "LONGEST_PAUSE", 600.0)
    monkeypatch.setattr(wakeup, "LOOK_AGAIN", 600.0)  # nor does it look or connect again
    url = f"{server.url}?shards={shards}" if shards > 1 else server.url
    engine = opened(url)
    space = engine.namespace  # type: ignore[attr-defined]
    publisher = opened(url, namespace=space)
    waiter = Waiter(engine, 1)
    until(lambda: len(sleepers(server, space)) == 1, "it waits")
    presence = engine._wakeup._presence  # type: ignore[attr-defined]
    with presence.lock:  # the thread that listens cannot receive the notification
        for pid in listening(server):
            server.execute(f"SELECT pg_terminate_backend({pid})")
        until(lambda: not listening(server), "nobody listens")
        publisher.put(some(1))
    waiter.join(30)
    assert waiter.ids == ["m0"]


def test_a_publisher_whose_connection_ended_notifies(
    server: PostgresServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It notifies through another connection; the waiter does not have to look."""
    monkeypatch.setattr(wakeup, "LONGEST_PAUSE", 600.0)
    monkeypatch.setattr(wakeup, "LOOK_AGAIN", 600.0)
    engine = opened(server.url)
    publisher = opened(server.url, namespace=engine.namespace)  # type: ignore[attr-defined]
    listener = engine.work_listener()
    assert listener.poll(0.0) is False
    publisher.put(some(1))  # its first notification opens the connection
    assert listener.poll(30) is True
    assert drain(engine) == ["m0"]
    while listener.poll(0.2):
        pass
    presence = publisher._wakeup._presence  # type: ignore[attr-defined]
    presence._retry_at = 0.0  # as a second after it was opened
    server.execute(f"SELECT pg_terminate_backend({presence._connection.info.backend_pid})")
    publisher.put(some(1, start=1))
    assert listener.poll(30) is True
    listener.close()


@pytest.mark.parametrize("only", [None, ["t.*"]])
def test_a_waiter_leases_from_the_notified_shard(
    server: PostgresServer,
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    only: list[str] | None,
) -> None:
    """Its message does not wait for a look, or until the other shards are asked."""
    monkeypatch.setattr(wakeup, "LONGEST_PAUSE", 600.0)
    monkeypatch.setattr(wakeup, "LOOK_AGAIN", 600.0)  # only a notification ends its wait
    url = f"{server.url}?shards=8"
    engine = opened(url)
    publisher = opened(url, namespace=engine.namespace)  # type: ignore[attr-defined]
    listener = engine.work_listener()
    assert listener.poll(0.0) is False
    asked: list[int] = []

    def has_work(store: ShardSchema, pool: str, topics: Sequence[str] | None) -> float:
        asked.append(store.place.shard)
        return PostgresEngine.has_work(store, pool, topics)

    def lease(store: ShardSchema, n: int, **options: Any) -> Batch:
        asked.append(store.place.shard)
        return PostgresEngine.lease(store, n, **options)

    monkeypatch.setattr(ShardSchema, "has_work", has_work)
    monkeypatch.setattr(ShardSchema, "lease", lease)
    assert engine.lease(100, only=only).leases == []
    for n in range(8):
        asked.clear()
        publisher.put(some(1, start=n))
        assert listener.poll(30) is True
        batch = engine.lease(100, only=only)
        assert [each.id for each in batch.leases] == [f"m{n}"]
        assert len(asked) == 1
        engine.settle([Settlement(each.handle, each.fence) for each in batch.leases])
        while batch.next_wake_us == batch.now_us:  # the other shards may have something
            batch = engine.lease(100, only=only)
    listener.close()


def test_a_lane_that_wakes_soon_is_awaited(
    server: PostgresServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter learns when a topic that was at its rate can be served, though its pause is long."""
    monkeypatch.setattr(wakeup, "LONGEST_PAUSE", 600.0)
    monkeypatch.setattr(wakeup, "LOOK_AGAIN", 600.0)
    engine = opened(server.url)
    publisher = opened(server.url, namespace=engine.namespace)  # type: ignore[attr-defined]
    publisher.policy_set("code", "t.*", {"rate": 0.01, "burst": 1})
    listener = engine.work_listener()
    assert listener.poll(0.0) is False
    publisher.put(some(1))
    assert listener.poll(30) is True
    assert drain(publisher) == ["m0"]
    while listener.poll(0.2):  # nothing else notifies it
        pass
    publisher.put(some(1, start=1, topics=1))
    assert listener.poll(30) is True
    listener.close()


@pytest.mark.parametrize("shards", [1, 4])
def test_a_notification_that_cannot_be_read_makes_a_waiter_look(
    server: PostgresServer, opened: Opened, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    """Another version sends it, or another program; the process is notified as before."""
    monkeypatch.setattr(wakeup, "LONGEST_PAUSE", 600.0)
    monkeypatch.setattr(wakeup, "LOOK_AGAIN", 600.0)  # only a notification makes it look
    url = f"{server.url}?shards={shards}" if shards > 1 else server.url
    engine = opened(url)
    space = engine.namespace  # type: ignore[attr-defined]
    publisher = opened(url, namespace=space)
    waiter = Waiter(engine, 18)
    until(lambda: len(sleepers(server, space)) == 1, "it waits")
    ((channel, _),) = sleepers(server, space)
    numbers = ("", "x", "-1", f"{shards}", "\u0663", "9" * 20, "9" * 5_000)
    texts = ("", "w", "b", "x", "w0", "b99 default", *(f"w{number} default" for number in numbers))
    with psycopg.connect(server.url, autocommit=True) as stranger:
        for n, text in enumerate(texts):
            stranger.execute("SELECT pg_notify(%s, %s)", (channel, text))
            publisher.put(some(1, start=n))
            until(lambda n=n: f"m{n}" in waiter.ids, text)  # type: ignore[misc]
    publisher.put(some(5, start=len(texts)))
    waiter.join(30)
    assert sorted(waiter.ids) == sorted(f"m{n}" for n in range(18))
