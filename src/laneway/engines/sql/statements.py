"""
The SQL of the rules, read once from `sql/*.sql`, where `-- name: …` begins a statement.

A statement is written once if all databases take the same text. `{lane}`, `{message}`, `{head}`,
`{gate}` and `{group}` stand for lists of columns. The words in which databases differ:

- `{array ?}`: the rows (key, value) of a parameter that is a list, see `Session.array`.
- `{join}`: a join in this order, which the planner does not change.
- `{unheld}`: whether a message does not keep its serial key. `{waits}`: whether one that is not
  dead waits; else it is leased.
- `{least}`, `{greatest}`: of several values. `{char}`: the character with a number.
- `{row}`: where a row is stored.

What no word expresses is a statement of the same name in the database's own folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from laneway.engines.sql.rows import GROUP_COLUMNS, HEAD_COLUMNS, LANE_COLUMNS, ROW_COLUMNS
from laneway.engines.sql.store import Connection, Read


def load(own: Path, words: dict[str, str]) -> dict[str, str]:
    """
    Every statement by name, in the text of one database: those that all share, and those of the
    folder `own`, which replace them. `words`: what the database writes for `{join}` and the others;
    `{}` stands for the parameter of `array`.
    """
    texts, shared = _COLUMNS | words, Path(__file__).with_name("sql")
    texts["unheld"] = texts["unheld"].replace("{char}", texts["char"])
    return {
        name: _WORD.sub(lambda found: texts[found[1]].format(found[2]), text)
        for name, text in (_in_folder(shared) | _in_folder(own) | _GENERATED).items()
    }


def _in_folder(folder: Path) -> dict[str, str]:
    statements: dict[str, str] = {}
    for entry in sorted(folder.glob("*.sql")):
        for section in entry.read_text(encoding="utf-8").split("-- name:")[1:]:
            name, _, text = section.partition("\n")
            if statements.setdefault(name.strip(), text := text.strip().rstrip(";")) is not text:
                raise AssertionError(f"there are two statements {name.strip()}")
    return statements


def schema(words: dict[str, str]) -> str:
    """
    The text that creates all tables. `words`: what the database writes for `{numbered}` (a key that
    the table counts), `{numbered once}` (which it never uses again), and `{code tier}` and
    `{operator tier}`: the tier that the policies of a layer name, in JSON.
    """
    text = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
    return re.sub(r"\{([a-z ]+)\}", lambda found: words[found[1]], text)


def tables_of(statement: str) -> tuple[tuple[str, bool], ...]:
    """The tables that a statement names, and whether it changes them."""
    text = re.sub(r"--.*", "", statement)
    changed = re.match(r"\s*(?:INSERT.*?INTO|UPDATE|DELETE FROM)\s+(\w+)", text)
    named = re.findall(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+([a-z_]+)", text)
    return tuple(
        (table, changed is not None and table == changed[1]) for table in dict.fromkeys(named)
    )


GRANT = "grant:"
"""The name of the setting with a store's part of a gate is this and the gate's name."""

_WORD = re.compile(r"\{(\w+)(?: (\?\d*))?\}")
_COLUMNS = {
    "lane": ", ".join(f"l.{name}" for name in LANE_COLUMNS),
    "group": ", ".join(f"g.{name}" for name in GROUP_COLUMNS),
    "message": ", ".join(f"m.{name}" for name in ROW_COLUMNS),
    # What ready messages have, and whether they have more: half of the columns cost half as much.
    "head": ", ".join(f"m.{name}" for name in HEAD_COLUMNS)
    + ", m.topic IS NOT NULL OR m.mkey IS NOT NULL"
    " OR m.attempts + m.deliveries + m.odd + m.suspect + m.joined + m.parts + m.sticky > 0",
    # A waiting message may keep its key while it is delayed for a retry. Without EXISTS, which a
    # planner turns into a join with all keys.
    "unheld": "(m.serial = 0 OR coalesce((SELECT max(k.head) FROM serial_key k"
    " WHERE k.lane = m.lane AND k.held = 1 AND k.key = CASE WHEN m.topic IS NULL THEN m.key"
    " ELSE m.topic || {char}(31) || m.key END), 0) <> m.mid)",
    # Leases are found by their fences only.
    "waits": "(m.state > 0 OR (SELECT count(*) FROM ready w WHERE w.lane = m.lane"
    " AND w.rank = m.rank AND w.seq = m.seq"
    " AND w.pos = CASE WHEN m.rank & 1 = 1 THEN m.since ELSE -m.seq END) > 0)",
    "gate": "name, code, operator, tat, leased, open, wake, need, held_until, owes, flow, turn,"
    " mean, holder, waiting, claimed, held_turn,"
    f" (SELECT s.value FROM setting s WHERE s.name = '{GRANT}' || gate.name)",
}

PLACING = ("tier_queue", "place", "wake", "vt", "gate", "turn", "old")
"""Columns of `lane` that indexes have, and that change with its place."""

CLASSES = ("big", "busy", "slow")
"""Those that change seldom."""

COUNTS = tuple(
    name for name in LANE_COLUMNS if name not in {"lane", "name", "rule", "own", *PLACING, *CLASSES}
)

_NULLABLE = {"rule", "wake", "gate", "more", "old", *CLASSES}
"""Columns of `lane` that are bound as 0 where they are None."""


def _bound(column: str) -> str:
    return "nullif(?, 0)" if column in _NULLABLE else "?"


_INSERTED = (*LANE_COLUMNS[1:], "lane")
_GENERATED = {
    "lane_insert": f"INSERT INTO lane ({', '.join(_INSERTED)})"
    f" VALUES ({', '.join(map(_bound, _INSERTED))}) ON CONFLICT DO NOTHING"
}
"""Statements with all columns of a lane, or those of one kind of change."""

KEYS_OF_LANES = ("serial_keys_of_lanes", "merge_keys_of_lanes", "key_states_of_lanes")
for _name in KEYS_OF_LANES:
    _table = _name.removesuffix("s_of_lanes")
    _GENERATED[_name] = f"DELETE FROM {_table} WHERE lane IN (SELECT value FROM {{array ?}} j)"


for _name, _columns in (
    ("lane_write", PLACING + CLASSES + COUNTS),
    ("lane_place", PLACING + COUNTS),
    ("lane_count", COUNTS),
    ("lane_grow", ("ready", "bytes", "published")),
):
    _GENERATED[_name] = (
        f"UPDATE lane SET {', '.join(f'{name} = {_bound(name)}' for name in _columns)}"
        " WHERE lane = ?"
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

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.array: Callable[[Sequence[Any]], Any] = connection.array
        self.keeps_deleted = connection.keeps_deleted
        self.tables: dict[str, UnwrittenRows] = {}
        """By name: the tables that this transaction has used."""

    def one(self, name: str, *values: Any) -> Any:
        if self.tables:
            self._write_for(name)
        return self.connection.one(name, *values)

    def all(self, name: str, *values: Any) -> list[Any]:
        if self.tables:
            self._write_for(name)
        return self.connection.all(name, *values)

    def pages(self, reads: Sequence[Read]) -> list[list[Any]]:
        """All rows of each of these statements, which are asked for together."""
        for read in reads:
            self.prefetch(*read)
        return [self.all(*read) for read in reads]

    def run(self, name: str, *values: Any) -> None:
        if self.tables:
            self._write_for(name)
        self.connection.run(name, *values)

    def change(self, name: str, *values: Any) -> int:
        if self.tables:
            self._write_for(name)
        return self.connection.change(name, *values)

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        if not rows:
            return
        if self.tables:
            self._write_for(name)
        self.connection.run_many(name, rows)

    def change_exactly(self, name: str, rows: Sequence[Sequence[Any]], count: int) -> None:
        if self.tables:
            self._write_for(name)
        self.connection.change_exactly(name, rows, count)

    def prefetch(self, name: str, *values: Any) -> None:
        if self.tables:
            self._write_for(name)
        self.connection.prefetch(name, *values)

    def after_commit(self, then: Callable[[list[Any]], None], name: str, *values: Any) -> None:
        if self.tables:
            self._write_for(name)
        self.connection.after_commit(then, name, *values)

    def run_rows(self, name: str, rows: Sequence[Sequence[Any]], *, converts: bool = False) -> None:
        if not rows:
            return
        if self.tables:
            self._write_for(name)
        self.connection.run_rows(name, rows, converts=converts)

    def all_rows(
        self, name: str, rows: Sequence[Sequence[Any]], *, converts: bool = False
    ) -> list[Any]:
        if not rows:
            return []
        if self.tables:
            self._write_for(name)
        return self.connection.all_rows(name, rows, converts=converts)

    def _write_for(self, name: str) -> None:
        """Write the rows that this statement may name; if it changes some, forget what was read."""
        for table_name, is_changed in self.connection.touched(name):
            table = self.tables.get(table_name)
            if table is not None:
                table.write()
                if is_changed:
                    table.forget()
