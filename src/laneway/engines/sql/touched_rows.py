"""
The rows of messages that a transaction has read or changed, table by table.

A call reads what it needs (`load`: the rows of many keys in one statement), decides in memory, and
writes each row once, together with the others of its table. Before any other statement that names
the table its changes are written, see `Statements`; so the order of reads and writes does not
matter to callers.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Self

import msgspec

from laneway.engines.shared.states import PARKED, READY
from laneway.engines.sql.rows import NONE, Row, Shard
from laneway.engines.sql.statements import Statements

Key = tuple[Any, ...]
Values = tuple[Any, ...]


class Table:
    """
    The rows of one table by key: the values of its first columns; None: there is no such row.

    `name`: the table's. `key`: the number of columns of a key. `read`, `write`, `delete`: the names
    of its statements. `converts`: it has columns of bytes or NULL, which are bound as
    `statements` says. `absent`: first columns of keys that have no stored rows.
    """

    def __init__(
        self,
        statements: Statements,
        name: str,
        key: int,
        *,
        write: str,
        delete: str,
        read: str = "",
        converts: bool = False,
        absent: Container[Any] = (),
    ) -> None:
        self._tables, self._connection = statements.tables, statements.connection
        self._absent = absent
        self._key = key
        self._read, self._write, self._delete = read, write, delete
        self._converts = converts
        self._known: dict[Key, Values | None] = {}
        self._changed: dict[Key, Values | None] = {}
        statements.tables[name] = self

    def get(self, *key: Any) -> Values | None:
        """The values behind the key; None: there is no such row."""
        if key in self._changed:
            return self._changed[key]
        if key not in self._known:
            self.load([key])
        return self._known[key]

    def load(self, keys: Iterable[Key]) -> None:
        """Read the rows of these keys, all in one statement."""
        missing = [
            key
            for key in dict.fromkeys(keys)
            if key not in self._known and key not in self._changed
        ]
        self._known.update(dict.fromkeys(missing))
        wanted = [key for key in missing if key[0] not in self._absent]
        if not wanted:
            return
        rows = self._connection.all_rows(self._read, wanted, converts=self._converts)
        self._known.update((row[: self._key], row[self._key :]) for row in rows)

    def assume_absent(self, keys: Iterable[Key]) -> None:
        """Do not read the rows of these keys: the caller knows that they say nothing."""
        for key in keys:
            if key not in self._changed:
                self._known.setdefault(key, None)

    def put(self, key: Key, *values: Any) -> None:
        self._changed[key] = values

    def delete(self, *key: Any) -> None:
        self._changed[key] = None

    def is_deleted(self, *key: Any) -> bool:
        """Whether the row was deleted and this is not written yet."""
        return key in self._changed and self._changed[key] is None

    def write(self) -> None:
        """Write what was changed."""
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        if self._read:
            self._known.update(changed)
        deleted = [key for key, values in changed.items() if values is None]
        written = [(*key, *values) for key, values in changed.items() if values is not None]
        if deleted:
            self._connection.run_rows(self._delete, deleted, converts=self._converts)
        if written:
            self._connection.run_rows(self._write, written, converts=self._converts)

    def forget(self) -> None:
        """Forget what was read: another statement changes this table."""
        self._known.clear()


class TimedTable(Table):
    """A table of rows that wake or end at a time, see `Shard.first_wake`."""

    _shard: Shard
    _column: int

    def timed_by(self, shard: Shard, column: int) -> Self:
        """`column`: of a row's values, the one that has its time."""
        self._shard, self._column = shard, column
        return self

    def put(self, key: Key, *values: Any) -> None:
        self._shard.expect_wake(values[self._column])
        super().put(key, *values)


class PlaceTable(Table):
    """
    `ready` or `parked`, where messages wait: (…, rank, position, sequence number) → (message,). The
    rows of new messages are not put into it: they follow from those in `message`.
    """

    def write(self) -> None:
        messages = self._tables.get("message")
        if messages is not None:
            messages.write()
        self.write_changed()

    def write_changed(self) -> None:
        """Write what was changed, less the rows of new messages."""
        super().write()


