"""The inbox: messages that are published one at a time, and what becomes of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.sql.inbox import MOST_ROWS
from laneway.engines.sqlite.engine import SqliteEngine
from laneway.errors import EngineUnavailable, LanewayError
from laneway.message import Draft

FRAME = 4096 + 24


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "q.db"


@pytest.fixture
def engine(path: Path) -> Iterator[FullEngine]:
    """An engine that has published before."""
    with closing(open_engine(f"sqlite:///{path}", Settings())) as engine:
        engine.put([Draft("first", b"0"), Draft("first", b"1")])
        yield engine


@pytest.fixture
def other(path: Path, engine: FullEngine) -> Iterator[FullEngine]:
    """The engine of another process."""
    del engine
    with closing(open_engine(f"sqlite:///{path}", Settings())) as other:
        yield other


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as raw:
        return int(raw.execute("SELECT count(*) FROM inbox").fetchone()[0])


def test_a_message_by_itself_is_one_page_of_the_log(path: Path, engine: FullEngine) -> None:
    """With headers too; a page of the table is full now and then, and its parent changes."""
    wal = path.with_name(f"{path.name}-wal")
    before = wal.stat().st_size
    for number in range(100):
        engine.put([Draft(f"t.{number}", b"x" * 100, headers={"laneway-task": "mail"})])
    assert rows(path) == 100
    assert (wal.stat().st_size - before) / FRAME < 120


def test_other_messages_are_put_at_once(path: Path, engine: FullEngine) -> None:
    """Those with an id, a key, a delay, a long body or an own policy of their topic."""
    engine.policy_set("operator", "own", {"rate": 5})
    engine.put([Draft("a", b"", id="mine")])
    engine.put([Draft("a", b"", key="k")])
    engine.put([Draft("a", b"", delay_us=1)])
    engine.put([Draft("a", b"x" * 10_000)])
    engine.put([Draft("own", b"")])
    assert rows(path) == 0
    assert engine.overview().waiting == 7


def test_the_inbox_is_bounded(path: Path, engine: FullEngine) -> None:
    """The message that finds it full puts all of them into their lanes."""
    most = 0
    for _ in range(MOST_ROWS + 1):
        engine.put([Draft("a", b"")])
        most = max(most, rows(path))
    assert (most, rows(path)) == (MOST_ROWS, 0)


def test_another_process_sees_it(path: Path, engine: FullEngine, other: FullEngine) -> None:
    """Its counts, and its leases: in order, with the ids that were answered."""
    ids = [engine.put([Draft("a", b"%d" % number)])[0].id for number in range(3)]
    assert rows(path) == 3
    assert other.overview().waiting == 5
    assert rows(path) == 0
    ids += [other.put([Draft("a", b"3")])[0].id, engine.put([Draft("a", b"4")])[0].id]
    leases = other.lease(10, topics=["a"]).leases
    assert [lease.id for lease in leases] == ids
    assert [lease.body for lease in leases] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_change_of_policies_counts_for_the_next_message(
    path: Path, engine: FullEngine, other: FullEngine
) -> None:
    """Also if another process has changed them, for a pattern or for one topic."""
    engine.put([Draft("a", b"before")])
    other.policy_set("operator", "a", {"merge": "last"})
    assert engine.put([Draft("a", b"same")])[0].outcome == "accepted"
    assert engine.put([Draft("a", b"same")])[0].outcome == "merged"
    other.policy_set("operator", "b.*", {"max_backlog": 1})
    assert engine.put([Draft("b.c", b"")])[0].outcome == "accepted"
    assert engine.put([Draft("b.c", b"")])[0].outcome == "refused"
    assert rows(path) == 0


def test_time_never_goes_back(engine: FullEngine, other: FullEngine) -> None:
    """Messages of a process whose clock is behind keep their order."""
    for number, now in enumerate((3_000, 1_000, 2_000)):
        (engine, other)[number % 2].put([Draft("a", b"%d" % number)], now_us=now * 10**12)
    leases = other.lease(10, topics=["a"], now_us=1).leases
    assert [lease.body for lease in leases] == [b"0", b"1", b"2"]
    assert [lease.published_us for lease in leases] == [3 * 10**15] * 3


def test_a_put_inside_another_call_is_refused(
    engine: FullEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a signal handler: it would be a part of the call around it, and repeat its numbers."""
    assert isinstance(engine, SqliteEngine)
    look_at_clock = engine._look_at_clock
    refused: list[LanewayError] = []

    def handler(behind: int) -> None:
        look_at_clock(behind)
        monkeypatch.undo()
        for drafts in ([Draft("a", b"")], [Draft("a", b"", key="k")]):
            with pytest.raises(EngineUnavailable, match="inside another one of its thread") as info:
                engine.put(drafts)
            refused.append(info.value)

    monkeypatch.setattr(engine, "_look_at_clock", handler)
    engine.put([Draft("a", b"1"), Draft("a", b"2")])
    assert len(refused) == 2
    with engine.view(), pytest.raises(EngineUnavailable, match="inside another"):
        engine.put([Draft("a", b"")])
    engine.put([Draft("a", b"3")])
    leases = engine.lease(10, topics=["a"]).leases
    assert [lease.body for lease in leases] == [b"1", b"2", b"3"]


def test_an_interrupt_after_the_commit_hides_nothing(
    engine: FullEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is there, and its number is not assigned again."""
    assert isinstance(engine, SqliteEngine)
    run_durably = engine._store.run_durably

    def interrupted(statement: str, *values: Any) -> list[Any]:
        run_durably(statement, *values)
        raise KeyboardInterrupt

    engine.tick()
    monkeypatch.setattr(engine._store, "run_durably", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.put([Draft("a", b"1")])
    monkeypatch.undo()
    engine.put([Draft("a", b"2"), Draft("a", b"3")])
    leases = engine.lease(10, topics=["a"]).leases
    assert [lease.body for lease in leases] == [b"1", b"2", b"3"]
