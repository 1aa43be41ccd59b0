"""
The SQL of this engine, read once from `sql/*.sql`, where `-- name: …` begins a statement.

`{lane}`, `{message}`, `{head}` and `{gate}` stand for lists of columns. Hot statements are bound to
numbers, strings and bytearrays only: for any other value, None and bytes included, the sqlite3
module looks for an adapter at every row, which costs more than the row. So 0 stands for NULL in
columns that are never 0.
"""

from __future__ import annotations

import re
from functools import cache, partial
from importlib import resources
from itertools import chain
from typing import TYPE_CHECKING, Any

from laneway.engines.sqlite.rows import LANE_COLUMNS, ROW_COLUMNS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence


def _load() -> dict[str, str]:
    statements: dict[str, str] = {}
    for entry in sorted(
        (resources.files("laneway.engines.sqlite") / "sql").iterdir(), key=lambda entry: entry.name
    ):
        if not entry.name.endswith(".sql"):
            continue
        for section in entry.read_text(encoding="utf-8").split("-- name:")[1:]:
            name, _, text = section.partition("\n")
            statement = (
                text.replace("{lane}", _LANE)
                .replace("{message}", _MESSAGE)
                .replace("{head}", _HEAD)
                .replace("{gate}", _GATE)
                .strip()
                .rstrip(";")
            )
            if name.strip() in statements:
                raise AssertionError(f"there are two statements {name.strip()}")
            statements[name.strip()] = statement
    return statements


_LANE = ", ".join(f"l.{name}" for name in LANE_COLUMNS)
_MESSAGE = ", ".join(f"m.{name}" for name in ROW_COLUMNS)
_RARELY_SET = ("serial", "odd", "attempts", "deliveries", "suspect", "joined", "parts", "sticky")
_HEAD = (
    "m.mid, m.lane, m.rank, m.since, m.published, m.expires, m.key, m.id, m.headers, m.body,"
    " m.topic IS NOT NULL OR m.mkey IS NOT NULL OR"
    f" {' + '.join(f'm.{name}' for name in _RARELY_SET)}"
)
"""What lease reads of a message: what most have, and whether it has more."""

GRANT = "grant:"
"""The name of the setting with a file's part of a gate is this and the gate's name."""

_GATE = (
    "name, code, operator, tat, leased, open, wake,"
    f" (SELECT s.value FROM setting s WHERE s.name = '{GRANT}' || gate.name)"
)

PLACING = ("tier_queue", "place", "wake", "vt", "gate")
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
)


def class_mark(changed: Iterable[int]) -> str:
    """The end of the name of the statement that sets these size classes too."""
    return "".join(f"+{CLASSES[number]}" for number in changed)


for _number in range(1 << len(CLASSES)):
    _changed = [n for n in range(len(CLASSES)) if _number >> n & 1]
    for _name, _columns in (
        ("lane_count", COUNTS),
        ("lane_place", PLACING + COUNTS),
        ("lane_grow", ("ready", "bytes", "published")),
    ):
        _set = (*_columns, *(CLASSES[n] for n in _changed))
        SQL[_name + class_mark(_changed)] = (
            f"UPDATE lane SET {', '.join(f'{name} = {_bound(name)}' for name in _set)} WHERE"
            " lane = ?"
        )
_INSERTED = (
    "mid",
    "lane",
    "state",
    "rank",
    "seq",
    "since",
    "published",
    "expires",
    "serial",
    "odd",
    "key",
    "id",
    "topic",
    "mkey",
    "headers",
    "sticky",
    "body",
)
SQL["message_insert"] = (
    f"INSERT INTO message ({', '.join(_INSERTED)}) VALUES ({', '.join('?' * len(_INSERTED))})"
)
SQL["message_update"] = (
    f"UPDATE message SET {', '.join(f'{name} = ?' for name in ROW_COLUMNS[1:])} WHERE mid = ?"
)


@cache
def insert_many(name: str, count: int) -> str:
    """An INSERT statement for `count` rows."""
    head, values, row = SQL[name].partition(" VALUES ")
    numbers = [int(number) for number in re.findall(r"\?(\d+)", row)]
    if not numbers:
        return head + values + ", ".join([row] * count)
    width = max(numbers)
    rows = (re.sub(r"\?(\d+)", partial(_shifted, by=n * width), row) for n in range(count))
    return head + values + ", ".join(rows)


def _shifted(parameter: re.Match[str], by: int) -> str:
    return f"?{int(parameter[1]) + by}"


INSERTED_AT_ONCE = (64, 8)
"""Rows in one INSERT, the larger first."""


class Statements:
    """Runs statements by their names on one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def one(self, name: str, *values: Any) -> Any:
        """The first row of a statement, or None."""
        return self.connection.execute(SQL[name], values).fetchone()

    def all(self, name: str, *values: Any) -> list[Any]:
        """All rows of a statement."""
        return self.connection.execute(SQL[name], values).fetchall()

    def run(self, name: str, *values: Any) -> int:
        """Run a statement; returns how many rows changed."""
        return self.connection.execute(SQL[name], values).rowcount

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement for each of these rows; returns how many rows changed."""
        return self.connection.executemany(SQL[name], rows).rowcount if rows else 0

    def insert(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Like `run_many` for an INSERT, at half the cost: several rows in one statement."""
        done = 0
        for size in INSERTED_AT_ONCE:
            while len(rows) - done >= size:
                self.connection.execute(
                    insert_many(name, size), list(chain.from_iterable(rows[done : done + size]))
                )
                done += size
        self.run_many(name, rows[done:])