class SerialKeyTable(Table):
    """
    `serial_key`: (lane, key) → (head, whether it is held, and the place before which none of its
    parked messages is: rank, position).
    """

    def __init__(self, statements: Statements, absent: Container[int]) -> None:
        super().__init__(
            statements,
            "serial_key",
            2,
            read="serial_keys_read",
            write="serial_key_write",
            delete="serial_key_delete",
            absent=absent,
        )
        self._held: dict[Key, int] = {}

    def load(self, keys: Iterable[Key]) -> None:
        self._write_held()
        super().load(keys)

    def hold(self, lane: int, key: str, mid: int) -> None:
        """The key's head is leased. Its row need not have been read."""
        stored = self._changed.get((lane, key), self._known.get((lane, key)))
        if stored is None:
            self._held[lane, key] = mid
        else:
            self.put((lane, key), mid, 1, *stored[2:])

    def expect(self, lane: int, key: str, place: tuple[int, int]) -> None:
        """A message is parked in this place, maybe before all others of the key."""
        stored = self.get(lane, key)
        if stored is not None and place < stored[2:]:
            self.put((lane, key), *stored[:2], *place)

    def write(self) -> None:
        self._write_held()
        super().write()

    def _write_held(self) -> None:
        held, self._held = self._held, {}
        if held:
            rows = [(*key, mid) for key, mid in held.items()]
            self._connection.run_rows("serial_key_hold", rows)


class ParkedTable(PlaceTable):
    """
    `parked`, or `key_parked`: (lane, key, rank, position, sequence number) → (message,).
    """

    def __init__(self, statements: Statements, name: str = "parked") -> None:
        super().__init__(statements, name, 5, write=f"{name}_insert", delete=f"{name}_delete")
        self._read_firsts = f"{name}_firsts"
        self._states = "serial_key" if name == "parked" else "key_state"
        self._firsts: dict[tuple[int, str], int | None] = {}

    def first(self, lane: int, key: str) -> int | None:
        """The first message that is parked behind the head of a serial key, or by a key."""
        if (lane, key) not in self._firsts:
            self.load_firsts([(lane, key)])
        return self._firsts[lane, key]

    def load_firsts(self, keys: Iterable[tuple[int, str]]) -> None:
        """Read the first messages of these keys, all in one statement."""
        self.write()
        if (states := self._tables.get(self._states)) is not None:
            states.write()  # the statement starts from the places that these rows have
        wanted = [key for key in dict.fromkeys(keys) if key not in self._firsts]
        rows = self._connection.all_rows(self._read_firsts, wanted) if wanted else []
        self._firsts.update(dict.fromkeys(wanted))
        self._firsts.update(((lane, key), mid) for lane, key, mid in rows)

    def forget_first(self, lane: int, key: str) -> None:
        """A new message is parked by this key."""
        self._firsts.pop((lane, key), None)

    def put(self, key: Key, *values: Any) -> None:
        self._firsts.pop(key[:2], None)
        super().put(key, *values)

    def delete(self, *key: Any) -> None:
        self._firsts.pop(key[:2], None)
        super().delete(*key)

    def forget(self) -> None:
        super().forget()
        self._firsts.clear()


class EventTable(Table):
    """`event`: (time, kind, message) → ()."""

    def __init__(self, statements: Statements, shard: Shard) -> None:
        super().__init__(statements, "event", 3, write="event_insert", delete="event_delete")
        self._shard = shard

    def put(self, key: Key, *values: Any) -> None:
        self._shard.first_event = min(self._shard.first_event, key[0])
        super().put(key, *values)


class LeaseEndTable(Table):
    """`lease_end`: (time, first fence) → (last fence,)."""

    def __init__(self, statements: Statements, shard: Shard) -> None:
        super().__init__(
            statements, "lease_end", 2, write="lease_end_insert", delete="lease_end_delete"
        )
        self._shard = shard
        self.first_new: Key = (NONE,)
        """The first one that was put since housekeeping has read a page of them."""

    def put(self, key: Key, *values: Any) -> None:
        self._shard.first_end = min(self._shard.first_end, key[0])
        self.first_new = min(self.first_new, key)
        super().put(key, *values)


