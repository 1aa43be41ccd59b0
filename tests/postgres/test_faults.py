"""
Networks that are cut, disks that are full, and servers that restart or fail over, under traffic:
nothing that was accepted is lost, nothing is settled twice, and programs continue afterwards.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from laneway.engines.base import FullEngine
from laneway.engines.postgres import flusher, pipeline, reserve, store, wakeup
from laneway.engines.postgres.connecting import NoAnswer
from laneway.engines.postgres.connection import Connection
from laneway.errors import EngineUnavailable
from laneway.message import Draft
from laneway.testing.postgres_server import NOBODY, PostgresServer
from laneway.testing.servers import until
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


def test_a_message_whose_answer_does_not_come_may_be_stored(
    opened: Opened, server: PostgresServer, network: Network, impatient: Callable[[], None]
) -> None:
    """It is sent together with its commit, so it is not published again without the caller."""
    far = opened(network.url)
    near = opened(server.url, namespace=far.namespace)  # type: ignore[attr-defined]
    far.put([Draft("t", b"1")])
    impatient()
    network.cut(requests=False)
    with pytest.raises(EngineUnavailable, match="no answer for") as caught:
        far.put([Draft("t", b"2")])
    assert caught.value.applied is None
    network.restore(loses=True)
    far.put([Draft("t", b"3")])
    assert [each.body for each in near.lease(10).leases] == [b"1", b"2", b"3"]


def test_a_process_runs_on_while_a_part_of_an_answer_is_missing(
    opened: Opened, network: Network
) -> None:
    """The connection that waits for the disk gives up, as without any answer."""
    store = store_of(opened(network.url))
    commit = 0
    flushes = flusher.Flusher(store._connect_flusher, lambda: (commit, commit))
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


@pytest.fixture
def small() -> Iterator[PostgresServer]:
    """A server whose data is on a small disk."""
    server = PostgresServer(
        fsync="off", max_wal_size="'32MB'", min_wal_size="'32MB'", shared_buffers="'16MB'"
    )
    mount = ["mount", "-t", "tmpfs", "-o", f"size=120m,uid={NOBODY},mode=700", "tmpfs"]
    if subprocess.run([*mount, str(server.folder)], check=False, capture_output=True).returncode:
        server.close()
        pytest.skip("only root can mount a small disk")
    try:
        with server:
            yield server
    finally:
        subprocess.run(["umount", "-l", str(server.folder)], check=True)
        server.folder.rmdir()


def _fill(disk: Path) -> Path:
    """Leave no room on a disk; returns the file to remove."""
    balloon = disk / "balloon"
    with contextlib.suppress(OSError), balloon.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65_536))
    return balloon


def _use_disk(server: PostgresServer, disk: Path) -> None:
    """The server keeps new tables on this disk, and its log elsewhere."""
    (disk / "tables").mkdir()
    shutil.chown(disk / "tables", NOBODY, NOBODY)
    server.execute(f"CREATE TABLESPACE small LOCATION '{disk}/tables'")
    server.execute("ALTER SYSTEM SET default_tablespace = 'small'")
    server.execute("SELECT pg_reload_conf()")


def _fill_reserve(engine: FullEngine, monkeypatch: pytest.MonkeyPatch, size: int) -> int:
    """Publish until the store has a reserve of this size; returns the number of messages."""
    monkeypatch.setattr(reserve, "RESERVE", size)
    monkeypatch.setattr(reserve, "LOOK_BYTES", 1 << 20)
    found, count = 0, 0
    while found < size:
        _put_large(engine, count)
        count += 20
        with store_of(engine).reading() as connection:
            _, found, _ = connection.one("reserve_read")
    return count


def _put_large(engine: FullEngine, start: int) -> None:
    drafts = some(20, start=start)
    for draft in drafts:
        draft.body = bytes(20_000)
    engine.put(drafts)


def _refusals(engine: FullEngine, start: int) -> list[str]:
    """Publish until two calls have failed; returns their errors."""
    failures: list[str] = []
    while len(failures) < 2:
        start += 20
        try:
            _put_large(engine, start)
        except EngineUnavailable as error:
            failures.append(str(error))
    return failures


def test_a_full_disk_of_tables_can_be_emptied(
    opened: Opened, small: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishes of all processes are refused, all else uses the reserve, until there is room."""
    with PostgresServer(fsync="off") as server:
        _use_disk(server, small.folder)
        engine = opened(server.url)
        other = opened(server.url, namespace=engine.namespace)  # type: ignore[attr-defined]
        start = _fill_reserve(engine, monkeypatch, 4 << 20)
        balloon = _fill(small.folder)
        full, kept = _refusals(engine, start)
        assert "the server's disk is full; make room" in full
        assert "the last 4 MiB are kept for handling what waits; nothing was changed" in kept
        assert other.wait(0.0) is not None
        other.lease(1, topics=["other"])
        with pytest.raises(EngineUnavailable, match="are kept for handling what waits"):
            other.put(some(1))
        other.put([Draft("laneway.schedule.hourly", b"x")])
        other.policy_set("code", "a", {"retries": 0})
        assert len(drain(engine)) > start
        balloon.unlink()
        with pytest.raises(EngineUnavailable, match="are kept for handling what waits"):
            engine.put(some(1))
        monkeypatch.setattr(reserve, "RETRY_US", 0)
        engine.put(some(1))
        other.put(some(1, start=1))
        assert len(drain(other)) == 2
        engine.close()
        other.close()


