"""The rows of topic groups, which live as long as their lanes."""

import sqlite3
from contextlib import closing
from pathlib import Path

from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement

NOW = 1_700_000_000_000_000
MINUTE = 60_000_000


def test_a_group_is_forgotten_with_its_last_lane_each_time(tmp_path: Path) -> None:
    """Also if policies changed meanwhile, and the engine object uses the group again."""
    path, now = tmp_path / "x.db", NOW
    with closing(open_engine(f"sqlite:///{path}", Settings())) as engine:
        engine.policy_set("code", "c.*", {"group": "{1}"}, now_us=now)
        for round_ in range(3):
            topics = [f"c.acme.{round_}", "c.acme.each"]
            engine.put([Draft(topic, b"x") for topic in topics], now_us=now)
            leases = engine.lease(10, now_us=now).leases
            assert len(leases) == 2
            assert rows(path) == [("acme", 2)]
            engine.settle([Settlement(lease.handle, lease.fence) for lease in leases], now_us=now)
            engine.policy_set("code", "other.*", {"retries": round_}, now_us=now)
            now += MINUTE
            engine.tick(now_us=now)
            assert rows(path) == []


def rows(path: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute("SELECT name, lanes FROM group_queue").fetchall()


def test_the_doctor_repairs_counts_of_groups_and_of_the_history(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(open_engine(f"sqlite:///{path}", Settings())) as engine:
        engine.policy_set("code", "c.*", {"group": "{1}"}, now_us=NOW)
        engine.put([Draft("c.0.0", b"x")], now_us=NOW)
        with closing(sqlite3.connect(path)) as raw:
            ((old,),) = raw.execute("SELECT tallies FROM shard").fetchall()
        engine.put([Draft(f"c.{n % 2}.{n}", b"x") for n in range(1, 6)], now_us=NOW)
        assert all(check.ok for check in engine.doctor())
        with closing(sqlite3.connect(path)) as raw:
            raw.execute("UPDATE group_queue SET lanes = 9, runnable = 0 WHERE name = '1'")
            raw.execute("UPDATE shard SET tallies = ?, waiting = 0", (old,))
            raw.commit()
        wrong = [check.name for check in engine.doctor() if not check.ok]
        assert wrong == ["totals", "groups", "history"]
        engine.doctor(repair=True)
        assert all(check.ok for check in engine.doctor())
        assert rows(path) == [("0", 3), ("1", 3)]
        assert [tally.waiting for tally in engine.tallies().tallies] == [6]
        assert len(engine.lease(10, now_us=NOW).leases) == 6
