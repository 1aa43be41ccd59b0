"""
The file: its connection, pragmas, schema version and transactions, and what SQLite's errors mean.

Each engine object has one connection, used by one thread at a time. Every write is one `BEGIN
IMMEDIATE` transaction. While another process writes, short waits of our own are used, because
SQLite's busy handler sleeps up to 100 ms.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from laneway.engines.shared import forking
from laneway.engines.shared.replaced_files import Files, create_file, is_of_another
from laneway.engines.sql import store as sql_store
from laneway.engines.sql.statements import schema
from laneway.engines.sql.store import Read
from laneway.engines.sqlite import log_length
from laneway.engines.sqlite.connection import SQL, Connection
from laneway.engines.sqlite.disk_space import DiskSpace
from laneway.engines.sqlite.log_length import LogLength
from laneway.engines.sqlite.syncing import WalSync
from laneway.errors import (
    BadMessage,
    EngineCorrupt,
    EngineUnavailable,
    LanewayError,
    SchemaMismatch,
)
from laneway.message import Draft

T = TypeVar("T")

APPLICATION_ID = 0x4C_41_4E_45  # "LANE": distinguishes our files from other SQLite files
SCHEMA_VERSION = 31
"""The layout of `schema.sql`; 25 is that of 0.1.0, the first version whose files are kept."""

MIGRATIONS = Path(__file__).with_name("migrations")
"""`NNNN_name.sql` brings a file of the layout before NNNN to layout NNNN; 0.1.0 needs none."""

BUSY_TIMEOUT = 30.0
"""Seconds to wait for another process's transaction before giving up."""

CACHE_KIB = 128 * 1024
RESTART_MS = 10
"""How long a `-wal` that is to begin again waits for the write lock and for readers."""


