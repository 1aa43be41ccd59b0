"""The `-wal` of a file begins again while it is short, also while others read and write."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.sqlite import log_length
from laneway.engines.sqlite.log_length import FRAME_BYTES, HEADER_BYTES
from laneway.message import Draft, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Opened = Callable[[], FullEngine]

pytestmark = pytest.mark.skipif(not hasattr(os, "pread"), reason="SQLite's own checkpoints here")

PAGES, PUT_OFF_PAGES = 200, 40
COMMIT_PAGES = 40
"""More than a commit of these tests has."""


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Opens engines of one file, as several processes do."""
    monkeypatch.setattr(log_length, "PAGES", PAGES)
    monkeypatch.setattr(log_length, "PUT_OFF_PAGES", PUT_OFF_PAGES)
    monkeypatch.setattr(log_length, "MOST_BYTES", HEADER_BYTES + PAGES * FRAME_BYTES)
    engines: list[FullEngine] = []

    def open_one() -> FullEngine:
        engine = open_engine(f"sqlite:///{tmp_path}/q.db", Settings(durability="memory"))
        engines.append(engine)
        return engine

    yield open_one
    for engine in engines:
        engine.close()


def frames(tmp_path: Path) -> float:
    """How many pages the `-wal` has room for."""
    return ((tmp_path / "q.db-wal").stat().st_size - HEADER_BYTES) / FRAME_BYTES


def pass_on(engine: FullEngine, name: str = "t") -> None:
    """Three commits: put, lease and settle 20 messages."""
    engine.put([Draft(f"{name}.{n}", b"x" * 500) for n in range(20)])
    leases = engine.lease(20).leases
    engine.settle([Settlement(lease.handle, lease.fence, "ack") for lease in leases])


def checkpoints(engine: FullEngine) -> list[str]:
    """The checkpoints that an engine runs from now on."""
    ran: list[str] = []

    def add(statement: str) -> None:
        if "wal_checkpoint" in statement:
            ran.append(statement)

    engine._store.connection.set_trace_callback(add)  # type: ignore[attr-defined]
    return ran


def test_it_begins_again_when_it_is_long(opened: Opened, tmp_path: Path) -> None:
    """Each time with one checkpoint of two steps."""
    engine = opened()
    ran = checkpoints(engine)
    for _ in range(200):
        pass_on(engine)
    assert PAGES <= frames(tmp_path) < PAGES + COMMIT_PAGES
    written = 200 * 3 * COMMIT_PAGES
    assert 4 <= len(ran) <= 2 * written / PAGES
    assert len(ran) % 2 == 0


class Meanwhile:
    """
    A connection. Another process begins to write before each of its passive checkpoints, which it
    does not stop, and commits after it.
    """

    def __init__(self, connection: sqlite3.Connection, other: sqlite3.Connection) -> None:
        self._connection = connection
        self._other = other
        self.count = 0

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if "(PASSIVE)" not in statement:
            return self._connection.execute(statement, *values)
        self.count += 1
        self._other.execute("BEGIN IMMEDIATE")
        self._other.execute("UPDATE shard SET fence = fence + 1")
        cursor = self._connection.execute(statement, *values)
        self._other.execute("COMMIT")
        return cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_it_stays_short_while_others_write(opened: Opened, tmp_path: Path) -> None:
    """What is committed during a checkpoint is copied too, so that nothing is left."""
    engine = opened()
    store = engine._store  # type: ignore[attr-defined]
    with closing(sqlite3.connect(tmp_path / "q.db", isolation_level=None)) as other:
        other.execute("PRAGMA wal_autocheckpoint = 0")
        store.connection = meanwhile = Meanwhile(store.connection, other)
        longest = 0.0
        for _ in range(200):
            pass_on(engine)
            longest = max(longest, frames(tmp_path))
    assert meanwhile.count >= 4
    assert longest < PAGES + COMMIT_PAGES


def test_a_reader_keeps_it_and_it_is_cut_afterwards(opened: Opened, tmp_path: Path) -> None:
    """As long as a reader needs it, an attempt is made once in PUT_OFF_PAGES pages."""
    engine = opened()
    pass_on(engine)
    with closing(sqlite3.connect(tmp_path / "q.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM lane").fetchone()
        ran = checkpoints(engine)
        while frames(tmp_path) < 5 * PAGES:
            pass_on(engine)
        assert 4 <= len(ran) <= 2 * 5 * PAGES / PUT_OFF_PAGES
        reader.execute("ROLLBACK")
    for _ in range(2 * PAGES // 10):
        pass_on(engine)
    assert frames(tmp_path) <= PAGES + COMMIT_PAGES
    # And at the usual length from now on.
    ran = checkpoints(engine)
    while not ran:
        pass_on(engine)
    assert frames(tmp_path) <= PAGES + COMMIT_PAGES


def test_a_long_one_that_was_left_begins_again(opened: Opened, tmp_path: Path) -> None:
    """That of a process that could not shorten it, or of an earlier version."""
    engine = opened()
    engine._store._close_log_length()  # type: ignore[attr-defined]
    engine._store.connection.execute("PRAGMA wal_autocheckpoint = 0")  # type: ignore[attr-defined]
    while frames(tmp_path) < 3 * PAGES:
        pass_on(engine)
    other = opened()
    pass_on(other)
    pass_on(other)
    assert frames(tmp_path) <= PAGES + COMMIT_PAGES


def test_nothing_stays_open(opened: Opened) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system has no /proc")
    opened().close()
    before = count()
    for _ in range(5):
        engine = opened()
        pass_on(engine)
        engine.close()
    assert count() <= before
