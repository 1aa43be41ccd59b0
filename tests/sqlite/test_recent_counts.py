"""The recent counts of topics that a file stores."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.engines.shared.recent import STEP
from laneway.engines.sqlite import recent_counts
from laneway.message import Draft

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