def test_a_disk_that_the_servers_log_filled_can_be_emptied(
    opened: Opened, small: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends, and has the room of the reserve when it starts again."""
    engine = opened(small.url)
    _fill_reserve(engine, monkeypatch, 20 << 20)
    small.execute("ALTER SYSTEM SET max_wal_size = '1GB'")
    small.execute("SELECT pg_reload_conf()")
    _fill(small.folder)
    with pytest.raises(psycopg.OperationalError) as caught:
        small.execute(
            "SELECT count(pg_logical_emit_message(false, 'fill', repeat('x', 1000000)))"
            " FROM generate_series(1, 200)"
        )
    assert caught.value.diag.severity_nonlocalized == "PANIC"

    def is_drained() -> bool:
        with contextlib.suppress(EngineUnavailable):
            return not drain(engine)
        return False

    until(is_drained, "the server is back and all messages are handled")
    with pytest.raises(EngineUnavailable, match="are kept for handling what waits"):
        engine.put(some(1))


def test_a_server_without_room_for_tables(opened: Opened, small: PostgresServer) -> None:
    """Its log has room: a call fails, says why and changes nothing; later ones work."""
    server = PostgresServer(fsync="off")
    with server:
        _use_disk(server, small.folder)
        engine = opened(server.url)
        accepted = [each.id for each in engine.put(some(20))]
        balloon = _fill(small.folder)
        failures: list[EngineUnavailable] = []
        drafts, start = some(0), 100
        while not failures:
            start += 20
            drafts = some(20, start=start)
            for draft in drafts:
                draft.body = bytes(2000)
            try:
                accepted += [each.id for each in engine.put(drafts)]
            except EngineUnavailable as error:
                failures.append(error)
        assert "disk is full" in str(failures[0])
        assert failures[0].applied is False
        balloon.unlink()
        accepted += [each.id for each in engine.put(drafts)]
        assert sorted(drain(engine)) == sorted(accepted)
        assert [check for check in engine.doctor() if not check.ok] == []
        engine.close()


def test_a_server_without_room_for_its_log(opened: Opened, small: PostgresServer) -> None:
    """It ends. What was accepted is there when it has room and is started again."""
    engine = opened(small.url)
    accepted = {each.id for each in engine.put(some(20))}
    balloon = _fill(small.folder)
    failures: list[EngineUnavailable] = []
    tried, drafts, start = set(accepted), some(0), 100
    while not failures:
        start += 20
        drafts = some(20, start=start)
        for draft in drafts:
            draft.body = bytes(20_000)
        tried |= {str(draft.id) for draft in drafts}
        try:
            accepted |= {each.id for each in engine.put(drafts)}
        except EngineUnavailable as error:
            failures.append(error)
    assert "\n" not in str(failures[0])
    balloon.unlink()
    small.kill()
    small.start()
    again = {each.id for each in engine.put(drafts)}
    ids = drain(engine)
    assert accepted | again <= set(ids) <= tried
    assert len(ids) == len(set(ids))


def test_no_free_connection_under_traffic() -> None:
    """Programs that lose their connections continue as soon as they get new ones."""
    with PostgresServer(
        fsync="off", max_connections=12, superuser_reserved_connections=2
    ) as server:
        server.execute("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app")
        url = server.url.replace("postgres@", "app@")
        with Traffic(url, "crowded") as traffic:
            traffic.wait_for_more()
            with contextlib.ExitStack() as others:

                def finds_none_free() -> bool:
                    """Take the connections of the programs, which try to get them back."""
                    server.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE application_name = 'laneway'"
                    )
                    with contextlib.suppress(psycopg.OperationalError):
                        while True:
                            others.enter_context(contextlib.closing(psycopg.connect(url)))
                    return any("no free" in each.last_failure for each in traffic.publishers)

                until(finds_none_free, "a call finds no free connection")
            traffic.wait_for_more()
            traffic.end()


def test_a_primary_that_becomes_a_standby(
    opened: Opened, pair: tuple[PostgresServer, Standby]
) -> None:
    """A read-only server is named as such, when it is opened and in an open engine."""
    primary, standby = pair
    with pytest.raises(EngineUnavailable, match="read-only standby; name the primary"):
        opened(standby.url)
    engine = opened(primary.url)
    engine.put(some(1))
    primary.stop()
    (primary.folder / "data" / "standby.signal").touch()
    primary.start()
    with pytest.raises(EngineUnavailable, match="read-only standby; name the primary") as caught:
        engine.put(some(1, start=1))
    assert caught.value.applied is False
