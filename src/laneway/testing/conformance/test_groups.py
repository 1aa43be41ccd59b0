"""Groups: fairness first between groups, then between the topics of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

import pytest

from laneway.engines.base import MAX_PASSED_OVER
from laneway.message import Draft, Lease
from laneway.policy import Gate, Layer, Tier
from laneway.testing.engine_driver import TIERS, EngineDriver


def fill(driver: EngineDriver, topics: Iterable[str], each: int) -> None:
    drafts = [Draft(topic, b"x") for topic in topics for _ in range(each)]
    driver.engine.put(drafts, now_us=driver.now)


def customer(topic: str) -> str:
    return ".".join(topic.split(".")[:2])


def served(
    driver: EngineDriver, wanted: int, at_once: int, by: Callable[[str], str] = customer
) -> Counter[str]:
    """How many of the next messages each group gets; `by`: the group of a topic."""
    seen: Counter[str] = Counter()
    while seen.total() < wanted and (leases := driver.lease(at_once)):
        seen.update(by(lease.topic) for lease in leases)
        driver.settle(leases)
    return seen


@pytest.mark.parametrize("at_once", [1, 10, 100])
def test_groups_get_equal_parts(driver: EngineDriver, at_once: int) -> None:
    """A customer with nine topics gets as much as a customer with one."""
    driver.policy("c.*", group="{1}")
    fill(driver, [f"c.many.{n}" for n in range(9)], 60)
    fill(driver, ["c.one.0"], 300)
    seen = served(driver, 400, at_once)
    assert abs(seen["c.one"] - 200) <= 5


def test_topics_of_a_group_get_parts_by_their_weights(driver: EngineDriver) -> None:
    """Inside a group, topics share by weight; other groups are not touched by these weights."""
    driver.policy("c.*", group="{1}")
    driver.policy("c.a.heavy", weight=3)
    fill(driver, ["c.a.heavy", "c.a.light", "c.b.0"], 400)
    seen = served(driver, 400, 10, str)
    assert abs(seen["c.b.0"] - 200) <= 5
    assert abs(seen["c.a.heavy"] - 150) <= 8
    assert abs(seen["c.a.light"] - 50) <= 8


def test_a_topic_without_a_group_competes_by_its_own_weight(driver: EngineDriver) -> None:
    """A topic without the part that the template names is an equal of whole groups."""
    driver.policy("c.*", group="customer.{1}")
    driver.policy("alone", group="customer.{1}", weight=2)
    fill(driver, [f"c.a.{n}" for n in range(4)], 200)
    fill(driver, ["alone"], 500)
    seen = served(driver, 300, 10)
    assert abs(seen["alone"] - 200) <= 8


def test_a_group_with_one_name_has_the_topics_of_several_patterns(driver: EngineDriver) -> None:
    """A named group holds topics of any pattern; their shares in it are equal."""
    driver.policy("mail.*", group="bulk")
    driver.policy("push.*", group="bulk")
    fill(driver, ["mail.1", "push.1", "urgent"], 300)
    seen = served(driver, 400, 10, str)
    assert abs(seen["urgent"] - 200) <= 5
    assert abs(seen["mail.1"] - seen["push.1"]) <= 5


def test_many_groups(driver: EngineDriver) -> None:
    """Among hundreds of groups of different sizes, each gets the same."""
    driver.policy("c.*", group="{1}")
    for n in range(150):
        fill(driver, [f"c.{n}.{m}" for m in range(1 + n % 3)], 24)
    seen = served(driver, 1_500, 500)
    assert len(seen) == 150
    assert max(seen.values()) - min(seen.values()) <= 4


def test_groups_exist_in_each_tier_and_pool(driver: EngineDriver) -> None:
    """Tiers keep their shares; a group is one entry in each of its tiers."""
    driver.open(tiers=TIERS)
    driver.policy("*", group="{1}", tier="mid")
    driver.policy("high.*", tier="high")
    fill(driver, [f"high.a.{n}" for n in range(3)], 300)
    fill(driver, ["high.b.0", "mid.a.0", "mid.a.1", "mid.b.0"], 500)
    seen = served(driver, 900, 10)
    assert abs(seen["high.a"] + seen["high.b"] - 600) <= 12
    assert abs(seen["high.a"] - seen["high.b"]) <= 12
    assert abs(seen["mid.a"] - seen["mid.b"]) <= 12


def test_a_group_that_was_empty_or_asleep_gets_no_credit(driver: EngineDriver) -> None:
    """A group that comes back continues as an equal, and so does a topic inside it."""
    driver.policy("c.*", group="{1}")
    fill(driver, ["c.a.0"], 1_000)
    driver.settle(driver.lease(500))
    fill(driver, ["c.b.0"], 300)
    seen = served(driver, 200, 10)
    assert abs(seen["c.a"] - seen["c.b"]) <= 8
    fill(driver, ["c.b.1"], 300)
    topics = served(driver, 400, 10, str)
    assert abs(topics["c.a.0"] - 200) <= 8
    assert abs(topics["c.b.0"] - topics["c.b.1"]) <= 8


@pytest.mark.parametrize("weight", [1, 3])
def test_groups_in_a_tier_that_is_fair_by_time(driver: EngineDriver, weight: int) -> None:
    """Groups share the workers' time, and the topics of a group share the group's."""
    driver.open(tiers={"mid": Tier(1, fair_by="time")})
    driver.policy("c.*", group="{1}")
    driver.policy("c.a.slow", weight=weight)
    fill(driver, ["c.a.slow", "c.a.quick", "c.b.0"], 2_000)
    spent: Counter[str] = Counter()
    while spent.total() < 300_000:
        for lease in driver.lease(10):
            cost = 400 if lease.topic == "c.a.slow" else 100
            spent[lease.topic] += cost
            driver.settle([lease], cost_us=cost)
    assert spent["c.b.0"] == pytest.approx(150_000, rel=0.05)
    assert spent["c.a.slow"] / spent["c.a.quick"] == pytest.approx(weight, rel=0.1)


def test_groups_with_a_gate(driver: EngineDriver) -> None:
    """Lanes at a gate keep the groups' order: a group has as much of the gate as any other."""
    driver.engine.gate_set("api", Gate(concurrency=10), now_us=driver.now)
    driver.policy("c.*", group="{1}", gate="api")
    fill(driver, [f"c.many.{n}" for n in range(9)], 60)
    fill(driver, ["c.one.0"], 300)
    held = driver.lease(100)
    assert len(held) == 10
    assert driver.lease(100) == []
    (gate,) = driver.engine.gate_list()
    assert gate["waiting"] == 10
    driver.settle(held)
    seen = served(driver, 400, 100)
    assert abs(seen["c.one"] - 200) <= 8


