"""Rates, concurrency, gates, pause, rest, shares, weights: who is served next."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import pytest

from laneway.engines.base import MAX_PASSED_OVER
from laneway.errors import BadPolicy, TopicInUse
from laneway.message import Draft
from laneway.policy import Gate, Tier
from laneway.testing.engine_driver import TIERS, EngineDriver
from laneway.units import SECOND


def test_a_rate_holds_whatever_is_asked_for(driver: EngineDriver) -> None:
    """Its burst at once, then one per interval; the answer says when the next is."""
    driver.policy("a", rate=10, burst=2)
    driver.put("a", *map(str, range(20)))
    batch = driver.batch()
    assert len(batch.leases) == 2
    assert batch.next_wake_us == driver.now + 100_000
    driver.later(0.1)
    assert len(driver.lease()) == 1
    driver.later(10)
    assert len(driver.lease()) == 2


def test_concurrency_holds_and_a_settle_frees_a_slot(driver: EngineDriver) -> None:
    """Also a lease that runs out."""
    driver.policy("a", concurrency=2)
    driver.put("a", *map(str, range(5)))
    leases = driver.lease()
    assert len(leases) == 2
    assert driver.lease() == []
    driver.settle(leases[:1])
    assert len(driver.lease()) == 1
    driver.later(60)
    assert len(driver.lease()) == 2


def test_a_gate_is_shared_by_its_topics_fairly(driver: EngineDriver) -> None:
    """Never over its limits; its lanes take turns."""
    driver.engine.gate_set("g", Gate(concurrency=2), now_us=driver.now)
    driver.policy("*", gate="g")
    for topic in "abc":
        driver.put(topic, *map(str, range(10)))
    seen: Counter[str] = Counter()
    for _ in range(12):
        leases = driver.lease(1) + driver.lease(1)
        assert driver.lease() == []
        seen.update(lease.topic for lease in leases)
        driver.settle(leases)
    assert max(seen.values()) - min(seen.values()) <= 4
    with pytest.raises(BadPolicy, match="not defined"):
        driver.policy("x", gate="nowhere")


def test_a_gates_rate_lets_through_no_more(driver: EngineDriver) -> None:
    """And wakes its lanes when the next permit comes."""
    driver.engine.gate_set("g", Gate(rate=10.0, burst=1), now_us=driver.now)
    driver.policy("*", gate="g")
    driver.put("a", "1", "2")
    driver.put("b", "3")
    batch = driver.batch()
    assert len(batch.leases) == 1
    assert batch.next_wake_us == driver.now + 100_000
    driver.later(0.1)
    assert len(driver.lease()) == 1


def test_a_paused_topic_accepts_and_delivers_nothing(driver: EngineDriver) -> None:
    """Until it is resumed; by pattern too, on what waits already."""
    driver.put("p.a", "1")
    driver.policy("p.*", layer="operator", paused=True)
    driver.put("p.a", "2")
    assert driver.run() == []
    driver.policy("p.*", layer="operator", paused=None)
    assert driver.run() == ["1", "2"]


def test_changes_act_on_what_waits(driver: EngineDriver) -> None:
    """A raised rate brings the next permit to at most one new interval; pool and tier move."""
    driver.policy("a", rate=0.001)
    driver.put("a", "1", "2", "3")
    assert driver.run() == ["1"]
    driver.policy("a", rate=10)
    driver.later(0.1)
    assert driver.run() == ["2"]
    driver.policy("a", rate=None, pool="gpu", tier="low")
    assert driver.run() == []
    assert driver.run(pool="gpu") == ["3"]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_tiers_have_exactly_their_shares_while_all_have_work(
    driver: EngineDriver, size: int
) -> None:
    """
    6 : 3 : 1 within one percent of 2,000, leased one at a time or a hundred; an unused share flows
    on.
    """
    driver.open(tiers=TIERS)
    for tier in TIERS:
        driver.policy(f"{tier}.*", tier=tier)
        for n in range(10):
            driver.put(f"{tier}.{n}", *map(str, range(200)))
    seen: Counter[str] = Counter()
    while seen.total() < 2_000:
        leases = driver.lease(size)
        seen.update(lease.topic.partition(".")[0] for lease in leases)
        driver.settle(leases)
    assert {tier: round(seen[tier] / seen.total(), 2) for tier in TIERS} == {
        "high": 0.6,
        "mid": 0.3,
        "low": 0.1,
    }
    for n in range(10):
        driver.engine.topic_purge(f"high.{n}", now_us=driver.now)
        driver.engine.topic_purge(f"mid.{n}", now_us=driver.now)
    assert len(driver.lease(500)) == 500


def test_a_strict_tier_goes_before_all_others(driver: EngineDriver) -> None:
    """As far as it goes."""
    driver.open(tiers={"first": Tier("strict"), "mid": Tier(1)})
    driver.policy("f", tier="first")
    driver.put("a", *map(str, range(10)))
    driver.put("f", "x", "y")
    assert driver.bodies(5)[:2] == ["x", "y"]


def test_weights_share_a_tier(driver: EngineDriver) -> None:
    """Weight 3 gets three times as much."""
    driver.policy("heavy", weight=3)
    driver.put("heavy", *map(str, range(400)))
    driver.put("light", *map(str, range(400)))
    seen: Counter[str] = Counter()
    for _ in range(40):
        leases = driver.lease(10)
        seen.update(lease.topic for lease in leases)
        driver.settle(leases)
    assert seen["heavy"] / seen["light"] == pytest.approx(3, rel=0.05)


def test_a_flood_does_not_starve_a_quiet_topic(driver: EngineDriver) -> None:
    """A newcomer is served in the next round, and sleeping earned it no credit."""
    driver.put("flood", *map(str, range(1_000)))
    driver.settle(driver.lease(500))
    driver.put("quiet", *map(str, range(20)))
    seen = Counter(lease.topic for lease in driver.lease(40))
    assert seen == {"flood": 20, "quiet": 20}


@pytest.mark.parametrize("fair_by", ["messages", "time"])
@pytest.mark.parametrize(("weight", "share"), [(1, 500), (3, 750), (0.25, 200)])
def test_a_lane_that_was_alone_owes_at_most_one_chunk(
    driver: EngineDriver, fair_by: Literal["messages", "time"], weight: float, share: int
) -> None:
    """However large its leases were: of the next thousand each gets its share."""
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


def test_a_topic_that_drained_alone_and_one_that_waited_begin_as_equals(
    driver: EngineDriver,
) -> None:
    """Also where the lane was empty, slept or was paused in between."""
    driver.put("drained", *["x"] * 500)
    driver.settle(driver.lease(500))
    driver.policy("paused", paused=True)
    driver.put("paused", *["x"] * 600)
    driver.put("drained", *["x"] * 1_100)
    driver.settle(driver.lease(500))
    driver.policy("paused", paused=None)
    seen = Counter(lease.topic for _ in range(6) for lease in driver.lease(100))
    assert abs(seen["drained"] - 300) <= 5


def test_fair_by_time_shares_the_workers_time(driver: EngineDriver) -> None:
    """A topic with ten times longer messages gets a tenth of the deliveries."""
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


def test_limited_topics_are_taken_only_as_far_as_they_can_be_started(driver: EngineDriver) -> None:
    """
    What comes after them is withheld, so that a full buffer of unlimited messages cannot starve
    them.
    """
    driver.policy("limited", concurrency=10)
    driver.put("limited", *map(str, range(10)))
    driver.put("free", *map(str, range(100)))
    first = Counter(lease.topic for lease in driver.lease(50, startable=0))
    assert first["limited"] == 0
    assert Counter(lease.topic for lease in driver.lease(50, startable=2))["limited"] == 2


def test_a_topic_says_until_when_it_backs_off(driver: EngineDriver) -> None:
    """In its own figures and in lists; no longer once the time is over."""
    driver.put("a", "1", "2")
    driver.put("b", "1")
    driver.settle(driver.lease(topics=["a"])[:1], "back_off", delay_us=30 * SECOND)
    until = driver.now + 30 * SECOND
    assert driver.engine.topic_stats("a", now_us=driver.now).backs_off_until_us == until
    told = {
        stats.topic: stats.backs_off_until_us
        for stats in driver.engine.topic_list(order="backlog", now_us=driver.now)
    }
    assert told == {"a": until, "b": None}
    driver.later(31)
    assert driver.engine.topic_stats("a", now_us=driver.now).backs_off_until_us is None


def test_a_topic_whose_destination_is_unwell_rests_and_probes(driver: EngineDriver) -> None:
    """No attempt is counted; the rest doubles with each failing probe; a success ends it."""
    driver.put("a", *map(str, range(5)))
    leases = driver.lease(3)
    assert driver.settle(leases, "back_off") == ["released"] * 3
    assert driver.batch().next_wake_us == driver.now + SECOND
    driver.later(1)
    (probe,) = driver.lease()
    assert probe.attempt == 1
    driver.settle([probe], "back_off")
    driver.later(1)
    assert driver.lease() == []
    driver.later(1)
    (probe,) = driver.lease()
    driver.settle([probe])
    assert len(driver.lease()) == 4


def test_serial_keys_run_one_at_a_time_in_order(driver: EngineDriver) -> None:
    """
    With `hold` a retry keeps its key, with `yield` the next goes first; other keys do not wait.
    """
    for mode, after_retry in (("hold", ["k1"]), ("yield", ["k2"])):
        topic = f"s.{mode}"
        driver.policy(topic, serial=mode, backoff=1)
        for body, key in (("k1", "k"), ("k2", "k"), ("o1", "o"), ("n1", None)):
            driver.put(topic, body, key=key)
        leases = driver.lease()
        assert sorted(lease.body.decode() for lease in leases) == ["k1", "n1", "o1"]
        assert driver.lease() == []
        driver.settle([lease for lease in leases if lease.body == b"k1"], "retry")
        driver.settle([lease for lease in leases if lease.body != b"k1"])
        if mode == "yield":
            assert driver.bodies() == after_retry
        else:
            assert driver.lease() == []
            driver.later(1)
            assert driver.bodies() == after_retry
        driver.engine.topic_delete(topic, now_us=driver.now)


def test_partitions_keep_a_key_in_one_lane_and_change_only_while_empty(
    driver: EngineDriver,
) -> None:
    """Each lane has its part of the concurrency."""
    driver.policy("a", partitions=4, concurrency=8)
    for n in range(40):
        driver.put("a", str(n), key=f"k{n % 8}")
    assert len(driver.lease()) <= 8
    with pytest.raises(TopicInUse, match="drain"):
        driver.policy("a", partitions=8)


def test_buckets_fold_many_topics_into_a_few_lanes(driver: EngineDriver) -> None:
    """Counts and purge stay the topic's."""
    driver.policy("b.*", buckets=2)
    for n in range(10):
        driver.put(f"b.{n}", "x", "y")
    assert driver.engine.overview(now_us=driver.now).topics <= 2
    assert driver.waiting("b.3") == 2
    assert driver.engine.topic_purge("b.3", now_us=driver.now) == 2
    assert len(driver.lease()) == 18


