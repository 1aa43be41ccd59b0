"""
Networks that are cut, disks that are full, and servers that restart or fail over, under traffic:
nothing that was accepted is lost, nothing is settled twice, and programs continue afterwards.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from laneway.engines.base import FullEngine
from laneway.engines.postgres import flusher, pipeline, store, wakeup
from laneway.engines.postgres.connecting import NoAnswer
from laneway.engines.postgres.connection import Connection
from laneway.errors import EngineUnavailable
from laneway.testing.postgres_server import PostgresServer
from tests.postgres.conftest import drain, some, store_of
from tests.postgres.network import Network
from tests.postgres.standby import Standby
from tests.postgres.traffic import Traffic

Opened = Callable[..., FullEngine]


@pytest.fixture
def network(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """The network between a server and its clients, which give up their side waits soon."""
    monkeypatch.setattr(wakeup, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(flusher, "CONFIRM_SECONDS", 0.5)
    with Network(server) as network:
        yield network


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets clients wait half a second for an answer, from its call on."""
    return lambda: monkeypatch.setattr(pipeline, "ANSWER_SECONDS", 0.5)


def _is_written(engine: FullEngine) -> bool:
    with store_of(engine).reading() as connection:
        return connection.one("setting_read", "written") is not None


def _nothing(connection: Connection) -> None:
    """The server has answered everything."""


def _a_large_answer(connection: Connection) -> None:
    """The server is sending what nobody reads."""
    connection.pipeline.send("SELECT repeat('x', 10000) FROM generate_series(1, 2000)")
    connection.pipeline.send_sync()


def _a_large_request(connection: Connection) -> None:
    """The server has received a part of a statement."""
    connection.run("setting_write", "more", "x" * 10_000_000)  # it stays in this process, in part


@pytest.mark.parametrize("last", [_nothing, _a_large_answer, _a_large_request])
def test_the_lock_of_a_client_that_is_cut_off_becomes_free(
    opened: Opened,
    server: PostgresServer,
    network: Network,
    impatient: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    last: Callable[[Connection], None],
) -> None:
    """
    The server ends the transaction by its own timeouts, long before another client would. What was
    written in it is gone.
    """
    far = opened(network.url)
    monkeypatch.setitem(store.SETTINGS, "lock_timeout", store.LOCK_SECONDS * 1000)
    near = opened(server.url, namespace=far.namespace)  # type: ignore[attr-defined]
    with (  # noqa: PT012  # the end of the transaction raises
        pytest.raises(EngineUnavailable) as caught,
        store_of(far).writing(durable=False) as connection,
    ):
        connection.run("setting_write", "written", "1")
        connection.one("turn_read")
        last(connection)
        network.cut()
        near.put(some(3))
        impatient()
    assert caught.value.applied is None
    assert not _is_written(near)
    network.restore()
    assert sorted(drain(far)) == ["m0", "m1", "m2"]


def _count_waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The waits for an answer that were given up."""
    waits: list[str] = []

    class Counted(NoAnswer):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            waits.append(text)

    monkeypatch.setattr(pipeline, "NoAnswer", Counted)
    return waits


@pytest.mark.parametrize("loses", [False, True])
def test_an_answer_that_does_not_come_is_waited_for_once(
    opened: Opened,
    server: PostgresServer,
    network: Network,
    impatient: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    loses: bool,
) -> None:
    """
    Whether the commit happened is not known, and the error says so. The next call works as soon as
    the network does.
    """
    far = opened(network.url)
    near = opened(server.url, namespace=far.namespace)  # type: ignore[attr-defined]
    far.put(some(2))
    waits = _count_waits(monkeypatch)
    impatient()
    with (  # noqa: PT012  # as above
        pytest.raises(EngineUnavailable, match="no answer for") as caught,
        store_of(far).writing(durable=False) as connection,
    ):
        connection.run("setting_write", "written", "1")
        network.cut(requests=False)
    assert caught.value.applied is None
    assert len(waits) == 1
    assert _is_written(near), "it happened"
    network.restore(loses=loses)
    far.put(some(2, start=2))
    assert sorted(drain(near)) == ["m0", "m1", "m2", "m3"]


def test_a_process_runs_on_while_a_part_of_an_answer_is_missing(
    opened: Opened, network: Network
) -> None:
    """The connection that waits for the disk gives up, as without any answer."""
    store = store_of(opened(network.url))
    commit = 0
    flushes = flusher.Flusher(store._connect_flusher, lambda: commit)
    flushes.prepare()
    commit = 1
    network.cut_inside_an_answer()
    with pytest.raises(flusher.NotConfirmed, match=r"within 0\.5 s"):
        flushes.flush(1, 1)  # the network runs in this process, too
    network.restore()
    flushes.close()


def _restart(server: PostgresServer, network: Network, traffic: Traffic) -> None:
    """As an operator does, without waiting for clients."""
    server.stop()
    server.start()


def _lose(server: PostgresServer, network: Network, traffic: Traffic) -> None:
    """What was under way never arrives, and no connection ends."""
    network.cut()
    traffic.wait_for_a_failure()
    network.restore(loses=True)


def _lose_answers(server: PostgresServer, network: Network, traffic: Traffic) -> None:
    """What clients give up happens, and the answers arrive later."""
    network.cut(requests=False)
    traffic.wait_for_a_failure()
    network.restore()


@pytest.mark.parametrize("fault", [_restart, _lose, _lose_answers])
def test_traffic_continues_after_a_fault(
    server: PostgresServer,
    network: Network,
    impatient: Callable[[], None],
    fault: Callable[[PostgresServer, Network, Traffic], None],
) -> None:
    """Publishers publish again what failed, with the same ids; a worker runs all the time."""
    with Traffic(network.url, uuid.uuid4().hex) as traffic:
        impatient()
        traffic.wait_for_more()
        fault(server, network, traffic)
        traffic.wait_for_more()
        traffic.end()


def test_a_worker_follows_a_failover(pair: tuple[PostgresServer, Standby]) -> None:
    """The URL names both servers; the primary is killed, its standby is promoted."""
    primary, standby = pair
    url = (
        f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
        "?target_session_attrs=read-write"
    )
    with Traffic(url, "failover") as traffic:
        traffic.wait_for_more()
        primary.kill()
        standby.execute("SELECT pg_promote(wait => false)")
        traffic.wait_for_more()
        traffic.end()
