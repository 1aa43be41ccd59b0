"""Topics with several gates: a delivery passes all of them in one step, or is not made."""

from __future__ import annotations

from collections import Counter

import pytest

from laneway.engines.base import MAX_PASSED_OVER
from laneway.errors import BadPolicy
from laneway.message import Draft
from laneway.policy import MAX_GATES, Gate
from laneway.testing.conformance.test_combined_limits import a_gate, in_one_shard
from laneway.testing.engine_driver import EngineDriver


def leased(driver: EngineDriver) -> dict[str, int]:
    return {gate["name"]: gate["leased"] for gate in driver.engine.gate_list()}


def test_each_gate_holds(driver: EngineDriver) -> None:
    """A topic with two gates delivers what both admit; each gate counts all its topics."""
    a_gate(driver, "g", concurrency=3)
    a_gate(driver, "h", concurrency=2)
    driver.policy("both", gate=["g", "h"])
    driver.policy("one", gate="g")
    driver.put("both", *"abcd")
    driver.put("one", *"efgh")
    leases = driver.lease()
    assert Counter(lease.topic for lease in leases) in (
        Counter(both=2, one=1),
        Counter(both=1, one=2),
    )
    assert leased(driver) == {"g": 3, "h": Counter(lease.topic for lease in leases)["both"]}
    driver.settle(leases)
    assert leased(driver) == {"g": 0, "h": 0}


def test_a_lease_that_was_refused_by_one_gate_takes_nothing_of_the_other(
    driver: EngineDriver,
) -> None:
    """All or nothing: no slot and no permit is taken at an open gate while another is shut."""
    a_gate(driver, "g", rate=1, burst=1)
    a_gate(driver, "h", concurrency=1)
    driver.policy("holds", gate="h")
    driver.policy("both", gate=["g", "h"])
    driver.policy("rated", gate="g")
    driver.put("holds", "1")
    (holds,) = driver.lease()
    driver.put("both", "2")
    assert driver.lease() == []
    assert leased(driver) == {"g": 0, "h": 1}
    driver.put("rated", "3")
    assert driver.bodies() == ["3"]  # the permit is still there
    driver.settle([holds])
    assert driver.lease() == []
    assert driver.bodies(after=1) == ["2"]


@pytest.mark.parametrize("order", [["g", "h"], ["h", "g"]])
def test_wakes_when_the_last_gate_opens(driver: EngineDriver, order: list[str]) -> None:
    """Whatever the order: by the clock of a rate, or by the end of a lease."""
    a_gate(driver, "g", rate=0.5, burst=1)
    a_gate(driver, "h", rate=0.25, burst=1)
    driver.policy("a", gate=order)
    driver.put("a", "1", "2", "3")
    assert driver.bodies() == ["1"]
    assert driver.bodies_after(2, 2) == ["2"]
    assert driver.bodies_after(3.9) == ["3"]


def test_topics_with_gates_in_another_order_do_not_block_each_other(driver: EngineDriver) -> None:
    """No deadlock: nothing is held while a lane waits; the topics share the gates evenly."""
    a_gate(driver, "g", concurrency=1)
    a_gate(driver, "h", concurrency=1)
    driver.policy("a", gate=["g", "h"])
    driver.policy("b", gate=["h", "g"])
    driver.put("a", *map(str, range(6)))
    driver.put("b", *map(str, range(6)))
    seen: Counter[str] = Counter()
    for _ in range(12):
        (lease,) = driver.lease()
        assert driver.lease() == []
        seen[lease.topic] += 1
        driver.settle([lease])
    assert seen == Counter(a=6, b=6)


def test_lanes_of_a_shut_gate_do_not_hide_others(driver: EngineDriver) -> None:
    """Many lanes that wait for one gate leave the other gate to the topics that need only it."""
    a_gate(driver, "g", concurrency=1)
    a_gate(driver, "h", concurrency=1)
    driver.policy("both.*", gate=["h", "g"])
    driver.policy("one", gate="h")
    driver.policy("holds", gate="g")
    driver.put("holds", "0")
    (holds,) = driver.lease()
    for number in range(40):
        driver.put(f"both.{number}", "x")
    driver.put("one", "y")
    assert driver.run() == ["y"]
    driver.settle([holds])
    assert driver.bodies() == ["x"]


def test_waiting_counts_at_every_gate(driver: EngineDriver) -> None:
    """`gate_list` counts a lane at each of its gates."""
    a_gate(driver, "g", concurrency=1)
    a_gate(driver, "h")
    driver.policy("*", gate=["g", "h"])
    driver.put("a", "1")
    driver.lease()
    driver.put("b", "2")
    driver.put("c", "3")
    assert {gate["name"]: gate["waiting"] for gate in driver.engine.gate_list()} == {"g": 2, "h": 2}


