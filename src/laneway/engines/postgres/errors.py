"""What errors of PostgreSQL mean for the caller."""

from __future__ import annotations

import re

from psycopg import errors, pq

from laneway.engines.postgres.address import OWN_OPTIONS
from laneway.errors import BadMessage, EngineCorrupt, EngineUnavailable, LanewayError, UsageError
from laneway.printable import meant

_CHANGED = {False: "nothing was changed", None: "whether the change happened is not known"}

_NOT_CONNECTED = (
    (
        "password authentication failed",
        "the password is wrong; correct it in the URL, in PGPASSWORD or in ~/.pgpass",
    ),
    (
        "no password supplied",
        "the password is missing; write it into the URL, PGPASSWORD or ~/.pgpass",
    ),
    (
        "pg_hba.conf",
        "the server does not let this user in; check the URL and the server's pg_hba.conf",
    ),
    (
        "unsupported startup parameter",
        "a pooler refuses an option of the URL; leave it out, or connect to the server itself",
    ),
    ("database .* does not exist", "the database does not exist; create it, or check the URL"),
    ("role .* does not exist", "the user does not exist; create it, or check the URL"),
    (
        "permission denied for database",
        "this user must not connect to the database; GRANT CONNECT ON DATABASE",
    ),
    (
        "too many (clients|connections)|connection slots are reserved",
        "the server has no free connection; raise max_connections, or run fewer processes",
    ),
)
"""What libpq reports while it connects, which has no SQLSTATE, and what to do."""

_WRONG_URL = re.compile(
    'invalid URI query parameter: "(?P<option>.*)"|invalid (port number|[a-z_]+ value)'
    "|bad value for|missing key/value separator|percent-encoded|Servname not supported"
)
"""What libpq and psycopg report about a URL that they cannot use, whatever the server does."""

_CURES: tuple[tuple[type[errors.Error], str], ...] = (
    (errors.DiskFull, "the server's disk is full; make room and try again"),
    (
        errors.InsufficientPrivilege,
        "this user lacks a right; `docs/engines.md` lists the rights that Laneway needs",
    ),
    (
        errors.ReadOnlySqlTransaction,
        "the server is read-only; name the primary, or all with ?target_session_attrs=read-write",
    ),
    (
        errors.LockNotAvailable,
        "another process has held the lock of this shard for too long; try again",
    ),
    (
        errors.IdleInTransactionSessionTimeout,
        "this process was stopped inside a transaction, so the server ended it; try again",
    ),
    (
        errors.UndefinedTable,
        "a table is missing; was the schema dropped, or the right to use it revoked? Open it again",
    ),
)


def explain(name: str, error: errors.Error, *, applied: bool | None = False) -> LanewayError:
    """The exception for a user. `applied`: as in EngineUnavailable."""
    text = _one_line(error)
    for kind, cure in _CURES:
        if isinstance(error, kind):
            return EngineUnavailable(
                f"{name}: {cure} ({text}); {_CHANGED[applied]}", applied=applied
            )
    if isinstance(error, errors.DataError | errors.ProgramLimitExceeded):
        return BadMessage(
            f"{name}: the call has a value that PostgreSQL does not take ({text}); nothing was"
            " changed"
        )
    if isinstance(error, errors.DataCorrupted | errors.IndexCorrupted):
        return EngineCorrupt(f"{name}: the tables are damaged ({text}); restore a backup")
    if error.sqlstate is None:
        return _without_connection(name, text, applied)
    return EngineUnavailable(f"{name}: {text}; {_CHANGED[applied]}", applied=applied)


def _without_connection(name: str, text: str, applied: bool | None) -> LanewayError:
    if wrong := _WRONG_URL.search(text):
        known = (*OWN_OPTIONS, *(each.keyword.decode() for each in pq.Conninfo.get_defaults()))
        advice = meant(wrong["option"] or "", known) or "; correct it"
        return UsageError(f"{name}: the URL cannot be used ({text}){advice}")
    cures = (cure for pattern, cure in _NOT_CONNECTED if re.search(pattern, text))
    cure = next(cures, "no connection")
    advice = ", check the server and try again" if cure == "no connection" else ""
    return EngineUnavailable(
        f"{name}: {cure} ({text}); {_CHANGED[applied]}{advice}", applied=applied
    )


def was_applied(error: errors.Error) -> bool | None:
    """
    Whether a commit that ended with this error has happened. A server that answers with an error
    and keeps the connection has rolled the transaction back.
    """
    return False if error.diag.severity_nonlocalized == "ERROR" else None


def _one_line(error: errors.Error) -> str:
    text = error.diag.message_primary or str(error)
    return "; ".join(line.strip() for line in text.strip().splitlines())
