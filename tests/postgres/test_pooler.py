"""Through a pooler in transaction mode: correct, and without notifications workers look."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from laneway.engines import check_server, open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.postgres.address import parse
from laneway.engines.postgres.store import Store
from laneway.errors import EngineUnavailable, UsageError
from laneway.message import Draft, Settlement
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import until
from tests.postgres import pgbouncer
from tests.postgres.conftest import drain, some, store_of
from tests.postgres.pgbouncer import Pgbouncer
from tests.postgres.standby import NAME, Standby
from tests.postgres.test_durability import _kill_a_backend, _kill_the_server
from tests.postgres.test_wakeup import Waiter, sleepers
from tests.postgres.traffic import BATCH, Publisher

Opened = Callable[..., FullEngine]
Forked = Callable[[Callable[[], object]], int]


@pytest.fixture(scope="module")
def pooler(server: PostgresServer) -> Iterator[Pgbouncer]:
    """Three connections to the server for all clients."""
    pgbouncer.require()
    with Pgbouncer(server, size=3) as pooler:
        yield pooler


def is_pooled(engine: FullEngine) -> bool:
    connection = store_of(engine)._connection
    assert connection is not None
    return connection.is_pooled


def test_more_clients_than_connections(pooler: Pgbouncer, opened: Opened) -> None:
    """
    Clients whose transactions run on changing connections of the server deliver each message once.
    """
    engines = [opened(pooler.url, namespace="many") for _ in range(6)]
    assert all(map(is_pooled, engines))
    barrier = threading.Barrier(6)

    def work(n: int) -> list[str]:
        barrier.wait()
        ids: list[str] = []
        for round_ in range(5):
            engines[n].put(some(40, start=1_000 * n + 40 * round_))
            ids += drain(engines[n])
        return ids

    with ThreadPoolExecutor(6) as threads:
        found = [each for ids in threads.map(work, range(6)) for each in ids]
    assert sorted(found) == sorted(f"m{1_000 * n + each}" for n in range(6) for each in range(200))
    assert [check for check in engines[0].doctor() if not check.ok] == []


def stop_while_it_is_sent_an_answer(store: Store) -> None:
    """Stop inside a transaction, without having read 5 MB."""
    with store.writing(durable=False) as connection:
        connection.pipeline.send("SELECT repeat('x', 10000) FROM generate_series(1, 500)")
        connection.pipeline.send_sync()
        os.kill(os.getpid(), signal.SIGSTOP)


def stop_between_statements(store: Store) -> None:
    """Stop inside a transaction when all is read."""
    with store.writing(durable=False) as connection:
        connection.one("turn_read")
        os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("stop", [stop_while_it_is_sent_an_answer, stop_between_statements])
def test_a_stopped_client_loses_the_lock(
    pooler: Pgbouncer, opened: Opened, forked: Forked, stop: Callable[[Store], None]
) -> None:
    """The server sees it through the pooler, and others go on."""
    engine = opened(pooler.url)
    settings = Settings(namespace=engine.namespace)  # type: ignore[attr-defined]
    pid = forked(lambda: stop(store_of(open_engine(pooler.url, settings))))
    os.waitpid(pid, os.WUNTRACED)
    engine.put(some(3))
    assert sorted(drain(engine)) == ["m0", "m1", "m2"]


def test_settings_end_with_the_transaction(pooler: Pgbouncer, opened: Opened) -> None:
    """Other clients of the pooler get the server's connections as they were."""
    drain(opened(pooler.url))
    names = ("search_path", "synchronous_commit", "enable_seqscan", "lock_timeout")
    row = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)
    with psycopg.connect(pooler.url, prepare_threshold=None) as connection:
        rows = [connection.execute(row.encode()).fetchone() for _ in range(5)]
        rows.append(connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone())
    assert rows == [('"$user", public', "on", "on", "0")] * 5 + [(0,)]


def test_a_waiter_looks_where_no_notification_arrives(
    server: PostgresServer, pooler: Pgbouncer, opened: Opened
) -> None:
    """It has no row, so nobody notifies it, and it finds what others publish."""
    waiter = Waiter(opened(pooler.url, namespace="looks"), 2)
    publisher = opened(server.url, namespace="looks")
    for n in range(2):
        publisher.put(some(1, start=n))
        until(lambda n=n: len(waiter.ids) > n, "it has found the message")  # type: ignore[misc]
        assert sleepers(server, "looks") == []
    waiter.join(30)


def test_pauses_between_looks_grow(pooler: Pgbouncer, opened: Opened) -> None:
    """From 20 to 250 ms, so an idle worker costs some four reads a second."""
    engine = opened(pooler.url)
    wakeup = engine._wakeup  # type: ignore[attr-defined]
    wakeup.look = lambda *_: 60.0
    listener = engine.work_listener()
    pauses = []
    for _ in range(6):
        listener.poll(0)
        pauses.append(listener._pause)  # type: ignore[attr-defined]
        listener._look_at = 0.0  # type: ignore[attr-defined]
    listener.close()
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.25, 0.25]


