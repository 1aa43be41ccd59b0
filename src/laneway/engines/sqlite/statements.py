"""
The SQL of this engine, read once from `sql/*.sql`, where `-- name: …` begins a statement.

`{lane}`, `{message}`, `{head}`, `{gate}` and `{group}` stand for lists of columns. Hot statements
are bound to numbers, strings and bytearrays only: for any other value, None and bytes included, the
sqlite3 module looks for an adapter at every row, which costs more than the row. So 0 stands for
NULL in columns that are never 0.

Rows of several columns are deleted by `(a, b) IN (SELECT * FROM (VALUES …))`: with several rows,
SQLite 3.40 reads the whole table for `(a, b) IN (VALUES …)`.
"""

from __future__ import annotations

import re
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from laneway.engines.sqlite.rows import GROUP_COLUMNS, HEAD_COLUMNS, LANE_COLUMNS, ROW_COLUMNS, Held

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence


def _load() -> dict[str, str]:
    statements: dict[str, str] = {}
    for entry in sorted(Path(__file__).with_name("sql").glob("*.sql")):
        for section in entry.read_text(encoding="utf-8").split("-- name:")[1:]:
            name, _, text = section.partition("\n")
            statement = (
                text.replace("{lane}", _LANE)
                .replace("{message}", _MESSAGE)
                .replace("{head}", _HEAD)
                .replace("{gate}", _GATE)
                .replace("{group}", _GROUP)
                .strip()
                .rstrip(";")
            )
            if name.strip() in statements:
                raise AssertionError(f"there are two statements {name.strip()}")
            statements[name.strip()] = statement
    return statements


_LANE = ", ".join(f"l.{name}" for name in LANE_COLUMNS)
_GROUP = ", ".join(f"g.{name}" for name in GROUP_COLUMNS)
_MESSAGE = ", ".join(f"m.{name}" for name in ROW_COLUMNS)
_HEAD = (
    ", ".join(f"m.{name}" for name in HEAD_COLUMNS) + ", m.topic IS NOT NULL OR m.mkey IS NOT NULL"
    " OR m.attempts + m.deliveries + m.suspect + m.joined + m.parts + m.sticky"
)
"""What ready messages have, and whether they have more: half of the columns cost half as much."""
GRANT = "grant:"
"""The name of the setting with a file's part of a gate is this and the gate's name."""

_GATE = (
    "name, code, operator, tat, leased, open, wake, need, held_until, owes, flow, turn, mean,"
    " holder, waiting,"
    f" (SELECT s.value FROM setting s WHERE s.name = '{GRANT}' || gate.name)"
)

PLACING = ("tier_queue", "place", "wake", "vt", "gate", "turn")
"""Columns of `lane` that indexes have, besides the size classes."""

CLASSES = ("big", "old", "busy", "slow")
COUNTS = tuple(
    name for name in LANE_COLUMNS if name not in {"lane", "name", "rule", "own", *PLACING, *CLASSES}
)

SQL = _load()
"""Every statement by name."""


_NULLABLE = {"rule", "wake", "gate", "more", *CLASSES}
"""Columns of `lane` that are bound as 0 where they are None."""


def _bound(column: str) -> str:
    return "nullif(?, 0)" if column in _NULLABLE else "?"


SQL["lane_insert"] = (
    f"INSERT INTO lane ({', '.join(LANE_COLUMNS)}) VALUES ({', '.join(map(_bound, LANE_COLUMNS))})"
    " ON CONFLICT (lane) DO NOTHING"
)


MARKS = tuple(f"+{name}" for name in CLASSES)
"""What the name of a statement ends with for each size class that it sets too."""


for _number in range(1 << len(CLASSES)):
    _changed = [n for n in range(len(CLASSES)) if _number >> n & 1]
    for _name, _columns in (
        ("lane_count", COUNTS),
        ("lane_place", PLACING + COUNTS),
        ("lane_grow", ("ready", "bytes", "published")),
    ):
        _set = (*_columns, *(CLASSES[n] for n in _changed))
        SQL[_name + "".join(MARKS[n] for n in _changed)] = (
            f"UPDATE lane SET {', '.join(f'{name} = {_bound(name)}' for name in _set)} WHERE"
            " lane = ?"
        )
