"""
Documents are appended to one file; exactly one process brings their words into an index.

    python -m examples.index_builder.indexer FOLDER     as often as you like

The index takes changes of the newest term only, so a process that has lost its term without
noticing cannot damage it.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from laneway import Laneway, Term

BATCH = 50


class Documents:
    """The texts, numbered from 1: anybody appends, the indexer reads."""

    def __init__(self, folder: Path) -> None:
        self._file = sqlite3.connect(folder / "documents.db", isolation_level=None, timeout=30)
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("CREATE TABLE IF NOT EXISTS document (n INTEGER PRIMARY KEY, text TEXT)")

    def append(self, text: str) -> None:
        self._file.execute("INSERT INTO document (text) VALUES (?)", (text,))

    def after(self, number: int) -> list[tuple[int, str]]:
        rows = self._file.execute(
            "SELECT n, text FROM document WHERE n > ? ORDER BY n LIMIT ?", (number, BATCH)
        )
        return rows.fetchall()

    def count(self) -> int:
        return int(self._file.execute("SELECT count(*) FROM document").fetchone()[0])

    def close(self) -> None:
        self._file.close()


class OldTerm(Exception):
    """A holder of a later term has changed the index: this one must not."""


class Index:
    """Word → documents, up to which document, and the fence: the newest term that wrote."""

    def __init__(self, folder: Path) -> None:
        self._file = sqlite3.connect(
            folder / "index.db", isolation_level=None, timeout=30, check_same_thread=False
        )
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.executescript("""
            CREATE TABLE IF NOT EXISTS entry (word TEXT, n INTEGER, PRIMARY KEY (word, n));
            CREATE TABLE IF NOT EXISTS state (one INTEGER PRIMARY KEY, built_to INTEGER, term INT);
            INSERT OR IGNORE INTO state VALUES (1, 0, 0);
        """)
        self.interrupt = self._file.interrupt

    @contextmanager
    def change(self, term: int) -> Iterator[None]:
        """One transaction, for the holder of the newest term."""
        self._file.execute("BEGIN IMMEDIATE")
        try:
            passed = self._file.execute("UPDATE state SET term = ? WHERE term <= ?", (term, term))
            if passed.rowcount == 0:
                raise OldTerm(f"term {term} is over")
            yield
            self._file.execute("COMMIT")
        except BaseException:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise

    def built_to(self) -> int:
        return int(self._file.execute("SELECT built_to FROM state").fetchone()[0])

    def add(self, documents: list[tuple[int, str]]) -> None:
        entries = {(word, n) for n, text in documents for word in words(text)}
        self._file.executemany("INSERT INTO entry VALUES (?, ?)", sorted(entries))
        self._file.execute("UPDATE state SET built_to = ?", (documents[-1][0],))

    def entries(self) -> list[tuple[str, int]]:
        return self._file.execute("SELECT word, n FROM entry ORDER BY word, n").fetchall()

    def close(self) -> None:
        self._file.close()


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


class IndexBuilder:
    """One term: from where the index ends, as long as this process is the one that builds it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def inaugurate(self) -> None:
        self._documents, self._index = Documents(self._folder), Index(self._folder)
        self._position = self._index.built_to()

    def execute(self, term: Term) -> None:
        while not term.ending:
            found = self._documents.after(self._position)
            if not found:
                term.sleep(0.05)
                continue
            with term.atomic(cancel=self._index.interrupt), self._index.change(term.number):
                self._index.add(found)
            self._position = found[-1][0]

    def hand_over(self) -> None:
        print("handed over at", self._index.built_to(), flush=True)
        self._documents.close()
        self._index.close()


def main(folder: Path, term: float = 5.0) -> None:
    app = Laneway(f"sqlite:///{folder}/laneway.db")
    election = app.election("index", lambda: IndexBuilder(folder), term=term, hand_over_within=10)
    print("candidate", flush=True)
    election.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:]))