def test_a_waiter_with_a_direct_connection_is_notified(
    server: PostgresServer, pooler: Pgbouncer, opened: Opened
) -> None:
    """`listen=` names the server itself; a publisher behind the pooler notifies the waiter."""
    url = f"{pooler.url}?listen=127.0.0.1:{server.port}"
    waiter = Waiter(opened(url, namespace="listens"), 1)
    until(lambda: len(sleepers(server, "listens")) == 1, "it waits")
    assert is_pooled(waiter.engine)
    assert waiter.engine._wakeup.is_notified  # type: ignore[attr-defined]
    publisher = opened(pooler.url, namespace="listens")
    publisher.put(some(1))
    waiter.join(30)
    assert waiter.ids == ["m0"]


def test_results_are_seen_without_notifications(pooler: Pgbouncer, opened: Opened) -> None:
    """A listener asks its caller to read again, after 20 ms first."""
    listener = opened(pooler.url).result_listener()
    listener.subscribe("m0")
    assert listener.poll(10) == ["m0"]
    assert [listener.poll(10) for _ in range(2)] == [None, None]
    assert listener.look_again == 0.08  # type: ignore[attr-defined]
    listener.close()


@pytest.mark.parametrize("crash", [_kill_the_server, _kill_a_backend])
def test_a_crash_loses_nothing(crash: Callable[[PostgresServer], None]) -> None:
    """
    fsync: the pooler hides that the server has crashed, so each durable commit has waited itself.
    Its log is written 10 s later where nobody waits.
    """
    pgbouncer.require()
    with PostgresServer(fsync="off", wal_writer_delay="10s") as server, Pgbouncer(server) as pooler:
        engine = open_engine(pooler.url, Settings())
        publisher = Publisher(engine, "a")
        publisher.wait_for(2 * BATCH)
        crash(server)
        publisher.wait_for(2 * BATCH)
        accepted = publisher.end()
        ids = drain(engine)
        engine.close()
    assert set(ids) >= accepted
    assert len(ids) == len(set(ids))


def test_an_operator_who_cancels_the_wait_confirms_nothing() -> None:
    """replicated: the server reports success then, and the call raises."""
    pgbouncer.require()
    waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with (
        PostgresServer(fsync="off", synchronous_standby_names=NAME) as primary,
        Standby(primary) as standby,
        Pgbouncer(primary) as pooler,
        ThreadPoolExecutor(1) as threads,
    ):
        standby.wait_until_it_follows()
        engine = open_engine(pooler.url, Settings(durability="replicated"))
        engine.put(some(1))
        standby.stop()
        put = threads.submit(engine.put, some(2, start=1))
        until(lambda: primary.execute(f"SELECT 1 {waiting}"), "it waits for the standby")
        primary.execute(f"SELECT pg_cancel_backend(pid) {waiting}")
        with pytest.raises(EngineUnavailable, match="canceling wait") as caught:
            put.result()
        assert caught.value.applied is None
        standby.start()
        assert {each.outcome for each in engine.put(some(2, start=1))} == {"duplicate"}
        assert drain(engine) == ["m0", "m1", "m2"]
        engine.close()


def test_the_doctor_names_a_pooler(server: PostgresServer, pooler: Pgbouncer) -> None:
    found = {check.name: check for check in check_server(pooler.url)}
    assert all(check.ok for check in found.values())
    assert "a pooler hides LISTEN" in found["notifications"].detail
    assert "&listen=HOST:PORT" in found["notifications"].advice
    listening = check_server(f"{pooler.url}?listen=127.0.0.1:{server.port}")
    (check,) = (check for check in listening if check.name == "notifications")
    assert check.available
    assert "through a pooler" in check.detail


def test_whether_there_is_a_pooler(
    server: PostgresServer, pooler: Pgbouncer, opened: Opened
) -> None:
    """A connection tells, unless the URL does."""
    assert is_pooled(opened(pooler.url))
    assert not is_pooled(opened(server.url))
    assert not is_pooled(opened(f"{server.url}?pooler=none"))
    engine = opened(f"{server.url}?pooler=transaction")
    assert is_pooled(engine)
    engine.put([Draft("a", b"1")])
    (lease,) = engine.lease(1).leases
    engine.settle([Settlement(lease.handle, lease.fence)])


def test_options_of_the_url() -> None:
    url = (
        "postgresql://me:secret@pooler:6543/shop?pooler=transaction&listen=db:5432&sslmode=require"
    )
    address = parse(url)
    assert address.server == "postgresql://me:secret@pooler:6543/shop?sslmode=require"
    assert address.listen_server == "postgresql://me:secret@db:5432/shop?sslmode=require"
    assert address.is_pooled is True
    with pytest.raises(UsageError, match='pooler: expected "transaction" or "none"'):
        parse("postgresql://host/shop?pooler=session")


def test_an_option_that_the_pooler_refuses(pooler: Pgbouncer, opened: Opened) -> None:
    with pytest.raises(EngineUnavailable, match="pooler refuses an option of the URL"):
        opened(f"{pooler.url}?options=-cwork_mem%3D8MB")
