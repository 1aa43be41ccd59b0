"""Shards on several servers: moved while they are used, and after a move that was interrupted."""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from laneway.cli.main import main
from laneway.engines import move_shard, open_engine, shard_servers
from laneway.engines.base import FullEngine, Settings
from laneway.engines.postgres import moving_shards
from laneway.engines.postgres.address import parse, schema_of
from laneway.engines.postgres.servers import ShardServer
from laneway.errors import EngineUnavailable, UsageError
from laneway.message import Draft, Settlement
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import until
from tests.postgres import pgbouncer
from tests.postgres.conftest import drain, some
from tests.postgres.pgbouncer import Pgbouncer

Opened = Callable[..., FullEngine]
Forked = Callable[[Callable[[], object]], int]


@pytest.fixture(scope="module")
def other() -> Iterator[PostgresServer]:
    """The server to which shards move."""
    with PostgresServer(fsync="off") as server:
        yield server


@pytest.fixture
def space() -> str:
    return uuid.uuid4().hex


def place(server: PostgresServer) -> str:
    return f"127.0.0.1:{server.port}/postgres"


def schemas(server: PostgresServer, space: str) -> list[str]:
    rows = server.execute(
        f"SELECT nspname FROM pg_namespace WHERE nspname LIKE 'laneway_{space}%' ORDER BY 1"
    )
    return [name for (name,) in rows]


def is_well(engine: FullEngine) -> None:
    assert [check for check in engine.doctor() if not check.ok] == []


