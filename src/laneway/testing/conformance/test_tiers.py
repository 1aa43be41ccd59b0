"""Tiers: any names, a default, and shares that change while the backlog waits."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from laneway.errors import BadPolicy
from laneway.tiers import Tier

if TYPE_CHECKING:
    from laneway.testing.bench import EngineBench


def shares(bench: EngineBench, deliveries: int = 100, size: int = 10) -> Counter[str]:
    """How many of so many deliveries each topic's first part got."""
    given: Counter[str] = Counter()
    while given.total() < deliveries:
        leases = bench.lease(size)
        given.update(lease.topic.partition(".")[0] for lease in leases)
        bench.settle(leases)
    return given


def fill(bench: EngineBench, *tiers: str) -> None:
    for tier in tiers:
        bench.policy(f"{tier}.*", tier=tier)
        for n in range(20):
            bench.put(f"{tier}.{n}", *["x"] * 40)


def test_tiers_of_any_names(bench: EngineBench) -> None:
    """A topic without a tier belongs to the last declared, where none is called mid."""
    bench.open(tiers={"vip": Tier(6), "the rest!": Tier(1)})
    bench.put("x", "1")
    bench.policy("vip.*", tier="vip")
    bench.put("vip.a", "2")
    assert bench.engine.policy_of("x").tier == "the rest!"
    assert {tier.tier for tier in bench.engine.overview(now_us=bench.now).tiers} == {"vip", "the rest!"}
    assert sorted(bench.run()) == ["1", "2"]
    with pytest.raises(BadPolicy, match="mid"):
        bench.policy("y", tier="mid")


def test_a_stated_default(bench: EngineBench) -> None:
    bench.open(tiers={"vip": Tier(6), "mid": Tier(1)}, default_tier="vip")
    bench.put("x", "1")
    assert bench.engine.topic_stats("x", now_us=bench.now).tier == "vip"


@pytest.mark.parametrize("layer", ["code", "operator"])
def test_shares_change_at_the_next_lease(bench: EngineBench, layer: str) -> None:
    """Acting on what waits already; what is shown follows."""
    fill(bench, "high", "mid", "low")
    assert shares(bench) == {"high": 60, "mid": 30, "low": 10}
    bench.engine.tier_set(layer, {"high": Tier(1), "low": Tier(6)}, now_us=bench.now)  # type: ignore[arg-type]
    assert shares(bench) == {"high": 10, "mid": 30, "low": 60}
    shown = {tier.tier: tier.share for tier in bench.engine.overview(now_us=bench.now).tiers}
    assert shown == {"high": 1, "mid": 3, "low": 6}
    [receipt] = bench.put("low.new", "last")
    reasons = " ".join(bench.engine.explain(receipt.id, "low.new", now_us=bench.now).reasons)
    assert 'tier "low"' in reasons
    assert "share 6 of 10" in reasons


def test_a_tier_becomes_strict_and_fair_by_time(bench: EngineBench) -> None:
    fill(bench, "high", "low")
    bench.engine.tier_set("code", {"low": Tier("strict"), "high": Tier(6, "time")}, now_us=bench.now)
    assert shares(bench, 50) == {"low": 50}


def test_tiers_are_added_and_removed_while_others_work(bench: EngineBench) -> None:
    fill(bench, "high", "low")
    bench.engine.tier_set("code", {"gold": Tier(3)}, now_us=bench.now)
    fill(bench, "gold")
    assert shares(bench) == {"high": 60, "gold": 30, "low": 10}
    with pytest.raises(BadPolicy, match="policy gold"):
        bench.engine.tier_set("code", {"gold": None}, now_us=bench.now)
    bench.engine.policy_reset("code", "gold.*", now_us=bench.now)
    bench.engine.tier_set("code", {"gold": None}, now_us=bench.now)
    assert list(bench.engine.tier_layers().in_force()) == ["high", "mid", "low"]
    assert bench.engine.topic_stats("gold.1", now_us=bench.now).tier == "mid"
    assert shares(bench) == {"high": 60, "gold": 30, "low": 10}  # the default tier has the share of gold


def test_a_tier_is_refused_to_go_while_one_topics_own_policy_names_it(bench: EngineBench) -> None:
    bench.policy("push.acme", tier="low", layer="operator")
    with pytest.raises(BadPolicy, match=r"push\.acme"):
        bench.engine.tier_set("code", {"low": None}, now_us=bench.now)
    bench.engine.policy_reset("operator", "push.acme", now_us=bench.now)
    bench.engine.tier_set("code", {"low": None}, now_us=bench.now)
    with pytest.raises(BadPolicy, match="low"):
        bench.policy("push.acme", tier="low")


def test_the_operators_tiers_precede_the_codes_until_they_are_reset(bench: EngineBench) -> None:
    bench.engine.tier_set("operator", {"high": Tier(9), "low": None}, now_us=bench.now)
    bench.engine.tier_set("code", {"high": Tier(7)}, now_us=bench.now)
    assert bench.engine.tier_layers().in_force() == {"high": Tier(9), "mid": Tier(3)}
    assert bench.engine.tier_reset(now_us=bench.now)
    assert bench.engine.tier_layers().in_force() == {"high": Tier(7), "mid": Tier(3), "low": Tier(1)}
    assert bench.engine.tiers == {"high": Tier(7), "mid": Tier(3), "low": Tier(1)}
    assert not bench.engine.tier_reset(now_us=bench.now)
    with pytest.raises(BadPolicy, match="default"):
        bench.engine.tier_set("operator", {"mid": None}, now_us=bench.now)
