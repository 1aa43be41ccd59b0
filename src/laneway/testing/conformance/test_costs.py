"""Rates by cost: a delivery uses as many permits as its message costs."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from laneway.headers import COST, MAX_COST
from laneway.message import Lease
from laneway.policy import Gate
from laneway.testing.engine_driver import EngineDriver
from laneway.units import LEAST_RATE, SECOND


def put(driver: EngineDriver, topic: str, *costs: int, **options: object) -> None:
    """A message for each cost, which is its body too."""
    for cost in costs:
        driver.put(topic, str(cost), headers={COST: str(cost)}, **options)


def limit(
    driver: EngineDriver, kind: str, rate: float, burst: int, max_cost: int | None = None
) -> None:
    """Limit the topic "a" by its own rate, or by that of a gate, or by two gates."""
    if kind == "topic":
        driver.policy("a", rate=rate, burst=burst, max_cost=max_cost)
        return
    names = ["g", "h"] if kind == "gates" else ["g"]
    for name in names:
        driver.engine.gate_set(name, Gate(rate, burst, max_cost=max_cost), now_us=driver.now)
    driver.policy("a", gate=names)


kinds = pytest.mark.parametrize("kind", ["topic", "gate", "gates"])


@kinds
def test_a_delivery_uses_its_cost(driver: EngineDriver, kind: str) -> None:
    """The next one waits until the permits for its own cost are there."""
    limit(driver, kind, 10, 100)
    put(driver, "a", 60, 60, 20)
    assert driver.bodies() == ["60"]
    assert driver.bodies_after(1.9) == ["60"]
    assert driver.bodies_after(1.9) == ["20"]


@kinds
def test_a_cost_above_the_burst_passes_when_the_bucket_is_full(
    driver: EngineDriver, kind: str
) -> None:
    """It is paid afterwards: the rate holds over time."""
    limit(driver, kind, 10, 5)
    put(driver, "a", 1, 50, 1, 50)
    assert driver.bodies() == ["1"]
    assert driver.bodies_after(0.05, 0.05) == ["50"]
    assert driver.bodies_after(4.5) == ["1"]
    assert driver.bodies_after(0.4) == ["50"]


def test_what_waits_for_permits_is_served_after_another_topic_is_settled(
    driver: EngineDriver,
) -> None:
    """Also if the settlement is the first call after the permits are there."""
    driver.engine.gate_set("g", Gate(1, 4), now_us=driver.now)
    driver.policy("*", gate="g")
    put(driver, "a", 1)
    (lease,) = driver.lease()
    put(driver, "b", 4)
    assert driver.lease() == []
    driver.later(1)
    driver.settle([lease])
    assert driver.bodies() == ["4"]


@kinds
def test_the_next_wake_is_that_of_the_cost(driver: EngineDriver, kind: str) -> None:
    """Nobody is woken before the permits for the next message are there."""
    limit(driver, kind, 10, 100)
    put(driver, "a", 90, 60)
    driver.lease()
    assert driver.batch().next_wake_us == driver.now + 5 * SECOND


@kinds
def test_the_highest_cost_at_the_lowest_rate(driver: EngineDriver, kind: str) -> None:
    """The time until the next delivery fits into the engine's integers; other topics go on."""
    limit(driver, kind, LEAST_RATE, 1, MAX_COST)
    put(driver, "a", MAX_COST, 1)
    assert driver.bodies() == [str(MAX_COST)]
    put(driver, "other", 2)
    assert driver.bodies() == ["2"]


def test_many_wait_for_the_highest_cost(driver: EngineDriver) -> None:
    """Lists by their times fit into the engine's integers, too."""
    driver.policy("*", max_cost=MAX_COST)
    driver.policy("a.*", rate=LEAST_RATE, burst=1)
    driver.policy("b.*", rate=LEAST_RATE, burst=1_000_000)
    topics = [f"{name}.{n}" for name in "ab" for n in range(20)]
    for topic in topics:
        put(driver, topic, MAX_COST, 1)
        assert driver.bodies() == [str(MAX_COST)]
        assert driver.bodies() == []
    put(driver, "other", 2)
    assert driver.bodies() == ["2"]
    driver.later(1)
    (first,) = driver.engine.topic_list(order="throttled", limit=1, now_us=driver.now)
    assert first.throttled_us == SECOND
    driver.policy("a.*", rate=10, burst=1)
    driver.policy("b.*", rate=10, burst=1)
    assert driver.lease() == []


