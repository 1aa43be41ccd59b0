"""
What is promised in figures, counted exactly under a clock that is moved by hand: rates, shares,
evenness, and that nothing is lost count of.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from laneway.policy import Gate, Tier
from laneway.testing.engine_driver import TIERS
from laneway.units import SECOND

if TYPE_CHECKING:
    from laneway.testing.engine_driver import EngineDriver


@pytest.mark.parametrize("size", [1, 7, 100])
def test_equal_topics_are_served_evenly(driver: EngineDriver, size: int) -> None:
    """Jain's index of what 50 topics were given is at least 0.99 once each had 20 on average."""
    for n in range(50):
        driver.put(f"t.{n}", *["x"] * 40)
    given: Counter[str] = Counter({f"t.{n}": 0 for n in range(50)})
    while given.total() < 1_000:
        leases = driver.lease(min(size, 1_000 - given.total()))
        given.update(lease.topic for lease in leases)
        driver.settle(leases)
    assert jain(given) >= 0.99


def jain(given: Counter[str]) -> float:
    return given.total() ** 2 / (len(given) * sum(number**2 for number in given.values()))


def test_tiers_have_their_shares_exactly_in_every_pool_one_by_one(driver: EngineDriver) -> None:
    """60, 30 and 10 of the first hundred, in each of three pools that are asked in turns."""
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


def test_at_every_moment_a_weighted_topic_is_close_to_its_share(driver: EngineDriver) -> None:
    """Never further from its part of what was given so far than one visit of each."""
    weights = {"one": 1, "two": 2, "five": 5}
    for topic, weight in weights.items():
        driver.policy(topic, weight=weight)
        driver.put(topic, *["x"] * 400)
    given: Counter[str] = Counter()
    for _ in range(400):
        given.update(lease.topic for lease in driver.lease(1))
        for topic, weight in weights.items():
            assert abs(given[topic] - given.total() * weight / 8) <= sum(weights.values())


@pytest.mark.parametrize(
    ("per_second", "burst", "step_us"),
    [(3, 1, 50_000), (100, 5, 1_700), (1_000, 50, 900), (10_000, 1, 100), (10_000, 500, 3_000)],
)
def test_a_rate_is_kept_in_every_window_and_is_reached(
    driver: EngineDriver, per_second: int, burst: int, step_us: int
) -> None:
    """
    In any time T at most rate · T + burst, and while there is work at least 0.99 · rate · T - 1.
    """
    seconds = 2 if per_second < 1_000 else 0.3
    driver.policy("a", rate=per_second, burst=burst)
    driver.put("a", *["x"] * int(per_second * seconds + burst + 10))
    began, moments = driver.now, []
    while driver.now <= began + seconds * SECOND:
        leases = driver.lease(1_000)
        driver.settle(leases)
        moments += [(driver.now - began) / SECOND] * len(leases)
        driver.later(step_us / SECOND)
    _check_rate(moments, per_second, burst, seconds)


_KEYS_OF_FOUR = ["k5", "k1", "k4", "k0"]
"""One for each of four partitions."""


@pytest.mark.parametrize("per_second", [0.1, 1, 5, 10, 25, 39, 40, 400, 10_000])
@pytest.mark.parametrize("limit", ["topic", "gate", "partitions"])
def test_a_visit_up_to_50_ms_late_loses_no_permit(
    driver: EngineDriver, per_second: float, limit: str
) -> None:
    """With the default burst, which is 1 + a twentieth of the rate, fractions included."""
    draw = random.Random(f"{per_second} {limit}")
    seconds = 0.2 if per_second == 10_000 else max(4.0 if per_second < 400 else 1.0, 5 / per_second)
    parts = 4 if limit == "partitions" else 1
    if limit == "gate":
        driver.engine.gate_set("g", Gate(rate=per_second), now_us=driver.now)
        driver.policy("a", gate="g")
    else:
        driver.policy("a", rate=per_second * parts, partitions=parts)
    count = int(1.1 * per_second * seconds + 5)
    for lane in range(parts):
        driver.put("a", *["x"] * count, key=_KEYS_OF_FOUR[lane])
    began, moments = driver.now, {key: list[float]() for key in _KEYS_OF_FOUR[:parts]}
    while driver.now <= began + seconds * SECOND:
        batch = driver.batch(1_000)
        driver.settle(batch.leases)
        for lease in batch.leases:
            moments[lease.key or ""].append((driver.now - began) / SECOND)
        if not batch.leases:
            assert batch.next_wake_us is not None
            driver.now = batch.next_wake_us + draw.choice([0, 49_999, draw.randint(0, 49_999)])
    for taken in moments.values():
        _check_rate(taken, per_second, 1 + per_second / 20, seconds)


