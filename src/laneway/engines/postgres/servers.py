"""
Which server has a shard: the shards of a namespace may be on several servers.

The first schema is on the server that the URL names. A row of its table `setting` names the place
of each shard that has moved, as `HOST:PORT/DATABASE`. User, password and options are always those
of the URL.

A move ends by renaming the old schema. So a process that still uses it gets an error from the next
statement, looks where the shard is now, and begins its transaction again there.

Why this is correct. The copy is committed before the old schema is renamed, and the old schema is
locked from before the copy until then: so exactly one of the two can be used at any time, and the
copy has all that the old one had. The renamed schema says where the copy is, so a process finds it
even if the program that moves the shard ends before it has changed the row.
"""

from __future__ import annotations

import contextlib

import msgspec
import psycopg
from psycopg import sql

from laneway.engines.postgres.address import Address, schema_of
from laneway.engines.postgres.connecting import ServerConnection, connect

MOVED = "~"
"""The end of the name of a schema that has moved."""

MOVED_TO, MOVED_FROM = "moved to", "moved from"
"""The settings of a renamed schema, and of a copy."""


class ShardServer(msgspec.Struct, frozen=True):
    """The place of one shard. `home`: the address of the first schema."""

    home: Address
    namespace: str
    shard: int

    @property
    def schema(self) -> str:
        """The name of the shard's schema, on any server."""
        return schema_of(self.namespace, self.shard)

    def address(self, place: str | None) -> Address:
        return self.home.at(place) if place is not None else self.home

    def find(self) -> str | None:
        """The place in the table; None: with the first schema. Raises psycopg.Error."""
        with self._connect() as connection:
            return read_setting(connection, schema_of(self.namespace), self._name)

    def follow(self, connection: ServerConnection, place: str | None) -> bool:
        """
        Correct the table if the shard was at this place and has moved. Returns whether the shard is
        where `find` says now, although it was not at this place a moment ago.
        """
        with contextlib.suppress(psycopg.errors.UndefinedTable):  # the move has just been completed
            new = read_setting(connection, self.schema + MOVED, MOVED_TO)
            if new is not None:
                self.record(new, place)
        return self.find() != place or has_schema(connection, self.schema)

    def record(self, place: str, before: str | None) -> None:
        """Change the table, unless another program has changed it."""
        name = schema_of(self.namespace)
        with self._connect() as connection, connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = on")
            connection.execute(
                sql.SQL(
                    "INSERT INTO {} AS stored (name, value) VALUES (%s, %s) ON CONFLICT (name)"
                    " DO UPDATE SET value = excluded.value WHERE stored.value = %s"
                ).format(_settings(name)),
                (self._name, place, before),
            )

    def _connect(self) -> ServerConnection:
        return connect(self.home.server, is_pooled=self.home.is_pooled)

    @property
    def _name(self) -> str:
        return name_of(self.shard)


def name_of(shard: int) -> str:
    return f"server of {shard}"


def has_schema(connection: psycopg.Connection, name: str) -> bool:
    row = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (name,)).fetchone()
    return row is not None


def read_setting(connection: psycopg.Connection, schema: str, name: str) -> str | None:
    statement = sql.SQL("SELECT value FROM {} WHERE name = %s").format(_settings(schema))
    row = connection.execute(statement, (name,)).fetchone()
    return str(row[0]) if row is not None else None


def write_setting(connection: psycopg.Connection, schema: str, name: str, value: str) -> None:
    statement = sql.SQL(
        "INSERT INTO {} (name, value) VALUES (%s, %s)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    ).format(_settings(schema))
    connection.execute(statement, (name, value))


def _settings(schema: str) -> sql.Identifier:
    return sql.Identifier(schema, "setting")