class TimerTable(Table):
    """`timer`: (lane,) → (time, turn). A stored one is lowered, unless it was deleted before."""

    def __init__(self, statements: Statements, shard: Shard) -> None:
        super().__init__(statements, "timer", 1, write="timer_write", delete="timer_delete")
        self._shard = shard
        self._deleted = dict[int, None]()

    def expect(self, lane: int, at: int) -> None:
        """A message of the lane is due then."""
        self._shard.first_timer = min(self._shard.first_timer, at)
        known = self._changed.get((lane,))
        first = at if known is None else min(at, *known)
        self.put((lane,), first, first)

    def delete(self, *key: Any) -> None:
        self._deleted[key[0]] = None
        self._changed.pop(key, None)

    def is_deleted(self, *key: Any) -> bool:
        return key[0] in self._deleted

    def write(self) -> None:
        if self._deleted:
            deleted, self._deleted = self._deleted, {}
            self._connection.run_rows(self._delete, [(lane,) for lane in deleted])
        super().write()


class IdentTable(TimedTable):
    """`ident`: (id, topic) → (message or None, 1 if it joined that message, until)."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(
            statements,
            "ident",
            2,
            read="idents_read",
            write="ident_write",
            delete="ident_delete",
            converts=True,
        )
        self._joined: dict[int, list[tuple[str, str]]] = {}

    def joined(self, mid: int) -> list[tuple[str, str]]:
        """(id, topic) of the messages that joined one."""
        if mid not in self._joined:
            self.load_joined([mid])
        return self._joined[mid]

    def load_joined(self, mids: Iterable[int]) -> None:
        """Read the ids of the messages that joined these, all in one statement."""
        self.write()
        wanted = [mid for mid in dict.fromkeys(mids) if mid not in self._joined]
        if wanted:
            self._joined.update((mid, []) for mid in wanted)
            rows = self._connection.all("idents_joined_to", self._connection.array(wanted))
            for mid, message_id, topic in rows:
                self._joined[mid].append((message_id, topic))

    def put(self, key: Key, *values: Any) -> None:
        self._joined.pop(values[0], None)
        super().put(key, *values)

    def forget(self) -> None:
        super().forget()
        self._joined.clear()


class PartTable:
    """`part`: the bodies of a message beyond the first, by message."""

    def __init__(self, statements: Statements) -> None:
        self._tables, self._connection = statements.tables, statements.connection
        self._known: dict[int, list[bytes]] = {}
        self._added: dict[int, list[tuple[int, int, bytes]]] = {}
        self._deleted: dict[int, None] = {}
        statements.tables["part"] = self

    def bodies(self, mid: int) -> list[bytes]:
        """The message's further bodies, in their order."""
        if mid not in self._known:
            self.load([mid])
        return self._known[mid]

    def load(self, mids: Iterable[int]) -> None:
        """Read the bodies of these messages, all in one statement."""
        wanted = [mid for mid in dict.fromkeys(mids) if mid not in self._known]
        if wanted:
            self.write()
            self._known.update((mid, []) for mid in wanted)
            for mid, body in self._connection.all("parts_of", self._connection.array(wanted)):
                self._known[mid].append(body)

    def add(self, mid: int, number: int, body: bytes) -> None:
        """Add a body; they are numbered from 1."""
        if number == 1:
            self._known[mid] = []
        if mid in self._known:
            self._known[mid].append(body)
        self._added.setdefault(mid, []).append((mid, number, body))

    def delete(self, mid: int) -> None:
        """Delete all bodies of a message beyond the first."""
        self._known[mid] = []
        self._added.pop(mid, None)
        self._deleted[mid] = None

    def write(self) -> None:
        """Write what was changed."""
        deleted, self._deleted = self._deleted, {}
        added, self._added = self._added, {}
        if deleted:
            self._connection.run("parts_delete", self._connection.array(list(deleted)))
        if added:
            self._connection.run_rows(
                "part_insert", [row for rows in added.values() for row in rows], converts=True
            )

    def forget(self) -> None:
        """Forget what was read: another statement changes this table."""
        self._known.clear()