@kinds
def test_permits_come_back_at_a_lower_rate(driver: EngineDriver, kind: str) -> None:
    """More than the clock of the rate has used: a full bucket, and the store goes on."""
    limit(driver, kind, 1_000_000, 1_000_000)
    leases = []
    for _ in range(8):
        put(driver, "a", MAX_COST)
        leases += driver.lease()
        driver.later(2)
    assert len(leases) == 8
    limit(driver, kind, LEAST_RATE, 2)
    driver.settle(leases, "release", begun=False)
    put(driver, "other", 1)
    assert "1" in driver.bodies() + driver.bodies()


def test_partitions_with_the_highest_cost_at_the_lowest_rate(driver: EngineDriver) -> None:
    """Each shard has a part of the rate, by which a message owes a multiple of the time."""
    driver.policy("a.*", rate=LEAST_RATE, burst=1, partitions=1024, max_cost=MAX_COST)
    for key in range(50):
        put(driver, "a.x", MAX_COST, key=str(key))
    assert driver.bodies() != []
    driver.lease()
    put(driver, "other", 1)
    assert "1" in driver.bodies()


@pytest.mark.parametrize("seed", range(8))
@kinds
def test_never_more_than_the_rate(driver: EngineDriver, kind: str, seed: int) -> None:
    """At most rate times T and the burst in any time T, and under backlog not less."""
    draw = random.Random(seed)
    rate, burst = draw.choice([(7, 20), (50, 60), (1000, 300)])
    limit(driver, kind, rate, burst)
    costs = [draw.randint(1, burst) for _ in range(60)]
    put(driver, "a", *costs)
    begun = driver.now
    taken: list[tuple[int, int]] = []
    while len(taken) < len(costs):
        batch = driver.batch(draw.randint(1, 5))
        taken += [(driver.now, int(lease.body)) for lease in batch.leases]
        driver.settle(batch.leases)
        if not batch.leases:
            assert batch.next_wake_us is not None
            driver.now = max(batch.next_wake_us, driver.now + 1)
    assert [cost for _, cost in taken] == costs
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            used = sum(cost for _, cost in taken[first : last + 1])
            seconds = (taken[last][0] - taken[first][0]) / SECOND
            assert used <= rate * seconds + burst + 1e-6
    assert sum(costs) - burst >= 0.99 * rate * (driver.now - begun) / SECOND - max(costs)


def test_expensive_messages_get_their_turn_at_a_gate(driver: EngineDriver) -> None:
    """A gate keeps its permits for the topic whose turn it is, although others need fewer."""
    driver.engine.gate_set("g", Gate(10, 40), now_us=driver.now)
    driver.policy("*", gate="g")
    put(driver, "dear", *[40] * 3)
    driver.put("cheap", *["1"] * 400)
    dear = 0
    for _ in range(400):
        leases = driver.lease()
        dear += sum(lease.topic == "dear" for lease in leases)
        driver.settle(leases)
        driver.later(0.1)
    assert dear == 3
    assert driver.waiting("cheap") < 200


def test_expensive_messages_get_their_turn_at_two_gates(driver: EngineDriver) -> None:
    """Also if other topics use each of the two gates as fast as it allows."""
    for gate in ("g", "h"):
        driver.engine.gate_set(gate, Gate(10, 40), now_us=driver.now)
    driver.policy("dear", gate=["g", "h"])
    driver.policy("g", gate="g")
    driver.policy("h", gate="h")
    for topic in ("g", "h"):
        driver.put(topic, *["1"] * 500)
    driver.settle(driver.lease())
    put(driver, "dear", *[30] * 2)
    dear = 0
    for _ in range(300):
        leases = driver.lease()
        dear += sum(lease.topic == "dear" for lease in leases)
        driver.settle(leases)
        driver.later(0.1)
    assert dear == 2
    for topic in ("g", "h"):
        assert driver.waiting(topic) < 350


def test_a_release_returns_its_cost(driver: EngineDriver) -> None:
    """A delivery that never began gives back the permits that it used."""
    limit(driver, "gates", 1, 60)
    driver.policy("a", rate=1, burst=60)
    put(driver, "a", 60)
    driver.settle(driver.lease(), "release", begun=False)
    assert driver.bodies() == ["60"]


def test_retries_cost_again(driver: EngineDriver) -> None:
    """The cost stays with the message, also when it comes back and after a redrive."""
    limit(driver, "topic", 10, 60)
    driver.policy("a", retries=1, backoff=0)
    put(driver, "a", 60)
    driver.settle(driver.lease(), "retry")
    assert driver.lease(after=5.9) == []
    driver.settle(driver.lease(after=0.1), "dead")
    driver.engine.dead_redrive(topic="a", now_us=driver.now)
    assert driver.bodies_after(5.9) == ["60"]


