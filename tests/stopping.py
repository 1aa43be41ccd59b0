"""Stopping processes by SIGSTOP."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

ROUNDS = 100


def stop_between_writes(pid: int, *files: Path) -> None:
    """
    Stop a process while it writes to none of these SQLite files: stopped in a transaction, it would
    keep the lock.
    """
    for _ in range(ROUNDS):
        os.kill(pid, signal.SIGSTOP)
        if not any(map(is_locked, files)):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)
    raise AssertionError(f"process {pid} seems to write all the time")


def is_locked(file: Path) -> bool:
    """Whether somebody keeps the write lock for half a second."""
    existing = f"{file.resolve().as_uri()}?mode=rw"
    with closing(
        sqlite3.connect(existing, uri=True, isolation_level=None, timeout=0.5)
    ) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return True
        connection.execute("ROLLBACK")
        return False
