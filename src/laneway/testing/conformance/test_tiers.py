"""Tiers: any names, a default, and shares that change while messages wait."""

from __future__ import annotations

from collections import Counter

import pytest

from laneway.errors import BadPolicy
from laneway.testing.engine_driver import EngineDriver
from laneway.tiers import Tier


def shares(driver: EngineDriver, deliveries: int = 100, size: int = 10) -> Counter[str]:
    """How many of so many deliveries each topic's first part got."""
    given: Counter[str] = Counter()
    while given.total() < deliveries:
        leases = driver.lease(size)
        given.update(lease.topic.partition(".")[0] for lease in leases)
        driver.settle(leases)
    return given


def fill(driver: EngineDriver, *tiers: str) -> None:
    for tier in tiers:
        driver.policy(f"{tier}.*", tier=tier)
        for n in range(20):
            driver.put(f"{tier}.{n}", *["x"] * 40)


def test_tiers_of_any_names(driver: EngineDriver) -> None:
    """A topic without a tier belongs to mid, or without a mid to the last tier."""
    driver.open(tiers={"vip": Tier(6), "the rest!": Tier(1)})
    driver.put("x", "1")
    driver.policy("vip.*", tier="vip")
    driver.put("vip.a", "2")
    assert driver.engine.policy_of("x").tier == "the rest!"
    assert {tier.tier for tier in driver.engine.overview(now_us=driver.now).tiers} == {
        "vip",
        "the rest!",
    }
    assert sorted(driver.run()) == ["1", "2"]
    with pytest.raises(BadPolicy, match="mid"):
        driver.policy("y", tier="mid")


def test_default_tier(driver: EngineDriver) -> None:
    """`default_tier` is the tier of topics without one."""
    driver.open(tiers={"vip": Tier(6), "mid": Tier(1)}, default_tier="vip")
    driver.put("x", "1")
    assert driver.engine.topic_stats("x", now_us=driver.now).tier == "vip"


@pytest.mark.parametrize("layer", ["code", "operator"])
def test_shares_change_at_the_next_lease(driver: EngineDriver, layer: str) -> None:
    """Changed shares act on waiting messages from the next lease, and are shown."""
    fill(driver, "high", "mid", "low")
    assert shares(driver) == {"high": 60, "mid": 30, "low": 10}
    driver.engine.tier_set(layer, {"high": Tier(1), "low": Tier(6)}, now_us=driver.now)  # type: ignore[arg-type]
    assert shares(driver) == {"high": 10, "mid": 30, "low": 60}
    shown = {tier.tier: tier.share for tier in driver.engine.overview(now_us=driver.now).tiers}
    assert shown == {"high": 1, "mid": 3, "low": 6}
    [receipt] = driver.put("low.new", "last")
    reasons = " ".join(driver.engine.explain(receipt.id, "low.new", now_us=driver.now).reasons)
    assert 'tier "low"' in reasons
    assert "share 6 of 10" in reasons


def test_tier_becomes_strict(driver: EngineDriver) -> None:
    """A tier can become strict, or fair by time."""
    fill(driver, "high", "low")
    driver.engine.tier_set(
        "code", {"low": Tier("strict"), "high": Tier(6, "time")}, now_us=driver.now
    )
    assert shares(driver, 50) == {"low": 50}


def test_add_and_remove_tiers(driver: EngineDriver) -> None:
    """Tiers are added and removed at run time, unless a policy names them."""
    fill(driver, "high", "low")
    driver.engine.tier_set("code", {"gold": Tier(3)}, now_us=driver.now)
    fill(driver, "gold")
    assert shares(driver) == {"high": 60, "gold": 30, "low": 10}
    with pytest.raises(BadPolicy, match="policy gold"):
        driver.engine.tier_set("code", {"gold": None}, now_us=driver.now)
    driver.engine.policy_reset("code", "gold.*", now_us=driver.now)
    driver.engine.tier_set("code", {"gold": None}, now_us=driver.now)
    assert list(driver.engine.tier_layers().in_force()) == ["high", "mid", "low"]
    assert driver.engine.topic_stats("gold.1", now_us=driver.now).tier == "mid"
    assert shares(driver) == {
        "high": 60,
        "gold": 30,
        "low": 10,
    }  # the default tier has the share of gold


def test_tier_of_a_topic_policy_stays(driver: EngineDriver) -> None:
    """A tier that a topic's policy names cannot be removed."""
    driver.policy("push.acme", tier="low", layer="operator")
    with pytest.raises(BadPolicy, match=r"push\.acme"):
        driver.engine.tier_set("code", {"low": None}, now_us=driver.now)
    driver.engine.policy_reset("operator", "push.acme", now_us=driver.now)
    driver.engine.tier_set("code", {"low": None}, now_us=driver.now)
    with pytest.raises(BadPolicy, match="low"):
        driver.policy("push.acme", tier="low")


def test_reserves_of_tiers(driver: EngineDriver) -> None:
    """They are stored, and change the deliveries of no lease."""
    driver.open(tiers={"vip": Tier("strict", reserve=0.25), "mid": Tier(1)}, default_tier="mid")
    driver.engine.tier_set("operator", {"mid": Tier(2, reserve=0.5)}, now_us=driver.now)
    layers = driver.engine.tier_layers()
    assert layers.code["vip"].reserve == 0.25
    assert {name: tier.reserve for name, tier in layers.in_force().items()} == {
        "vip": 0.25,
        "mid": 0.5,
    }
    assert driver.engine.tiers["mid"].reserve == 0.5
    fill(driver, "vip", "mid")
    assert all(lease.topic.startswith("vip.") for lease in driver.lease(40))


def test_layers_of_tiers(driver: EngineDriver) -> None:
    """The operator's tiers precede the code's until they are reset."""
    driver.engine.tier_set("operator", {"high": Tier(9), "low": None}, now_us=driver.now)
    driver.engine.tier_set("code", {"high": Tier(7)}, now_us=driver.now)
    assert driver.engine.tier_layers().in_force() == {"high": Tier(9), "mid": Tier(3)}
    assert driver.engine.tier_reset(now_us=driver.now)
    assert driver.engine.tier_layers().in_force() == {
        "high": Tier(7),
        "mid": Tier(3),
        "low": Tier(1),
    }
    assert driver.engine.tiers == {"high": Tier(7), "mid": Tier(3), "low": Tier(1)}
    assert not driver.engine.tier_reset(now_us=driver.now)
    with pytest.raises(BadPolicy, match="default"):
        driver.engine.tier_set("operator", {"mid": None}, now_us=driver.now)