class Log:
    """A file to which processes append lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def add(self, ids: list[str]) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.write(file, "".join(f"{each}\n" for each in ids).encode())
        os.close(file)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()


def produce(url: str, space: str, name: str, accepted: Log, stop: Path) -> None:
    """A process that publishes until `stop` exists."""
    engine = open_engine(url, Settings(namespace=space))
    n = 0
    while not stop.exists():
        drafts = [Draft(f"t.{each % 20}", b"x", id=f"{name}{each}") for each in range(n, n + 20)]
        drafts.append(Draft(f"t.{n % 7}", b"x"))  # alone, into the inbox
        receipts = engine.put(drafts[:-1]) + engine.put(drafts[-1:])
        accepted.add([each.id for each in receipts])
        n += 20
    os._exit(0)


def consume(url: str, space: str, acked: Log, stop: Path) -> None:
    """A process that works until `stop` exists."""
    engine = open_engine(url, Settings(namespace=space))
    while not stop.exists():
        if not engine.wait(0.2):
            continue
        leases = engine.lease(50).leases
        answers = engine.settle([Settlement(each.handle, each.fence) for each in leases])
        assert set(answers) <= {"acked"}, answers
        acked.add([each.id for each in leases])
    os._exit(0)


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_moves_under_traffic(
    server: PostgresServer,
    other: PostgresServer,
    opened: Opened,
    forked: Forked,
    space: str,
    tmp_path: Path,
) -> None:
    """
    Producers and workers in other processes see no error while three shards move and one comes
    back. Each accepted message is delivered once.
    """
    url = server.url + "?shards=4"
    engine = opened(url, namespace=space)
    accepted, acked, stop = Log(tmp_path / "accepted"), Log(tmp_path / "acked"), tmp_path / "stop"
    pids = [
        *(forked(lambda name=name: produce(url, space, name, accepted, stop)) for name in "ab"),  # type: ignore[misc]
        *(forked(lambda: consume(url, space, acked, stop)) for _ in range(2)),
    ]
    for shard, to in ((1, other), (2, other), (3, other), (1, server)):
        before = len(accepted.lines()), len(acked.lines())
        until(
            lambda before=before: (  # type: ignore[misc]
                len(accepted.lines()) > before[0] + 60 and len(acked.lines()) > before[1] + 60
            ),
            "they work on all shards",
        )
        move_shard(url, space, shard, place(to))
    until(lambda: len(accepted.lines()) > before[0] + 150, "they work after the last move")
    stop.touch()
    assert [exit_code(pid) for pid in pids] == [0] * 4
    delivered = acked.lines() + drain(engine)
    assert sorted(delivered) == sorted(accepted.lines())
    is_well(engine)
    home, there = place(server), place(other)
    assert shard_servers(url, space) == [home, home, there, there]
    name = schema_of(space)
    assert schemas(server, space) == [name, f"{name}.1"]
    assert schemas(other, space) == [f"{name}.2", f"{name}.3"]
    assert drain(opened(server.url, namespace=space)) == []


def _ends(*_: object) -> None:
    os._exit(9)


STEPS = {
    "while it copies": (moving_shards, "write_setting"),
    "when it has copied": (moving_shards, "_rename"),
    "when the old schema is renamed": (ShardServer, "record"),
    "before it removes the old schema": (moving_shards, "_remove_old"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_move_that_is_killed_is_repeated(
    server: PostgresServer,
    other: PostgresServer,
    opened: Opened,
    forked: Forked,
    space: str,
    step: str,
) -> None:
    """The shard can be used at any time, where it was or where it is; a repetition completes it."""
    url = server.url + "?shards=2"
    engine = opened(url, namespace=space)
    engine.put(some(100))

    def child() -> None:
        target, name = STEPS[step]
        setattr(target, name, _ends)
        move_shard(url, space, 1, place(other))

    assert exit_code(forked(child)) == 9
    engine.put(some(100, start=100))
    assert opened(url, namespace=space).lease(1).leases
    assert len(drain(engine)) == 199
    engine.put(some(100, start=200))
    move_shard(url, space, 1, place(other))
    assert len(drain(engine)) == 100
    is_well(engine)
    assert shard_servers(url, space) == [place(server), place(other)]
    name = schema_of(space)
    assert schemas(server, space) == [name]
    assert schemas(other, space) == [f"{name}.1"]


def test_moves_that_are_killed_at_random(
    server: PostgresServer, other: PostgresServer, opened: Opened, forked: Forked, space: str
) -> None:
    """Back and forth: nothing is lost, nothing comes twice."""
    url = server.url + "?shards=2"
    engine = opened(url, namespace=space)
    count, ids = 0, []
    for n in range(int(os.environ.get("LANEWAY_KILLS", "3"))):
        engine.put(some(500, start=count))
        count += 500
        to = place(other if n % 2 else server)
        pid = forked(lambda to=to: move_shard(url, space, 1, to))  # type: ignore[misc]
        time.sleep(random.uniform(0, 0.4))
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        leases = engine.lease(100).leases
        engine.settle([Settlement(each.handle, each.fence) for each in leases])
        ids += [each.id for each in leases]
        is_well(engine)
    move_shard(url, space, 1, place(other))
    ids += drain(engine)
    assert sorted(ids) == sorted(f"m{n}" for n in range(count))


def test_reads_find_the_new_place(
    server: PostgresServer, other: PostgresServer, opened: Opened, space: str
) -> None:
    """
    Also a process that only reads, and one whose call waits for the disk while another thread of
    it sees the move.
    """
    url = server.url + "?shards=2"
    engine, reader = opened(url, namespace=space), opened(url, namespace=space)
    engine.put(some(100))
    assert reader.overview().waiting == 100
    (_, store) = (each._store for each in engine._space.stores)  # type: ignore[attr-defined]
    with store.writing(durable=True, syncs=False) as connection:
        connection.run("setting_write", "kept", "1")
    commit = store.written
    move_shard(url, space, 1, place(other))
    assert reader.overview().waiting == 100
    assert reader.wait(0)
    assert engine._space.stores[1].setting("kept") == "1"  # type: ignore[attr-defined]
    store.sync(commit)
    (_, part) = reader.store_parts()
    assert part.name == f"{schema_of(space, 1)} on {place(other)}"


def test_rights_move_too(
    server: PostgresServer, other: PostgresServer, opened: Opened, space: str
) -> None:
    """A user that may use the schema may use the copy; a role that is missing there is named."""
    role = f"role_{space[:8]}"
    url = server.url + "?shards=2"
    opened(url, namespace=space).put(some(50))
    server.execute(f"CREATE ROLE {role} LOGIN")
    for schema in schemas(server, space):
        server.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO {role}')
        for what in ("TABLES", "SEQUENCES"):
            rights = "SELECT, USAGE" if what == "SEQUENCES" else "SELECT, INSERT, UPDATE, DELETE"
            server.execute(f'GRANT {rights} ON ALL {what} IN SCHEMA "{schema}" TO {role}')
    theirs = opened(url.replace("postgres@", f"{role}@"), namespace=space)
    with pytest.raises(EngineUnavailable, match=f'role "{role}" does not exist'):
        move_shard(url, space, 1, place(other))
    theirs.put(some(50, start=50))
    other.execute(f"CREATE ROLE {role} LOGIN")
    move_shard(url, space, 1, place(other))
    assert len(drain(theirs)) == 100


def test_refusals(
    server: PostgresServer, other: PostgresServer, opened: Opened, space: str
) -> None:
    """Each is one line that says what to do, and the shard stays where it is."""
    url = server.url + "?shards=2"
    opened(url, namespace=space)
    for shard, to, text in (
        (0, place(other), "shard 0 cannot move"),
        (2, place(other), "has the shards 0 to 1, got 2"),
        (1, "me:secret@host", "expected HOST:PORT/DATABASE, without a password"),
        (1, f"localhost:{server.port}", "is the database that has the shard"),
    ):
        with pytest.raises(UsageError, match=text):
            move_shard(url, space, shard, to)
    with pytest.raises(EngineUnavailable, match="check the server"):
        move_shard(url, space, 1, "127.0.0.1:9")
    other.execute(f'CREATE SCHEMA "{schema_of(space, 1)}"')
    other.execute(f'CREATE TABLE "{schema_of(space, 1)}".setting (name text, value text)')
    with pytest.raises(UsageError, match="exists on the new server, and it is not the copy"):
        move_shard(url, space, 1, place(other))
    opened(server.url, namespace=f"{space}-one")
    with pytest.raises(UsageError, match="has one schema, so it has no shards"):
        move_shard(server.url, f"{space}-one", 1, place(other))
    assert shard_servers(server.url, f"{space}-one") == [place(server)]
    with pytest.raises(EngineUnavailable, match="nothing was changed"):
        shard_servers("postgresql://127.0.0.1:9/x", space)
    with pytest.raises(UsageError, match="only shards of a PostgreSQL namespace"):
        move_shard("sqlite://", space, 1, place(other))
    assert shard_servers(url, space) == [place(server)] * 2


def test_addresses() -> None:
    """A place replaces the server, and the database if it has one; all else is that of the URL."""
    home = parse("postgresql://me:secret@db1:5433/shop?shards=4&sslmode=require&port=5433")
    assert home.at("db2").server == "postgresql://me:secret@db2/shop?sslmode=require"
    assert home.at("a,b/x").server == "postgresql://me:secret@a,b/x?sslmode=require"
    assert home.at("db2:1/x").place == "db2:1/x"


def test_a_url_without_a_host(server: PostgresServer, opened: Opened) -> None:
    """libpq chooses the server, here by an option; a space in an option stays one."""
    url = (
        f"postgresql:///postgres?host={server.folder}&port={server.port}&user=postgres&shards=2"
        "&options=-c%20datestyle%3Diso&application_name=a%20b%2Bc"
    )
    engine = opened(url)
    engine.put(some(3))
    assert sorted(drain(engine)) == ["m0", "m1", "m2"]
    names = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = 'postgres'"
    assert ("a b+c",) in server.execute(names)


def test_through_a_pooler(
    server: PostgresServer, other: PostgresServer, opened: Opened, space: str
) -> None:
    pgbouncer.require()
    with Pgbouncer(server) as pooler, Pgbouncer(other) as their_pooler:
        url = pooler.url + "?shards=2"
        engine = opened(url, namespace=space)
        engine.put(some(100))
        move_shard(url, space, 1, f"127.0.0.1:{their_pooler.port}")
        assert len(drain(engine)) == 100
        is_well(engine)
        engine.close()


def test_the_command(
    server: PostgresServer, other: PostgresServer, opened: Opened, space: str
) -> None:
    url = server.url + "?shards=2"
    opened(url, namespace=space).put(some(10))
    call = ["--url", url, "--namespace", space, "shard"]
    moved = CliRunner().invoke(main, [*call, "move", "1", place(other)])
    assert moved.exit_code == 0, moved.output
    assert f"shard 1 is on {place(other)}; " in moved.stdout
    listed = CliRunner().invoke(main, [*call, "list", "--json"])
    assert json.loads(listed.stdout) == [place(server), place(other)]
    listed = CliRunner().invoke(main, [*call, "list"])
    assert f"1  {place(other)}" in listed.stdout