def test_a_group_with_lanes_at_several_gates(driver: EngineDriver) -> None:
    """A shut gate holds back the lanes at it, not the rest of their group."""
    for name in ("shut", "open"):
        driver.engine.gate_set(name, Gate(concurrency=1), now_us=driver.now)
    driver.policy("other", gate="shut")
    driver.put("other", "x")
    (holds,) = driver.lease()
    driver.policy("c.*", group="{1}")
    driver.policy("c.a.shut", gate="shut")
    driver.policy("c.a.open", gate="open")
    driver.policy("c.b.both", gate=["open", "shut"])
    for topic in ("c.a.shut", "c.a.open", "c.a.free", "c.b.both", "c.b.free"):
        driver.put(topic, topic)
    assert sorted(driver.run()) == ["c.a.free", "c.a.open", "c.b.free"]
    driver.settle([holds])
    assert [*driver.run(), *driver.run()] in (["c.a.shut", "c.b.both"], ["c.b.both", "c.a.shut"])
    assert driver.run() == []


def test_a_group_is_first_at_a_gate_behind_a_topic_without_a_group(driver: EngineDriver) -> None:
    """Its topics at other gates are delivered in the same lease, in their order."""
    if driver.engine.capabilities.shards > 1:
        pytest.skip("the topics are on several shards")
    for gate in ("own", "common"):
        driver.engine.gate_set(gate, Gate(concurrency=9), now_us=driver.now)
    driver.policy("c.*", group="{0}", gate="own")
    for topic in ("c.last", "alone"):
        driver.policy(topic, gate="common")
    fill(driver, ["alone", "c.first", "c.last"], 1)
    assert [lease.topic for lease in driver.lease(3)] == ["alone", "c.first", "c.last"]


def test_lanes_at_a_gate_earn_their_group_no_credit(driver: EngineDriver) -> None:
    """A customer whose topic waited at a shut gate holds up nobody when another one wakes."""
    driver.engine.gate_set("shut", Gate(concurrency=1), now_us=driver.now)
    driver.policy("other", gate="shut")
    driver.put("other", "x")
    driver.lease()  # keeps the only slot
    driver.policy("c.*", group="{1}")
    driver.policy("c.a.shut", gate="shut")
    fill(driver, ["c.a.shut"], 10)
    fill(driver, ["c.b.0", "c.c.0"], 300)
    served(driver, 400, 1)
    fill(driver, ["c.a.free"], 300)
    seen = served(driver, 30, 1)
    assert all(8 <= seen[name] <= 12 for name in ("c.a", "c.b", "c.c")), seen


