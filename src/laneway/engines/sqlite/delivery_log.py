"""
The delivery log: a separate file next to the store, which a namespace gets with its first entry.

So its writes never wait for those of the queue, and it can be deleted at any time. Each call opens
the file: there is about one in a second, and nothing has to be closed before a fork. Nothing is
synced; a log that a power cut has damaged begins again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from laneway.engines.base import LogEntry
from laneway.engines.shared import forking
from laneway.engines.shared.replaced_files import create_file
from laneway.engines.sqlite.connection import SQL
from laneway.errors import EngineUnavailable, SchemaMismatch

log = logging.getLogger("laneway.engine")

VERSION = 1
BUSY_SECONDS = 5.0
TRIMMED = 2_000
"""The most entries that one call removes."""

USUAL_BYTES = 500
"""An entry, about: what has to be removed is estimated by it."""

TABLE = """
CREATE TABLE attempts (
    number INTEGER PRIMARY KEY, topic TEXT NOT NULL, at_us INTEGER NOT NULL, data BLOB NOT NULL
)
"""
CREATE = (
    TABLE,
    "CREATE INDEX attempts_by_topic ON attempts (topic, number)",
    f"PRAGMA user_version = {VERSION}",
)


class DeliveryLogFile:
    """The delivery log of a store. `store`: the path of its file; None: it is in memory."""

    def __init__(self, store: str | None) -> None:
        self._store = store
        self._path = None if store is None else os.path.abspath(f"{store}-log")
        self._memory: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def append(
        self,
        entries: Sequence[LogEntry],
        keep_us: int,
        max_bytes: int,
        from_us: int | None,
        now_us: int | None,
    ) -> None:
        """Append entries, and remove old ones."""
        now = time.time_ns() // 1_000 if now_us is None else now_us
        with self._open(create=True) as connection:
            connection.execute("BEGIN IMMEDIATE")
            (last,) = connection.execute(SQL["delivery_log_last"]).fetchone()
            first = max((last or 0) + 1, now if from_us is None else from_us)
            connection.executemany(
                SQL["delivery_log_append"],
                [(first + n, each.topic, each.at_us, each.data) for n, each in enumerate(entries)],
            )
            connection.execute(SQL["delivery_log_expire"], (now - keep_us, TRIMMED))
            too_many = self._too_many_bytes(connection, max_bytes) // USUAL_BYTES
            if too_many > 0:
                most = min(too_many + 1, TRIMMED)
                connection.execute(SQL["delivery_log_expire"], (first, most))
            connection.execute("COMMIT")

    def read(
        self, topic: str | None, limit: int, before: int | None, until_us: int | None
    ) -> list[tuple[int, LogEntry]]:
        """Read entries, the newest first."""
        bounds = [1 << 62]
        bounds += [before] if before is not None else []
        bounds += [until_us + 1] if until_us is not None else []
        name = "delivery_log_all" if topic is None else "delivery_log_topic"
        values = (min(bounds), limit) if topic is None else (topic, min(bounds), limit)
        with self._open(create=False) as connection:
            rows = connection.execute(SQL[name], values).fetchall()
        return [(number, LogEntry(of, at_us, data)) for number, of, at_us, data in rows]

    @staticmethod
    def _too_many_bytes(connection: sqlite3.Connection, max_bytes: int) -> int:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        found: int = (pages - free) * size - max_bytes
        return found

    @contextlib.contextmanager
    def _open(self, *, create: bool) -> Iterator[sqlite3.Connection]:
        """A connection, under the lock. Without a file, and not to create one: an empty log."""
        with self._lock, forking.undivided():
            path = self._path
            if path is not None and (create or os.path.exists(path)):
                connection = self._open_file()
            else:
                connection = self._memory or _prepared(sqlite3.connect(":memory:", **_OPTIONS))
                if path is None:
                    self._memory = connection
            try:
                yield connection
            except sqlite3.Error as error:
                if _is_damaged(error):
                    self._begin_again(error)
                raise EngineUnavailable(
                    f"{self._path or 'memory'}: delivery log: {error}"
                ) from error
            finally:
                if connection is self._memory:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                else:
                    connection.close()

    def _open_file(self) -> sqlite3.Connection:
        assert self._path is not None
        assert self._store is not None
        try:
            if not os.path.exists(self._path):
                # As readable as the store: it has parts of messages.
                create_file(self._path, stat.S_IMODE(os.stat(self._store).st_mode))
            return _prepared(sqlite3.connect(self._path, **_OPTIONS))
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.Error) and _is_damaged(error):
                self._begin_again(error)
            raise EngineUnavailable(f"{self._path}: delivery log: {error}") from error

    def _begin_again(self, error: sqlite3.Error) -> None:
        """Remove a damaged log, which is no part of the queue: the next entries begin a new one."""
        assert self._path is not None
        log.warning("%s: the delivery log is damaged (%s) and begins again", self._path, error)
        for name in (self._path, f"{self._path}-journal"):
            with contextlib.suppress(OSError):
                os.remove(name)


_OPTIONS: dict[str, Any] = {
    "timeout": BUSY_SECONDS,
    "isolation_level": None,
    "check_same_thread": False,
}


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    """A connection whose file has the table."""
    try:
        # PERSIST creates and deletes no file, which the store's check of its folder would notice.
        for pragma in ("journal_mode = PERSIST", "synchronous = OFF", "cache_size = -2048"):
            connection.execute(f"PRAGMA {pragma}")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.execute("BEGIN IMMEDIATE")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            for statement in CREATE if version == 0 else ():
                connection.execute(statement)
            connection.execute("COMMIT")
        elif version > VERSION:
            raise SchemaMismatch(
                f"the delivery log has layout {version}, this Laneway knows layout {VERSION};"
                " upgrade Laneway"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _is_damaged(error: sqlite3.Error) -> bool:
    return "malformed" in str(error) or "not a database" in str(error)
