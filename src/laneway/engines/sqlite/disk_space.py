"""
Keeps a part of the disk free of publishes, so that a file that has filled its disk can be emptied.

A lease and a settlement need room before they make some: their pages go into the `-wal` first, and
then into the file. So publishes are refused while less than a reserve is free. All other calls use
the reserve.

Pages that the file has free count as room: the file never shrinks, and publishes use them first.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Sequence

from laneway.engines.shared import refusals
from laneway.engines.sqlite.log_length import PAGE_BYTES
from laneway.errors import EngineUnavailable
from laneway.message import Draft

RESERVE = 64 << 20
"""Bytes that are kept on a large disk: four times the `-wal`'s usual size."""

LOG_PARTS = 2
"""A reserve is this many times the `-wal`, if that is more: its pages may all be new ones."""

DISK_DIVISOR = 4
"""A reserve is 1/DISK_DIVISOR of a small disk at most."""

NEAR = 16 * RESERVE
"""While more bytes are free, the file's own free pages and its `-wal` do not matter."""

SHM_BYTES = 32 << 10
"""By how much a `-shm` grows."""

LOOK_SECONDS = 0.1
"""How old the figures of the disk may be."""

WRITTEN_TIMES, ROW_BYTES = 2, 512
"""A body is written twice, into the `-wal` and the file, and has rows beside it."""


class DiskSpace:
    """The disk of one file. Use it under the store's lock."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self._looked = -LOOK_SECONDS
        self._free = self._reserve = self._room = 0

    def check(self, drafts: Sequence[Draft], connection: sqlite3.Connection) -> None:
        """Raise EngineUnavailable if these messages would use the reserve."""
        now = time.monotonic()
        size = _bytes_for(drafts)
        if size <= self._room and now - self._looked < LOOK_SECONDS:
            self._room -= size
            return
        size = _bytes_for([draft for draft in drafts if not refusals.uses_reserve(draft)])
        if not size:
            return
        if size > self._room or now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look(connection)
        if size > self._room:
            raise EngineUnavailable(
                f"{self._path}: the disk has {self._free >> 20:,} MiB left, and the last"
                f" {self._reserve >> 20:,} MiB are kept for handling what waits; nothing was"
                " changed: run workers, purge topics, or make room on the disk"
            )
        self._room -= size

    def is_full(self) -> bool:
        """Whether no `-shm` fits, without which nobody can open the file."""
        with contextlib.suppress(OSError):
            return disk_of(self._path)[0] < SHM_BYTES
        return False

    def _look(self, connection: sqlite3.Connection) -> None:
        try:
            self._free, total = disk_of(self._path)
        except OSError:  # the disk is away; the transaction says so
            self._room = NEAR
            return
        log = pages = 0
        if self._free < NEAR:
            with contextlib.suppress(OSError):
                log = os.stat(f"{self._path}-wal").st_size
            with contextlib.suppress(sqlite3.Error):  # the transaction says so
                (pages,) = connection.execute("PRAGMA freelist_count").fetchone()
        self._reserve = min(max(RESERVE, LOG_PARTS * log), total // DISK_DIVISOR)
        self._room = self._free + pages * PAGE_BYTES - self._reserve


def disk_of(path: str) -> tuple[int, int]:
    """How many bytes are free on a file's disk, and how large it is. Raises OSError."""
    disk = os.statvfs(os.path.dirname(path))
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize


def _bytes_for(drafts: Sequence[Draft]) -> int:
    """How many bytes of the disk these messages use."""
    return WRITTEN_TIMES * sum([len(draft.body) for draft in drafts]) + ROW_BYTES * len(drafts)
