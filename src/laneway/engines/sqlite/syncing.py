"""
Syncs the `-wal`: after a commit instead of inside it, and once for several commits.

With `synchronous=FULL` SQLite syncs inside each commit, and holds the write lock meanwhile: all
other threads and processes wait for the disk, and so does a worker that the change wakes.
So commits use `NORMAL`, and the call that needs its change on disk syncs the `-wal` after it. With
`NORMAL` SQLite itself still syncs the head of a `-wal` that begins again, and the files of a
checkpoint.

For example, a sync takes 4 ms. Thread A makes commit 7 and syncs. Meanwhile B and C make the
commits 8 and 9 and wait. When A returns, B finds 7 synced and 9 written: its sync covers both. C
then finds 9 synced and returns: two syncs for three commits.

Why this is correct. The number of the last commit is read before the sync begins, so the sync
covers at least that one. Others may see a change before it is on disk. A power cut ends them too,
and what they have made durable of it meanwhile is behind it in the same `-wal`, so it cannot be
kept without it. After an error nothing counts as synced any more.

Closing a file drops all POSIX locks that the process holds on it. SQLite has none on the `-wal`.
"""

from __future__ import annotations

import contextlib
import os
import threading

from laneway.engines.sql.store import Store


class WalSync:
    """The open `-wal` of a file."""

    def __init__(self, path: str) -> None:
        """Raises OSError where the system cannot sync it so: then commits have to be FULL."""
        if not hasattr(os, "fdatasync"):
            raise OSError("this system has no fdatasync")
        real = os.path.realpath(path)
        self._file: int | None = os.open(f"{real}-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _sync_folder(os.path.dirname(real))  # it may be new, and SQLite has not synced it yet
        except BaseException:
            self.close()
            raise
        self._lock = threading.Lock()
        self._thread = 0
        """The one that syncs."""
        self._is_finished = False
        self._synced = 0
        self._error: OSError | None = None

    def sync(self, store: Store, commit: int) -> None:
        """Return when a commit of the store is on disk. Raises OSError, from then on each time."""
        with self._lock:  # who waits here is often done by the one before
            if self._synced >= commit:
                return
            # After an error the system may take for written what it has lost.
            if self._error is not None:
                raise self._error
            if self._file is None:
                raise OSError("the file was closed")
            newest = store.written
            try:
                self._thread = threading.get_ident()
                os.fdatasync(self._file)
            except OSError as error:
                self._error = error
                raise
            finally:
                self._thread = 0
                if self._is_finished:
                    self.close()
            self._synced = newest

    @property
    def is_used_here(self) -> bool:
        """Whether `sync` of this thread runs: the caller is in a signal handler, for example."""
        return self._thread == threading.get_ident()

    def finish(self, store: Store) -> None:
        """Sync what is left for calls that still wait, and close."""
        if self.is_used_here:
            self._is_finished = True
            return
        with contextlib.suppress(OSError):
            self.sync(store, store.written)
        with self._lock:
            self.close()

    def close(self) -> None:
        """Close the file without a sync."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _sync_folder(folder: str) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
