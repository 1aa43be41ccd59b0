"""
The spool's file: a local SQLite database with the messages that the store has not accepted yet.

`message` has one row for each message, in the order of publish, and no index, so that publishing
changes one page. The last row stays when it was forwarded, without its content, because its
numbers continue: `seq` counts the messages, `total` the bytes of all bodies. What was removed is
counted in `spool`, so the count and the size of what waits are differences.

`spool` also has the batch that is being forwarded. It is on disk before the store gets it, so that
after any crash the same messages are sent under the same name (see `Queue.forward`).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from laneway.engines.shared import forking
from laneway.engines.shared.replaced_files import Files, create_file, is_of_another
from laneway.errors import EngineCorrupt, EngineUnavailable, SchemaMismatch, UsageError
from laneway.message import Draft

VERSION = 1
"""Version of the tables."""

APPLICATION_ID = 0x4C775370
"""Marks the file as a spool, in SQLite's header: "LwSp"."""

PAGE_BYTES = 1024
"""Each publish writes a page: small ones keep the log small."""

BUSY_SECONDS = 10.0
"""How long a transaction waits for those of other processes."""

KEPT_REJECTED = 10_000
"""How many rejected messages stay in the file; the oldest ones go first."""

SCHEMA = f"""
CREATE TABLE spool (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE message (
    seq     INTEGER PRIMARY KEY,
    at_us   INTEGER NOT NULL,   -- when publish was called, by this machine's clock
    total   INTEGER NOT NULL,   -- bytes of all bodies up to this one, since the file exists
    topic   TEXT,               -- NULL: it was forwarded
    id      TEXT,
    body    BLOB,
    options BLOB                -- the other fields of the draft (MessagePack); NULL: the defaults
);
CREATE TABLE rejected (         -- messages that the store refuses
    seq     INTEGER PRIMARY KEY,
    at_us   INTEGER NOT NULL,
    topic   TEXT NOT NULL,
    id      TEXT NOT NULL,
    body    BLOB NOT NULL,
    options BLOB,
    reason  TEXT NOT NULL
);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""

_FORMAT = "SELECT application_id, user_version FROM pragma_application_id, pragma_user_version"
"""One statement: between two, another process could create the tables."""

_INSERT = """
INSERT INTO message (at_us, total, topic, id, body, options) VALUES
    (?, ? + ifnull((SELECT total FROM message ORDER BY seq DESC LIMIT 1), 0), ?, ?, ?, ?)
"""
_INSERT_MANY = """
INSERT INTO message (seq, at_us, total, topic, id, body, options) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_LAST = "SELECT seq, total FROM message ORDER BY seq DESC LIMIT 1"
_REMOVED = "SELECT name, value FROM spool WHERE name IN ('removed', 'removed_bytes')"

_pack = msgspec.msgpack.Encoder().encode
_options = msgspec.msgpack.Decoder(dict[str, Any]).decode
_seqs = msgspec.msgpack.Decoder(list[int]).decode


class Row(NamedTuple):
    """A message in the spool. `at_us`: when publish was called, by this machine's clock."""

    seq: int
    at_us: int
    topic: str
    id: str
    body: bytes
    options: bytes | None

    def draft(self) -> Draft:
        """The message as it was published."""
        options = {} if self.options is None else _options(self.options)
        return Draft(self.topic, self.body, id=self.id, **{**options, "sticky": True})


class Usage(NamedTuple):
    """What waits in the spool."""

    messages: int
    size: int


class SpoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a spool holds.

    - `waiting`, `bytes`: messages that the store has not accepted, and the size of their bodies.
    - `oldest_at`: when the oldest of them was published (Unix time in seconds).
    - `unclear`: how many of them were sent without an answer; they are sent again in the same way,
      and the store accepts each once.
    - `rejected`: how many messages the store refused; `reasons` has the latest ones, as (topic,
      id, reason).
    - `forwarder`: the process that forwards now, or None.
    - `error`: why the last attempt failed, if it did; `error_at`: when.
    """

    path: str
    namespace: str
    store: str
    waiting: int
    bytes: int
    oldest_at: float | None = None
    unclear: int = 0
    rejected: int = 0
    reasons: list[tuple[str, str, str]] = []
    forwarder: int | None = None
    error: str | None = None
    error_at: float | None = None


class SpoolFile:
    """
    One connection to a spool's file; `syncs`: each transaction is on disk when it ends. Use it from
    one thread at a time. In a forked child it is closed.

    `path`: the file's own, as links lead to it; the names of the log and of the lock begin with it.
    """

    def __init__(self, path: str, *, syncs: bool, create: bool = True) -> None:
        self.path = os.path.realpath(path)
        self.lock = threading.RLock()
        """Held while the connection is used."""
        self._log = self._lead = -1
        self._cursor = 0
        with self._errors(), forking.undivided():
            if not create and not Path(path).is_file():
                raise UsageError(
                    f"spool {path}: there is no such file; give the path of the program's spool="
                )
            if is_of_another(path, "SELECT value FROM spool WHERE name = 'id'"):
                raise EngineCorrupt(
                    f"spool {path}: the {self.path}-wal next to it belongs to another file; end all"
                    f" programs that use them and move {self.path}-wal and {self.path}-shm away"
                )
            _files.add(self)
            create_file(self.path)
            self._connection = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(syncs=syncs)
            except BaseException:
                self._connection.close()
                raise
        self._execute = self._connection.execute
        self.last, self._total = 0, 0
        self._removed, self._removed_bytes = 0, 0
        try:
            self.refresh()  # the first read creates the files next to it
            self._files = Files(path)
            self._log = self._open_log()
        except BaseException:
            self.close()
            raise

    def _prepare(self, *, syncs: bool) -> None:
        run = self._connection.execute
        application, version = run(_FORMAT).fetchone()
        if (application, version) == (0, 0):
            self._create()
        elif application != APPLICATION_ID:
            raise UsageError(f"spool {self.path}: this SQLite file is not a spool; name another")
        elif version != VERSION:
            raise SchemaMismatch(
                f"spool {self.path}: its tables have version {version}, this Laneway knows"
                f" {VERSION}; drain it with the version that wrote it"
            )
        run("PRAGMA wal_autocheckpoint = 0")  # `checkpoint` is called by a thread of its own
        run(f"PRAGMA synchronous = {'FULL' if syncs else 'NORMAL'}")

    def _create(self) -> None:
        run = self._connection.execute
        run(f"PRAGMA page_size = {PAGE_BYTES}")
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                run("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:  # SQLite does not wait for others here
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        with self.transaction():
            if run("PRAGMA user_version").fetchone() != (0,):
                return  # another process was first
            if run("SELECT 1 FROM sqlite_master").fetchone() is not None:
                raise UsageError(
                    f"spool {self.path}: this SQLite file is not a spool; name another"
                )
            for statement in SCHEMA.strip().split(";\n"):
                run(statement)
            self.set("id", secrets.token_hex(8))

    def _open_log(self) -> int:
        try:
            return os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> EngineUnavailable:
        return EngineUnavailable(
            f"spool {self.path}: it cannot be written to the disk ({error}); check its folder"
            " and the room on the disk"
        )

    def wrong(self, *, written: bool) -> str | None:
        """
        Why only this process sees the content of the open file (it is no longer the file at its
        path), or None if it still is. `written`: after a message was written.
        """
        return self._files.wrong(durable=written)

    def check(self, *, written: bool) -> None:
        """Raise EngineUnavailable for a file that is `wrong`."""
        wrong = self.wrong(written=written)
        if wrong is not None:
            raise EngineUnavailable(f"spool {wrong}", applied=None if written else False)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with self.lock:
            try:
                yield
            except sqlite3.DatabaseError as error:
                raise self._error(error) from error

    def _error(self, error: sqlite3.DatabaseError) -> EngineUnavailable:
        if not isinstance(error, sqlite3.OperationalError):
            return EngineCorrupt(f"spool {self.path}: the file is damaged ({error}); move it away")
        return EngineUnavailable(
            f"spool {self.path}: it cannot be used ({error}); check its folder, its rights and the"
            " room on the disk"
        )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; other processes wait meanwhile."""
        run = self._connection.execute
        with self._errors():
            run("BEGIN IMMEDIATE")
            try:
                yield
                run("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    run("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection."""
        with self.lock, forking.undivided():
            self._connection.close()
            self._close_log()

    def _close_log(self) -> None:
        log, self._log = self._log, -1
        if log >= 0:
            os.close(log)

    def close_in_child(self, *, is_quiet: bool) -> None:
        """In a forked child. `is_quiet`: nothing used the connection during the fork."""
        self.lock = threading.RLock()
        if is_quiet and hasattr(self, "_connection"):
            with suppress(sqlite3.Error):
                self._connection.close()
        else:  # what used it never ends here: closing could block forever
            _abandoned.append(getattr(self, "_connection", None))
        self._close_log()

    # Facts by name

    def get(self, name: str) -> Any:
        """A stored fact, None if it is not there."""
        with self._errors():
            query = "SELECT value FROM spool WHERE name = ?"
            row = self._connection.execute(query, (name,)).fetchone()
        return None if row is None else row[0]

    def set(self, name: str, value: Any) -> None:
        """Store a fact; None removes it."""
        run = self._connection.execute
        if value is None:
            run("DELETE FROM spool WHERE name = ?", (name,))
        else:
            run("INSERT OR REPLACE INTO spool VALUES (?, ?)", (name, value))

    # Publishing

    @property
    def usage(self) -> Usage:
        """What waits, as far as this connection knows."""
        return Usage(self.last - self._removed, self._total - self._removed_bytes)

    def refresh(self) -> Usage:
        """Read what waits."""
        with self._errors():
            removed = dict(self._execute(_REMOVED).fetchall())
            last = self._execute(_LAST).fetchone()
        self._removed = removed.get("removed", 0)
        self._removed_bytes = removed.get("removed_bytes", 0)
        self.last, self._total = last or (0, 0)
        return self.usage

    def append(self, draft: Draft) -> None:
        """Write one message. It survives the end of the process when this returns."""
        size = len(draft.body)
        now, options = time.time_ns() // 1000, packed_options(draft)
        try:
            with self.lock:
                cursor = self._execute(
                    _INSERT, (now, size, draft.topic, draft.id, draft.body, options)
                )
        except sqlite3.DatabaseError as error:
            raise self._error(error) from error
        last = cursor.lastrowid or 0
        if last == self.last + 1:
            self.last, self._total = last, self._total + size
        else:
            self.refresh()  # other processes have written too
        self.check(written=True)

    def append_many(self, drafts: Sequence[Draft], fits: Callable[[Usage], bool]) -> int:
        """
        Write messages in one transaction, in order, as long as there is room: `fits` is asked
        before each. Returns how many.
        """
        now = time.time_ns() // 1000
        rows = []
        with self.transaction():
            self.refresh()
            seq, total = self.last, self._total
            for draft in drafts:
                if not fits(Usage(seq - self._removed, total - self._removed_bytes)):
                    break
                seq, total = seq + 1, total + len(draft.body)
                options = packed_options(draft)
                rows.append((seq, now, total, draft.topic, draft.id, draft.body, options))
            self._connection.executemany(_INSERT_MANY, rows)
        self.last, self._total = seq, total
        self.check(written=True)
        return len(rows)

    # Forwarding, as the forwarder's source

    @property
    def name(self) -> str:
        """The name in log lines."""
        return f"spool {self.path}"

    def lead(self) -> bool:
        """Become the one that forwards, by a lock. False: another process does."""
        if self.wrong(written=False) is not None:
            return False  # the lock at this path is of another file
        # Known before it is held: a forked child must not keep it.
        self._lead = os.open(f"{self.path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lead, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        os.ftruncate(self._lead, 0)
        os.pwrite(self._lead, str(os.getpid()).encode(), 0)
        return True

    def step_down(self) -> None:
        """Let another process forward."""
        if self._lead >= 0:
            os.close(self._lead)
            self._lead = -1

    def begin(self) -> tuple[str, str | None]:
        """Read from the first message on. Returns the spool's id, and the last error."""
        self._cursor = 0
        return self.get("id"), self.get("error")

    def note_error(self, error: str | None) -> None:
        """Note why the store cannot be used, or None if it can."""
        if error == self.get("error"):
            return
        with self.transaction():
            self.set("error", error)
            self.set("error_at", None if error is None else time.time())

    def next_rows(self, limit: int, max_bytes: int) -> list[Row]:
        """
        The next messages in order that were not read yet, with at most this many bytes of bodies
        (or one message).
        """
        found: list[Row] = []
        with (
            self._errors(),
            closing(
                self._execute(
                    "SELECT seq, at_us, topic, id, body, options FROM message"
                    " WHERE seq > ? AND topic IS NOT NULL ORDER BY seq LIMIT ?",
                    (self._cursor, limit),
                )
            ) as rows,
        ):
            for row in rows:
                max_bytes -= len(row[4])
                if found and max_bytes < 0:
                    break
                found.append(Row(*row))
                self._cursor = row[0]
        return found

    def rows(self, seqs: Sequence[int]) -> list[Row]:
        """These messages, in the order of publish."""
        if not seqs:
            return []
        with self._errors():
            rows = self._execute(
                "SELECT seq, at_us, topic, id, body, options FROM message"
                " WHERE seq IN (SELECT value FROM json_each(?)) AND topic IS NOT NULL ORDER BY seq",
                (msgspec.json.encode(list(seqs)).decode(),),
            )
            return [Row(*row) for row in rows]

    def batch(self) -> tuple[str, list[Row]] | None:
        """The batch whose forwarding began, and was not finished: its name and its messages."""
        with self._errors():
            name, seqs = self.get("batch"), self.get("batch_seqs")
        return None if name is None else (name, self.rows(_seqs(seqs)))

    def next_batch(
        self,
        done: Sequence[Row],
        rejected: Sequence[tuple[Row, str]],
        batch: tuple[str, Sequence[int]] | None,
    ) -> None:
        """
        In one transaction: remove the messages that the store has, put those that it refuses aside
        with their reasons, and write down the batch that is forwarded next, which is on disk when
        this returns.
        """
        gone = [*done, *(row for row, _ in rejected)]
        with self.transaction():
            if gone:
                self._remove(gone)
            for row, reason in rejected:
                self._execute(
                    "INSERT OR REPLACE INTO rejected VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, reason)
                )
            if rejected:
                self._execute(
                    "DELETE FROM rejected WHERE seq <= (SELECT seq FROM rejected"
                    " ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                    (KEPT_REJECTED,),
                )
            self.set("batch", None if batch is None else batch[0])
            self.set("batch_seqs", None if batch is None else _pack(list(batch[1])))
        if batch is not None:
            self.sync()

    def _remove(self, rows: Sequence[Row]) -> None:
        last = self._execute(_LAST).fetchone()[0]
        emptied = self.get("emptied")
        if emptied is not None and emptied < last:
            self._execute("DELETE FROM message WHERE seq = ?", (emptied,))
            self.set("emptied", None)
        self._connection.executemany(
            "DELETE FROM message WHERE seq = ?", [(row.seq,) for row in rows if row.seq < last]
        )
        if any(row.seq == last for row in rows):
            self._execute(
                "UPDATE message SET topic = NULL, id = NULL, body = NULL, options = NULL"
                " WHERE seq = ?",
                (last,),
            )
            self.set("emptied", last)
        size = sum(len(row.body) for row in rows)
        self.set("removed", (self.get("removed") or 0) + len(rows))
        self.set("removed_bytes", (self.get("removed_bytes") or 0) + size)

    def is_forwarded(self, seq: int) -> bool:
        """Whether no message up to this one waits."""
        with self._errors():
            row = self._execute(
                "SELECT 1 FROM message WHERE seq <= ? AND topic IS NOT NULL LIMIT 1", (seq,)
            ).fetchone()
        return row is None

    def oldest_us(self) -> int | None:
        """When the oldest waiting message was published, or None if none waits."""
        with self._errors():
            row = self._execute(
                "SELECT at_us FROM message WHERE topic IS NOT NULL ORDER BY seq LIMIT 1"
            ).fetchone()
        return None if row is None else row[0]

    # Upkeep

    def sync(self) -> None:
        """
        Wait until everything that was written is on the disk. Unlike a transaction that syncs, this
        does not keep publishers from writing meanwhile.
        """
        try:
            os.fsync(self._log)
        except OSError as error:
            raise self._unwritable(error) from error

    def log_size(self) -> int:
        """The size of SQLite's write-ahead log, in bytes."""
        return os.fstat(self._log).st_size

    def checkpoint(self) -> None:
        """Move what was written into the main file, and start the log again."""
        with self._errors():
            self._execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def status(self, forwarder: int | None) -> SpoolStatus:
        """What the spool holds. `forwarder`: the process that forwards now."""
        usage, oldest, batch = self.refresh(), self.oldest_us(), self.batch()
        with self._errors():
            (rejected,) = self._execute("SELECT count(*) FROM rejected").fetchone()
            reasons = self._execute(
                "SELECT topic, id, reason FROM rejected ORDER BY seq DESC LIMIT 10"
            ).fetchall()
            return SpoolStatus(
                path=self.path,
                namespace=self.get("namespace") or "",
                store=self.get("store") or "",
                waiting=usage.messages,
                bytes=usage.size,
                oldest_at=None if oldest is None else oldest / 1e6,
                unclear=0 if batch is None else len(batch[1]),
                rejected=rejected,
                reasons=reasons,
                forwarder=forwarder,
                error=self.get("error"),
                error_at=self.get("error_at"),
            )


def forwarding_process(path: str) -> int | None:
    """The process that forwards from a spool now, or None if none does."""
    try:
        lock = os.open(f"{path}-lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        text = os.pread(lock, 20, 0)
        return int(text) if text.isdigit() else None
    finally:
        os.close(lock)
    return None


# Forks: as for an engine's files (`engines/sqlite/store`), nothing uses a connection during a fork,
# and the child closes those that it inherited before it opens any. Else it would take the parent's
# locks for its own, and write into a log that the parent may remove.

_files: forking.Locked[SpoolFile] = forking.Locked(
    lambda file, is_quiet: file.close_in_child(is_quiet=is_quiet)
)
_abandoned: list[object] = []

_FIELDS = Draft.__struct_fields__
_ID = _FIELDS.index("id")
_DEFAULTS = msgspec.structs.astuple(Draft("", b""))


def packed_options(draft: Draft) -> bytes | None:
    """The fields that differ from their defaults, by name, besides topic, body and id."""
    values = msgspec.structs.astuple(draft)
    if values[2:_ID] == _DEFAULTS[2:_ID] and values[_ID + 1 :] == _DEFAULTS[_ID + 1 :]:
        return None
    return _pack(
        {
            name: value
            for name, value, default in zip(_FIELDS[2:], values[2:], _DEFAULTS[2:], strict=True)
            if value != default and name != "id"
        }
    )
