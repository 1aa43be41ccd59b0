"""
The checks of the doctor that are SQLite's: whether the file is intact, and all checks in steps.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing

from laneway.engines.base import Check, DoctorStep
from laneway.engines.sql.doctor import CHECKS, unhandled_topics
from laneway.engines.sql.transaction import Transaction
from laneway.engines.sqlite.connection import Connection
from laneway.engines.sqlite.store import Store

SLICE_SECONDS = 0.02
"""So long a check in steps reads, before it pauses as long."""

OPERATIONS = 20_000
"""Operations of SQLite's virtual machine after which a statement looks at the clock: under 2 ms."""


def check_file(connection: Connection) -> Check:
    """SQLite's own check of the file."""
    answers = [str(row[0]) for row in connection.execute("PRAGMA quick_check(10)")]
    is_intact = answers == ["ok"]
    return Check(
        "file",
        is_intact,
        "intact" if is_intact else "; ".join(answers),
        "" if is_intact else "restore a copy, or `sqlite3 FILE .recover`",
    )


def check_steps(
    store: Store,
    reader: Callable[[Connection], Transaction],
    pause: Callable[[float], object],
) -> Iterator[DoctorStep]:
    """
    Check a file through a connection of its own, so that the one of all other calls stays free.
    Each check reads one snapshot: then the write-ahead log never has to wait long for a reader.
    """
    total = len(CHECKS) + 2
    with closing(store.open_reader()) as connection:
        slices = _Slices(pause)
        connection.set_progress_handler(slices.look, OPERATIONS)
        checks: list[Check] = []
        for check in (lambda _: check_file(connection), *CHECKS, unhandled_topics):
            connection.execute("BEGIN")
            try:
                checks.append(check(reader(connection)))
            except sqlite3.Error as error:
                if slices.has_ended:
                    return
                raise store.explain(error) from error
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            done = len(checks)
            yield DoctorStep(done, total, checks if done == total else [])


class _Slices:
    """Lets a long statement pause as long as it works."""

    def __init__(self, pause: Callable[[float], object]) -> None:
        self._pause = pause
        self._began = time.monotonic()
        self.has_ended = False

    def look(self) -> bool:
        """SQLite calls it while a statement runs; True ends the statement."""
        if time.monotonic() - self._began > SLICE_SECONDS:
            self.has_ended = bool(self._pause(SLICE_SECONDS))
            self._began = time.monotonic()
        return self.has_ended
