"""A store of a user's own that takes only writes of the newest term: one SQLite file."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path


class Refused(Exception):
    """A newer term has written already."""


class FencedStore:
    """`write(number, what)` is refused if a larger number has written before."""

    def __init__(self, path: Path | str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS log (number INTEGER, pid INTEGER, what TEXT, at REAL)"
        )
        self._connection.execute("CREATE INDEX IF NOT EXISTS newest ON log (number)")

    def write(self, number: int, what: str) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            (newest,) = self._connection.execute("SELECT max(number) FROM log").fetchone()
            if newest is not None and number < newest:
                raise Refused(f"term {number} is older than {newest}")
            self._connection.execute(
                "INSERT INTO log VALUES (?, ?, ?, ?)", (number, os.getpid(), what, time.monotonic())
            )
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise

    def rows(self) -> list[tuple[int, int, str, float]]:
        return self._connection.execute(
            "SELECT number, pid, what, at FROM log ORDER BY rowid"
        ).fetchall()

    def terms(self) -> dict[int, list[tuple[int, str, float]]]:
        """(pid, what, when) of the writes of each term, in their order."""
        terms: dict[int, list[tuple[int, str, float]]] = {}
        for number, pid, what, at in self.rows():
            terms.setdefault(number, []).append((pid, what, at))
        return terms

    def check(self) -> None:
        """No term had two holders, and no term wrote after a newer one."""
        numbers = [row[0] for row in self.rows()]
        assert numbers == sorted(numbers)
        for number, writes in self.terms().items():
            assert len({pid for pid, _, _ in writes}) == 1, f"two processes held term {number}"

    def close(self) -> None:
        self._connection.close()
