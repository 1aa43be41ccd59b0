"""Limits per key in the file: what the doctor repairs, and what is left of a key at rest."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM key_state",
        "UPDATE key_state SET leased = 7, parked = 0",
        "DELETE FROM key_parked WHERE seq = (SELECT max(seq) FROM key_parked)",
    ],
)
def test_the_doctor_counts_keys_again(tmp_path: Path, damage: str) -> None:
    """Keys whose states or parked messages were lost go on after a repair."""
    path = tmp_path / "q.db"
    with closing(open_engine(f"sqlite:///{path}", Settings())) as engine:
        engine.policy_set("code", "a", {"key_concurrency": 1})
        engine.put([Draft("a", b"%d" % n, key="k") for n in range(3)])
        held = engine.lease(10).leases
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(damage)
    with closing(open_engine(f"sqlite:///{path}", Settings())) as engine:
        assert "keys" in [check.name for check in engine.doctor() if not check.ok]
        engine.doctor(repair=True)
        assert [check for check in engine.doctor() if not check.ok] == []
        assert engine.lease(10).leases == [], "the lease that is held counts"
        for n in range(3):
            assert [lease.body for lease in held] == [b"%d" % n]
            engine.settle([Settlement(lease.handle, lease.fence) for lease in held])
            held = engine.lease(10).leases


def test_keys_at_rest_are_deleted(tmp_path: Path) -> None:
    """A thousand keys leave no row behind them."""
    path = tmp_path / "q.db"
    with closing(open_engine(f"sqlite:///{path}", Settings())) as engine:
        engine.policy_set("code", "a", {"key_concurrency": 1, "key_rate": 1000})
        engine.put([Draft("a", b"1", key=f"k{n}") for n in range(1000)])
        leases = engine.lease(1000).leases
        assert len(leases) == 1000
        engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
        engine.tick(now_us=2_500_000_000_000_000)
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT count(*) FROM key_state").fetchone() == (0,)
