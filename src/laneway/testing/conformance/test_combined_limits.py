"""Topics that share several limits get their fair rates ("Fair rates" of the specification)."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from typing import Literal

import pytest

from laneway.headers import COST
from laneway.message import Lease, Settlement
from laneway.policy import Gate
from laneway.testing.engine_driver import EngineDriver
from laneway.tiers import Tier
from laneway.units import SECOND

SECONDS = 10
SHORTEST, LONGEST = 0.03, 0.07
"""Seconds of a handler: 20 handlers a second for each slot."""

SEED = 20
AGAIN_US = 1_000


class Handlers:
    """
    Handlers that run in virtual time, in workers with so many slots for each pool.

    A worker leases when a handler ends, and when the engine said that more is deliverable. Those of
    `only` are workers of the default pool that lease these topics only.
    """

    def __init__(
        self, driver: EngineDriver, slots: dict[str, int], only: dict[str, list[str]] | None = None
    ) -> None:
        self._driver = driver
        self._free = slots
        self._only = only or {}
        self._draw = random.Random(SEED)
        self._ends: list[tuple[int, int, str, Lease]] = []
        self._wakes: dict[str, int | None] = {}
        self.counts: Counter[str] = Counter()

    def run(self, seconds: float) -> Counter[str]:
        """Run, and count the messages of each topic that began."""
        end = self._driver.now + round(seconds * SECOND)
        while self._driver.now < end:
            for pool in self._free:
                self._lease(pool)
            self._driver.now = min(self._next(), end)
            self._settle()
        return self.counts

    def _lease(self, pool: str) -> None:
        if not self._free[pool]:
            return
        wanted = {"only": self._only[pool]} if pool in self._only else {"pool": pool}
        batch = self._driver.batch(self._free[pool], **wanted)
        for lease in batch.leases:
            took = round(self._draw.uniform(SHORTEST, LONGEST) * SECOND)
            heapq.heappush(self._ends, (self._driver.now + took, lease.fence, pool, lease))
        self._free[pool] -= len(batch.leases)
        self._wakes[pool] = batch.next_wake_us
        self.counts.update(lease.topic for lease in batch.leases)

    def _next(self) -> int:
        times = [at for at, *_ in self._ends[:1]]
        times += [at for pool, at in self._wakes.items() if at is not None and self._free[pool]]
        return max(min(times), self._driver.now + AGAIN_US)

    def _settle(self) -> None:
        settlements = []
        while self._ends and self._ends[0][0] <= self._driver.now:
            _, _, pool, lease = heapq.heappop(self._ends)
            self._free[pool] += 1
            settlements.append(Settlement(lease.handle, lease.fence))
        self._driver.engine.settle(settlements, now_us=self._driver.now)


def check(driver: EngineDriver, due: dict[str, int], **slots: int) -> None:
    """Run topics that all have a backlog; each gets what is due, give or take a fifth."""
    for topic, count in due.items():
        bodies = map(str, range(2 * count + 200))
        driver.put(topic, *bodies)
    check_counts(driver, due, **slots)


def check_counts(driver: EngineDriver, due: dict[str, int], **slots: int) -> None:
    """Run topics with a backlog; each gets what is due, give or take a fifth."""
    counts = Handlers(driver, dict(slots or {"default": 10})).run(SECONDS)
    assert dict(counts) == {topic: pytest.approx(count, rel=0.2) for topic, count in due.items()}


def in_one_shard(driver: EngineDriver, why: str) -> None:
    """Skip a test on engines with several shards."""
    if driver.engine.capabilities.shards > 1:
        pytest.skip(why)


def a_gate(
    driver: EngineDriver,
    name: str,
    *,
    rate: float | None = None,
    burst: int | None = None,
    concurrency: int | None = None,
) -> None:
    driver.engine.gate_set(name, Gate(rate, burst, concurrency), now_us=driver.now)


def test_a_topic_at_a_rate_and_a_concurrency(driver: EngineDriver) -> None:
    """
    A topic at both gates gets its part of the narrow one, and the others get the rest of each.
    """
    a_gate(driver, "A", rate=10)
    a_gate(driver, "B", concurrency=1)
    driver.policy("a", gate="A")
    driver.policy("b", gate="B")
    driver.policy("ab", gate=["A", "B"])
    check(driver, {"a": 50, "b": 150, "ab": 50})


def test_a_groups_concurrency_beside_a_gate(driver: EngineDriver) -> None:
    """A customer's topic at a gate does not starve behind the customer's other topic."""
    a_gate(driver, "A", rate=10)
    driver.engine.topic_group_set("H", Gate(concurrency=1), now_us=driver.now)
    driver.policy("h1", group="H")
    driver.policy("h2", group="H", gate="A")
    driver.policy("a", gate="A")
    check(driver, {"h1": 150, "h2": 50, "a": 50})


def test_a_groups_other_topics_do_not_count_at_a_gate(driver: EngineDriver) -> None:
    """What a group gets elsewhere does not cost its topic its part of a gate."""
    a_gate(driver, "A", rate=10)
    driver.policy("h1", group="H")
    driver.policy("h2", group="H", gate="A")
    driver.policy("x", gate="A")
    check(driver, {"h1": 900, "h2": 50, "x": 50}, default=5)


def test_tiers_at_one_gate(driver: EngineDriver) -> None:
    """Tiers share slots, not gates: at a gate their topics have equal parts."""
    a_gate(driver, "A", rate=10)
    driver.policy("high", gate="A", tier="high")
    driver.policy("low", gate="A", tier="low")
    check(driver, {"high": 50, "low": 50})


def test_a_strict_tier_at_two_gates(driver: EngineDriver) -> None:
    """Topics of other tiers that wait at one of the gates, and get nothing, are not before it."""
    driver.open(tiers={"first": Tier("strict"), "mid": Tier(1)})
    a_gate(driver, "A", concurrency=1)
    a_gate(driver, "B", concurrency=1)
    driver.policy("busy", tier="first")
    driver.policy("one", gate="B", tier="first")
    driver.policy("two", gate=["A", "B"], tier="first")
    driver.policy("a", gate="A", tier="mid")
    driver.policy("b", gate="B", tier="mid")
    for topic in ("busy", "one", "two", "a", "b"):
        driver.put(topic, *map(str, range(300)))
    got = Handlers(driver, {"default": 2}).run(5)
    assert min(got["one"], got["two"]) >= 10, got


@pytest.mark.parametrize("share", ["strict", 3])
@pytest.mark.parametrize("limits", [Gate(concurrency=1), Gate(rate=50)], ids=["slot", "rate"])
def test_a_call_for_one_tier_does_not_wait_for_the_others(
    driver: EngineDriver, limits: Gate, share: float | Literal["strict"]
) -> None:
    """Topics of a tier that nobody leases keep nothing at two gates from one that is leased."""
    in_one_shard(driver, "the slot moves between shards")
    driver.open(tiers={"other": Tier(share), "mid": Tier(1)})
    for gate in "AB":
        driver.engine.gate_set(gate, limits, now_us=driver.now)
        driver.policy(gate.lower(), gate=gate, tier="other")
    driver.policy("ab", gate=["A", "B"], tier="mid")
    for topic in ("a", "b", "ab"):
        driver.put(topic, *map(str, range(200)))
    for _ in range(200):
        driver.run(10, tiers=["mid"], after=0.02)
    assert driver.waiting("ab") <= 10


def test_a_tier_that_waits_for_its_gate_gets_its_share(driver: EngineDriver) -> None:
    """It is the next whenever the gate admits one, as it is owed what it could not take before."""
    in_one_shard(driver, "each shard divides the slots among its own tiers")
    a_gate(driver, "A", concurrency=1)
    driver.policy("free", tier="high")
    driver.policy("one", gate="A", tier="mid")
    check(driver, {"free": 270, "one": 135}, default=2)


def test_a_slot_of_a_gate_is_not_kept_for_a_tier_that_is_not_due(driver: EngineDriver) -> None:
    """Topics that get little at a gate, because their tier has few slots, do not use it up."""
    in_one_shard(driver, "each shard divides the slots among its own tiers")
    a_gate(driver, "A", concurrency=1)
    driver.policy("high", gate="A", tier="high")
    driver.policy("low", gate="A", tier="low")
    driver.policy("free", tier="high")
    check(driver, {"high": 143, "low": 57, "free": 200}, default=2)


def test_permits_that_are_kept_for_a_high_cost_are_not_kept_from_earlier_turns(
    driver: EngineDriver,
) -> None:
    """
    A topic that another gate keeps below its part takes its permits at once, although they are
    kept for a topic whose messages cost ten.
    """
    in_one_shard(driver, "the slot moves between shards")
    a_gate(driver, "A", concurrency=1)
    a_gate(driver, "B", rate=20, burst=20)
    driver.policy("a", gate="A")
    driver.policy("b", gate="B", weight=0.1)
    driver.policy("ab", gate=["A", "B"])
    driver.put("b", *["10"] * 50, headers={COST: "10"})
    for topic in ("a", "ab"):
        driver.put(topic, *map(str, range(300)))
    counts = Handlers(driver, {"default": 5}).run(SECONDS)
    assert min(counts["a"], counts["ab"]) >= 80, counts
    assert counts["b"] >= 8, counts


def test_pools_at_one_gate(driver: EngineDriver) -> None:
    """Topics of two pools, each with its own workers, have equal parts of a gate."""
    a_gate(driver, "A", rate=10)
    driver.policy("one", gate="A", pool="one")
    driver.policy("two", gate="A", pool="two")
    check(driver, {"one": 50, "two": 50}, one=4, two=4)


def test_a_busy_pool_at_a_gate(driver: EngineDriver) -> None:
    """A gate keeps a permit for a topic whose pool is busy with another one; the rest is used."""
    in_one_shard(driver, "no shard has the burst of the gate")
    a_gate(driver, "A", rate=10, burst=3)
    driver.policy("one", gate="A", pool="one")
    driver.policy("more", pool="one")
    driver.policy("two", gate="A", pool="two")
    check(driver, {"more": 350, "one": 50, "two": 50}, one=2, two=4)


@pytest.mark.parametrize(
    ("limits", "part"), [({"rate": 10, "burst": 3}, 0.4), ({"concurrency": 1}, 0.15)], ids=str
)
def test_busy_workers_at_a_gate(driver: EngineDriver, limits: dict[str, int], part: float) -> None:
    """
    A topic whose workers are busy does not starve at a gate behind that of idle workers: a permit
    is kept for it, or the slot for a part of the time of a handler.
    """
    if not driver.engine.capabilities.only:
        pytest.skip("the engine has no filters")
    in_one_shard(driver, "no shard has the burst of the gate")
    a_gate(driver, "A", **limits)
    driver.policy("one", gate="A")
    driver.policy("two", gate="A")
    for topic in ("more", "one", "two"):
        driver.put(topic, *map(str, range(600)))
    counts = Handlers(driver, {"busy": 2, "idle": 4}, {"busy": ["more", "one"], "idle": ["two"]})
    got = counts.run(SECONDS)
    assert got["one"] >= part * (got["one"] + got["two"]), got
    assert got["more"] >= 250, got


def test_three_gates(driver: EngineDriver) -> None:
    """A topic at three gates gets its part of the narrowest."""
    a_gate(driver, "A", rate=10)
    a_gate(driver, "B", concurrency=1)
    a_gate(driver, "C", rate=6)
    for name in "ABC":
        driver.policy(name.lower(), gate=name)
    driver.policy("abc", gate=["A", "B", "C"])
    check(driver, {"a": 70, "b": 170, "c": 30, "abc": 30})


def test_three_rates(driver: EngineDriver) -> None:
    """Permits of all gates are kept until they are together; others use what comes meanwhile."""
    in_one_shard(driver, "no shard has the burst of each gate")
    for name, rate in {"A": 10, "B": 9, "C": 7.5}.items():
        a_gate(driver, name, rate=rate, burst=2)
        driver.policy(name.lower(), gate=name)
    driver.policy("abc", gate=["A", "B", "C"])
    check(driver, {"a": 63, "b": 53, "c": 38, "abc": 38})


def test_costs_at_two_rates(driver: EngineDriver) -> None:
    """Both gates collect the permits for an expensive message at the same time."""
    in_one_shard(driver, "no shard has the burst of each gate")
    for name, rate in {"A": 10, "B": 9}.items():
        a_gate(driver, name, rate=rate, burst=4)
        driver.policy(name.lower(), gate=name)
    driver.policy("ab", gate=["A", "B"])
    driver.put("ab", *map(str, range(300)), headers={COST: "3"})
    driver.put("a", *map(str, range(300)))
    driver.put("b", *map(str, range(300)))
    check_counts(driver, {"a": 33, "b": 23, "ab": 23})


def test_a_message_that_a_gate_is_held_for_costs_less(driver: EngineDriver) -> None:
    """
    A gate kept permits for an expensive message, and has a concurrency instead of its rate when the
    topic delivers: that ends the hold, and others have their turns.
    """
    in_one_shard(driver, "no shard has the burst of the gate")
    a_gate(driver, "A", rate=1, burst=5)
    driver.policy("b", gate="A")
    driver.put("b", *map(str, range(300)), headers={COST: "5"})
    assert len(driver.lease(1)) == 1
    assert driver.lease(1, after=1) == []
    driver.policy("a", gate="A")
    driver.put("a", *map(str, range(300)))
    assert driver.lease(1, after=1) == []  # what comes is kept for `b`
    a_gate(driver, "A", concurrency=2)  # the first lease keeps one slot
    check_counts(driver, {"a": 100, "b": 100})


def test_costs_at_a_rate_and_a_concurrency(driver: EngineDriver) -> None:
    """What an expensive message needs at the rate is kept while its topic waits for the slot."""
    in_one_shard(driver, "no shard has the burst of each gate")
    a_gate(driver, "A", rate=50)
    a_gate(driver, "B", concurrency=1)
    driver.policy("ab", gate=["B", "A"], weight=3)
    driver.policy("a.*", gate="A")
    driver.policy("b.*", gate="B")
    for topic, cost in {"ab": 5, "a.1": 3, "a.2": 1, "b.1": 1, "b.2": 1}.items():
        driver.put(topic, *map(str, range(400)), headers={COST: str(cost)})
    check_counts(driver, {"ab": 79, "a.1": 26, "a.2": 26, "b.1": 60, "b.2": 60})


def test_partitions_with_a_rate_at_a_gate(driver: EngineDriver) -> None:
    """Two partitions share the rate of their topic; the other topic gets the rest of the gate."""
    a_gate(driver, "A", rate=10)
    driver.policy("parts", gate="A", partitions=2, rate=4)
    driver.policy("a", gate="A")
    check(driver, {"parts": 40, "a": 60})


def test_a_topic_of_a_small_weight_keeps_no_other_one_waiting(driver: EngineDriver) -> None:
    """
    The tier serves `a` again only after 500 messages of `c`. The gate, which `low` uses most, has
    reached the turn of `a` long before, and must not keep `b` waiting until then.
    """
    driver.engine.gate_set("g", Gate(concurrency=1), now_us=driver.now)
    driver.policy("a", weight=0.02, gate="g")
    driver.policy("b", gate="g")
    driver.policy("c", weight=10)
    driver.policy("low", tier="low", gate="g")
    for topic in ("a", "b", "c", "low"):
        driver.put(topic, *["x"] * 500)
    delivered: Counter[str] = Counter()
    for _ in range(300):
        leases = driver.lease(2)
        delivered.update(lease.topic for lease in leases)
        driver.later(0.1)
        driver.settle(leases)
    assert delivered["b"] >= 30, delivered