@pytest.mark.parametrize("change", ["own", "pattern", "removed"])
def test_waiting_topics_move_to_another_group(
    driver: EngineDriver, change: Literal["own", "pattern", "removed"]
) -> None:
    """A change of `group` acts on topics that wait already, asleep and paused ones included."""
    driver.policy("c.*", group="all")
    fill(driver, ["c.a.0", "c.b.0", "c.c.0"], 400)
    driver.policy("c.c.0", paused=True)
    fill(driver, ["other"], 1_000)
    seen = served(driver, 200, 10, str)
    assert abs(seen["other"] - 100) <= 5
    driver.policy("c.c.0", paused=None)
    if change == "own":
        for topic in ("c.a.0", "c.b.0", "c.c.0"):
            driver.policy(topic, group=topic)
    else:
        driver.policy("c.*", group="{1}" if change == "pattern" else None)
    seen = served(driver, 400, 10, str)
    assert max(seen.values()) - min(seen.values()) <= 8


def test_partitions_and_buckets_in_groups(driver: EngineDriver) -> None:
    """All partitions are in the topic's group; a bucket is in the group of its pattern."""
    driver.policy("c.a.*", group="{1}", partitions=4)
    driver.policy("b.*", group="{0}", buckets=4)
    driver.policy("d.*", group="{1}", buckets=2)  # the pattern has no such part
    keyed = [Draft("c.a.0", b"x", key=str(n % 40)) for n in range(400)]
    driver.engine.put(keyed, now_us=driver.now)
    fill(driver, [f"b.{n}" for n in range(40)], 20)
    fill(driver, ["other"], 400)
    seen = served(driver, 300, 10, lambda topic: topic[0])
    assert max(seen.values()) - min(seen.values()) <= 8
    fill(driver, ["d.0"], 10)
    assert "d" in served(driver, 40, 10, lambda topic: topic[0])


def test_named_topics_are_charged_to_their_group(driver: EngineDriver) -> None:
    """What a call takes of a named topic counts for its group."""
    driver.policy("c.*", group="{1}")
    fill(driver, ["c.a.0", "c.a.1", "c.b.0"], 400)
    driver.settle(driver.lease(3))
    for _ in range(20):
        driver.settle(driver.lease(5, topics=["c.a.0"]))
    seen = served(driver, 90, 10)
    assert seen["c.b"] >= 80


def test_startable_withholds_groups_of_limited_topics(driver: EngineDriver) -> None:
    """A limited topic that is next in its group is not passed over by a caller without room."""
    driver.policy("c.*", group="{1}", concurrency=100)
    fill(driver, ["c.a.0", "c.b.0"], 5)
    fill(driver, ["z"], 5)
    batch = driver.batch(15, startable=2)
    assert Counter(customer(lease.topic) for lease in batch.leases)["c.a"] <= 2
    assert driver.batch(15, startable=0).leases == []
    assert driver.waiting("c.a.0") + driver.waiting("c.b.0") == 8


def test_groups_are_forgotten_with_their_topics(driver: EngineDriver) -> None:
    """Purged, drained and deleted topics leave no group behind, and come back as new ones."""
    driver.policy("c.*", group="{1}")
    fill(driver, ["c.a.0", "c.a.1", "c.b.0", "c.c.0"], 3)
    driver.engine.topic_purge("c.a.0", now_us=driver.now)
    driver.engine.topic_delete("c.b.0", now_us=driver.now)
    assert len(driver.run()) == 6
    driver.tick_after(120)
    assert driver.engine.overview(now_us=driver.now).topics == 0
    fill(driver, ["c.a.0", "c.a.1", "c.b.0"], 20)
    seen = served(driver, 40, 2)
    assert seen == {"c.a": 20, "c.b": 20}


def test_only_passes_over_groups(driver: EngineDriver) -> None:
    """`only` passes over a bounded number of lanes, in groups too; then the next call goes on."""
    if not driver.engine.capabilities.only:
        pytest.skip("the engine does not know it")
    driver.policy("*", group="{1}")
    fill(driver, [f"mail.{n % 300}.{n}" for n in range(MAX_PASSED_OVER + 300)], 1)
    fill(driver, [f"mail.big.{n}" for n in range(MAX_PASSED_OVER + 300)], 1)
    fill(driver, [f"push.{n % 300}.{n}" for n in range(20)], 1)
    fill(driver, ["push.big.0"], 1)
    found: list[Lease] = []
    for _ in range(60):
        batch = driver.batch(100, only=["push.*"])
        found += batch.leases
        if not batch.goes_on and len(found) == 21:
            break
    assert Counter(lease.topic.split(".")[0] for lease in found) == {"push": 21}


def set_group(driver: EngineDriver, name: str, settings: Gate, layer: Layer = "code") -> None:
    driver.engine.topic_group_set(name, settings, layer=layer, now_us=driver.now)


