"""
Opening connections, and finding out whether a pooler is between this process and the server.

Behind a pooler in transaction mode each transaction may run on another connection of the server. So
settings hold for one transaction, statements have no names, and no notification arrives.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql
from psycopg.abc import RV, PQGen
from psycopg.types.array import register_all_arrays

IDLE_MS = 1_500
"""After so long the server ends a transaction whose client has stopped, and frees the lock."""


ANSWER_SECONDS = 60.0
"""A server that does not answer for so long is given up: longer than any lock is waited for."""


_ADAPTERS = psycopg.adapt.AdaptersMap(types=psycopg.adapters.types)
"""Psycopg's own: a program may have registered others for all its connections."""
psycopg.postgres.register_default_adapters(_ADAPTERS)
register_all_arrays(_ADAPTERS)


class NoAnswer(psycopg.OperationalError):
    """The server has not answered in time."""


class ServerConnection(psycopg.Connection[Any]):
    """
    A connection to the server, or to a pooler. Its statements raise NoAnswer if the server does not
    answer in time.
    """

    is_pooled = False
    """Whether it is one to a pooler in transaction mode."""
    answer_seconds = ANSWER_SECONDS

    def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        return super().wait(_bounded(gen, self.answer_seconds), *args, **options)


def _bounded(gen: PQGen[RV], seconds: float) -> PQGen[RV]:
    """Psycopg resumes this several times a second with 0 while nothing comes."""
    deadline = time.monotonic() + seconds
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                raise NoAnswer(f"no answer for {seconds:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        result: RV = end.value
        return result
    finally:
        gen.close()


def connect(
    server: str,
    settings: Mapping[str, object] | None = None,
    *,
    is_pooled: bool | None = None,
    **options: object,
) -> ServerConnection:
    """
    Open a connection in autocommit mode. Raises psycopg.Error. `server`: a URL of libpq.
    `settings`: for the session; ignored behind a pooler. `is_pooled`: None if that is not known.
    `options`: of libpq.

    A pooler gives each client a made-up process number, because it cannot give it that of a server
    process. So another number than the server's own means that there is a pooler.
    """
    connection = ServerConnection.connect(
        server,
        autocommit=True,
        context=_ADAPTERS,
        client_encoding="UTF8",
        **(_defaults(server) | options),
    )
    try:
        if is_pooled is None:
            pooled = sql.SQL("(pg_backend_pid() <> {})").format(connection.info.backend_pid)
        else:
            pooled = sql.SQL("{}").format(is_pooled)
        row = connection.execute(
            sql.SQL("SELECT {}").format(pooled) + _set(settings or {}, pooled, connection)
        ).fetchone()
    except BaseException:
        connection.close()
        raise
    assert row is not None
    if row[0]:
        connection.is_pooled = True
        connection.prepare_threshold = None
    return connection


def local_settings(settings: Mapping[str, object], connection: ServerConnection) -> str:
    """The statement that sets these for the current transaction."""
    text = sql.SQL("SELECT true") + _set(settings, sql.SQL("true"), connection)
    return text.as_string(connection)


def _set(
    settings: Mapping[str, object], is_local: sql.Composable, connection: ServerConnection
) -> sql.Composable:
    version = connection.info.server_version
    return sql.SQL("").join(
        sql.SQL(", set_config({}, {}, {})").format(name, str(value), is_local)
        for name, value in settings.items()
        if version >= _SINCE.get(name, 0)
    )


_SINCE = {"transaction_timeout": 170_000}
"""The first version of the server that has a setting."""


def _defaults(url: str) -> dict[str, Any]:
    """What the URL does not say."""
    given = psycopg.conninfo.conninfo_to_dict(url)
    defaults = {
        "connect_timeout": 10,
        "application_name": "laneway",
        "tcp_user_timeout": IDLE_MS,
        "keepalives_idle": 10,
        "keepalives_interval": 2,
    }
    return {name: value for name, value in defaults.items() if name not in given}