def test_named_topics_are_served_strictly_in_their_order(driver: EngineDriver) -> None:
    """RQ's way; nothing else is given."""
    driver.put("low", "3", "4")
    driver.put("high", "1", "2")
    driver.put("other", "5")
    assert driver.run(topics=["high", "low"]) == ["1", "2", "3", "4"]


def test_at_most_once_goes_at_hand_out(driver: EngineDriver) -> None:
    """Its lease keeps the slot; nothing comes back."""
    driver.policy("a", delivery="at_most_once", concurrency=1)
    driver.put("a", "1", "2")
    assert driver.bodies() == ["1"]
    assert driver.bodies() == []
    driver.later(60)
    (second,) = driver.lease()
    assert second.body == b"2"
    assert driver.settle([second], "retry") == ["released"], "there is nothing left to retry"
    assert driver.engine.dead_list("a") == []
    driver.later(3600)
    assert driver.bodies() == []


def test_an_idle_topic_leaves_nothing_behind(driver: EngineDriver) -> None:
    """Its lane is forgotten once its limits have recovered."""
    driver.policy("*", rate=1)
    for n in range(50):
        driver.put(f"t.{n}", "x")
    driver.run()
    driver.later(61)
    driver.engine.tick(now_us=driver.now)
    assert driver.engine.overview(now_us=driver.now).topics == 0