class MessageTable:
    """`message`: the rows by number. Each row has one object, which all callers share."""

    def __init__(self, statements: Statements) -> None:
        self._tables, self._connection = statements.tables, statements.connection
        self._known: dict[int, Row | None] = {}
        self.new: dict[int, Row] = {}
        """Messages that were added and are not written yet."""
        self._moved: dict[int, Row] = {}
        self._states: dict[int, Row] = {}
        self._contents: dict[int, Row] = {}
        self._sticky: dict[int, None] = {}
        self._deleted: dict[int, None] = {}
        statements.tables["message"] = self
        for places in ("ready", "parked"):  # what reads these needs new messages to be written
            statements.tables.setdefault(places, self)

    def get(self, mid: int) -> Row | None:
        if mid not in self._known:
            self.load([mid])
        return self._known[mid]

    def load(self, mids: Iterable[int]) -> None:
        """Read the rows of these messages, all in one statement."""
        wanted = [mid for mid in dict.fromkeys(mids) if mid not in self._known]
        if wanted:
            rows = self._connection.all("messages_by_number", self._connection.array(wanted))
            self._known.update(dict.fromkeys(wanted))
            self._known.update((row[0], Row(*row)) for row in rows)

    def adopt(self, heads: Sequence[Values]) -> list[Row]:
        """The ready messages of which a statement has read `{head}`."""
        self.load([head[0] for head in heads if head[-1]])
        known = self._known
        found = []
        for head in heads:
            row = known.get(head[0])
            if row is None:
                row = known[head[0]] = Row(*head[:-1])
            found.append(row)
        return found

    def add(self, row: Row) -> None:
        """Insert a new message; its place in `ready` is that of its row when it is written."""
        self._known[row.mid] = self.new[row.mid] = row

    def save(self, row: Row) -> None:
        """Write the columns that change while a message is stored."""
        row.odd = 1
        self._known[row.mid] = row
        if row.mid not in self.new:
            self._moved[row.mid] = row

    def save_state(self, row: Row) -> None:
        """Write the state alone."""
        if row.mid not in self.new:
            self._states[row.mid] = row

    def save_content(self, row: Row) -> None:
        """Write the body and the headers."""
        if row.mid not in self.new:
            self._contents[row.mid] = row

    def make_sticky(self, row: Row) -> None:
        """The message's ids stay known for a day after it is finished."""
        row.sticky = 1
        if row.mid not in self.new:
            self._sticky[row.mid] = None

    def delete(self, mid: int) -> None:
        self._known[mid] = None
        if self.new.pop(mid, None) is None:
            self._moved.pop(mid, None)
            self._states.pop(mid, None)
            self._contents.pop(mid, None)
            self._deleted[mid] = None

    def write(self) -> None:
        """Write what was changed."""
        connection = self._connection
        if self.new:
            self._write_new()
        if self._states:
            states, self._states = self._states, {}
            for state in {row.state for row in states.values()}:
                mids = [mid for mid, row in states.items() if row.state == state]
                connection.run("messages_state", state, connection.array(mids))
        if self._moved:
            moved, self._moved = self._moved, {}
            connection.run_rows("message_move", [_moved(row) for row in moved.values()])
        if self._contents:
            contents, self._contents = self._contents, {}
            connection.run_rows(
                "message_content",
                [(row.mid, row.headers, row.body) for row in contents.values()],
                converts=True,
            )
        if self._sticky:
            sticky, self._sticky = self._sticky, {}
            connection.run("messages_sticky", connection.array(list(sticky)))
        if self._deleted:
            deleted, self._deleted = self._deleted, {}
            connection.run("messages_delete", connection.array(list(deleted)))

    def _write_new(self) -> None:
        """Insert new messages, and from their rows the places where they wait."""
        new, self.new = self.new, {}
        self._connection.add_rows("message", list(map(msgspec.structs.astuple, new.values())))
        found = {row.state for row in new.values()}
        for state, name in ((READY, "ready"), (PARKED, "parked")):
            if state in found:
                places = self._tables[name]
                if isinstance(places, PlaceTable):
                    places.write_changed()  # what it has of these messages is older
                self._connection.run(f"{name}_insert_new", min(new), max(new))

    def forget(self) -> None:
        """Forget what was read: another statement changes this table."""
        self._known.clear()


def _moved(row: Row) -> tuple[Any, ...]:
    """The columns that change while a message is stored, as they are bound."""
    return (
        row.mid,
        row.lane,
        row.state,
        row.rank,
        row.seq,
        row.since,
        row.expires or 0,
        row.serial,
        row.attempts,
        row.deliveries,
        row.suspect,
        row.joined,
        row.parts,
    )