def test_a_merged_message_costs_what_its_headers_say(driver: EngineDriver) -> None:
    """`merge="last"` takes the newcomer's cost, `"first"` keeps the waiting one's."""
    driver.policy("last", merge="last", rate=1, burst=50)
    driver.policy("first", merge="first", rate=1, burst=50)
    for topic in ("last", "first"):
        put(driver, topic, 1, key="k")
        put(driver, topic, 50, key="k")
        driver.put(topic, "next", key="n")
    assert sorted(driver.bodies()) == ["1", "50", "next"]


def test_costs_without_a_rate_hold_nothing_back(driver: EngineDriver) -> None:
    """And neither does a concurrency count them: a lease is one lease."""
    driver.engine.gate_set("g", Gate(concurrency=3), now_us=driver.now)
    driver.policy("a", gate="g", concurrency=2)
    put(driver, "a", MAX_COST, MAX_COST)
    put(driver, "b", MAX_COST)
    assert driver.bodies() == [str(MAX_COST)] * 3


def test_a_changed_rate_acts_on_what_is_owed(driver: EngineDriver) -> None:
    """After a raise the next permit is at most as far as the last cost takes at the new rate."""
    driver.policy("a", rate=1, max_cost=100)
    put(driver, "a", 100, 1)
    assert driver.bodies() == ["100"]
    driver.policy("a", rate=100)
    assert driver.bodies_after(0.94) == ["1"]


def test_explain_names_the_cost(driver: EngineDriver) -> None:
    """Both of the topic's rate and of the gate."""
    limit(driver, "gate", 10, 60)
    driver.policy("b", rate=10, burst=60)
    for topic in ("a", "b"):
        put(driver, topic, 60)
        put(driver, topic, 50, id="next")
    driver.lease()
    assert driver.lease(after=0.1) == []
    reasons = {
        topic: driver.engine.explain("next", topic=topic, now_us=driver.now).reasons
        for topic in ("a", "b")
    }
    assert any("held for a delivery of cost 50" in reason for reason in reasons["a"]), reasons
    assert not any("reset" in reason for reason in reasons["a"]), reasons
    assert any("delivery, of cost 50, in 4.9 s" in reason for reason in reasons["b"]), reasons


def test_folded_topics_cost(driver: EngineDriver) -> None:
    """A bucket's rate counts costs too, also where a call names one of its topics."""
    driver.policy("f.*", buckets=1, rate=10, burst=60)
    put(driver, "f.1", 60)
    put(driver, "f.2", 50)
    assert driver.bodies(topics=["f.2"]) == ["50"]
    assert driver.lease() == []
    assert driver.bodies(after=5) == ["60"]


def test_plain_messages_beside_expensive_ones(driver: EngineDriver) -> None:
    """Messages with and without a cost keep their order and their costs."""
    driver.policy("a", rate=10, burst=20)
    driver.put("a", "x", "y")
    put(driver, "a", 10)
    driver.put("a", "z")
    put(driver, "a", 10)
    assert driver.bodies() == ["x", "y", "10", "z"]
    assert driver.bodies_after(0.2) == ["10"]


def test_a_second_visit_under_a_concurrency(driver: EngineDriver) -> None:
    """A lane whose gate has no rate is visited again if others have less than expected."""
    driver.engine.gate_set("g", Gate(concurrency=100), now_us=driver.now)
    driver.policy("a", gate="g")
    driver.policy("b.*", concurrency=1)
    put(driver, "a", *[3] * 9)
    for number in range(6):
        put(driver, f"b.{number}", 1, 1, 1)
    leases = [*driver.lease(20), *driver.lease(20)]
    assert sum(lease.topic == "a" for lease in leases) == 9


def test_what_waits_for_many_permits_is_not_before_a_tier_without_slots(
    driver: EngineDriver,
) -> None:
    """
    Two topics of a gate of 40/s: messages of `high` cost 50 and wait for their permits, those of
    `mid` cost 1 and wait for their tier, which another topic uses. Each gets half of what comes.
    """
    driver.engine.gate_set("g", Gate(40, 100, concurrency=4), now_us=driver.now)
    driver.policy("a", tier="high", gate="g")
    driver.policy("b", gate="g")
    put(driver, "a", *[50] * 30)
    for topic in "bc":
        put(driver, topic, *[1] * 200)
    delivered: Counter[str] = Counter()
    running: list[Lease] = []
    for _ in range(200):
        delivered.update(lease.topic for lease in running)
        driver.settle(running)
        running = driver.lease(2)
        driver.later(0.1)
    assert min(delivered["a"], delivered["b"]) >= 7, delivered
