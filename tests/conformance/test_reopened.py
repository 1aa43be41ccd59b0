"""A persistent engine keeps limits, leases, ids and tiers when it is closed and reopened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway.engines.base import FullEngine, Settings
from laneway.testing import EngineDriver
from laneway.tiers import Tier
from tests.conformance.conftest import ENGINES, SHARDED

PERSISTENT = (
    "sqlite file",
    "sqlite folder",
    "sqlite 4 files",
    "valkey",
    "valkey, cluster",
    "postgres",
    "postgres 4 schemas",
)
"""Add the name of another persistent engine."""


class Reopened(EngineDriver):
    """`reopen` closes the engine and opens the same store."""

    def reopen(self) -> None:
        self.open()


@pytest.fixture(params=PERSISTENT)
def reopened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopened]:
    def make(settings: Settings) -> FullEngine:
        return (ENGINES | SHARDED)[request.param](tmp_path, settings)

    driver = Reopened(make)
    yield driver
    assert [check for check in driver.engine.doctor() if not check.ok] == []
    driver.engine.close()


def test_rate(reopened: Reopened) -> None:
    """Reopening gives no new burst."""
    reopened.policy("a", rate=10, burst=3)
    reopened.put("a", *"123456789")
    moments: list[int] = []
    for _ in range(8):
        moments += [reopened.now] * len(reopened.run())
        reopened.reopen()
        reopened.later(0.05)
    assert len(moments) == 3 + 3


def test_leases_and_serial_keys(reopened: Reopened) -> None:
    """Leases are valid after reopening, and hold their slots and serial keys."""
    reopened.policy("a", concurrency=1)
    reopened.policy("s", serial=True)
    reopened.put("a", "1", "2")
    reopened.put("s", "3", "4", key="k")
    held = reopened.lease()
    reopened.reopen()
    assert reopened.lease() == []
    assert reopened.settle(held) == ["acked", "acked"]
    assert sorted(reopened.bodies()) == ["2", "4"]


def test_finished_ids_attempts_and_back_off(reopened: Reopened) -> None:
    """Finished ids are duplicates, attempts count on, and a topic continues to back off."""
    reopened.policy("a", dedupe=10, backoff=0)
    reopened.put("a", "1", id="x")
    reopened.run()
    reopened.put("a", "2")
    reopened.settle(reopened.lease(), "retry")
    reopened.put("r", "3")
    reopened.settle(reopened.lease(topics=["r"]), "back_off", delay_us=5_000_000)
    reopened.reopen()
    assert reopened.put("a", "4", id="x")[0].outcome == "duplicate"
    assert [(lease.body, lease.attempt) for lease in reopened.lease()] == [(b"2", 2)]
    reopened.later(5)
    assert reopened.bodies() == ["3"]


def test_other_tiers(reopened: Reopened) -> None:
    """Lanes of a removed tier move to the default tier; a tier that a policy names remains."""
    reopened.policy("h.*", tier="high")
    reopened.put("a", *"123")
    reopened.put("h.1", *"456")
    reopened.open(tiers={"vip": Tier(6), "rest": Tier(1)})
    assert list(reopened.engine.tiers) == ["vip", "rest", "high"]
    assert reopened.engine.topic_stats("a", now_us=reopened.now).tier == "rest"
    assert sorted(reopened.bodies()) == ["1", "2", "3", "4", "5", "6"]


def test_changed_tiers(reopened: Reopened) -> None:
    """Changed tiers remain if the program declares the same tiers as before."""
    reopened.open(tiers={"vip": Tier(6), "rest": Tier(1)})
    reopened.engine.tier_set("code", {"vip": Tier(5), "gold": Tier(2)}, now_us=reopened.now)
    reopened.engine.tier_set("operator", {"rest": Tier(4)}, now_us=reopened.now)
    for settings in ({"tiers": {"vip": Tier(6), "rest": Tier(1)}}, {}):
        reopened.open(**settings)
        assert reopened.engine.tiers == {"vip": Tier(5), "rest": Tier(4), "gold": Tier(2)}
    reopened.open(tiers={"vip": Tier(6), "rest": Tier(3)})
    assert reopened.engine.tiers == {"vip": Tier(6), "rest": Tier(4)}
