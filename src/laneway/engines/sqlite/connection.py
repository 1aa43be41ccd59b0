"""
SQLite's half of a store's connection: how statements are run and values bound.

Hot statements are bound to numbers, strings and bytearrays only: for any other value, None and
bytes included, the sqlite3 module looks for an adapter at every row, which costs more than the row.
So 0 stands for NULL in columns that are never 0.

Rows of several columns are deleted by `(a, b) IN (SELECT * FROM (VALUES …))`: with several rows,
SQLite 3.40 reads the whole table for `(a, b) IN (VALUES …)`.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from laneway.engines.sql.rows import ROW_COLUMNS, Held
from laneway.engines.sql.statements import load, tables_of
from laneway.engines.sql.store import Outdated
from laneway.engines.sqlite.listing_statements import STATEMENTS

SQL = (
    load(
        Path(__file__).with_name("sql"),
        {
            "array": "json_each({})",
            "join": "CROSS JOIN",
            "least": "min",
            "greatest": "max",
            "char": "char",
            "row": "rowid",
        },
    )
    | STATEMENTS
)
"""Every statement by name."""

_INSERTED = {"message": ROW_COLUMNS, "lease": Held.__struct_fields__}
"""The tables whose rows `add_rows` inserts, with all of their columns."""

_ALWAYS_BOUND = {"mid", "fence"}
"""Columns whose values hardly ever are the same in several rows."""

_NULLABLE_OF_ROWS = {
    *("expires", "key", "id", "topic", "mkey", "headers", "gate", "empty", "slot", "holder")
}
_ZERO_BY_DEFAULT = {"attempts", "deliveries", "suspect", "joined", "parts", "sticky", "gone"}


@cache
def _insert_statement(table: str, form: str) -> str:
    """
    The name of a statement that inserts rows of a table. `form`: what becomes of each column, "-":
    its default, "=": its value is the same in all rows, "?": it is bound for each row.
    """
    name = f"{table}_insert {form}"
    columns = list(zip(_INSERTED[table], form, strict=True))
    bound = [(column, how) for column, how in columns if how != "-"]
    in_order = [n for how in "=?" for n, (_, each) in enumerate(bound) if each == how]
    numbers = {n: number for number, n in enumerate(in_order, 1)}
    values = (
        f"nullif(?{numbers[n]}, 0)"
        if how == "?" and column in _NULLABLE_OF_ROWS
        else f"?{numbers[n]}"
        for n, (column, how) in enumerate(bound)
    )
    SQL[name] = (
        f"INSERT INTO {table} ({', '.join(column for column, _ in bound)})"
        f" VALUES ({', '.join(values)}) ON CONFLICT DO NOTHING"
    )
    return name


@cache
def repeated(name: str, count: int, shared: int = 0) -> str:
    """
    A statement with the row behind VALUES so many times. `shared`: so many of its first parameters
    are the same in each row.
    """
    head, _, rest = SQL[name].partition("VALUES ")
    depth = end = 0
    while not end or depth:
        depth += (rest[end] == "(") - (rest[end] == ")")
        end += 1
    row, tail = rest[:end], rest[end:]
    width = max(map(int, re.findall(r"\?(\d+)", row)), default=0) - shared
    rows = (
        re.sub(r"\?(\d+)", partial(_shifted, by=n * width, shared=shared), row)
        for n in range(count)
    )
    return f"{head}VALUES {', '.join(rows)}{tail}"


def _shifted(parameter: re.Match[str], by: int, shared: int) -> str:
    number = int(parameter[1])
    return f"?{number + by if number > shared else number}"


ROWS_AT_ONCE = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
"""Rows in one statement: few sizes, so that all of them stay prepared."""

_REPEATED_PART = 8
"""At most 1/8 of the rows, and one, repeat the last one where that saves statements."""


@lru_cache(1_000)
def _rows_at_once(left: int) -> int:
    """How many rows the next statement has, if so many are left: fewer, all, or a few more."""
    most = left + left // _REPEATED_PART + 1 if left > 2 else left
    return next(size for size in ROWS_AT_ONCE if size <= most)


@cache
def _touched(name: str) -> tuple[tuple[str, bool], ...]:
    return tables_of(SQL[name])


class Connection(sqlite3.Connection):
    """An open file, see `engines.sql.store.Connection`."""

    last_read: tuple[Callable[[list[Any]], None], str, tuple[Any, ...]] | None = None
    """See `after_commit`."""
    version = 0
    """See `engines.sql.store.Connection`; as of the last write transaction's beginning."""

    def one(self, name: str, *values: Any) -> Any:
        return self.execute(SQL[name], values).fetchone()

    def all(self, name: str, *values: Any) -> list[Any]:
        return self.execute(SQL[name], values).fetchall()

    def run(self, name: str, *values: Any) -> None:
        self.execute(SQL[name], values)

    def change(self, name: str, *values: Any) -> int:
        return self.execute(SQL[name], values).rowcount

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        self.executemany(SQL[name], rows)

    def change_exactly(self, name: str, rows: Sequence[Sequence[Any]], count: int) -> None:
        if self.executemany(SQL[name], rows).rowcount != count:
            raise Outdated

    def prefetch(self, name: str, *values: Any) -> None:
        """Reading costs no round trip."""

    def run_rows(self, name: str, rows: Sequence[Sequence[Any]], *, converts: bool = False) -> None:
        if len(rows) == 1:
            self.execute(SQL[name], _converted(rows[0]) if converts else rows[0])
            return
        for text, values in _batches(name, rows, converts=converts):
            self.execute(text, values)

    def all_rows(
        self, name: str, rows: Sequence[Sequence[Any]], *, converts: bool = False
    ) -> list[Any]:
        return [
            found
            for text, values in _batches(name, rows, converts=converts)
            for found in self.execute(text, values)
        ]

    def add_rows(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """What all of the rows share is bound once, so a row costs what is special about it."""
        count = len(rows)
        if count == 1:
            self.execute(SQL[_insert_statement(table, "?" * len(rows[0]))], _converted(rows[0]))
            return
        form = ""
        shared: list[Any] = []
        columns: list[Sequence[Any]] = []
        for column, values in zip(_INSERTED[table], zip(*rows, strict=True), strict=True):
            first = values[0]
            if column == "body":
                columns.append(list(map(bytearray, values)))
                form += "?"
            elif column in _ALWAYS_BOUND or values.count(first) < count:
                form += "?"
                columns.append(_converted(values) if column in _NULLABLE_OF_ROWS else values)
            elif first is None or (first == 0 and column in _ZERO_BY_DEFAULT):
                form += "-"
            else:
                form += "="
                shared.append(first)
        name, width = _insert_statement(table, form), len(columns)
        flat, done = list(chain.from_iterable(zip(*columns, strict=True))), 0
        while done < count:
            size = _rows_at_once(count - done)
            bound = [*shared, *flat[done * width : (done + size) * width]]
            done += size
            for _ in range(done - count):
                bound += flat[-width:]
            self.execute(repeated(name, size, len(shared)), bound)

    def after_commit(self, then: Callable[[list[Any]], None], name: str, *values: Any) -> None:
        self.last_read = then, name, values

    array = staticmethod(msgspec.json.Encoder().encode)
    keeps_deleted = False
    touched = staticmethod(_touched)


def _batches(
    name: str, rows: Sequence[Sequence[Any]], *, converts: bool
) -> Iterator[tuple[str, list[Any]]]:
    """The statements for these rows, each with its values."""
    done, most = 0, len(rows)
    while done < most:
        size = _rows_at_once(most - done)
        values = list(chain.from_iterable(rows[done : done + size]))
        done += size
        for _ in range(done - most):
            values += rows[-1]
        yield repeated(name, size), _converted(values) if converts else values


def _converted(values: Iterable[Any]) -> list[Any]:
    """Values as they are bound: no None, no bytes."""
    return [
        0 if value is None else bytearray(value) if type(value) is bytes else value
        for value in values
    ]
