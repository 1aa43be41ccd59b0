"""The recent counts of topics that a file stores."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.engines.shared.recent import STEP
from laneway.engines.sql import recent_counts
from laneway.message import Draft, Settlement
from laneway.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TOPICS = 150


def test_two_processes_keep_a_bounded_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each forgets what it has counted when the other writes, and the lowest scores still go."""
    monkeypatch.setattr(recent_counts, "MOST", 10)
    monkeypatch.setattr(recent_counts, "TRIM_AFTER", 4)
    url = f"sqlite:///{tmp_path}/q.db"
    settings = Settings(durability="memory")
    with closing(open_engine(url, settings)) as one, closing(open_engine(url, settings)) as other:
        for number in range(TOPICS):
            engine = one if number % 2 else other
            engine.put([Draft(f"t.{number}", b"x")] * STEP)
    with closing(sqlite3.connect(tmp_path / "q.db")) as raw:
        (count,) = raw.execute("SELECT count(*) FROM recent").fetchone()
    assert 10 <= count < TOPICS // 2


def test_housekeeping_forgets_what_is_long_ago(tmp_path: Path) -> None:
    """A count that is 0 by now needs no row."""
    now = 2_200_000_000_000_000
    with closing(open_engine(f"sqlite:///{tmp_path}/q.db", Settings())) as engine:
        engine.put([Draft("t", b"x")] * STEP, now_us=now)
        for later, rows in ((60 * SECOND, 1), (600 * SECOND, 0)):
            engine.tick(now_us=now + later)
            with closing(sqlite3.connect(tmp_path / "q.db")) as raw:
                assert raw.execute("SELECT count(*) FROM recent").fetchone() == (rows,)


def test_the_doctor_counts_dead_letters_of_topics_again(tmp_path: Path) -> None:
    """A count that is wrong, one without letters, and one that is missing."""
    settings = Settings(durability="memory")
    with closing(open_engine(f"sqlite:///{tmp_path}/q.db", settings)) as engine:
        engine.put([Draft(topic, b"x") for topic in ("a", "a", "b")])
        leases = engine.lease(3).leases
        engine.settle([Settlement(each.handle, each.fence, "dead") for each in leases])
        assert [check for check in engine.doctor() if not check.ok] == []
        with closing(sqlite3.connect(tmp_path / "q.db")) as raw:
            raw.executescript(
                "UPDATE dead_count SET letters = 7 WHERE topic = 'a';"
                "DELETE FROM dead_count WHERE topic = 'b'; INSERT INTO dead_count VALUES ('c', 1);"
            )
        assert [check.name for check in engine.doctor() if not check.ok] == ["totals"]
        engine.doctor(repair=True)
        assert [check for check in engine.doctor() if not check.ok] == []
        listed = [(stats.topic, stats.dead) for stats in engine.topic_list(order="dead")]
        assert listed == [("a", 2), ("b", 1)]
