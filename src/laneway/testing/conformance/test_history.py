"""`tallies`, `history_read` and `history_write`: what happened so far, by tier and pattern."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.engines.base import MAX_TALLIES, OTHER_PATTERNS, WAIT_BOUNDS_US, Tally
from laneway.errors import BadPolicy
from laneway.message import Draft, Settlement
from laneway.testing.engine_driver import EngineDriver
from laneway.tiers import Tier
from laneway.units import SECOND


def tallies(driver: EngineDriver) -> dict[tuple[str, str], Tally]:
    found = driver.engine.tallies(now_us=driver.now).tallies
    return {(tally.tier, tally.pattern): tally for tally in found}


def waits(driver: EngineDriver, tier: str = "mid") -> tuple[dict[int, int], dict[int, int]]:
    """Noisy and others: how many messages by the place of their class, where there are any."""
    for each in driver.engine.tallies(now_us=driver.now).waits:
        if each.tier == tier:
            noisy, others = (
                {place: count for place, count in enumerate(counts) if count}
                for counts in (each.noisy, each.others)
            )
            return noisy, others
    return {}, {}


def test_a_topic_counts_for_its_most_specific_pattern(driver: EngineDriver) -> None:
    """A topic without a pattern counts for `*`; an exact topic's policy makes no difference."""
    engine = driver.engine
    engine.policy_set("code", "push.*", {"retries": 3}, now_us=driver.now)
    engine.policy_set("code", "push.eu.*", {"retries": 0}, now_us=driver.now)
    engine.policy_set("code", "push.eu.a", {"weight": 2.0}, now_us=driver.now)
    engine.put(
        [Draft(topic, b"x") for topic in ("push.a", "push.eu.a", "push.eu.b", "mail", "push")],
        now_us=driver.now,
    )
    assert {key: tally.published for key, tally in tallies(driver).items()} == {
        ("mid", "*"): 2,
        ("mid", "push.*"): 1,
        ("mid", "push.eu.*"): 2,
    }


@pytest.mark.parametrize("fields", [{}, {"partitions": 4, "rate": 1000.0}])
def test_a_topic_with_history_counts_apart(driver: EngineDriver, fields: dict[str, Any]) -> None:
    """From then on, and until the field is removed; its pattern counts the other topics."""
    driver.policy("push.*", retries=0)
    driver.policy("push.a", **fields)
    driver.put("push.a", "before")
    driver.policy("push.a", history=True)
    drafts = [Draft(topic, b"x") for topic in ("push.a", "push.a", "push.b")]
    driver.engine.put(drafts, now_us=driver.now)
    for draft in drafts[:2]:  # by themselves, which engines treat apart
        driver.engine.put([draft], now_us=driver.now)
    leases = driver.lease(3, topics=["push.a"])
    driver.settle(leases[:2])
    driver.settle(leases[2:], "retry")
    found = tallies(driver)
    apart, others = found["mid", "push.a"], found["mid", "push.*"]
    assert (apart.published, others.published) == (4, 2)
    assert (apart.delivered, apart.done, apart.died) == (3, 2, 1)
    assert (others.delivered, others.done, others.died) == (0, 0, 0)
    assert apart.waiting + others.waiting == 3
    driver.policy("push.a", history=None)
    driver.put("push.a", "after")
    driver.tick_after(5)
    found = tallies(driver)
    assert (found["mid", "push.a"].published, found["mid", "push.*"].published) == (4, 3)


def test_history_is_a_field_of_one_topic(driver: EngineDriver) -> None:
    """A pattern is counted in any case, so the field is refused there."""
    for pattern in ("*", "push.*", "push.*#audit"):
        with pytest.raises(BadPolicy, match="history counts one topic apart"):
            driver.policy(pattern, history=True)


def test_tallies_count_what_happens(driver: EngineDriver) -> None:
    """Published, delivered, done, retried, died, merged and waiting, each in its tier."""
    engine = driver.engine
    engine.tier_set("code", {"gold": Tier(5)}, now_us=driver.now)
    engine.policy_set("code", "push.*", {"tier": "gold", "retries": 1}, now_us=driver.now)
    engine.policy_set("code", "last.*", {"merge": "last"}, now_us=driver.now)
    engine.tick(now_us=driver.now)  # all shards learn of the tier
    for _ in range(3):  # by themselves, which engines treat apart
        engine.put([Draft("push.a", b"x")], now_us=driver.now)
    engine.put([Draft("push.b", b"x", key="k")] * 3, now_us=driver.now)
    engine.put([Draft("last.a", b"x", key="k")] * 4, now_us=driver.now)
    found = tallies(driver)
    assert found["gold", "push.*"] == Tally("gold", "push.*", published=6, waiting=6)
    assert found["mid", "last.*"] == Tally("mid", "last.*", published=1, merged=3, waiting=1)
    leases = engine.lease(10, topics=["push.a", "push.b"], now_us=driver.now).leases
    assert len(leases) == 6
    engine.settle(
        [
            *(Settlement(each.handle, each.fence) for each in leases[:2]),
            Settlement(leases[2].handle, leases[2].fence, "retry", delay_us=0),
            Settlement(leases[3].handle, leases[3].fence, "dead"),
            Settlement(leases[4].handle, leases[4].fence, "release"),
        ],
        now_us=driver.now,
    )
    assert tallies(driver)["gold", "push.*"] == Tally(
        "gold", "push.*", published=6, delivered=6, done=2, retried=1, died=1, waiting=2
    )
    assert engine.topic_purge("last.a", now_us=driver.now) == 1
    assert tallies(driver)["mid", "last.*"].waiting == 0


