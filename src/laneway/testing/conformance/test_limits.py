"""Rates, concurrency, gates, pause, rest, shares, weights: who is served next."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import pytest

from laneway.engines.base import PASS_OVER
from laneway.errors import BadPolicy, TopicInUse
from laneway.message import Draft
from laneway.policy import Gate, Tier
from laneway.testing.bench import TIERS, EngineBench
from laneway.units import SECOND


def test_a_rate_holds_whatever_is_asked_for(bench: EngineBench) -> None:
    """Its burst at once, then one per interval; the answer says when the next is."""
    bench.policy("a", rate=10, burst=2)
    bench.put("a", *map(str, range(20)))
    batch = bench.batch()
    assert len(batch.leases) == 2
    assert batch.next_wake_us == bench.now + 100_000
    bench.later(0.1)
    assert len(bench.lease()) == 1
    bench.later(10)
    assert len(bench.lease()) == 2


def test_concurrency_holds_and_a_settle_frees_a_slot(bench: EngineBench) -> None:
    """Also a lease that runs out."""
    bench.policy("a", concurrency=2)
    bench.put("a", *map(str, range(5)))
    leases = bench.lease()
    assert len(leases) == 2
    assert bench.lease() == []
    bench.settle(leases[:1])
    assert len(bench.lease()) == 1
    bench.later(60)
    assert len(bench.lease()) == 2


def test_a_gate_is_shared_by_its_topics_fairly(bench: EngineBench) -> None:
    """Never over its limits; its lanes take turns."""
    bench.engine.gate_set("g", Gate(concurrency=2), now_us=bench.now)
    bench.policy("*", gate="g")
    for topic in "abc":
        bench.put(topic, *map(str, range(10)))
    seen: Counter[str] = Counter()
    for _ in range(12):
        leases = bench.lease(1) + bench.lease(1)
        assert bench.lease() == []
        seen.update(lease.topic for lease in leases)
        bench.settle(leases)
    assert max(seen.values()) - min(seen.values()) <= 4
    with pytest.raises(BadPolicy, match="not defined"):
        bench.policy("x", gate="nowhere")


def test_a_gates_rate_lets_through_no_more(bench: EngineBench) -> None:
    """And wakes its lanes when the next permit comes."""
    bench.engine.gate_set("g", Gate(rate=10.0, burst=1), now_us=bench.now)
    bench.policy("*", gate="g")
    bench.put("a", "1", "2")
    bench.put("b", "3")
    batch = bench.batch()
    assert len(batch.leases) == 1
    assert batch.next_wake_us == bench.now + 100_000
    bench.later(0.1)
    assert len(bench.lease()) == 1


def test_a_paused_topic_accepts_and_delivers_nothing(bench: EngineBench) -> None:
    """Until it is resumed; by pattern too, on what waits already."""
    bench.put("p.a", "1")
    bench.policy("p.*", layer="operator", paused=True)
    bench.put("p.a", "2")
    assert bench.run() == []
    bench.policy("p.*", layer="operator", paused=None)
    assert bench.run() == ["1", "2"]


def test_changes_act_on_what_waits(bench: EngineBench) -> None:
    """A raised rate brings the next permit to at most one new interval; pool and tier move."""
    bench.policy("a", rate=0.001)
    bench.put("a", "1", "2", "3")
    assert bench.run() == ["1"]
    bench.policy("a", rate=10)
    bench.later(0.1)
    assert bench.run() == ["2"]
    bench.policy("a", rate=None, pool="gpu", tier="low")
    assert bench.run() == []
    assert bench.run(pool="gpu") == ["3"]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_tiers_have_exactly_their_shares_while_all_have_work(bench: EngineBench, size: int) -> None:
    """6 : 3 : 1 within one percent of 2,000, leased one at a time or a hundred; an unused share flows on."""
    bench.open(tiers=TIERS)
    for tier in TIERS:
        bench.policy(f"{tier}.*", tier=tier)
        for n in range(10):
            bench.put(f"{tier}.{n}", *map(str, range(200)))
    seen: Counter[str] = Counter()
    while seen.total() < 2_000:
        leases = bench.lease(size)
        seen.update(lease.topic.partition(".")[0] for lease in leases)
        bench.settle(leases)
    assert {tier: round(seen[tier] / seen.total(), 2) for tier in TIERS} == {"high": 0.6, "mid": 0.3, "low": 0.1}
    for n in range(10):
        bench.engine.topic_purge(f"high.{n}", now_us=bench.now)
        bench.engine.topic_purge(f"mid.{n}", now_us=bench.now)
    assert len(bench.lease(500)) == 500


def test_a_strict_tier_goes_before_all_others(bench: EngineBench) -> None:
    """As far as it goes."""
    bench.open(tiers={"first": Tier("strict"), "mid": Tier(1)})
    bench.policy("f", tier="first")
    bench.put("a", *map(str, range(10)))
    bench.put("f", "x", "y")
    assert bench.bodies(5)[:2] == ["x", "y"]


def test_weights_share_a_tier(bench: EngineBench) -> None:
    """Weight 3 gets three times as much."""
    bench.policy("heavy", weight=3)
    bench.put("heavy", *map(str, range(400)))
    bench.put("light", *map(str, range(400)))
    seen: Counter[str] = Counter()
    for _ in range(40):
        leases = bench.lease(10)
        seen.update(lease.topic for lease in leases)
        bench.settle(leases)
    assert seen["heavy"] / seen["light"] == pytest.approx(3, rel=0.05)


def test_a_flood_does_not_starve_a_quiet_topic(bench: EngineBench) -> None:
    """A newcomer is served in the next round, and sleeping earned it no credit."""
    bench.put("flood", *map(str, range(1_000)))
    bench.settle(bench.lease(500))
    bench.put("quiet", *map(str, range(20)))
    seen = Counter(lease.topic for lease in bench.lease(40))
    assert seen == {"flood": 20, "quiet": 20}


@pytest.mark.parametrize("fair_by", ["messages", "time"])
@pytest.mark.parametrize(("weight", "share"), [(1, 500), (3, 750), (0.25, 200)])
def test_a_lane_that_was_alone_owes_at_most_one_chunk(bench: EngineBench, fair_by: Literal["messages", "time"], weight: float, share: int) -> None:
    """However large its leases were: of the next thousand each gets its share."""
    bench.open(tiers={"mid": Tier(1, fair_by=fair_by)})
    bench.policy("alone", weight=weight)
    bench.put("alone", *["x"] * 3_100)
    for _ in range(4):
        bench.settle(bench.lease(500), cost_us=20_000)
    bench.put("other", *["x"] * 1_100)
    seen: Counter[str] = Counter()
    while seen.total() < 1_000:
        leases = bench.lease(100)
        seen.update(lease.topic for lease in leases)
        bench.settle(leases, cost_us=20_000)
    assert abs(seen["alone"] - share) <= 10


def test_a_topic_that_drained_alone_and_one_that_waited_begin_as_equals(bench: EngineBench) -> None:
    """Also where the lane was empty, slept or was paused in between."""
    bench.put("drained", *["x"] * 500)
    bench.settle(bench.lease(500))
    bench.policy("paused", paused=True)
    bench.put("paused", *["x"] * 600)
    bench.put("drained", *["x"] * 1_100)
    bench.settle(bench.lease(500))
    bench.policy("paused", paused=None)
    seen = Counter(lease.topic for _ in range(6) for lease in bench.lease(100))
    assert abs(seen["drained"] - 300) <= 5


def test_fair_by_time_shares_the_workers_time(bench: EngineBench) -> None:
    """A topic with ten times longer messages gets a tenth of the deliveries."""
    bench.open(tiers={"mid": Tier(1, fair_by="time")})
    bench.put("long", *map(str, range(400)))
    bench.put("short", *map(str, range(400)))
    spent: Counter[str] = Counter()
    for _ in range(150):
        for lease in bench.lease(1):
            cost = 1_000_000 if lease.topic == "long" else 100_000
            spent[lease.topic] += cost
            bench.settle([lease], cost_us=cost)
    assert spent["long"] / spent["short"] == pytest.approx(1, rel=0.35)


def test_limited_topics_are_taken_only_as_far_as_they_can_be_started(bench: EngineBench) -> None:
    """What comes after them is withheld, so that a full buffer of unlimited messages cannot starve them."""
    bench.policy("limited", concurrency=10)
    bench.put("limited", *map(str, range(10)))
    bench.put("free", *map(str, range(100)))
    first = Counter(lease.topic for lease in bench.lease(50, startable=0))
    assert first["limited"] == 0
    assert Counter(lease.topic for lease in bench.lease(50, startable=2))["limited"] == 2


def test_a_topic_says_until_when_it_backs_off(bench: EngineBench) -> None:
    """In its own figures and in lists; no longer once the time is over."""
    bench.put("a", "1", "2")
    bench.put("b", "1")
    bench.settle(bench.lease(topics=["a"])[:1], "rest", delay_us=30 * SECOND)
    until = bench.now + 30 * SECOND
    assert bench.engine.topic_stats("a", now_us=bench.now).backs_off_until_us == until
    told = {stats.topic: stats.backs_off_until_us for stats in bench.engine.topic_list(order="backlog", now_us=bench.now)}
    assert told == {"a": until, "b": None}
    bench.later(31)
    assert bench.engine.topic_stats("a", now_us=bench.now).backs_off_until_us is None


def test_a_topic_whose_destination_is_unwell_rests_and_probes(bench: EngineBench) -> None:
    """No attempt is counted; the rest doubles with each failing probe; a success ends it."""
    bench.put("a", *map(str, range(5)))
    leases = bench.lease(3)
    assert bench.settle(leases, "rest") == ["released"] * 3
    assert bench.batch().next_wake_us == bench.now + SECOND
    bench.later(1)
    (probe,) = bench.lease()
    assert probe.attempt == 1
    bench.settle([probe], "rest")
    bench.later(1)
    assert bench.lease() == []
    bench.later(1)
    (probe,) = bench.lease()
    bench.settle([probe])
    assert len(bench.lease()) == 4


def test_serial_keys_run_one_at_a_time_in_order(bench: EngineBench) -> None:
    """With `hold` a retry keeps its key, with `yield` the next goes first; other keys do not wait."""
    for mode, after_retry in (("hold", ["k1"]), ("yield", ["k2"])):
        topic = f"s.{mode}"
        bench.policy(topic, serial=mode, backoff=1)
        for body, key in (("k1", "k"), ("k2", "k"), ("o1", "o"), ("n1", None)):
            bench.put(topic, body, key=key)
        leases = bench.lease()
        assert sorted(lease.body.decode() for lease in leases) == ["k1", "n1", "o1"]
        assert bench.lease() == []
        bench.settle([lease for lease in leases if lease.body == b"k1"], "retry")
        bench.settle([lease for lease in leases if lease.body != b"k1"])
        if mode == "yield":
            assert bench.bodies() == after_retry
        else:
            assert bench.lease() == []
            bench.later(1)
            assert bench.bodies() == after_retry
        bench.engine.topic_delete(topic, now_us=bench.now)


def test_partitions_keep_a_key_in_one_lane_and_change_only_while_empty(bench: EngineBench) -> None:
    """Each lane has its part of the concurrency."""
    bench.policy("a", partitions=4, concurrency=8)
    for n in range(40):
        bench.put("a", str(n), key=f"k{n % 8}")
    assert len(bench.lease()) <= 8
    with pytest.raises(TopicInUse, match="drain"):
        bench.policy("a", partitions=8)


def test_buckets_fold_many_topics_into_a_few_lanes(bench: EngineBench) -> None:
    """Counts and purge stay the topic's."""
    bench.policy("b.*", buckets=2)
    for n in range(10):
        bench.put(f"b.{n}", "x", "y")
    assert bench.engine.overview(now_us=bench.now).topics <= 2
    assert bench.waiting("b.3") == 2
    assert bench.engine.topic_purge("b.3", now_us=bench.now) == 2
    assert len(bench.lease()) == 18


