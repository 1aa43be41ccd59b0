"""
Moving a shard to another server while producers and workers use it, see `servers`.

The shard's transactions wait while its tables are copied: longer than `LOCK_SECONDS` only if there
is that much to copy, and then they raise EngineUnavailable without having changed anything.

A move that was interrupted is repeated. Until the old schema is renamed, nobody uses the copy: the
repetition removes it and copies again. From then on nobody uses the old schema: the repetition only
changes the table of places and removes what is left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
from psycopg import sql
from psycopg.errors import LockNotAvailable

from laneway.engines.postgres import statements
from laneway.engines.postgres.address import Address, parse, schema_of
from laneway.engines.postgres.connecting import ServerConnection, connect, local_settings
from laneway.engines.postgres.errors import explain
from laneway.engines.postgres.server_check import check_server
from laneway.engines.postgres.servers import (
    MOVED,
    MOVED_FROM,
    MOVED_TO,
    ShardServer,
    has_schema,
    read_setting,
    write_setting,
)
from laneway.engines.postgres.statements import LAYOUT
from laneway.engines.postgres.store import (
    LOCK_CLASS,
    LOCK_SECONDS,
    MOVER,
    READ_CLASS,
    lock_number,
)
from laneway.engines.sql.engine import PLACE
from laneway.engines.sql.shard_opening import COMPLETE
from laneway.errors import EngineUnavailable, NoNamespace, SchemaMismatch, UsageError

STOPPED_MS = 30_000
"""After so long the server ends a move whose program has stopped."""

_SETTINGS: dict[str, object] = {
    "synchronous_commit": "on",
    "lock_timeout": LOCK_SECONDS * 1000,
    "statement_timeout": 0,
    "idle_in_transaction_session_timeout": STOPPED_MS,
    "transaction_timeout": 0,
    "tcp_user_timeout": STOPPED_MS,
}

READERS_MS = 2_500
"""How long readers are waited for at once: those that come meanwhile wait for less than 3 s."""

READERS_TRIES = 10


def shard_servers(url: str, namespace: str) -> list[str]:
    """See `laneway.engines.shard_servers`."""
    home = parse(url)
    with _explained(home, namespace, applied=False):
        shards = _shards(home, namespace)
        return [
            home.place,
            *(
                server.address(server.find()).place
                for server in (ShardServer(home, namespace, each) for each in range(1, shards))
            ),
        ]


def move_shard(url: str, namespace: str, shard: int, place: str) -> int:
    """See `laneway.engines.move_shard`."""
    home = parse(url)
    server, target = ShardServer(home, namespace, shard), home.at(place)
    with _explained(home, namespace, applied=False):
        shards = _shards(home, namespace)
    with _explained(home, namespace, applied=None):
        if shards == 1:
            raise UsageError(
                f"namespace {namespace} has one schema, so it has no shards to move; create one"
                " with ?shards=4, or move it with `laneway migrate`"
            )
        if not 1 <= shard < shards:
            raise UsageError(
                f"namespace {namespace} has the shards 0 to {shards - 1}, got {shard}"
                if shard
                else "shard 0 cannot move: its place is that of the URL, and it lists the"
                " places of the other shards; move the whole namespace with `laneway migrate`"
            )
        before = _find(server)
        source = server.address(before)
        copied = 0
        if _where(source) != _where(target):
            _check(source, target)
            copied = _move(server, before, target)
            server.record(target.place, before)
        _remove_old(server, target)
    return copied


def _shards(home: Address, namespace: str) -> int:
    schema = schema_of(namespace)
    with connect(home.server, is_pooled=home.is_pooled) as connection:
        if not has_schema(connection, schema):
            raise NoNamespace(
                f"{home.name} schema {schema}: there is no such schema; check the URL and the"
                " namespace, or start a program that publishes to it"
            )
        place = read_setting(connection, schema, PLACE)
        if place is None or read_setting(connection, schema, COMPLETE) is None:
            return 1
    _, shards = msgspec.json.decode(place, type=tuple[int, int])
    return shards


def _find(server: ShardServer) -> str | None:
    """The place of a shard; the table is right then, even if a move was interrupted."""
    while True:
        place = server.find()
        address = server.address(place)
        with connect(address.server, is_pooled=address.is_pooled) as connection:
            if has_schema(connection, server.schema):
                return place
            if not server.follow(connection, place):
                raise NoNamespace(
                    f"{address.name} schema {server.schema}: this schema of namespace"
                    f" {server.namespace} is missing; put it back, or restore a copy of all schemas"
                )


def _where(address: Address) -> tuple[str, str, str]:
    """The server and the database of an address, to compare it."""
    of = psycopg.conninfo.conninfo_to_dict(address.server)
    return str(of.get("host", "")), str(of.get("port", "5432")), str(of.get("dbname", ""))


def _check(source: Address, target: Address) -> None:
    """Raise EngineUnavailable if the target lacks something."""
    there = {check.name: check for check in check_server(source.server)}
    for check in check_server(target.server):
        is_needed = check.name == "rights" or (
            check.name.startswith("durability") and there[check.name].available
        )
        fails = check.name in ("server", "encoding") and not check.ok
        if fails or (is_needed and not check.available):
            raise EngineUnavailable(f"{target.name}: {check.name}: {check.detail}; {check.advice}")


def _move(server: ShardServer, before: str | None, target: Address) -> int:
    """Copy the schema, and rename the old one; returns how many rows it has."""
    source, schema = server.address(before), server.schema
    number = lock_number(schema)
    with (
        _connected(source) as old,
        _connected(target) as new,
        _transaction(old),
    ):
        old.execute("SELECT pg_advisory_xact_lock(%s, %s)", (LOCK_CLASS, number))
        if not has_schema(old, schema):
            raise EngineUnavailable(
                f"{source.name} schema {schema}: another program has just moved this shard;"
                " nothing was changed"
            )
        layout = old.execute(
            sql.SQL("SELECT max(version) FROM {}").format(sql.Identifier(schema, "layout"))
        ).fetchone()
        if layout != (LAYOUT,):
            raise SchemaMismatch(
                f"{source.name} schema {schema}: the tables have another layout than this"
                " Laneway knows; move the shard with the version that uses it"
            )
        with _transaction(new):
            free = new.execute(
                "SELECT pg_try_advisory_xact_lock(%s, %s)", (LOCK_CLASS, number)
            ).fetchone()
            if free != (True,):
                raise UsageError(
                    f"{target.name} is the database that has the shard, or has another namespace"
                    " of this name, which is in use"
                )
            copied = _copy(old, new, schema)
            write_setting(new, schema, MOVED_FROM, before or "")
        _rename(old, schema, target)
    return copied


@contextlib.contextmanager
def _connected(address: Address) -> Iterator[ServerConnection]:
    with connect(
        address.server,
        is_pooled=address.is_pooled,
        application_name=MOVER,
        tcp_user_timeout=STOPPED_MS,
    ) as connection:
        yield connection


@contextlib.contextmanager
def _transaction(connection: ServerConnection) -> Iterator[None]:
    with connection.transaction():
        connection.execute(local_settings(_SETTINGS, connection).encode())
        yield


def _copy(old: ServerConnection, new: ServerConnection, schema: str) -> int:
    """Copy all tables, the states of sequences, and rights; returns the number of rows."""
    name = sql.Identifier(schema)
    if has_schema(new, schema):
        if read_setting(new, schema, MOVED_FROM) is None:
            raise UsageError(
                f"schema {schema} exists on the new server, and it is not the copy of an"
                " interrupted move; remove it, or choose another database"
            )
        new.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(name))
    new.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    new.execute(sql.SQL("SET LOCAL search_path = {}").format(name))
    new.execute(statements.tables().encode())
    tables = old.execute(_TABLES, (schema,)).fetchall()
    # Should anything write without the shard's lock, it waits, and fails once this is renamed.
    old.execute(
        sql.SQL("LOCK TABLE {} IN SHARE MODE").format(
            sql.SQL(", ").join(sql.Identifier(schema, table) for table, _ in tables)
        )
    )
    copied = 0
    for table, columns in tables:
        what = sql.SQL("{} ({})").format(
            sql.Identifier(schema, table), sql.SQL(", ").join(map(sql.Identifier, columns))
        )
        reader, writer = old.cursor(), new.cursor()
        with (
            reader.copy(sql.SQL("COPY {} TO STDOUT (FORMAT binary)").format(what)) as rows,
            writer.copy(sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(what)) as copy,
        ):
            for block in rows:
                copy.write(block)
        copied += max(writer.rowcount, 0)
    for sequence, last in old.execute(_SEQUENCES, (schema,)).fetchall():
        name = sql.Identifier(schema, sequence)
        new.execute("SELECT setval(%s, %s)", (name.as_string(new), last))
    for kind, of, role, right in old.execute(_RIGHTS, {"schema": schema}).fetchall():
        names = (schema, of) if of else (schema,)
        new.execute(
            sql.SQL("GRANT {} ON {} {} TO {}").format(
                *(sql.SQL(text) for text in (right, kind)),
                sql.Identifier(*names),
                sql.SQL(role),
            )
        )
    return copied


_TABLES = """
SELECT c.relname::text, array_agg(a.attname::text ORDER BY a.attnum)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE n.nspname = %s AND c.relkind = 'r' AND c.relpersistence = 'p' AND a.attgenerated = ''
 GROUP BY c.relname ORDER BY c.relname"""
"""Unlogged tables are about running processes only."""
_SEQUENCES = """
SELECT sequencename::text, last_value FROM pg_sequences
 WHERE schemaname = %s AND last_value IS NOT NULL"""
_RIGHTS = """
SELECT kind, name, CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE grantee::regrole::text END,
       privilege_type
  FROM (SELECT 'SCHEMA' AS kind, '' AS name, nspowner AS owner, nspacl AS acl
          FROM pg_namespace WHERE nspname = %(schema)s
        UNION ALL
        SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, relname::text, relowner,
               relacl
          FROM pg_class
         WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %(schema)s)
           AND relkind IN ('r', 'S')) AS things, aclexplode(acl)
 WHERE grantee <> owner
   AND privilege_type IN ('USAGE', 'SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE')"""


def _rename(old: ServerConnection, schema: str, target: Address) -> None:
    """Nobody can use the old schema from the commit on, and it says where the copy is."""
    _wait_for_readers(old, lock_number(schema))
    write_setting(old, schema, MOVED_TO, target.place)
    moved = sql.Identifier(schema + MOVED)
    old.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(moved))
    old.execute(sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(sql.Identifier(schema), moved))


def _wait_for_readers(old: ServerConnection, number: int) -> None:
    old.execute(f"SET LOCAL lock_timeout = {READERS_MS}".encode())
    for left in reversed(range(READERS_TRIES)):
        try:
            with old.transaction():  # a savepoint
                old.execute("SELECT pg_advisory_xact_lock(%s, %s)", (READ_CLASS, number))
            return
        except LockNotAvailable:
            if not left:
                raise


def _remove_old(server: ShardServer, target: Address) -> None:
    """Remove the renamed schema of a move that is complete."""
    with connect(target.server, is_pooled=target.is_pooled) as connection:
        place = read_setting(connection, server.schema, MOVED_FROM)
    if place is None:
        return
    source = server.address(place or None)
    with connect(source.server, is_pooled=source.is_pooled) as connection:
        moved = server.schema + MOVED
        if has_schema(connection, moved) and (
            read_setting(connection, moved, MOVED_TO) == target.place
        ):
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(moved)))


@contextlib.contextmanager
def _explained(home: Address, namespace: str, *, applied: bool | None) -> Iterator[Any]:
    try:
        yield
    except psycopg.Error as error:
        raise explain(f"{home.name} namespace {namespace}", error, applied=applied) from error
