"""
Tells when the `-wal` is long, so that it is copied into the file and begins again.

SQLite's own checkpoints run between other processes' commits, and each commit that comes meanwhile
keeps the `-wal` from beginning again: under load it became twice as long as its limit. So the
process that finds it long copies most of it, and what came meanwhile under the write lock.

Each frame of the `-wal` has the salts of its header, which change when it begins again
(https://www.sqlite.org/fileformat2.html#the_write_ahead_log). So one frame tells whether the
`-wal` has got so far. A `stat` would make the next commit slower, see
`engines/shared/replaced_files.py`.
"""

from __future__ import annotations

import os

PAGES = 4_000
"""
Pages in the `-wal` (16 MB) at which it is to begin again: many, so that a hot index page is copied
once for many changes.
"""

PUT_OFF_PAGES = PAGES // 8
"""How many pages come before the next attempt, where a reader still needs the `-wal`."""

PAGE_BYTES = 4096
FRAME_BYTES = 24 + PAGE_BYTES
HEADER_BYTES = 32
MOST_BYTES = HEADER_BYTES + PAGES * FRAME_BYTES
"""The `-wal` is cut to this size where it was longer when it began again."""

_SALTS, _FRAMES_SALTS, _SALTS_BYTES = 16, 8, 8
"""Where a header, and each frame, has its salts, and how long they are."""


class LogLength:
    """The open `-wal` of a file. Use it under the store's lock."""

    def __init__(self, path: str) -> None:
        """Raises OSError where it cannot be read, or not so on this system."""
        if not hasattr(os, "pread"):
            raise OSError("this system has no pread")
        self._file: int | None = os.open(
            f"{os.path.realpath(path)}-wal", os.O_RDONLY | os.O_CLOEXEC
        )
        self._pages = PAGES
        self._seen = b""
        """The salts at that page when they were read before."""
        self._began = b""
        """Those of the header when `put_off` was called."""

    def is_long(self) -> bool:
        """Whether it has PAGES pages; True once, until it has begun again."""
        if self._pages != PAGES and self._read(_SALTS) != self._began:
            self._watch(PAGES)
        salts = self._read(HEADER_BYTES + (self._pages - 1) * FRAME_BYTES + _FRAMES_SALTS)
        if salts == self._seen:
            return False
        self._seen = salts
        return bool(salts) and salts == self._read(_SALTS)

    def put_off(self) -> None:
        """It could not begin again: it is long when it has PUT_OFF_PAGES pages more."""
        self._began = self._read(_SALTS)
        self._watch(self._pages + PUT_OFF_PAGES)

    def _watch(self, pages: int) -> None:
        self._pages, self._seen = pages, b""

    def _read(self, place: int) -> bytes:
        if self._file is None:
            return b""
        try:
            return os.pread(self._file, _SALTS_BYTES, place)
        except OSError:  # the next commit will say so
            return b""

    def close(self) -> None:
        """Close the file; may be called twice."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