def test_named_topics_are_served_strictly_in_their_order(bench: EngineBench) -> None:
    """RQ's way; nothing else is given."""
    bench.put("low", "3", "4")
    bench.put("high", "1", "2")
    bench.put("other", "5")
    assert bench.run(topics=["high", "low"]) == ["1", "2", "3", "4"]


def test_at_most_once_goes_at_hand_out(bench: EngineBench) -> None:
    """Its lease keeps the slot; nothing comes back."""
    bench.policy("a", delivery="at_most_once", concurrency=1)
    bench.put("a", "1", "2")
    assert bench.bodies() == ["1"]
    assert bench.bodies() == []
    bench.later(60)
    (second,) = bench.lease()
    assert second.body == b"2"
    assert bench.settle([second], "retry") == ["released"], "there is nothing left to retry"
    assert bench.engine.dead_list("a") == []
    bench.later(3600)
    assert bench.bodies() == []


def test_an_idle_topic_leaves_nothing_behind(bench: EngineBench) -> None:
    """Its lane is forgotten once its limits have recovered."""
    bench.policy("*", rate=1)
    for n in range(50):
        bench.put(f"t.{n}", "x")
    bench.run()
    bench.later(61)
    bench.engine.tick(now_us=bench.now)
    assert bench.engine.overview(now_us=bench.now).topics == 0