def test_purge_of_a_bucketed_topic_with_serial_keys_takes_everything(driver: EngineDriver) -> None:
    """Removing a key's head brings the next of the key forward, which is to be removed too."""
    driver.policy("b.*", buckets=2, serial="hold")
    driver.put("b.1", "head", "second", "third", key="k")
    driver.put("b.1", "free")
    assert driver.engine.topic_purge("b.1", now_us=driver.now) == 4
    assert [check for check in driver.engine.doctor() if not check.ok] == []
    assert driver.bodies() == []
    driver.put("b.1", "new", key="k")
    assert driver.bodies() == ["new"]


def test_a_lease_of_some_patterns_passes_over_the_others(driver: EngineDriver) -> None:
    """
    Only what they cover is delivered, in turn, by weight; what they do not cover is untouched, and
    the answer says that it is there.
    """
    if not driver.engine.capabilities.only:
        pytest.skip("the engine does not know it")
    driver.policy("push.heavy", weight=3)
    driver.put("mail.a", "m1", "m2")
    for topic in ("push.a", "push.heavy", "single"):
        driver.put(topic, *(f"{topic} {n}" for n in range(40)))
    batch = driver.batch(40, only=["push.*", "single"])
    assert batch.passed_over
    counts = Counter(lease.topic for lease in batch.leases)
    assert counts == {"push.heavy": 24, "push.a": 8, "single": 8}
    assert {lease.topic for lease in driver.lease(200, only=["push.*"])} == {"push.a", "push.heavy"}
    assert driver.lease(only=["nothing.*"]) == []
    assert driver.bodies(2, only=["*"]) == ["m1", "m2"] or driver.waiting("mail.a") == 2
    assert (
        driver.waiting("mail.a") + driver.engine.topic_stats("mail.a", now_us=driver.now).leased
        == 2
    )


def test_a_lease_of_some_patterns_passes_over_a_bounded_number(driver: EngineDriver) -> None:
    """
    With thousands of others before them the next calls go on where one had to stop; all are found,
    and then nothing goes on.
    """
    if not driver.engine.capabilities.only:
        pytest.skip("the engine does not know it")
    others = 2 * MAX_PASSED_OVER + 500
    driver.engine.put([Draft(f"mail.{n}", b"x") for n in range(others)], now_us=driver.now)
    driver.engine.put([Draft(f"push.{n}", b"x") for n in range(50)], now_us=driver.now)
    found: set[str] = set()
    calls = 0
    while True:
        batch = driver.batch(100, only=["push.*"])
        calls += 1
        found |= {lease.topic for lease in batch.leases}
        assert calls < 50
        if not batch.goes_on:
            break
    assert found == {f"push.{n}" for n in range(50)}
    assert calls >= 2
    assert batch.passed_over
    assert driver.engine.overview(now_us=driver.now).leased == 50
