"""
While a thread waits for the answer to its commit, the next one begins its transaction behind it:
each gets its own outcome, and what one of them loses is not done twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from laneway.engines.base import FullEngine
from laneway.engines.postgres import pipeline, store as postgres_store
from laneway.engines.postgres.connection import Connection
from laneway.engines.postgres.engine import PostgresEngine
from laneway.engines.postgres.store import Store
from laneway.engines.sql import putting
from laneway.engines.sql.store import Outdated
from laneway.engines.sql.transaction import Transaction
from laneway.errors import EngineUnavailable
from laneway.message import Draft
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import until
from tests.postgres.conftest import drain, some, store_of
from tests.postgres.network import Network

Opened = Callable[..., FullEngine]


class Readers(list[int]):
    """The threads that have read the answer to a commit."""


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Readers:
    """Nobody reads an answer that the next thread is to read: a test that waits for that fails."""
    readers, read = Readers(), Store._read_answer

    def read_answer(store: Store) -> bool:
        if store._unanswered is not None:
            readers.append(threading.get_ident())
        return read(store)

    monkeypatch.setattr(Store, "_read_answer", read_answer)
    monkeypatch.setattr(postgres_store, "UNREAD_SECONDS", 60)
    return readers


@contextmanager
def _before(engine: FullEngine, call: Callable[[], object]) -> Iterator[Transaction]:
    """A transaction; `call` waits in another thread when it sends its commit, and returns then."""
    assert isinstance(engine, PostgresEngine)
    with ThreadPoolExecutor(1) as threads:
        with engine.transaction(None) as tx:
            yield tx
            called = threads.submit(call)
            until(lambda: bool(store_of(engine).lock._waiting), "a thread that waits")
        called.result()


def _fails_at_once(connection: Connection) -> None:
    connection.change_exactly("leases_end", [(12345, 12345)], 1)


def _fails_between(connection: Connection) -> None:
    """The commit runs after the failed statement, as a rollback."""
    connection.run("setting_write", "before", "x" * pipeline.EARLY_BYTES)
    _fails_at_once(connection)
    connection.run("setting_write", "after", "x" * pipeline.EARLY_BYTES)


def test_the_next_thread_begins_before_the_answer(
    opened: Opened, server: PostgresServer, readers: Readers
) -> None:
    engine = opened(server.url)
    engine.put(some(1))
    readers.clear()
    with _before(engine, lambda: engine.put(some(2, start=2))) as tx:
        putting.put(tx, some(1, start=1))
    first, last = readers  # that of the transaction, and that of the call
    assert first == last != threading.get_ident()
    assert sorted(drain(engine)) == ["m0", "m1", "m2", "m3"]


def test_what_a_lease_reads_last_comes_with_the_answer(
    opened: Opened, server: PostgresServer, readers: Readers
) -> None:
    engine = opened(server.url)
    engine.put([Draft("later", b"", delay_us=60_000_000)])
    wakes: list[int | None] = []
    with _before(engine, lambda: engine.put(some(1))) as tx:
        tx.on_wake = wakes.append
    (wake,) = wakes
    assert wake is not None
    assert 0 < wake - tx.now <= 60_000_000


@pytest.mark.parametrize("fail", [_fails_at_once, _fails_between])
@pytest.mark.parametrize("count", [1, 30])
def test_a_commit_that_fails_takes_only_its_own_changes(
    opened: Opened,
    server: PostgresServer,
    readers: Readers,
    fail: Callable[[Connection], None],
    count: int,
) -> None:
    engine = opened(server.url)
    engine.put(some(1))

    def put_and_fail() -> None:
        with _before(engine, lambda: engine.put(some(count, start=1))) as tx:
            putting.put(tx, [Draft("t.0", b"", id="never"), Draft("other", b"", id="nor this")])
            assert isinstance(tx.connection, Connection)
            fail(tx.connection)

    with pytest.raises(Outdated):
        put_and_fail()
    assert sorted(drain(engine)) == sorted(draft.id for draft in some(count + 1) if draft.id)


def test_a_lost_connection_leaves_open_what_was_committed_and_nothing_else(
    opened: Opened,
    server: PostgresServer,
    readers: Readers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Network(server) as network:
        engine = opened(network.url)
        engine.put(some(1))

        def put() -> None:
            with _before(engine, lambda: engine.put(some(30, start=2))) as tx:
                putting.put(tx, some(1, start=1))
                network.cut(requests=False)
                monkeypatch.setattr(pipeline, "ANSWER_SECONDS", 0.5)
                threading.Timer(0.2, network.restore, kwargs={"loses": True}).start()

        with pytest.raises(EngineUnavailable) as caught:
            put()
        assert caught.value.applied is None
        assert sorted(drain(engine)) == sorted(f"m{n}" for n in range(32))


def test_an_interrupted_thread_does_not_wait_for_the_answer_before_it(
    opened: Opened, server: PostgresServer, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller of that commit learns that its outcome is not known, and the engine works on."""
    engine = opened(server.url)
    engine.put(some(1))

    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    def put_interrupted() -> None:
        monkeypatch.setattr(pipeline.Pipeline, "read_to", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.put(some(1, start=2))

    def put() -> None:
        with _before(engine, put_interrupted) as tx:
            putting.put(tx, some(1, start=1))

    with pytest.raises(EngineUnavailable) as caught:
        put()
    assert caught.value.applied is None
    engine.put(some(1, start=3))
    assert {"m0", "m3"} <= set(drain(engine)) <= {"m0", "m1", "m3"}


def test_an_answer_that_the_next_thread_does_not_read(
    opened: Opened, server: PostgresServer, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gave up, or did something else with the lock."""
    monkeypatch.setattr(postgres_store, "UNREAD_SECONDS", 0.001)
    engine = opened(server.url)
    store = store_of(engine)

    def take_the_lock() -> None:
        with store.lock:
            pass

    with _before(engine, take_the_lock) as tx:
        putting.put(tx, some(1))
    assert drain(engine) == ["m0"]
