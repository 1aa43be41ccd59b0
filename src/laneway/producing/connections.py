"""
Connections of the caller's own to a database: psycopg, psycopg2, asyncpg, SQLAlchemy, Django and
sqlite3. They are recognized without importing these libraries.

Statements run on the connection that the library's user has, never on the driver's connection
below it: only so they belong to the transaction that the library commits or rolls back.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from itertools import count
from typing import Any

from laneway.errors import UsageError

Rows = Sequence[Any]

ACCEPTED = (
    "a connection of psycopg, asyncpg or sqlite3, a Connection or Session of SQLAlchemy, or"
    " django.db.connection"
)
DATABASES = ("postgresql", "sqlite")
MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric_dollar": "$"}
"""The syntax of a placeholder, by the driver's `paramstyle`."""

_PLAIN = {"stream_results": False, "yield_per": None}
"""Options of a statement in SQLAlchemy: a connection that streams rows would declare a cursor."""


class Connected:
    """
    A connection on which statements run. `call`: the function's name for errors. The statements
    have `?` for each parameter. Raises UsageError for what is no such connection.
    """

    def __init__(self, call: str, connection: Any) -> None:
        self._call = call
        self._connection = connection
        # Not `type`: it may be a proxy, such as werkzeug's LocalProxy.
        modules = {each.__module__ for each in connection.__class__.__mro__}
        libraries = {each.partition(".")[0] for each in modules}
        for library, run, needed in (
            ("sqlalchemy", self._sqlalchemy, ("exec_driver_sql", "get_bind")),
            ("django", self._django, ("vendor",)),
            ("psycopg", self._psycopg, ("cursor",)),
            ("psycopg2", self._psycopg, ("cursor",)),
            ("asyncpg", self._asyncpg, ("transaction",)),
            ("sqlite3", self._sqlite3, ("total_changes",)),
        ):
            if library in libraries and any(hasattr(connection, each) for each in needed):
                self.library, self._run = library, run
                break
        else:
            raise UsageError(
                f"{call}: expected connection to be {ACCEPTED}; got"
                f" {type(connection).__module__}.{type(connection).__qualname__}"
            )
        self._is_async = library == "asyncpg" or (
            any(each.startswith("sqlalchemy.ext.asyncio") for each in modules)
            if library == "sqlalchemy"
            else inspect.iscoroutinefunction(getattr(connection, "commit", None))
        )

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run a statement. Returns its rows, if it has any. Raises UsageError without its table."""
        if self._is_async:
            raise UsageError(f"{self._call}: this connection is for coroutines; {self._advice}")
        try:
            rows: Rows = self._run(sql, parameters)
        except Exception as error:
            self._explain(error)
            raise
        return rows

    @property
    def _advice(self) -> str:
        if self._call == "outbox.create":
            return "take another one, or run `laneway outbox create URL`"
        return f"await a{self._call}(…)"

    async def arun(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """As `run`; on a connection that is not for coroutines, the event loop waits meanwhile."""
        try:
            rows = self._run(sql, parameters)
            return await rows if inspect.isawaitable(rows) else rows
        except Exception as error:
            self._explain(error)
            raise

    @property
    def database(self) -> str:
        """The kind of the database, "postgresql" or "sqlite". Raises UsageError for others."""
        name = {"sqlite3": "sqlite", "django": getattr(self._connection, "vendor", "")}.get(
            self.library, "postgresql"
        )
        if self.library == "sqlalchemy":
            name = self._sqlalchemy_connection().dialect.name
        return self._checked(name)

    def _checked(self, name: str) -> str:
        if name not in DATABASES:
            raise UsageError(f"{self._call}: expected a PostgreSQL or SQLite database, got {name}")
        return name

    def _explain(self, error: BaseException) -> None:
        """Raise UsageError if one of Laneway's tables is missing."""
        each: BaseException | None = error
        while each is not None:
            code = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
            if code == "42P01" or "no such table: laneway_" in str(each):
                raise UsageError(
                    f"{self._call}: this database has no table for it; create the tables with"
                    " `laneway outbox create URL`, app.outbox.create(connection), or the SQL in"
                    " docs/producers.md"
                ) from error
            each = getattr(each, "orig", None) or each.__cause__

    # The libraries

    def _sqlalchemy_connection(self) -> Any:
        given = self._connection
        return given if hasattr(given, "exec_driver_sql") else given.connection()

    def _sqlalchemy(self, sql: str, parameters: Sequence[Any]) -> Any:
        if self._is_async:
            return self._sqlalchemy_async(sql, parameters)
        connection = self._sqlalchemy_connection()
        result = connection.exec_driver_sql(
            *self._for_driver(connection, sql, parameters), execution_options=_PLAIN
        )
        return result.fetchall() if result.returns_rows else ()

    async def _sqlalchemy_async(self, sql: str, parameters: Sequence[Any]) -> Rows:
        given = self._connection
        connection = given if hasattr(given, "exec_driver_sql") else await given.connection()
        result = await connection.exec_driver_sql(
            *self._for_driver(connection, sql, parameters), execution_options=_PLAIN
        )
        return result.fetchall() if result.returns_rows else ()

    def _for_driver(
        self, connection: Any, sql: str, parameters: Sequence[Any]
    ) -> tuple[str, tuple[Any, ...] | None]:
        self._checked(connection.dialect.name)
        style = connection.dialect.paramstyle
        if style not in MARKS:
            raise UsageError(f"{self._call}: drivers with the paramstyle {style} are not supported")
        return marked(sql, MARKS[style]), tuple(parameters) or None

    def _django(self, sql: str, parameters: Sequence[Any]) -> Rows:
        self._checked(self._connection.vendor)
        return self._psycopg_sync(sql, parameters)

    def _psycopg(self, sql: str, parameters: Sequence[Any]) -> Any:
        return (self._psycopg_async if self._is_async else self._psycopg_sync)(sql, parameters)

    def _psycopg_sync(self, sql: str, parameters: Sequence[Any]) -> Rows:
        with self._cursor() as cursor:
            cursor.execute(marked(sql, "%s"), parameters)
            rows: Rows = cursor.fetchall() if _has_rows(sql) else ()
            return rows

    async def _psycopg_async(self, sql: str, parameters: Sequence[Any]) -> Rows:
        async with self._cursor() as cursor:
            await cursor.execute(marked(sql, "%s"), parameters)
            rows: Rows = await cursor.fetchall() if _has_rows(sql) else ()
            return rows

    def _cursor(self) -> Any:
        """
        A plain cursor: that of the connection's own factory may accept only the columns of its
        user, or take other placeholders.
        """
        if self.library == "psycopg2":
            plain = sys.modules["psycopg2.extensions"].cursor
            return self._connection.cursor(cursor_factory=plain)
        if self.library == "psycopg":
            psycopg = sys.modules["psycopg"]
            kind = psycopg.AsyncCursor if self._is_async else psycopg.Cursor
            return kind(self._connection, row_factory=psycopg.rows.tuple_row)
        return self._connection.cursor()

    def _asyncpg(self, sql: str, parameters: Sequence[Any]) -> Any:
        return self._connection.fetch(marked(sql, "$"), *parameters)

    def _sqlite3(self, sql: str, parameters: Sequence[Any]) -> Rows:
        rows: Rows = self._connection.execute(sql, parameters).fetchall()
        return rows


def _has_rows(sql: str) -> bool:
    """Whether a statement returns rows. In a pipeline, the cursor knows that only when it reads."""
    return sql.startswith("SELECT") or " RETURNING " in sql


def marked(sql: str, mark: str) -> str:
    """The statement with another mark than `?` for its parameters; "$": they are numbered."""
    if mark == "?":
        return sql
    numbers = count(1)
    first, *rest = sql.split("?")
    return first + "".join(f"{mark}{next(numbers) if mark == '$' else ''}{part}" for part in rest)