class Store(sql_store.Store):
    """
    An open file, or a private store in memory, and its transactions. In a forked child process it
    is closed.
    """

    def __init__(
        self,
        path: str | None,
        durability: str,
        *,
        create: bool = True,
        nonce: str | None = None,
        first_number: int = 0,
    ) -> None:
        """`nonce` (None: a new one) and `first_number`: what a file gets that is created."""
        self.path = path
        self._nonce = nonce
        self._first_number = first_number
        self.name = path or "memory"
        self.lock = threading.RLock()
        self.commits = 0
        self.written = 0
        self.waited = 0.0
        self.prefers_large_leases = False
        self._full = durability == "fsync" and path is not None
        self._synchronous = ""
        self._is_closing = False
        self._create = create
        self._files: Files | None = None
        self._wal_sync: WalSync | None = None
        self._log_length: LogLength | None = None
        self._disk = DiskSpace(path) if path is not None and hasattr(os, "statvfs") else None
        self._later = {}
        with self.lock, forking.undivided():
            _stores.add(self)
            self.connection = self._open()
        self._create = False  # a file that is opened again must exist

    def _open(self) -> Connection:
        if self.path is not None:
            try:
                self._check_path(Path(self.path))
            except PermissionError as error:
                raise EngineUnavailable(
                    f"{self.path}: {error.strerror}; check the permissions of the folders on the"
                    " way to it"
                ) from error
            if is_of_another(self.path, "SELECT nonce FROM shard"):
                raise EngineCorrupt(
                    f"{self.path}: the {self.path}-wal next to it belongs to another file; end all"
                    f" programs that use them and move {self.path}-wal and {self.path}-shm away,"
                    " then start again"
                )
        try:
            connection = sqlite3.connect(
                self.path or ":memory:",
                timeout=0,
                isolation_level=None,
                check_same_thread=False,
                factory=Connection,
                cached_statements=1024,
            )
        except sqlite3.Error as error:
            raise self.explain(error) from error
        try:
            # Another process may be creating the file now.
            self._retry_while_busy(lambda: self._prepare(connection))
            if self.path is not None:
                # The first read creates the files beside it.
                self._retry_while_busy(
                    lambda: connection.execute("SELECT one FROM shard").fetchone()
                )
                self._files = Files(self.path)
                self._open_wal(self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_wal(self, path: str) -> None:
        if self._wal_sync is not None:
            self._wal_sync.finish(self)
            self._wal_sync = None
        if self._full:
            with contextlib.suppress(OSError):
                self._wal_sync = WalSync(path)
        self._close_log_length()
        with contextlib.suppress(OSError):
            self._log_length = LogLength(path)

    def _close_log_length(self) -> None:
        log, self._log_length = self._log_length, None
        if log is not None:
            log.close()

    def _check_path(self, path: Path) -> None:
        if path.is_dir():
            raise EngineUnavailable(
                f"{path}: this is a folder; name a file, like sqlite:///{path}/laneway.db"
            )
        if not path.exists():
            if not self._create:
                raise EngineUnavailable(
                    f"{path}: there is no such file; check the path, or start a program that"
                    " publishes to it"
                )
            if not path.parent.is_dir():
                raise EngineUnavailable(
                    f"{path}: the folder {path.parent} does not exist; make it first"
                )
            if not os.access(path.parent, os.W_OK):
                raise EngineUnavailable(
                    f"{path}: the folder {path.parent} cannot be written by this user"
                )
            create_file(str(path))
        elif not os.access(path, os.W_OK):
            raise EngineUnavailable(
                f"{path}: the file cannot be written by this user, as even reading it needs; run"
                f" this as user {_owner(path)}, or change its permissions"
            )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute("PRAGMA temp_store = MEMORY")
        # Some builds overwrite what is deleted with zeros by default. FAST does so only in pages
        # that are written anyway: the pages of a large body are freed without writing them again.
        connection.execute("PRAGMA secure_delete = FAST")
        self._migrate(connection)
        # Only for what `_restart_log` does not see: the `-wal` of a system without `pread`.
        connection.execute(f"PRAGMA wal_autocheckpoint = {2 * log_length.PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {log_length.MOST_BYTES}")
        connection.execute("PRAGMA mmap_size = 0")

    def _migrate(self, connection: sqlite3.Connection) -> None:
        version = self._known_version(connection)
        if self.path is not None:
            connection.execute("PRAGMA journal_mode = WAL")
        if version == SCHEMA_VERSION:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = self._known_version(connection)  # another process may have been faster
            for statement in _upgrade(version) or ():
                connection.execute(statement)
            if version == 0:
                nonce = f"{random.SystemRandom().randrange(32**4, 32**5):x}"
                connection.execute(
                    "INSERT INTO shard (one, nonce, seq, fence) VALUES (1, ?1, ?2, ?2)",
                    (self._nonce or nonce, self._first_number),
                )
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            elif version < SCHEMA_VERSION:  # programs that have it open put nothing into its inbox
                connection.execute("UPDATE shard SET policy_version = policy_version + 1")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk has ended it
                connection.execute("ROLLBACK")
            raise

    def _known_version(self, connection: sqlite3.Connection) -> int:
        """The layout of the file, 0 for an empty one. Raises for one that cannot be used."""
        # One statement: another process may be creating the file now.
        version, application, tables = connection.execute(
            "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)"
            " FROM pragma_user_version, pragma_application_id"
        ).fetchone()
        if tables and application != APPLICATION_ID:
            raise EngineCorrupt(
                f"{self.name}: this SQLite file belongs to another program; name another file"
            )
        if version < 0 or (tables and not version):
            raise SchemaMismatch(
                f"{self.name}: the file has layout {version}, which no Laneway has written; restore"
                " a copy, or name another file"
            )
        if version > SCHEMA_VERSION:
            raise SchemaMismatch(
                f"{self.name}: the file has layout {version}, this Laneway knows layouts up to"
                f" {SCHEMA_VERSION}; upgrade Laneway"
            )
        if _upgrade(version) is None:
            raise SchemaMismatch(
                f"{self.name}: the file has layout {version}, which a Laneway before 0.1.0 has"
                " written; handle its messages with that version, then name another file"
            )
        return int(version)

    @contextmanager
    def writing(
        self,
        *,
        durable: bool,
        changes_queue: bool = True,
        syncs: bool = True,
        reads: Sequence[Read] = (),
    ) -> Iterator[Connection]:
        del reads  # reading costs no round trip
        with self.lock:
            self.refuse_nested()
            connection = self._prepared(durable=durable)
            connection.last_read = None
            self._retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"))
            try:
                (version,) = connection.execute("PRAGMA data_version").fetchone()
                if version != connection.version:  # another connection has written
                    self._check_layout(connection)
                    connection.version = version
                yield connection
            except BaseException as error:
                self._roll_back(connection)
                if isinstance(error, sqlite3.Error):
                    raise self.explain(error) from error
                raise
            try:
                connection.execute("COMMIT")
                self.commits += changes_queue
                self.written += 1
            except sqlite3.Error as error:
                self._roll_back(connection)
                raise self.explain(error) from error
            if durable and self._full:
                self._check_files(durable=True)
            if self._log_length is not None and self._log_length.is_long():
                self._restart_log(self._log_length)
            if connection.last_read is not None:
                then, name, values = connection.last_read
                connection.last_read = None
                with contextlib.suppress(sqlite3.Error):  # nobody waits for it
                    then(connection.all(name, *values))
            commit = self.written
        if durable and syncs:
            self.sync(commit)

    def _check_layout(self, connection: sqlite3.Connection) -> None:
        """Raise SchemaMismatch if a newer Laneway has upgraded the file since it was opened."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            raise SchemaMismatch(
                f"{self.name}: another program has upgraded the file to layout {version}, this one"
                f" knows layouts up to {SCHEMA_VERSION}; nothing was changed: upgrade Laneway and"
                " start this program again"
            )

    def _flush(self, first: int, last: int) -> None:
        del first  # who syncs the last commit syncs all before it
        wal_sync = self._wal_sync
        if wal_sync is None:
            return  # it was synced inside the commit
        try:
            wal_sync.sync(self, last)
        except OSError as error:
            raise EngineUnavailable(
                f"{self.name}: the disk failed ({error}); whether the change is on disk is not"
                " known: check the disk, then restart this program",
                applied=None,
            ) from error

    def refuse_without_room(self, drafts: Sequence[Draft]) -> None:
        if self._disk is not None:
            with self.lock:
                self._disk.check(drafts, self.connection)

    def run_durably(self, name: str, *values: Any) -> list[Any]:
        self.refuse_nested()  # it would be a part of the transaction around it
        connection = self._prepared(durable=True)
        rows: list[Any] = self._retry_while_busy(
            lambda: connection.execute(SQL[name], values).fetchall()
        )
        self.written += 1
        if self._full:
            self._check_files(durable=True)
        return rows

    def clock(self) -> int:
        return time.time_ns() // 1000

    def refuse_nested(self) -> None:
        is_syncing = self._wal_sync is not None and self._wal_sync.is_used_here
        if is_syncing or self._is_in_transaction():
            raise EngineUnavailable(
                f"{self.name}: this call began inside another one of its thread, as in a signal"
                " handler or a finalizer; nothing was changed, use another thread"
            )

    def _restart_log(self, log: LogLength) -> None:
        """Copy the WAL into the file, so that it begins again with the next commit."""
        run = self.connection.execute
        try:
            run("PRAGMA wal_checkpoint(PASSIVE)").fetchone()  # most of it, without the write lock
            run(f"PRAGMA busy_timeout = {RESTART_MS}")
            try:
                (is_busy, *_) = run("PRAGMA wal_checkpoint(RESTART)").fetchone()
            finally:
                run("PRAGMA busy_timeout = 0")
        except sqlite3.Error:  # what was committed is in the WAL; the next attempt may succeed
            is_busy = True
        if is_busy:
            log.put_off()

    def checkpoint(self) -> None:
        with self.lock, contextlib.suppress(sqlite3.Error):
            self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def is_busy(self) -> bool:
        if not self.lock.acquire(blocking=False):
            return True
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            self.connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            return _is_busy(error)
        finally:
            self.lock.release()
        return False

    def _prepared(self, *, durable: bool) -> Connection:
        """The connection, about to begin a transaction."""
        self._check_files(durable=False)
        is_full = durable and self._full and self._wal_sync is None
        self._set_synchronous("FULL" if is_full else "NORMAL" if self._full else "OFF")
        return self.connection

    def open_reader(self) -> Connection:
        """
        Another connection, for reads that take long: they do not hold up who uses this object.
        """
        try:
            with forking.undivided():
                connection = sqlite3.connect(
                    self.path or ":memory:",
                    isolation_level=None,
                    check_same_thread=False,
                    factory=Connection,
                )
                connection.execute("PRAGMA query_only = 1")
        except sqlite3.Error as error:
            raise self.explain(error) from error
        return connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.lock:
            self._check_files(durable=False)
            connection = self.connection
            nested = self._is_in_transaction()
            if not nested:
                self._retry_while_busy(lambda: self._begin_reading(connection))
            try:
                yield connection
            except sqlite3.Error as error:
                raise self.explain(error) from error
            finally:
                if not nested and not self._is_closing and connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _check_files(self, *, durable: bool) -> None:
        """Raise EngineUnavailable if the open file is no longer the one at its path."""
        wrong = self._files.wrong(durable=durable) if self._files is not None else None
        if wrong is not None:
            raise EngineUnavailable(wrong, applied=None if durable else False)

    def _is_in_transaction(self) -> bool:
        try:
            return self.connection.in_transaction
        except sqlite3.Error as error:  # another thread has closed it
            raise self.explain(error) from error

    def _set_synchronous(self, wanted: str) -> None:
        if wanted != self._synchronous:
            try:
                self.connection.execute(f"PRAGMA synchronous = {wanted}")
            except sqlite3.Error as error:
                raise self.explain(error) from error
            self._synchronous = wanted

    def _begin_reading(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")
        try:
            connection.execute("SELECT one FROM shard").fetchone()  # the first read fixes the view
        except BaseException:
            if connection.in_transaction:  # a full disk has ended it
                connection.execute("ROLLBACK")
            raise

    def _retry_while_busy(self, begin: Callable[[], T]) -> T:
        """
        Retry while another process holds the lock; returns what `begin` returns. Raises
        EngineUnavailable after `BUSY_TIMEOUT`, when the store is closed, or for any other error.
        """
        began = 0.0
        pause = 0.0001
        while True:
            try:
                result = begin()
                if began:
                    self.waited += time.monotonic() - began
                return result
            except sqlite3.Error as error:
                if not _is_busy(error):
                    raise self.explain(error) from error
                if self._is_closing:
                    raise EngineUnavailable(
                        f"{self.name}: this engine was closed while another process held the write"
                        " lock; nothing was changed"
                    ) from error
                now = time.monotonic()
                began = began or now
                if now > began + BUSY_TIMEOUT:
                    raise EngineUnavailable(
                        f"{self.name}: another process has held the write lock for"
                        f" {BUSY_TIMEOUT:.0f} s; nothing was changed, try again"
                    ) from error
                time.sleep(random.uniform(pause / 2, pause))  # so that processes do not collide
                pause = min(pause * 1.5, 0.002)

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        if not self._is_closing and connection.in_transaction:  # closing it rolls back
            try:
                connection.execute("ROLLBACK")
            except sqlite3.Error:
                # The first error is the one to report. A connection that cannot roll back is
                # replaced.
                connection.close()
                self._synchronous = ""
                self.connection = self._open()

    def explain(self, error: sqlite3.Error) -> LanewayError:
        """The exception that a SQLite error means for the caller, in one line."""
        code = getattr(error, "sqlite_errorname", "") or ""
        text = str(error)
        if (
            code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
            or "malformed" in text
            or "not a database" in text
        ):
            return EngineCorrupt(
                f"{self.name}: the file is damaged or not a database ({text}); restore a"
                " copy of it, which `laneway doctor` can check"
            )
        if code.startswith("SQLITE_FULL"):
            return EngineUnavailable(
                f"{self.name}: the disk is full; nothing was changed, make room and try again"
            )
        if code.startswith("SQLITE_TOOBIG") or isinstance(error, sqlite3.DataError):
            return BadMessage(
                f"{self.name}: the call has a value that is larger than SQLite takes ({text});"
                " nothing was changed: make the body smaller"
            )
        if code.startswith("SQLITE_READONLY") or "readonly" in text:
            return EngineUnavailable(
                f"{self.name}: the file or its folder cannot be written; check its permissions"
            )
        if code.startswith("SQLITE_CANTOPEN"):
            return EngineUnavailable(
                f"{self.name}: the file cannot be opened ({text}); check the path and its"
                " permissions"
            )
        if code.startswith("SQLITE_IOERR"):
            is_full = self._disk is not None and self._disk.is_full()
            return EngineUnavailable(
                f"{self.name}: the disk {'is full' if is_full else 'failed'} ({text}); whether the"
                f" change happened is not known{': make room, then try again' * is_full}",
                applied=None,
            )
        if isinstance(error, sqlite3.ProgrammingError) and "closed" in text:
            return EngineUnavailable(f"{self.name}: this engine was closed; open it again")
        return EngineUnavailable(f"{self.name}: {text}; nothing was changed")

    def close(self) -> None:
        """
        Close the file; may be called twice. A call that waits for another process's lock ends
        first, with an error.
        """
        self._is_closing = True
        with self.lock:
            if self._wal_sync is not None:
                self._wal_sync.finish(self)
            self._close_log_length()
            with forking.undivided():
                self.connection.close()

    def forget_sync(self) -> None:
        """In the child of a fork: the thread that holds the lock of a sync may not be here."""
        self._close_log_length()
        wal_sync, self._wal_sync = self._wal_sync, None
        if wal_sync is not None:
            wal_sync.close()

    def __del__(self) -> None:
        # Python 3.13 warns of unclosed connections; a program that drops its application never saw
        # this one.
        connection = getattr(self, "connection", None)
        if connection is not None:
            connection.close()
        if (wal_sync := getattr(self, "_wal_sync", None)) is not None:
            wal_sync.close()
        if getattr(self, "_log_length", None) is not None:
            self._close_log_length()


# Forks: SQLite's file locks and mutexes must not be copied. So no transaction runs during a fork,
# and the child closes the connections that it inherited before it opens any: otherwise it would
# release the parent's locks.

_abandoned: list[object] = []


def _close_in_child(store: Store, is_quiet: bool) -> None:
    store.lock = threading.RLock()
    store.forget_sync()
    if is_quiet and hasattr(store, "connection"):
        with contextlib.suppress(sqlite3.Error):
            store.connection.close()
    else:
        # A transaction was running, which never ends here: closing could block forever.
        _abandoned.append(getattr(store, "connection", None))
        store.connection = sqlite3.connect(":memory:", factory=Connection)
        store.connection.close()


_stores: forking.Locked[Store] = forking.Locked(_close_in_child)


def _is_busy(error: sqlite3.Error) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def _upgrade(version: int) -> Sequence[str] | None:
    """
    The statements that bring a store of that layout, 0 for an empty one, to the newest; None if it
    is too old.
    """
    if version == 0:
        return _schema()
    statements: list[str] = []
    for number in range(version + 1, SCHEMA_VERSION + 1):
        step = next(MIGRATIONS.glob(f"{number:04d}_*.sql"), None)
        if step is None:
            return None
        statements += _statements(step.read_text(encoding="utf-8"))
    return statements


@cache  # for a process that makes many files
def _schema() -> tuple[str, ...]:
    return tuple(
        _statements(
            schema(
                {
                    "numbered": "INTEGER PRIMARY KEY",
                    "numbered once": "INTEGER PRIMARY KEY AUTOINCREMENT",
                    "code tier": "json_extract(layers, '$.code.tier')",
                    "operator tier": "json_extract(layers, '$.operator.tier')",
                }
            )
        )
    )


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _owner(path: Path) -> str:
    """The name of a file's owner, or the number of one without a name."""
    try:
        return path.owner()
    except KeyError:
        return str(path.stat().st_uid)
