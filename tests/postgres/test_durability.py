"""
What lasts: nothing that was accepted is lost by the failures that the durability covers;
docs/engines.md has the same in a table.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from laneway.engines.base import FullEngine
from laneway.engines.postgres import flusher
from laneway.errors import EngineUnavailable
from laneway.message import Settlement
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import until
from tests.postgres.conftest import drain, some, store_of
from tests.postgres.standby import Standby
from tests.postgres.traffic import BATCH, Publisher

Opened = Callable[..., FullEngine]


def _kill_the_server(server: PostgresServer) -> None:
    server.kill()
    server.start()


def _kill_a_backend(server: PostgresServer) -> None:
    """The server ends all others too and recovers from its log."""
    rows = server.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'laneway' ORDER BY random()"
    )
    os.kill(rows[0][0], signal.SIGKILL)


@pytest.mark.parametrize("crash", [_kill_the_server, _kill_a_backend])
def test_a_crash_under_load_loses_nothing(
    server: PostgresServer, opened: Opened, crash: Callable[[PostgresServer], None]
) -> None:
    """fsync: what was accepted is delivered, once; ids and fences only grow."""
    engine = opened(server.url)
    space = engine.namespace  # type: ignore[attr-defined]
    engine.put(some(1, start=1_000_000))
    before = engine.lease(1).leases[0]
    publishers = [Publisher(opened(server.url, namespace=space), name) for name in "ab"]
    publishers.append(Publisher(publishers[0].engine, "c"))
    for publisher in publishers:
        publisher.wait_for(2 * BATCH)
    crash(server)
    for publisher in publishers:
        publisher.wait_for(2 * BATCH)
    accepted = set.union(*(publisher.end() for publisher in publishers))
    leases = engine.lease(5).leases
    assert min(lease.fence for lease in leases) > before.fence
    engine.settle([Settlement(each.handle, each.fence, "release") for each in leases])
    ids = drain(engine)
    assert set(ids) >= accepted
    assert len(ids) == len(set(ids)), "and none twice: what was published again is a duplicate"
    assert [check for check in engine.doctor() if not check.ok] == []


def test_a_commit_before_a_crash_is_not_confirmed_after_it(
    server: PostgresServer, opened: Opened
) -> None:
    """
    A thread that comes to wait for the disk when the server has crashed and recovered has no
    answer, because its commit may be lost; the next call works.
    """
    engine = opened(server.url)
    store = store_of(engine)
    engine.put(some(1))
    with store.writing(durable=True, syncs=False) as connection:
        connection.run("setting_write", "lost", "1")
    commit = store.written
    _kill_the_server(server)
    engine.put(some(1, start=1))
    with pytest.raises(EngineUnavailable) as caught:
        store.sync(commit)
    assert caught.value.applied is None
    assert drain(engine) == ["m0", "m1"]


def test_a_standby_that_takes_over_has_everything(
    opened: Opened, pair: tuple[PostgresServer, Standby]
) -> None:
    """
    replicated: the primary is killed under load, its standby is promoted, and clients find it by
    the URL that names both.
    """
    primary, standby = pair
    url = (
        f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
        "?target_session_attrs=read-write"
    )
    engine = opened(url, durability="replicated")
    publishers = [Publisher(engine, name) for name in "ab"]
    for publisher in publishers:
        publisher.wait_for(3 * BATCH)
    before = engine.lease(1).leases[0]
    primary.kill()
    standby.execute("SELECT pg_promote()")
    failed = set.union(*(publisher.accepted for publisher in publishers))
    until(
        lambda: "synchronous_standby_names" in publishers[0].last_failure,
        "publishers see that the new primary has no standby",
    )
    after = opened(url, durability="fsync", namespace=engine.namespace)  # type: ignore[attr-defined]
    accepted = set.union(*(publisher.end() for publisher in publishers))
    assert accepted >= failed
    leases = after.lease(5).leases
    assert min(lease.fence for lease in leases) > before.fence
    after.settle([Settlement(each.handle, each.fence, "release") for each in leases])
    assert {*drain(after), before.id} >= accepted


def test_a_standby_that_is_away_bounds_the_wait(
    opened: Opened, pair: tuple[PostgresServer, Standby], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A publish fails after a time, and it is not known whether it was applied. Repetitions do not
    use up the server's connections. An operator who cancels the wait confirms nothing, although
    the server then reports success, and even if the role hides warnings. Nothing is lost, and all
    works when the standby is back.
    """
    primary, standby = pair
    primary.execute("ALTER ROLE postgres SET client_min_messages = error")
    engine = opened(primary.url, durability="replicated")
    engine.put(some(1))
    standby.stop()
    monkeypatch.setattr(flusher, "CONFIRM_SECONDS", 0.2)
    for _ in range(5):
        with pytest.raises(EngineUnavailable, match="synchronous standby") as caught:
            engine.put(some(2, start=1))
        assert caught.value.applied is None
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    assert primary.execute(waiting) == [(1,)]
    monkeypatch.undo()
    primary.execute(
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    )
    with pytest.raises(EngineUnavailable, match="canceling wait") as caught:
        engine.put(some(2, start=1))
    assert caught.value.applied is None
    standby.start()
    assert {each.outcome for each in engine.put(some(3, start=1))} <= {"accepted", "duplicate"}
    assert sorted(drain(engine)) == ["m0", "m1", "m2", "m3"]