_INSERTED = {"message": ROW_COLUMNS, "lease": Held.__struct_fields__}
"""The tables whose rows `add_rows` inserts, with all of their columns."""

_ALWAYS_BOUND = {"mid", "fence"}
"""Columns whose values hardly ever are the same in several rows."""

_NULLABLE_OF_ROWS = {"expires", "key", "id", "topic", "mkey", "headers", "gate", "empty", "slot"}
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


def _rows_at_once(left: int) -> int:
    """How many rows the next statement has, if so many are left: fewer, all, or a few more."""
    most = left + left // _REPEATED_PART + 1 if left > 2 else left
    return next(size for size in ROWS_AT_ONCE if size <= most)


@cache
def touched(name: str) -> tuple[tuple[str, bool], ...]:
    """The tables that a statement names, and whether it changes them."""
    text = re.sub(r"--.*", "", SQL[name])
    changed = re.match(r"\s*(?:INSERT.*?INTO|UPDATE|DELETE FROM)\s+(\w+)", text)
    named = re.findall(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+([a-z_]+)", text)
    return tuple(
        (table, changed is not None and table == changed[1]) for table in dict.fromkeys(named)
    )


class UnwrittenRows(Protocol):
    """The rows of a table that a transaction has read or changed, see `tables`."""

    def write(self) -> None:
        """Write what was changed."""

    def forget(self) -> None:
        """Forget what was read."""


class Statements:
    """
    Runs statements by their names on one connection.

    A statement sees the unwritten rows of `tables`: those of the tables that it names are written
    first.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.tables: dict[str, UnwrittenRows] = {}
        """By name: the tables that this transaction has used."""

    def one(self, name: str, *values: Any) -> Any:
        """The first row of a statement, or None."""
        if self.tables:
            self._write_for(name)
        return self.connection.execute(SQL[name], values).fetchone()

    def all(self, name: str, *values: Any) -> list[Any]:
        """All rows of a statement."""
        if self.tables:
            self._write_for(name)
        return self.connection.execute(SQL[name], values).fetchall()

    def run(self, name: str, *values: Any) -> int:
        """Run a statement; returns how many rows changed."""
        if self.tables:
            self._write_for(name)
        return self.connection.execute(SQL[name], values).rowcount

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement for each of these rows; returns how many rows changed."""
        if not rows:
            return 0
        if self.tables:
            self._write_for(name)
        return self.connection.executemany(SQL[name], rows).rowcount

    def insert(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Like `run_many`, at half the cost, for a statement with VALUES."""
        if not rows:
            return
        if self.tables:
            self._write_for(name)
        self.run_rows(name, rows)

    def _write_for(self, name: str) -> None:
        """Write the rows that this statement may name; if it changes some, forget what was read."""
        for table_name, is_changed in touched(name):
            table = self.tables.get(table_name)
            if table is not None:
                table.write()
                if is_changed:
                    table.forget()

    # For `tables` only: other rows of these tables may be unwritten.

    def execute(self, name: str, *values: Any) -> sqlite3.Cursor:
        """Run a statement."""
        return self.connection.execute(SQL[name], values)

    def run_rows(self, name: str, rows: Sequence[Sequence[Any]], *, converts: bool = False) -> None:
        """
        Run a statement with VALUES for many rows at once. The last row may run twice, which must
        change nothing more: it conflicts with itself, or is written again. `converts`: there are
        values of bytes or None.
        """
        if len(rows) == 1:
            values = _converted(rows[0]) if converts else rows[0]
            self.connection.execute(SQL[name], values)
            return
        for text, values in _batches(name, rows, converts=converts):
            self.connection.execute(text, values)

    def add_rows(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """
        Insert new rows, each with all columns of the table. What all of them share is bound once,
        so a row costs what is special about it.
        """
        count = len(rows)
        if count == 1:
            name = _insert_statement(table, "?" * len(rows[0]))
            self.connection.execute(SQL[name], _converted(rows[0]))
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
            self.connection.execute(repeated(name, size, len(shared)), bound)

    def all_rows(
        self, name: str, rows: Sequence[Sequence[Any]], *, converts: bool = False
    ) -> list[Any]:
        """All rows of a query with VALUES for many rows at once; some may be there twice."""
        return [
            found
            for text, values in _batches(name, rows, converts=converts)
            for found in self.connection.execute(text, values)
        ]


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
