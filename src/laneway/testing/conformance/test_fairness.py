"""Fairness: shares of tiers, weights, and evenness between topics, counted exactly."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Literal

import pytest

from laneway.policy import Tier
from laneway.testing.engine_driver import TIERS, EngineDriver
from laneway.units import SECOND


def jain(given: Counter[str]) -> float:
    return given.total() ** 2 / (len(given) * sum(number**2 for number in given.values()))


def test_flooding_topic(driver: EngineDriver) -> None:
    """
    A quiet topic is served in the next round beside a flood, without credit for its idle time.
    """
    driver.put("flood", *map(str, range(1_000)))
    driver.settle(driver.lease(500))
    driver.put("quiet", *map(str, range(20)))
    seen = Counter(lease.topic for lease in driver.lease(40))
    assert seen == {"flood": 20, "quiet": 20}


@pytest.mark.parametrize("fair_by", ["messages", "time"])
@pytest.mark.parametrize(("weight", "share"), [(1, 500), (3, 750), (0.25, 200)])
def test_lane_that_was_served_alone(
    driver: EngineDriver, fair_by: Literal["messages", "time"], weight: float, share: int
) -> None:
    """
    A lane that was served alone gets its share of the next thousand, however large its leases.
    """
    driver.open(tiers={"mid": Tier(1, fair_by=fair_by)})
    driver.policy("alone", weight=weight)
    driver.put("alone", *["x"] * 3_100)
    for _ in range(4):
        driver.settle(driver.lease(500), cost_us=20_000)
    driver.put("other", *["x"] * 1_100)
    seen: Counter[str] = Counter()
    while seen.total() < 1_000:
        leases = driver.lease(100)
        seen.update(lease.topic for lease in leases)
        driver.settle(leases, cost_us=20_000)
    assert abs(seen["alone"] - share) <= 10


def test_topic_that_was_paused_or_empty(
    driver: EngineDriver,
) -> None:
    """Topics that were empty or paused meanwhile continue as equals."""
    driver.put("drained", *["x"] * 500)
    driver.settle(driver.lease(500))
    driver.policy("paused", paused=True)
    driver.put("paused", *["x"] * 600)
    driver.put("drained", *["x"] * 1_100)
    driver.settle(driver.lease(500))
    driver.policy("paused", paused=None)
    seen = Counter(lease.topic for _ in range(6) for lease in driver.lease(100))
    assert abs(seen["drained"] - 300) <= 5


def test_fair_by_time(driver: EngineDriver) -> None:
    """With `fair_by="time"`, a topic with ten times longer messages gets a tenth of deliveries."""
    driver.open(tiers={"mid": Tier(1, fair_by="time")})
    driver.put("long", *map(str, range(400)))
    driver.put("short", *map(str, range(400)))
    spent: Counter[str] = Counter()
    for _ in range(150):
        for lease in driver.lease(1):
            cost = 1_000_000 if lease.topic == "long" else 100_000
            spent[lease.topic] += cost
            driver.settle([lease], cost_us=cost)
    assert spent["long"] / spent["short"] == pytest.approx(1, rel=0.35)


@pytest.mark.parametrize("fields", [{"buckets": 1}, {"group": "one"}], ids=["buckets", "group"])
def test_deleted_topic_returns_what_its_leases_were_charged(
    driver: EngineDriver, fields: dict[str, Any]
) -> None:
    """
    Fair by time: topics that share a bucket or a group with a deleted one pay for the time that its
    messages took, not for the time that was expected of them.
    """
    driver.open(tiers={"mid": Tier(1, fair_by="time")})
    driver.policy("many.*", **fields)
    driver.policy("many.paused", paused=True)
    driver.put("many.paused", "x")
    driver.put("other", *["x"] * 100)
    for _ in range(30):
        driver.settle(driver.lease(1), cost_us=10_000_000)
    driver.put("many.deleted", *["x"] * 16)
    leases = driver.lease(32)
    assert Counter(lease.topic for lease in leases) == {"other": 16, "many.deleted": 16}
    driver.settle([lease for lease in leases if lease.topic == "other"], cost_us=2_000_000)
    driver.engine.topic_delete("many.deleted", now_us=driver.now)
    driver.put("many.left", *["x"] * 20)
    served = [lease.topic for _ in range(4) for lease in driver.lease(1)]
    assert "many.left" in served


def test_shares_of_tiers_in_every_pool(driver: EngineDriver) -> None:
    """In each of three pools, tiers get 60, 30 and 10 of the first hundred single leases."""
    driver.open(tiers=TIERS)
    pools = ("default", "gpu", "mail")
    for pool in pools:
        for tier in TIERS:
            driver.policy(f"{pool}.{tier}", tier=tier, pool=pool)
            driver.put(f"{pool}.{tier}", *["x"] * 110)
    given: Counter[str] = Counter()
    for _ in range(100):
        for pool in pools:
            leases = driver.lease(1, pool=pool)
            given.update(lease.topic for lease in leases)
            driver.settle(leases)
    assert given == {
        f"{pool}.{tier}": share
        for pool in pools
        for tier, share in (("high", 60), ("mid", 30), ("low", 10))
    }


def test_weights_at_every_moment(driver: EngineDriver) -> None:
    """A weighted topic is never further from its share than one visit of each topic."""
    weights = {"one": 1, "two": 2, "five": 5}
    for topic, weight in weights.items():
        driver.policy(topic, weight=weight)
        driver.put(topic, *["x"] * 400)
    given: Counter[str] = Counter()
    for _ in range(400):
        given.update(lease.topic for lease in driver.lease(1))
        for topic, weight in weights.items():
            assert abs(given[topic] - given.total() * weight / 8) <= sum(weights.values())


def test_full_batches(driver: EngineDriver) -> None:
    """
    A lease call is full while enough can be delivered, whatever is limited, paused or delayed.
    """
    driver.open(tiers={"first": Tier("strict"), "high": Tier(6), "mid": Tier(3)})
    driver.policy("full", concurrency=1, tier="first")
    driver.policy("slow", rate=1, burst=1, tier="high")
    driver.policy("still", paused=True, tier="high")
    driver.policy("high.*", tier="high")
    for topic in ("full", "slow", "still", "high.a", "mid.a", "mid.b"):
        driver.put(topic, *["x"] * 50)
    driver.put("high.later", *["x"] * 50, delay_us=SECOND)
    left = 1 + 1 + 150
    while left:
        leases = driver.lease(20)
        assert len(leases) == min(20, left)
        left -= len(leases)
    assert driver.lease() == []


def test_shares_of_tiers_in_every_window(driver: EngineDriver) -> None:
    """Every window of 2,000 has the shares within 1 %, also inside large leases."""
    draw = random.Random(5)
    driver.open(tiers=TIERS)
    for tier in TIERS:
        driver.policy(f"{tier}.*", tier=tier)
        for n in range(5):
            driver.put(
                f"{tier}.{n}", *["x"] * (1_400 if tier == "high" else 700 if tier == "mid" else 250)
            )
    order: list[str] = []
    while len(order) < 10_000:
        leases = driver.lease(draw.choice([1, 7, 100, 700, 1_000]))
        driver.settle(leases)
        order += [lease.topic.partition(".")[0] for lease in leases]
    for first in range(0, len(order) - 2_000, 13):
        window = Counter(order[first : first + 2_000])
        assert [
            abs(window[tier] / 2_000 - share) <= 0.01
            for tier, share in (("high", 0.6), ("mid", 0.3), ("low", 0.1))
        ] == [True] * 3, window


@pytest.mark.parametrize("topics", [2, 10, 50])
def test_few_equal_topics(driver: EngineDriver, topics: int) -> None:
    """Jain's index is at least 0.99 in every window in which each topic has at least 20."""
    draw = random.Random(topics)
    for n in range(topics):
        driver.put(f"t.{n}", *["x"] * 200)
    order: list[str] = []
    while len(order) < topics * 120:
        leases = driver.lease(draw.randint(1, 100))
        driver.settle(leases)
        order += [lease.topic for lease in leases]
    for first in range(0, topics * 60, 7):
        counts: Counter[str] = Counter()
        for topic in order[first:]:
            counts[topic] += 1
            if len(counts) == topics and min(counts.values()) >= 20:
                break
        assert jain(counts) >= 0.99
