"""What a persistent engine knows still after it was closed and opened: limits, leases, ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway.engines.base import FullEngine, Settings
from laneway.testing import EngineDriver
from laneway.tiers import Tier
from tests.conformance.conftest import ENGINES

PERSISTENT = ("sqlite file", "valkey", "valkey, cluster")
"""The next engine joins with its name."""


class Reopened(EngineDriver):
    """`again` closes the engine and opens the same store."""

    def again(self) -> None:
        self.open()


@pytest.fixture(params=PERSISTENT)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopened]:
    def make(settings: Settings) -> FullEngine:
        return ENGINES[request.param](tmp_path, settings)

    driver = Reopened(make)
    yield driver
    assert [check for check in driver.engine.doctor() if not check.ok] == []
    driver.engine.close()


def test_a_rate_is_kept_also_across_restarts(kept: Reopened) -> None:
    """Opening anew gives no new burst."""
    kept.policy("a", rate=10, burst=3)
    kept.put("a", *"123456789")
    moments: list[int] = []
    for _ in range(8):
        moments += [kept.now] * len(kept.run())
        kept.again()
        kept.later(0.05)
    assert len(moments) == 3 + 3


def test_leases_slots_and_serial_keys_are_kept(kept: Reopened) -> None:
    """Who held one before settles it after; until then nobody else has it."""
    kept.policy("a", concurrency=1)
    kept.policy("s", serial=True)
    kept.put("a", "1", "2")
    kept.put("s", "3", "4", key="k")
    held = kept.lease()
    kept.again()
    assert kept.lease() == []
    assert kept.settle(held) == ["acked", "acked"]
    assert sorted(kept.bodies()) == ["2", "4"]


def test_finished_ids_attempts_and_rests_are_kept(kept: Reopened) -> None:
    """
    A duplicate is a duplicate, a second attempt the second, and a topic that rests goes on resting.
    """
    kept.policy("a", dedupe=10, backoff=0)
    kept.put("a", "1", id="x")
    kept.run()
    kept.put("a", "2")
    kept.settle(kept.lease(), "retry")
    kept.put("r", "3")
    kept.settle(kept.lease(topics=["r"]), "back_off", delay_us=5_000_000)
    kept.again()
    assert kept.put("a", "4", id="x")[0].outcome == "duplicate"
    assert [(lease.body, lease.attempt) for lease in kept.lease()] == [(b"2", 2)]
    kept.later(5)
    assert kept.bodies() == ["3"]


def test_lanes_move_where_a_program_declares_other_tiers(kept: Reopened) -> None:
    """
    What waits in a tier that is no more is served in the new default one; a tier that a policy
    names stays.
    """
    kept.policy("h.*", tier="high")
    kept.put("a", *"123")
    kept.put("h.1", *"456")
    kept.open(tiers={"vip": Tier(6), "rest": Tier(1)})
    assert list(kept.engine.tiers) == ["vip", "rest", "high"]
    assert kept.engine.topic_stats("a", now_us=kept.now).tier == "rest"
    assert sorted(kept.bodies()) == ["1", "2", "3", "4", "5", "6"]


def test_changes_of_tiers_stay_where_the_same_program_comes_again(kept: Reopened) -> None:
    """Also where it declares the tiers that it declared before."""
    kept.open(tiers={"vip": Tier(6), "rest": Tier(1)})
    kept.engine.tier_set("code", {"vip": Tier(5), "gold": Tier(2)}, now_us=kept.now)
    kept.engine.tier_set("operator", {"rest": Tier(4)}, now_us=kept.now)
    for settings in ({"tiers": {"vip": Tier(6), "rest": Tier(1)}}, {}):
        kept.open(**settings)
        assert kept.engine.tiers == {"vip": Tier(5), "rest": Tier(4), "gold": Tier(2)}
    kept.open(tiers={"vip": Tier(6), "rest": Tier(3)})
    assert kept.engine.tiers == {"vip": Tier(6), "rest": Tier(4)}
