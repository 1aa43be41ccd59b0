"""PostgreSQL's half of a store's connection: how statements are run and values bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain, repeat
from struct import Struct, pack
from typing import Any, TypeAlias

import psycopg
from psycopg.types.numeric import NumericBinaryLoader

from laneway.engines.postgres.connecting import ServerConnection
from laneway.engines.postgres.pipeline import Pipeline, Ticket
from laneway.engines.postgres.statements import (
    BYTEA,
    FLOAT8,
    INT8,
    KEYED,
    SWEEP_TURNS,
    TEXT,
    bulk,
    exactly,
    is_upsert,
    parameter_types,
    single,
    touched,
)
from laneway.engines.sql.rows import ROW_COLUMNS, Held
from laneway.engines.sql.store import Read

_int8, _float8, _length = Struct("!q").pack, Struct("!d").pack, Struct("!i").pack
_ARRAY_OF = {INT8: 1016, TEXT: 1009, BYTEA: 1001, FLOAT8: 1022}
"""The OID of an array by that of its elements."""

_ENCODE: dict[type, tuple[int, Callable[[Any], bytes | None]]] = {
    int: (INT8, _int8),
    bool: (INT8, _int8),
    str: (0, str.encode),  # as what it is compared with or stored in
    bytes: (BYTEA, bytes),
    bytearray: (BYTEA, bytes),
    memoryview: (BYTEA, bytes),
    float: (FLOAT8, _float8),
    type(None): (0, lambda _: None),
}
"""By the type of a value: its OID, 0 for unknown, and how it is written."""


class Array:
    """A list as one value of a statement."""

    __slots__ = ("data", "length", "oid")

    def __init__(self, values: Sequence[Any]) -> None:
        self.length = len(values)
        oid = _ENCODE[type(values[0])][0] or TEXT if values else INT8
        self.oid = _ARRAY_OF[oid]
        self.data = encode_array(oid, values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and (self.oid, self.data) == (other.oid, other.data)

    def __hash__(self) -> int:
        return hash((self.oid, self.data))


def encode_array(oid: int, values: Sequence[Any]) -> bytes:
    """A list in PostgreSQL's binary form: dimensions, then each element behind its length."""
    count = len(values)
    if oid == INT8 and None not in values:
        flat = [8] * (2 * count)  # each element behind its length
        flat[1::2] = values
        return pack(f"!5i{'iq' * count}", 1, 0, INT8, count, 1, *flat)
    if not count:
        return pack("!3i", 0, 0, oid)
    encode = _ELEMENT[oid]
    parts = [pack("!5i", 1, 1, oid, count, 1)]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            encoded = encode(value)
            parts += (_length(len(encoded)), encoded)
    return b"".join(parts)


_NULL = _length(-1)
_ELEMENT: dict[int, Callable[[Any], bytes]] = {
    INT8: _int8,
    TEXT: str.encode,
    BYTEA: bytes,
    FLOAT8: _float8,
}


def _element(column: Sequence[Any], known: int | None) -> int:
    """The OID of a parameter's values."""
    if known is not None:
        return known
    first = next((value for value in column if value is not None), None)
    return _ENCODE[type(first)][0] or TEXT


MANY_ROWS = 8
"""
From this number of rows on, what all of them share is sent once. Fewer rows have the same values by
chance, and each combination of columns is a statement of its own: the server has to prepare it, and
keeps some 100 kB for it in each connection.
"""


MOST_FORMS = 16
"""How many combinations of such columns a statement has; what is sent decides which these are."""

_NO_FORMS: tuple[frozenset[int], ...] = (frozenset(),)
_forms: dict[str, tuple[frozenset[int], ...]] = {}


def _shared(name: str, columns: Sequence[Sequence[Any]]) -> frozenset[int]:
    """The columns that are sent as one value, because many rows have the same; not all columns."""
    count = len(columns[0])
    if count < MANY_ROWS:
        return frozenset()
    shared = [n for n, column in enumerate(columns) if column.count(column[0]) == count]
    found, known = frozenset(shared[len(shared) == len(columns) :]), _forms.get(name, _NO_FORMS)
    if found not in known and len(known) < MOST_FORMS:
        _forms[name] = known = (*known, found)
    return max((each for each in known if each <= found), key=len)


_NULLABLE = {
    *("expires", "key", "id", "topic", "mkey", "headers", "gate", "empty", "slot", "holder")
}
_ZERO_IS_NULL = {
    table: frozenset(n for n, column in enumerate(columns) if column in _NULLABLE)
    for table, columns in (("message", ROW_COLUMNS), ("lease", Held.__struct_fields__))
}
"""By table: the columns in which 0 stands for NULL."""


@cache
def _changed_by(name: str) -> str | None:
    return next((table for table, is_changed in touched(name) if is_changed), None)