def test_changed_gates_apply_to_waiting_lanes(driver: EngineDriver) -> None:
    """A gate that a policy adds or removes holds from the next lease on."""
    a_gate(driver, "g", concurrency=1)
    a_gate(driver, "h", concurrency=1)
    driver.policy("holds", gate="h")
    driver.put("holds", "0")
    (holds,) = driver.lease()
    driver.policy("a", gate="g")
    driver.put("a", "1", "2")
    driver.policy("a", gate=["g", "h"])
    assert driver.lease() == []
    driver.policy("a", gate="g")
    (first,) = driver.lease()
    driver.policy("a", gate=["g", "h"])
    driver.settle([first, holds])
    assert leased(driver) == {"g": 0, "h": 0}
    assert driver.bodies() == ["2"]
    assert leased(driver) == {"g": 1, "h": 1}


def test_explain_names_each_shut_gate(driver: EngineDriver) -> None:
    """`explain` names the gates that are shut, and no other."""
    a_gate(driver, "g", concurrency=1)
    a_gate(driver, "h", rate=0.1, burst=1)
    a_gate(driver, "open")
    driver.policy("a", gate=["open", "g", "h"])
    driver.put("a", "1")
    assert driver.bodies() == ["1"]
    driver.put("a", "2", id="second")
    reasons = driver.engine.explain("second", topic="a", now_us=driver.now).reasons
    shut = [reason for reason in reasons if "gate" in reason]
    assert [reason.split('"')[1] for reason in shut] == ["g", "h"], reasons


@pytest.mark.parametrize(
    "gate", [[], ["g", "g"], ["g", ""], ["g", 5], [f"g{n}" for n in range(MAX_GATES + 1)]]
)
def test_refused(driver: EngineDriver, gate: list[object]) -> None:
    """A list of gates has different names, at most eight; all are defined."""
    a_gate(driver, "g")
    with pytest.raises(BadPolicy):
        driver.policy("a", gate=gate)
    with pytest.raises(BadPolicy, match='"nowhere" is not defined'):
        driver.policy("a", gate=["g", "nowhere"])


def test_a_list_of_one_is_that_gate(driver: EngineDriver) -> None:
    """`gate=["g"]` is stored as `gate="g"`."""
    a_gate(driver, "g")
    assert driver.engine.policy_set("code", "a.*", {"gate": ["g"]}) == {"gate": "g"}


@pytest.mark.parametrize(
    "limits", [Gate(rate=100_000, burst=100_000), Gate(concurrency=3)], ids=["rate", "concurrency"]
)
@pytest.mark.parametrize("most", [None, 50], ids=["group", "limited group"])
def test_a_gate_with_spare_decides_nothing(
    driver: EngineDriver, limits: Gate, most: int | None
) -> None:
    """
    A group with many other topics and a topic without a group share a gate that has enough for
    both. The tier decides: both get half. In the order of the gate the group's topic there would
    keep the other one waiting for its turn in the group.
    """
    in_one_shard(driver, "a shard with a grant of a gate serves its lanes in the order of the gate")
    driver.engine.gate_set("api", limits, now_us=driver.now)
    driver.engine.topic_group_set("acme", Gate(concurrency=most), now_us=driver.now)
    driver.policy("acme.*", group="acme")
    driver.policy("acme.api", gate="api")
    driver.policy("other", gate="api")
    others = [f"acme.{n}" for n in range(20)]
    for topic in [*others, "acme.api"]:
        driver.put(topic, *"x" * 20)
    driver.put("other", *"x" * 200)
    seen: Counter[str] = Counter()
    while seen.total() < 200:
        driver.now += 1_000
        (lease,) = driver.lease(1)
        seen[lease.topic] += 1
        driver.settle([lease])
    assert abs(seen["other"] - 100) <= 10, seen


def test_many_arrivals_at_a_gate_with_spare_hold_up_nobody(driver: EngineDriver) -> None:
    """
    Topics arrive at a gate that has spare, far more than it admits. One lease fills it, and still
    comes to a topic without a gate: it does not visit all of them first.
    """
    a_gate(driver, "g", concurrency=4)
    driver.policy("limited.*", gate="g")
    driver.put("limited.first", "x")
    assert len(driver.lease(1)) == 1
    for first in range(0, 2_000, 500):
        driver.engine.put(
            [Draft(f"limited.{n}", b"x") for n in range(first, first + 500)], now_us=driver.now
        )
    driver.put("free", "x")
    assert "free" in [lease.topic for lease in driver.lease(50)]


def test_a_gate_with_spare_is_not_held_for_others(driver: EngineDriver) -> None:
    """
    While a gate admits more than a call takes, the many topics of other workers there are passed
    over once: what this worker serves then is found again immediately.
    """
    if not driver.engine.capabilities.only:
        pytest.skip("the engine has no filters")
    in_one_shard(driver, "a shard with a grant of a gate serves its lanes in the order of the gate")
    a_gate(driver, "g", rate=1_000, burst=1_000)
    driver.policy("*", gate="g")
    drafts = [Draft(f"other.{n}", b"x") for n in range(MAX_PASSED_OVER + 500)]
    driver.engine.put(drafts, now_us=driver.now)
    driver.put("own", *map(str, range(60)))
    found = [len(driver.batch(10, only=["own"]).leases) for _ in range(7)]
    assert found[0] == 0, found
    assert found[-6:] == [10] * 6, found