def test_weights_of_groups(driver: EngineDriver) -> None:
    """A group of weight 3 gets three times as much as another, whenever its weight is set."""
    driver.policy("c.*", group="{1}")
    set_group(driver, "a", Gate(weight=3))
    fill(driver, ["c.a.0", "c.a.1", "c.b.0"], 400)
    seen = served(driver, 400, 10)
    assert abs(seen["c.a"] - 300) <= 12
    set_group(driver, "a", Gate(weight=1))
    set_group(driver, "b", Gate(weight=4))
    seen = served(driver, 300, 10)
    assert abs(seen["c.b"] - 240) <= 16


def test_an_operator_overrides_single_settings_of_a_group(driver: EngineDriver) -> None:
    """What the operator does not set is the code's; without the operator's, the code's is back."""
    set_group(driver, "a", Gate(rate=50.0, weight=2))
    set_group(driver, "a", Gate(concurrency=5, weight=3), "operator")
    (group,) = driver.engine.topic_group_list()
    assert (group["name"], group["weight"], group["rate"], group["concurrency"]) == (
        "a",
        3,
        50.0,
        5,
    )
    set_group(driver, "a", Gate(), "operator")
    (group,) = driver.engine.topic_group_list()
    assert (group["weight"], group["rate"], group["concurrency"]) == (2, 50.0, None)
    assert driver.engine.gate_list() == []


def test_concurrency_of_a_group_holds_over_its_topics(driver: EngineDriver) -> None:
    """It applies to topics that wait already, in all tiers, and ends when it is removed."""
    driver.open(tiers=TIERS)
    driver.policy("c.*", group="{1}")
    driver.policy("c.a.high", tier="high")
    fill(driver, ["c.a.high", "c.a.1", "c.a.2", "c.b.0"], 20)
    set_group(driver, "a", Gate(concurrency=3))
    held = driver.lease(100)
    assert Counter(customer(lease.topic) for lease in held) == {"c.a": 3, "c.b": 20}
    assert all(lease.limited == lease.topic.startswith("c.a") for lease in held)
    assert driver.lease(100) == []
    (message,) = driver.engine.topic_peek("c.a.1", limit=1, now_us=driver.now)
    reasons = driver.engine.explain(message.id, "c.a.1", now_us=driver.now).reasons
    assert any('topic group "a" is reached; 3 leases' in reason for reason in reasons)
    driver.settle(held)
    assert len(driver.lease(100)) == 3
    set_group(driver, "a", Gate())
    assert len(driver.lease(100)) == 54


def test_rate_of_a_group_holds_over_its_topics(driver: EngineDriver) -> None:
    """Its topics together deliver as many as its rate admits, and share them equally."""
    set_group(driver, "a", Gate(rate=10.0, burst=2))
    driver.policy("c.*", group="{1}")
    fill(driver, ["c.a.0", "c.a.1"], 100)
    seen: Counter[str] = Counter()
    for _ in range(40):
        leases = driver.lease(100)
        seen.update(lease.topic for lease in leases)
        driver.settle(leases)
        driver.later(0.1)
    assert abs(seen.total() - 41) <= 2
    assert abs(seen["c.a.0"] - seen["c.a.1"]) <= 4


def test_a_topic_waits_for_its_gate_and_its_group(driver: EngineDriver) -> None:
    """A delivery goes through both, or is not made; a settlement frees both."""
    driver.engine.gate_set("api", Gate(concurrency=2), now_us=driver.now)
    driver.policy("c.*", group="{1}", gate="api")
    set_group(driver, "a", Gate(concurrency=1))
    fill(driver, ["c.a.0", "c.b.0"], 10)
    held = driver.lease(100)
    assert Counter(customer(lease.topic) for lease in held) == {"c.a": 1, "c.b": 1}
    driver.settle(held)
    assert [each["leased"] for each in driver.engine.gate_list()] == [0]
    assert [each["leased"] for each in driver.engine.topic_group_list()] == [0]
    assert len(driver.lease(100)) == 2


def test_a_limited_group_with_many_topics(driver: EngineDriver) -> None:
    """All its topics get their turn, although each call passes over a part of them only."""
    driver.policy("c.*", group="{1}")
    fill(driver, [f"c.a.{n}" for n in range(250)], 1)
    fill(driver, ["c.b.0"], 50)
    set_group(driver, "a", Gate(concurrency=5))
    seen: Counter[str] = Counter()
    for _ in range(60):
        leases = driver.lease(20)
        counted = Counter(customer(lease.topic) for lease in leases)
        assert counted["c.a"] <= 5
        seen += counted
        driver.settle(leases)
    assert seen == {"c.a": 250, "c.b": 50}