@cache
def _tables_of(name: str) -> frozenset[str]:
    return frozenset(table for table, _ in touched(name))


# By a statement: those that read the table that it changes, but none of these rows.
_OTHER_ROWS = {"lanes_forget": ("lanes_runnable", "lanes_runnable_read")}


_LastRead: TypeAlias = "tuple[Callable[[list[Any]], None], Ticket]"
"""What is called with the rows of a statement, see `after_commit`."""


class _Number(NumericBinaryLoader):
    """What PostgreSQL sums up is a number as any other."""

    def load(self, data: bytes | bytearray | memoryview) -> Any:
        value = super().load(data)
        whole = int(value)
        return whole if whole == value else float(value)


class Connection:
    """An open connection, see `engines.sql.store.Connection`."""

    def __init__(self, connection: ServerConnection, version: int = 0) -> None:
        """`version`: that of the connection which this one replaces."""
        self.is_pooled = connection.is_pooled
        self.names: dict[str, str] = {}
        """By the name of a statement: the one that runs in its place."""
        self.warnings: list[str] = []
        """Of the last commit, which waited for the disk and the standbys itself."""
        if self.is_pooled:
            connection.add_notice_handler(self._warn)
        connection.adapters.register_loader("numeric", _Number)
        self.pipeline = Pipeline(connection)
        self.turn = -1
        """The turn after the last transaction of this connection; -1: not known."""
        self.ahead_us = 0
        """How far the server's clock is ahead of this machine's, as the last transaction saw it."""
        self.version = version
        self._changes_queue = False
        self._asked: dict[Read, Ticket] = {}
        """What `prefetch` has asked for, and nobody has read yet."""
        self._has_written = False
        """Whether the present transaction has changed something."""
        self._sweep_turn = 0
        """The turn of the sweep that this connection owes; 0: none."""
        self._last_read: _LastRead | None = None

    def begin(
        self,
        begin: Sequence[str],
        reads: Sequence[Read],
        *,
        changes_queue: bool,
        is_whole: bool = False,
    ) -> Callable[[], tuple[int, int, bool]]:
        """
        Send the beginning of a transaction: statements of which the last waits for the lock, and
        `reads`. `is_whole`: these are all that it does, so its commit is sent, too. What it returns
        waits for the answer and sees whether others have written, see `_begun`.
        """
        self._has_written, self._changes_queue = False, changes_queue
        self._asked.clear()
        self._last_read = None
        *_, lock = [self.pipeline.send(statement) for statement in begin]
        turn_read = self._send("turn_read", ())
        for name, *values in reads:
            self.prefetch(name, *values)
        if is_whole:
            self._send_commit(takes_turn=True)
        assert turn_read is not None
        self.pipeline.send_sync()
        return partial(self._begun, lock, turn_read, is_whole=is_whole)

    def _begun(self, lock: Ticket, turn_read: Ticket, *, is_whole: bool) -> tuple[int, int, bool]:
        """
        Returns the layout of the tables, since when the disk is full, and whether the lock was not
        free.
        """
        ((turn, server_us, layout, full_us),) = self.pipeline.rows(turn_read)
        self.ahead_us = server_us - time.time_ns() // 1000
        if turn != self.turn:
            self.turn = turn
            self.version += 1
        if is_whole:
            self._count_turn()
        return layout, full_us, self.pipeline.rows(lock) != [("free",)]

    def _warn(self, notice: psycopg.errors.Diagnostic) -> None:
        self.warnings.append(notice.message_primary or "")

    def commit(self) -> Callable[[], None]:
        """
        Send the commit. What it returns waits for the answer; the next transaction may be begun
        before that.
        """
        takes_turn = self._has_written and self._changes_queue
        self._send_commit(takes_turn=takes_turn)
        if takes_turn:
            self._count_turn()
        return partial(self._committed, self.pipeline.send_sync(), self._last_read)

    def _committed(self, commit: Ticket, last_read: _LastRead | None) -> None:
        self.pipeline.read_to(commit)
        if last_read is not None:
            then, ticket = last_read
            then(self.pipeline.rows(ticket))

    def finish(self) -> None:
        """Wait for the answer to a commit that was sent with the beginning."""
        self.pipeline.sync()

    def after_commit(self, then: Callable[[list[Any]], None], name: str, *values: Any) -> None:
        ticket = self._send(name, values)
        assert ticket is not None
        self._last_read = then, ticket

    def _send_commit(self, *, takes_turn: bool) -> None:
        """`takes_turn`: tell other processes that this transaction changes something."""
        self.warnings.clear()
        if takes_turn:
            self.run("turn_next")
        if self._sweep_turn:
            turn, self._sweep_turn = [_int8(self._sweep_turn)], 0
            for table in KEYED:  # nobody reads what they delete, so what was asked for stays
                self.pipeline.send(single(f"{table}_sweep").text, (INT8,), turn)
        self.pipeline.send("COMMIT")

    def _count_turn(self) -> None:
        self.turn += 1  # under the lock nobody else counts it up
        if not self.turn % SWEEP_TURNS:
            self._sweep_turn = self.turn

    def roll_back(self) -> None:
        """End the transaction, whatever failed in it."""
        self.pipeline.recover()
        self.pipeline.send("ROLLBACK")
        self.pipeline.sync()

    def begin_reading(self, begin: Sequence[str], *, checks: bool) -> None:
        """
        Begin a transaction that reads one snapshot. `checks`: fail now if the tables have moved.
        """
        self._asked.clear()
        for statement in begin:
            self.pipeline.send(statement)
        if checks:
            self.one("turn_read")

    def end_reading(self) -> None:
        """End it; the answer is read with that of the next statement."""
        self.pipeline.send("COMMIT")
        self.pipeline.send_sync()

    def has_lock(self, try_lock: str) -> bool:
        """Whether a lock was free."""
        return bool(self.pipeline.rows(self.pipeline.send(try_lock))[0][0])

    def one(self, name: str, *values: Any) -> Any:
        rows = self.all(name, *values)
        return rows[0] if rows else None

    def all(self, name: str, *values: Any) -> list[Any]:
        ticket = self._asked.pop((name, *values), None) or self._send(name, values)
        return self.pipeline.rows(ticket) if ticket is not None else []

    def prefetch(self, name: str, *given: Any) -> None:
        values = [Array(each) if type(each) is tuple else each for each in given]
        if (name, *values) in self._asked:
            return
        ticket = self._send(name, values)
        if ticket is not None:
            self._asked[name, *values] = ticket

    def run(self, name: str, *values: Any) -> None:
        if is_upsert(name):
            self._send_rows(name, [values])
        else:
            self._send(name, values)

    def change(self, name: str, *values: Any) -> int:
        ticket = self._send(name, values)
        return self.pipeline.changed(ticket) if ticket is not None else 0

    def _send(self, name: str, values: Sequence[Any]) -> Ticket | None:
        """Send a statement. None: it has an empty list, with which no statement does anything."""
        statement = single(self.names.get(name, name))
        nullable = statement.nullable
        types: list[int] = []
        data: list[bytes | None] = []
        for n, value in enumerate(values):
            if type(value) is Array:
                if not value.length:
                    return None
                types.append(value.oid)
                data.append(value.data)
                continue
            oid, encode = _ENCODE[type(value)]
            types.append(0 if n in nullable else oid)
            data.append(None if n in nullable and value == 0 else encode(value))
        self._note(name)
        return self.pipeline.send(statement.text, tuple(types), data)

    def _note(self, name: str) -> None:
        """A statement is sent: what was asked for before it changes a table is outdated."""
        changed = _changed_by(name)
        if changed is None:
            return
        self._has_written = True
        for asked in [
            each
            for each in self._asked
            if changed in _tables_of(each[0]) and each[0] not in _OTHER_ROWS.get(name, ())
        ]:
            del self._asked[asked]

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            self._send_rows(name, rows)

    def change_exactly(self, name: str, rows: Sequence[Sequence[Any]], count: int) -> None:
        self._send_rows(name, rows, count=count)

    def run_rows(self, name: str, rows: Sequence[Sequence[Any]], *, converts: bool = False) -> None:
        del converts
        self.run_many(name, rows)

    def all_rows(
        self, name: str, rows: Sequence[Sequence[Any]], *, converts: bool = False
    ) -> list[Any]:
        del converts
        return self.pipeline.rows(self._send_rows(name, rows))

    def add_rows(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        self._send_rows(f"{table}_add", rows, _ZERO_IS_NULL[table])

    def _send_rows(
        self,
        name: str,
        rows: Sequence[Sequence[Any]],
        nullable: frozenset[int] = frozenset(),
        count: int | None = None,
    ) -> Ticket:
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        types = tuple(map(_element, columns, chain(parameter_types(name), repeat(None))))
        shared = _shared(name, columns)
        statement = bulk(name, types, shared)
        for n in nullable | statement.nullable:
            columns[n] = [None if each == 0 else each for each in columns[n]]
        self._note(name)
        text = statement.text
        sent = tuple(oid if n in shared else _ARRAY_OF[oid] for n, oid in enumerate(types))
        values = [
            encode_array(oid, column)
            if n not in shared
            else None
            if column[0] is None
            else _ELEMENT[oid](column[0])
            for n, (oid, column) in enumerate(zip(types, columns, strict=True))
        ]
        if count is not None:
            text, sent = exactly(text, len(sent) + 1), (*sent, INT8)
            values.append(_int8(count))
        return self.pipeline.send(text, sent, values)

    array = Array
    keeps_deleted = True
    touched = staticmethod(touched)