def test_purge_of_a_bucketed_topic_with_serial_keys_takes_everything(bench: EngineBench) -> None:
    """Removing a key's head brings the next of the key forward, which is to be removed too."""
    bench.policy("b.*", buckets=2, serial="hold")
    bench.put("b.1", "head", "second", "third", key="k")
    bench.put("b.1", "free")
    assert bench.engine.topic_purge("b.1", now_us=bench.now) == 4
    assert [check for check in bench.engine.doctor() if not check.ok] == []
    assert bench.bodies() == []
    bench.put("b.1", "new", key="k")
    assert bench.bodies() == ["new"]


def test_a_lease_of_some_patterns_passes_over_the_others(bench: EngineBench) -> None:
    """Only what they cover is delivered, in turn, by weight; what they do not cover is untouched, and the answer says that it is there."""
    if not bench.engine.capabilities.only:
        pytest.skip("the engine does not know it")
    bench.policy("push.heavy", weight=3)
    bench.put("mail.a", "m1", "m2")
    for topic in ("push.a", "push.heavy", "single"):
        bench.put(topic, *(f"{topic} {n}" for n in range(40)))
    batch = bench.batch(40, only=["push.*", "single"])
    assert batch.passed_over
    counts = Counter(lease.topic for lease in batch.leases)
    assert counts == {"push.heavy": 24, "push.a": 8, "single": 8}
    assert {lease.topic for lease in bench.lease(200, only=["push.*"])} == {"push.a", "push.heavy"}
    assert bench.lease(only=["nothing.*"]) == []
    assert bench.bodies(2, only=["*"]) == ["m1", "m2"] or bench.waiting("mail.a") == 2
    assert bench.waiting("mail.a") + bench.engine.topic_stats("mail.a", now_us=bench.now).leased == 2


def test_a_lease_of_some_patterns_passes_over_a_bounded_number(bench: EngineBench) -> None:
    """With thousands of others before them the next calls go on where one had to stop; all are found, and then nothing goes on."""
    if not bench.engine.capabilities.only:
        pytest.skip("the engine does not know it")
    others = 2 * PASS_OVER + 500
    bench.engine.put([Draft(f"mail.{n}", b"x") for n in range(others)], now_us=bench.now)
    bench.engine.put([Draft(f"push.{n}", b"x") for n in range(50)], now_us=bench.now)
    found: set[str] = set()
    calls = 0
    while True:
        batch = bench.batch(100, only=["push.*"])
        calls += 1
        found |= {lease.topic for lease in batch.leases}
        assert calls < 50
        if not batch.goes_on:
            break
    assert found == {f"push.{n}" for n in range(50)}
    assert calls >= 2
    assert batch.passed_over
    assert bench.engine.overview(now_us=bench.now).leased == 50
