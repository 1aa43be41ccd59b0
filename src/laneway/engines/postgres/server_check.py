"""The doctor's checks of a server, before anything is created on it."""

from __future__ import annotations

import msgspec
import psycopg

from laneway.engines.base import Check
from laneway.engines.postgres.address import parse
from laneway.engines.postgres.connecting import ServerConnection, connect
from laneway.engines.postgres.errors import explain
from laneway.engines.postgres.store import LEAST_SERVER

OLD_MINUTES = 5
"""A transaction that is open for so long keeps the server from removing old rows."""

MOST_OF_A_PROCESS = 3
"""Connections that a process opens at most."""

MOST_DEAD = 1_000_000
"""More dead rows than this, and ten times the live ones, are a disk that fills up."""

_FACTS = """SELECT current_setting('server_version'), current_setting('server_encoding'),
       pg_is_in_recovery(), has_database_privilege(current_database(), 'CREATE'), current_user,
       current_setting('synchronous_standby_names'), current_setting('max_connections')::int8,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')"""
_OLD = """SELECT pid, (extract(epoch FROM now() - xact_start) / 60)::int8 FROM pg_stat_activity
 WHERE datname = current_database() AND xact_start < now() - make_interval(mins => %s)
 ORDER BY xact_start LIMIT 1"""
_DEAD = """SELECT coalesce(sum(n_dead_tup), 0)::int8, coalesce(sum(n_live_tup), 0)::int8
  FROM pg_stat_user_tables WHERE schemaname LIKE 'laneway\\_%'"""


def check_server(url: str) -> list[Check]:
    """Check a server and the durabilities that it can keep. Creates nothing on it."""
    address = parse(url)
    try:
        with (
            connect(address.server, is_pooled=address.is_pooled) as connection,
            connect(
                address.listen_server,
                is_pooled=address.is_pooled if address.listen_server == address.server else None,
            ) as listener,
        ):
            checks = _checks(connection, listener)
    except psycopg.Error as error:
        what, _, advice = str(explain(address.name, error)).partition("; ")
        return [Check("server", ok=False, detail=what, advice=advice)]
    return [
        msgspec.structs.replace(each, advice="") if each.ok and each.available else each
        for each in checks
    ]


def _checks(connection: ServerConnection, listener: ServerConnection) -> list[Check]:
    row = connection.execute(_FACTS).fetchone()
    assert row is not None
    version, encoding, is_standby, may_create, user, standbys, most, used = row
    if connection.info.server_version < LEAST_SERVER:
        return [
            Check(
                "server",
                ok=False,
                detail=f"PostgreSQL {version} is too old",
                advice=f"use PostgreSQL {LEAST_SERVER // 10_000} or newer",
            )
        ]
    checks = [
        Check(
            "server",
            ok=not is_standby,
            detail=f"PostgreSQL {version}{', a read-only standby' if is_standby else ''}",
            advice="name the primary, or all servers with ?target_session_attrs=read-write",
        ),
        Check(
            "encoding",
            ok=encoding == "UTF8",
            detail=str(encoding),
            advice="create a database with ENCODING 'UTF8' TEMPLATE template0",
        ),
        Check(
            "rights",
            ok=True,
            detail=f"{user} may {'' if may_create else 'not '}create schemas",
            advice="" if may_create else "a namespace needs a schema that another user has created",
            available=bool(may_create),
        ),
        Check(
            "connections",
            ok=most - used > MOST_OF_A_PROCESS,
            detail=f"{used} of {most} are used",
            advice="raise max_connections, or run fewer processes: each one opens three",
        ),
        Check(
            'durability "replicated"',
            ok=True,
            detail=f"standbys: {standbys}" if standbys else "not on this server",
            advice="" if standbys else "set synchronous_standby_names",
            available=bool(standbys),
        ),
        _notifications(connection, listener),
    ]
    old = connection.execute(_OLD, (OLD_MINUTES,)).fetchone()
    checks.append(
        Check(
            "open transactions",
            ok=old is None,
            detail=(
                f"process {old[0]} has one that is open for {old[1]} minutes"
                if old
                else f"none is open for {OLD_MINUTES} minutes"
            ),
            advice="end it: the server cannot remove rows that it may still read",
        )
    )
    dead, live = connection.execute(_DEAD).fetchone() or (0, 0)
    checks.append(
        Check(
            "dead rows",
            ok=dead < MOST_DEAD or dead < 10 * live,
            detail=f"{dead} dead and {live} live rows in all namespaces",
            advice="look whether autovacuum runs, and for transactions that stay open",
        )
    )
    return checks


def _notifications(connection: ServerConnection, listener: ServerConnection) -> Check:
    """Check whether a notification from one connection arrives on the other one."""
    if listener.is_pooled:
        return Check(
            "notifications",
            ok=True,
            detail="a pooler hides LISTEN, so idle workers look every 20 to 250 ms",
            advice="add &listen=HOST:PORT of the server itself to the URL",
            available=False,
        )
    listener.execute("LISTEN laneway_doctor")
    connection.execute("NOTIFY laneway_doctor")
    return Check(
        "notifications",
        ok=any(True for _ in listener.notifies(timeout=2, stop_after=1)),
        detail="LISTEN and NOTIFY between two connections"
        + (", calls through a pooler" if connection.is_pooled else ""),
        advice="look whether the URL and its option listen= name the same server",
    )