def test_tallies_outlive_their_lanes(driver: EngineDriver) -> None:
    """What a topic did is counted also when the topic is idle and forgotten."""
    engine = driver.engine
    for _ in range(2):
        engine.put([Draft("a.b", b"x")], now_us=driver.now)
        leases = engine.lease(10, now_us=driver.now).leases
        engine.settle([Settlement(each.handle, each.fence) for each in leases], now_us=driver.now)
        driver.later(120)
        engine.tick(now_us=driver.now)
        assert engine.overview(now_us=driver.now).topics == 0
    assert tallies(driver) == {("mid", "*"): Tally("mid", "*", published=2, delivered=2, done=2)}


def test_throttled_time_is_counted(driver: EngineDriver) -> None:
    """It grows by the time for which a rate held ready messages back, when that is over."""
    engine = driver.engine
    engine.policy_set("code", "slow.*", {"rate": 1.0, "burst": 1}, now_us=driver.now)
    engine.put([Draft("slow.a", b"x")] * 3, now_us=driver.now)
    for _ in range(2):
        assert len(engine.lease(10, now_us=driver.now).leases) == 1
        driver.later(5)
    assert 0.9 * SECOND < tallies(driver)["mid", "slow.*"].throttled_us <= 1.1 * SECOND


def test_waiting_times_are_counted_at_delivery(driver: EngineDriver) -> None:
    """By class; from the due time on where a message was delayed; of any kind of message."""
    engine = driver.engine
    engine.policy_set("code", "s.*", {"serial": "hold"}, now_us=driver.now)
    engine.put(
        [
            Draft("s.a", b"x", key="k"),
            Draft("a", b"x"),
            Draft("b", b"x", priority=3),
            Draft("c", b"x", delay_us=5 * SECOND),
            Draft("d", b"x", at_front=True),
        ],
        now_us=driver.now,
    )
    driver.later(6)
    engine.put([Draft("a", b"x"), Draft("b", b"x")], now_us=driver.now)
    driver.later(0.05)
    engine.tick(now_us=driver.now)
    assert len(engine.lease(10, now_us=driver.now).leases) == 7
    place = {wait: next(n for n, most in enumerate(WAIT_BOUNDS_US) if wait < most)
             for wait in (50_000, SECOND, 6 * SECOND)}  # fmt: skip
    assert waits(driver) == (
        {},
        {place[50_000]: 2, place[SECOND]: 1, place[6 * SECOND]: 4},
    )


def test_topics_at_their_own_rate_are_counted_apart(driver: EngineDriver) -> None:
    """A wait for the topic's own rate counts with the noisy topics."""
    engine = driver.engine
    engine.policy_set("code", "limited", {"rate": 1, "burst": 1}, now_us=driver.now)
    engine.policy_set("code", "flood", {"paused": True}, now_us=driver.now)
    engine.put([Draft("flood", b"x")] * 100, now_us=driver.now)
    engine.put([Draft("limited", b"x")] * 3, now_us=driver.now)
    assert len(engine.lease(10, now_us=driver.now).leases) == 1
    noisy, others = waits(driver)
    assert (sum(noisy.values()), sum(others.values())) == (0, 1)  # within its burst
    for _ in range(2):
        driver.later(1.5)
        engine.tick(now_us=driver.now)
        assert len(engine.lease(10, now_us=driver.now).leases) == 1
    noisy, others = waits(driver)
    assert (sum(noisy.values()), sum(others.values())) == (2, 1)


def test_noisy_topics_are_counted_apart(driver: EngineDriver) -> None:
    """One in 100 topics is noisy, and at least one: those with the largest backlogs."""
    engine = driver.engine
    engine.put([Draft("flood", b"x")] * 1000, now_us=driver.now)
    driver.later(2)
    engine.put([Draft(f"t{n}", b"x") for n in range(50)], now_us=driver.now)
    leased = 0
    while leased < 500:
        leased += len(engine.lease(100, now_us=driver.now).leases)
    noisy, others = waits(driver)
    assert sum(others.values()) == 50
    assert sum(noisy.values()) == leased - 50


def test_patterns_beyond_the_bound_are_counted_together(driver: EngineDriver) -> None:
    """So the tallies stay small with thousands of patterns."""
    engine = driver.engine
    names = [f"p{n:03}.*" for n in range(MAX_TALLIES + 50)]
    engine.policy_set_many("code", [(name, {"retries": 1}) for name in names], now_us=driver.now)
    engine.put([Draft(f"{name[:-1]}a", b"x") for name in names], now_us=driver.now)
    found = tallies(driver)
    assert sum(tally.published for tally in found.values()) == len(names)
    shards = engine.capabilities.shards
    others = found.get(("mid", OTHER_PATTERNS), Tally("mid", OTHER_PATTERNS))
    assert others.waiting >= len(names) - MAX_TALLIES * shards
    assert len(found) <= MAX_TALLIES * shards + 1


def test_records_are_replaced_if_one_is_as_it_was_read(driver: EngineDriver) -> None:
    """Compare and swap: of two writers, one wins, and the other changes nothing."""
    engine = driver.engine
    assert engine.history_read(["head", "a"]) == [None, None]
    assert engine.history_write("head", None, {"head": b"1", "a": b"\x00x"})
    assert not engine.history_write("head", None, {"head": b"2", "a": b"y"})
    assert not engine.history_write("head", b"0", {"a": b"y"})
    assert engine.history_read(["a", "b", "head"]) == [b"\x00x", None, b"1"]
    assert engine.history_write("head", b"1", {"b": b""})
    assert engine.history_read(["a", "b", "head"]) == [b"\x00x", b"", b"1"]
