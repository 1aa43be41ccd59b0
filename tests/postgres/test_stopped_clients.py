"""A client that is stopped or killed inside a transaction does not keep the others waiting."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.postgres.store import SETTINGS, Store
from laneway.errors import EngineUnavailable
from laneway.message import Draft
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import until
from tests.postgres.conftest import drain, some, store_of

Opened = Callable[..., FullEngine]
Forked = Callable[[Callable[[], object]], int]


def _between_statements(store: Store) -> None:
    """Stop when the server has answered everything."""
    with store.writing(durable=False) as connection:
        connection.run("setting_write", "stopped", "1")
        connection.one("turn_read")
        os.kill(os.getpid(), signal.SIGSTOP)


def _while_it_sends(store: Store) -> None:
    """Stop when a part of the statements was sent; the server waits for the others."""
    with store.writing(durable=False) as connection:
        connection.run("setting_write", "stopped", "1" * 100_000)
        os.kill(os.getpid(), signal.SIGSTOP)


def _while_it_is_sent_an_answer(store: Store) -> None:
    """Stop without having read 500 bodies of 10 kB."""
    with store.writing(durable=False) as connection:
        connection.run("setting_write", "stopped", "1")
        pipeline = connection.pipeline
        pipeline.send("SELECT repeat('x', 10000) FROM generate_series(1, 500)")
        pipeline.send_sync()
        os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("network", ["tcp", "socket file"])
@pytest.mark.parametrize(
    "stop", [_between_statements, _while_it_sends, _while_it_is_sent_an_answer]
)
def test_a_stopped_client_loses_the_lock(
    server: PostgresServer,
    opened: Opened,
    forked: Forked,
    stop: Callable[[Store], None],
    network: str,
) -> None:
    """
    The server ends its transaction, and what it had written in it is gone. The others wait, and
    their calls raise nothing.
    """
    by_socket = f"postgresql://postgres@/postgres?host={server.folder}&port={server.port}"
    url = server.url if network == "tcp" else by_socket
    engine = opened(url)
    settings = Settings(namespace=engine.namespace)  # type: ignore[attr-defined]

    def child() -> None:
        try:
            stop(store_of(open_engine(url, settings)))
        except EngineUnavailable:
            os._exit(7)

    pid = forked(child)
    os.waitpid(pid, os.WUNTRACED)
    engine.put(some(3))
    assert sorted(drain(engine)) == ["m0", "m1", "m2"]
    with store_of(engine).reading() as connection:
        assert connection.one("setting_read", "stopped") is None
    os.kill(pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_killed_client_frees_the_lock_at_once(
    server: PostgresServer, opened: Opened, forked: Forked
) -> None:
    engine = opened(server.url)
    settings = Settings(namespace=engine.namespace)  # type: ignore[attr-defined]
    pid = forked(lambda: _between_statements(store_of(open_engine(server.url, settings))))
    os.waitpid(pid, os.WUNTRACED)
    os.kill(pid, signal.SIGKILL)
    engine.put(some(3))
    assert sorted(drain(engine)) == ["m0", "m1", "m2"]


def test_a_holder_that_works_is_waited_for(
    server: PostgresServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction of another process that takes longer than a stopped one may is not ended."""
    monkeypatch.setitem(SETTINGS, "lock_timeout", 200)
    first = opened(server.url)
    second = opened(server.url, namespace=first.namespace)  # type: ignore[attr-defined]
    with ThreadPoolExecutor() as pool:
        with store_of(first).writing(durable=False) as connection:
            connection.run("setting_write", "kept", "1")
            done = pool.submit(second.put, some(1))
            for _ in range(5):
                connection.pipeline.send("SELECT pg_sleep(0.5)")
                connection.pipeline.sync()
        done.result()
    with store_of(second).reading() as connection:
        assert connection.one("setting_read", "kept") == ("1",)


def test_a_process_that_computes_for_too_long_learns_why_its_transaction_ended(
    server: PostgresServer, opened: Opened
) -> None:
    """The server's reason is reported, not the end of the connection that follows it."""
    engine = opened(server.url)

    def compute() -> None:
        with store_of(engine).writing(durable=False) as connection:
            pid = connection.pipeline._server.backend_pid
            alive = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"
            until(lambda: not server.execute(alive), "the server ends the transaction")
            connection.one("turn_read")

    with pytest.raises(EngineUnavailable, match="stopped inside a transaction"):
        compute()
    engine.put(some(1))
    assert drain(engine) == ["m0"]


def test_a_cache_is_not_trusted_after_a_lost_connection(
    server: PostgresServer, opened: Opened
) -> None:
    """What others wrote between the end of one connection and the first use of the next is read."""
    first = opened(server.url)
    second = opened(server.url, namespace=first.namespace)  # type: ignore[attr-defined]
    first.put([Draft("a", b"1"), Draft("b", b"1")])
    store = store_of(first)
    assert store._connection is not None
    pid = store._connection.pipeline._server.backend_pid
    server.execute(f"SELECT pg_terminate_backend({pid})")
    second.put([Draft("a", b"2"), Draft("c", b"1")])
    first.put([Draft("a", b"3"), Draft("c", b"2")])
    assert len(drain(second)) == 6
    assert [check for check in first.doctor() if not check.ok] == []