def _check_rate(moments: list[float], per_second: float, burst: float, seconds: float) -> None:
    """Never more than rate · T + burst in any time T, and at least 0.99 · rate · T - 1 in all."""
    earliest = float("-inf")
    for number, moment in enumerate(moments):
        # From the message i to this one the window holds number - i + 1.
        earliest = max(earliest, per_second * moment - number)
        assert number + 1 - per_second * moment + earliest <= burst + 1e-6
    assert len(moments) >= 0.99 * per_second * seconds - 1


def test_a_lease_is_never_short_while_something_can_be_given(driver: EngineDriver) -> None:
    """Whatever is limited, paused or due later beside it, in whatever tier the rest stands."""
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


def test_attempts_only_grow_and_end_in_one_dead_letter(driver: EngineDriver) -> None:
    """However a delivery ended: at most retries + 1."""
    draw = random.Random(11)
    driver.policy("a", retries=3, backoff=0, lease=1)
    driver.put("a", *map(str, range(20)))
    attempts: dict[bytes, int] = {}
    for _ in range(500):
        leases = driver.lease(5)
        driver.engine.start([(lease.handle, lease.fence) for lease in leases], now_us=driver.now)
        for lease in leases:
            assert attempts.get(lease.body, 1) <= lease.attempt <= 4
            attempts[lease.body] = lease.attempt
            if draw.random() < 0.8:
                driver.settle([lease], draw.choice(["retry", "release"]))
        driver.later(1)
    died = [view.body for _, view in driver.engine.dead_list(limit=100)]
    assert sorted(died) == sorted(attempts)
    assert len(died) == 20


def test_every_accepted_message_is_accounted_for_after_every_step(driver: EngineDriver) -> None:
    """
    It waits, is leased, finished, dead, or was removed by name: what `lookup` says of each adds up
    to what the overview says.
    """
    draw = random.Random(7)
    driver.policy("*", retries=1, backoff=1, lease=3, dedupe="forever")
    driver.policy("serial", serial=True)
    driver.policy("full", max_backlog=3, on_full="drop_oldest")
    accepted: dict[str, list[str]] = {"plain": [], "serial": [], "full": []}
    purged = 0
    for _ in range(300):
        topic = draw.choice(list(accepted))
        match draw.choice(["put", "put", "lease", "later", "redrive", "purge"]):
            case "put":
                receipts = driver.put(
                    topic, *["x"] * draw.randrange(1, 4), key=draw.choice([None, "k"])
                )
                accepted[topic] += [
                    receipt.id for receipt in receipts if receipt.outcome == "accepted"
                ]
            case "lease":
                driver.settle(
                    driver.lease(draw.randrange(1, 5))[:2],
                    draw.choice(["ack", "retry", "release", "dead"]),
                )
            case "later":
                driver.later(draw.choice([0.5, 4]))
            case "redrive":
                driver.engine.dead_redrive(limit=1, now_us=driver.now)
            case "purge" if draw.random() < 0.2:
                purged += driver.engine.topic_purge(topic, now_us=driver.now)
        now = driver.engine.overview(now_us=driver.now)
        states = Counter(
            state
            for name, ids in accepted.items()
            for state in driver.engine.lookup(name, ids, now_us=driver.now).values()
        )
        assert (now.waiting, now.leased, now.dead, now.done, purged) == tuple(
            states[state] for state in ("waiting", "leased", "dead", "finished", "unknown")
        )
        assert now.published == sum(len(ids) for ids in accepted.values())
    end = driver.engine.overview(now_us=driver.now)
    assert min(end.done, end.died, end.retried, purged) > 0


def test_shares_hold_within_a_percent_in_every_window_of_two_thousand(driver: EngineDriver) -> None:
    """Also where leases are large: inside of them too the tiers are mixed."""
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


@pytest.mark.parametrize("topics", [2, 10, 40])
def test_few_equal_topics_are_served_evenly_too(driver: EngineDriver, topics: int) -> None:
    """Jain's index in every window in which each has at least 20."""
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
