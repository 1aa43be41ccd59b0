"""
Checks whether the files that a process has open are still those at their path.

A process can still write to a file that was deleted, moved or replaced: no other process sees those
commits, and they are lost when the process ends. So each commit is checked. In most cases one
`stat` of the folder shows, by its modification time, that nothing in it has changed.

That is also the faster way: on Linux, a file whose times have been read gets new ones with the next
write, so a `stat` of the `-wal` would make each commit write the file's inode too.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

SETTLED_NS, SETTLED_COARSE_NS = 100_000_000, 3_000_000_000
"""
A folder's modification time is trusted at this age: the clock for it has steps of up to 10 ms, and
on file systems that store whole seconds of up to 2 s.
"""

LOOK_EVERY = 0.1
"""Seconds between two checks for commits that need not be on disk."""

WAL_HEADER = 32


class Files:
    """The identities of the file, its `-wal` and its `-shm` when they were opened."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)  # the program may change its working folder
        real = os.path.realpath(path)
        self._folder = os.path.dirname(self.path)
        self._is_link = real != os.path.realpath(self._folder) + "/" + os.path.basename(self.path)
        self._names = (self.path, f"{real}-wal", f"{real}-shm")
        self._known = [_identity(name) for name in self._names]
        self._quiet: tuple[int, int] | None = None
        """The folder and its modification time at which all files were the known ones."""
        self._checked = 0.0
        self._wrong: str | None = None

    def wrong(self, *, durable: bool) -> str | None:
        """The problem and what to do about it; None: the files are the known ones."""
        if self._wrong is None and not durable:
            now = time.monotonic()
            if now - self._checked < LOOK_EVERY:
                return None
            self._checked = now
        try:
            folder = os.stat(self._folder)
        except OSError:
            self._quiet = None
        else:
            if self._wrong is None and self._quiet == (folder.st_ino, folder.st_mtime_ns):
                return None
            is_quiet = is_settled(folder.st_mtime_ns) and not self._is_link
            self._quiet = (folder.st_ino, folder.st_mtime_ns) if is_quiet else None
        self._wrong = self._compare()
        return self._wrong

    def _compare(self) -> str | None:
        path = self.path
        now = [_identity(name) for name in self._names]
        if now[0] is None:
            return (
                f"{path}: the file was removed or moved away under this process; nothing more is"
                " accepted into it: put it back, or restart all programs that use it to begin with"
                " a new one"
            )
        if now[0] != self._known[0]:
            return (
                f"{path}: another file was put in its place under this process; nothing more is"
                " accepted into the old one: restart this program"
            )
        for name, known, identity in zip(self._names[1:], self._known[1:], now[1:], strict=True):
            if known is not None and identity != known:
                return (
                    f"{name}: the file was removed or replaced while programs use {path}; nothing"
                    " more is accepted: end all of them, then start them again; the last that ends"
                    " writes what the removed file held"
                )
        return None


def is_settled(mtime_ns: int) -> bool:
    """Whether each later change of a folder gives it another modification time than this one."""
    is_coarse = mtime_ns % 1_000_000_000 == 0
    return time.time_ns() - mtime_ns > (SETTLED_COARSE_NS if is_coarse else SETTLED_NS)


def _identity(name: str) -> tuple[int, int] | None:
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def create_file(path: str, mode: int = 0o600) -> None:
    """
    Create an empty file that SQLite fills, and that only its owner can read, unless it exists or
    cannot be created. The `-wal` and the `-shm` get the same mode from SQLite.
    """
    # Never open a file that exists: closing it would drop the locks that SQLite has on it.
    with suppress(OSError):
        os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, mode))


def is_of_another(path: str, nonce_query: str) -> bool:
    """
    Whether the `-wal` beside a file belongs to another file that was at the path before.

    SQLite would read its pages as the file's own. Each file has a random nonce, which is read from
    the file alone and from the file with the `-wal`, by read-only connections, and compared.
    """
    wal = Path(f"{os.path.realpath(path)}-wal")
    try:
        if not Path(path).stat().st_size or wal.stat().st_size <= WAL_HEADER:
            return False
    except OSError:
        return False
    own, together = _nonce(path, "&immutable=1", nonce_query), _nonce(path, "", nonce_query)
    return own is not None and together is not None and own != together


def _nonce(path: str, more: str, query: str) -> str | None:
    """The file's nonce; None: it cannot be read, for example while the file is being created."""
    with (
        suppress(sqlite3.Error),
        closing(
            sqlite3.connect(
                f"file:{quote(os.path.realpath(path))}?mode=ro{more}", uri=True, timeout=1
            )
        ) as reading,
    ):
        return str(reading.execute(query).fetchone()[0])
    return None
