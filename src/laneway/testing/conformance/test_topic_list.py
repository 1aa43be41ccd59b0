"""`topic_list` among more lanes than an engine reads one by one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from laneway.engines.base import TopicOrder
from laneway.engines.shared.listing import FEW, MEASURES
from laneway.message import Draft
from laneway.testing.engine_driver import EngineDriver

LARGE = {"push.a": 900, "push.b": 700, "push.c": 500, "mail.d": 350, "mail.e": 250}

"""Backlogs that no two size classes confuse."""

AT_ONCE = 500
"""Messages in a call. A server ends a transaction whose client computes for too long."""


def crowd(driver: EngineDriver, *, topics: Iterable[str] = LARGE, prefix: str = "small") -> None:
    """Large topics among more small ones than are looked at one by one."""
    drafts = [Draft(topic, b"x") for topic in topics for _ in range(LARGE[topic])]
    drafts += [Draft(f"{prefix}.{n}", b"x") for n in range(FEW + 50)]
    for start in range(0, len(drafts), AT_ONCE):
        driver.engine.put(drafts[start : start + AT_ONCE], now_us=driver.now)


def top(driver: EngineDriver, order: TopicOrder, pattern: str = "*", limit: int = 5) -> list[str]:
    found = driver.engine.topic_list(order=order, pattern=pattern, limit=limit, now_us=driver.now)
    return [stats.topic for stats in found]


def test_largest_backlogs(driver: EngineDriver) -> None:
    """The largest backlogs are found among many topics, by pattern too."""
    crowd(driver)
    assert top(driver, "backlog") == list(LARGE)
    assert top(driver, "backlog", limit=2) == ["push.a", "push.b"]
    assert top(driver, "backlog", "push.*") == ["push.a", "push.b", "push.c"]
    assert top(driver, "backlog", "mail.d") == ["mail.d"]
    assert top(driver, "backlog", "none.*") == []


@pytest.mark.parametrize("buckets", [None, 2])
def test_topics_that_only_have_leases_come_last(driver: EngineDriver, buckets: int | None) -> None:
    """By backlog: a topic whose messages are all being processed is listed, too."""
    driver.policy("*", buckets=buckets)
    driver.put("a", "x", "x")
    driver.put("b", "x")
    driver.put("c", "x", "x", "x")
    driver.lease()
    driver.put("d", "x")
    assert (top(driver, "backlog"), top(driver, "age")) == (["d", "c", "a", "b"], ["d"])


@pytest.mark.parametrize("order", MEASURES)
def test_no_limit_is_too_large(driver: EngineDriver, order: TopicOrder) -> None:
    """Any that a 64-bit integer holds."""
    driver.policy("a", rate=1)
    driver.put("a", "x", "x", "x")
    driver.settle(driver.lease(), "dead")
    assert len(top(driver, order, limit=(1 << 63) - 1)) <= 1
    assert top(driver, "backlog", limit=(1 << 63) - 1) == ["a"]


def test_small_topics_fill_the_list(driver: EngineDriver) -> None:
    """Small topics follow the large ones up to the limit."""
    crowd(driver)
    found = driver.engine.topic_list(order="backlog", limit=20, now_us=driver.now)
    assert [stats.waiting for stats in found] == [*LARGE.values(), *[1] * 15]
    assert len(top(driver, "backlog", "small.*", limit=20)) == 20
    assert len(top(driver, "age", "small.*", limit=20)) == 20


def test_paused_topics_are_listed(driver: EngineDriver) -> None:
    """Paused topics are listed."""
    driver.policy("*", paused=True)
    crowd(driver)
    assert top(driver, "backlog") == list(LARGE)
    assert len(top(driver, "backlog", "small.*")) == 5


def test_oldest_topics(driver: EngineDriver) -> None:
    """The oldest topics are found among many, by pattern too."""
    for topic in ("push.c", "push.a", "push.b"):
        driver.engine.put([Draft(topic, b"x") for _ in range(50)], now_us=driver.now)
        driver.later(20)
    crowd(driver, topics=["mail.d"])
    assert top(driver, "age", limit=4) == ["push.c", "push.a", "push.b", "mail.d"]
    assert top(driver, "age", "push.*", limit=2) == ["push.c", "push.a"]


def test_busiest_and_throttled_topics(driver: EngineDriver) -> None:
    """The busiest topics are listed first, and those that rates throttled longest."""
    driver.policy("mail.d", rate=10, burst=1)
    crowd(driver)
    for _ in range(4):
        for topic, most in (("push.b", 100), ("push.c", 60), ("mail.d", 1)):
            driver.settle(driver.lease(most, topics=[topic]))
        driver.later(1)
    assert top(driver, "rate", limit=2) == ["push.b", "push.c"]
    assert top(driver, "rate", "push.*", limit=2) == ["push.b", "push.c"]
    driver.later(20)
    assert top(driver, "rate") == []
    assert top(driver, "throttled") in (["mail.d"], [])


def test_partitioned_and_folded_topics(driver: EngineDriver) -> None:
    """A partitioned topic counts with the sum of its lanes, a folded one with its own messages."""
    driver.policy("push.a", partitions=8)
    driver.policy("mail.*", buckets=4)
    crowd(driver)
    assert top(driver, "backlog") == list(LARGE)
    assert top(driver, "backlog", "mail.*") == ["mail.d", "mail.e"]
    assert set(top(driver, "age", "mail.*")) == {"mail.d", "mail.e"}


@pytest.mark.parametrize("order", MEASURES)
def test_many_topics_in_buckets(driver: EngineDriver, order: TopicOrder) -> None:
    """Of the topics in buckets a bounded number is read, whatever their number."""
    driver.policy("small.*", buckets=4)
    crowd(driver, topics=["push.a"])
    found = top(driver, order, limit=3)
    assert found == {
        "backlog": ["push.a", "small.0", "small.1"],
        "in-rate": ["push.a"],
    }.get(order, found)
    assert len(found) == {"backlog": 3, "age": 3, "in-rate": 1}.get(order, 0)


def test_topics_in_which_most_messages_arrive(driver: EngineDriver) -> None:
    """By in-rate: recent arrivals count, waiting or not; older ones are forgotten."""
    crowd(driver)
    driver.settle(driver.lease(900, topics=["push.a"]))
    assert top(driver, "in-rate") == list(LARGE)
    assert top(driver, "in-rate", "push.*", limit=2) == ["push.a", "push.b"]
    assert top(driver, "in-rate", "mail.d") == ["mail.d"]
    driver.later(60)
    driver.engine.put([Draft("mail.e", b"x") for _ in range(200)], now_us=driver.now)
    assert top(driver, "in-rate", limit=2) == ["mail.e", "push.a"]
    (first,) = driver.engine.topic_list(order="in-rate", limit=1, now_us=driver.now)
    assert 7 < (first.in_rate or 0) < 9  # 192 and what is left of 224, each second of a half-life
    driver.later(3600)
    assert top(driver, "in-rate") == []


def test_messages_that_arrive_one_by_one_count(driver: EngineDriver) -> None:
    """Arrivals count the same, one at a time or together."""
    for n in range(96):
        driver.engine.put([Draft("one", b"x")], now_us=driver.now)
        if n == 50:
            driver.settle(driver.lease(30))
    driver.engine.put([Draft("together", b"x") for _ in range(96)], now_us=driver.now)
    found = driver.engine.topic_list(order="in-rate", now_us=driver.now)
    assert [stats.topic for stats in found] == ["one", "together"]
    assert found[0].in_rate == pytest.approx(found[1].in_rate)


def test_topics_in_which_most_attempts_fail(driver: EngineDriver) -> None:
    """By failures: retries and deaths of the last minutes, a partitioned topic with all of it."""
    driver.policy("push.b", partitions=8)
    driver.policy("*", backoff=1)
    crowd(driver)
    for topic, failures in (("push.a", 3), ("push.b", 40), ("mail.d", 9)):
        driver.settle(driver.lease(failures, topics=[topic]), "retry")
    driver.settle(driver.lease(20, topics=["mail.e"]), "dead")
    driver.settle(driver.lease(60, topics=["push.c"]))
    assert top(driver, "failures") == ["push.b", "mail.e", "mail.d", "push.a"]
    assert top(driver, "failures", "mail.*") == ["mail.e", "mail.d"]
    (lease,) = driver.lease(1, topics=["push.c"], after=600)
    driver.settle([lease], "retry")
    found = driver.engine.topic_list(order="failures", limit=2, now_us=driver.now)
    assert [stats.topic for stats in found] == ["push.b", "mail.e"]
    assert found[0].failure_rate == pytest.approx(2 * (found[1].failure_rate or 0))
    driver.later(86400)
    assert top(driver, "failures") == []


def test_topics_with_most_dead_letters(driver: EngineDriver) -> None:
    """By dead letters: exact, whatever becomes of them."""
    crowd(driver)
    for topic, letters in (("push.a", 2), ("push.b", 5), ("mail.d", 3), ("small.7", 1)):
        driver.settle(driver.lease(letters, topics=[topic]), "dead")
    assert top(driver, "dead") == ["push.b", "mail.d", "push.a", "small.7"]
    assert top(driver, "dead", "push.*") == ["push.b", "push.a"]
    assert top(driver, "dead", "small.*") == ["small.7"]
    driver.engine.dead_redrive("push.b", limit=4, now_us=driver.now)
    assert top(driver, "dead", limit=3) == ["mail.d", "push.a", "push.b"]
    driver.engine.dead_drop("mail.d")
    found = driver.engine.topic_list(order="dead", now_us=driver.now)
    assert [(stats.topic, stats.dead) for stats in found] == [
        ("push.a", 2),
        ("push.b", 1),
        ("small.7", 1),
    ]
    driver.tick_after(400 * 86400)
    assert top(driver, "dead") == []


def test_recent_counts_of_topics_are_bounded(driver: EngineDriver) -> None:
    """Of many topics in which messages arrive, those with few are forgotten, the others stay."""
    busy = [Draft("busy", b"x") for _ in range(3200)]
    driver.engine.put(busy, now_us=driver.now)
    for start in range(0, 1500, 100):  # of 1,000 an engine keeps the counts
        names = range(start, start + 100)
        drafts = [Draft(f"t.{n}", b"x") for n in names for _ in range(32)]
        driver.engine.put(drafts, now_us=driver.now)
    assert top(driver, "in-rate", limit=1) == ["busy"]
    assert len(top(driver, "in-rate", "t.*", limit=20)) == 20


def test_rates_of_a_sample_of_lanes(driver: EngineDriver) -> None:
    """The largest lanes are in the sample, by tier, also those in groups; a paused one is not."""
    driver.policy("mail.*", tier="high", group="topic")
    driver.policy("push.c", paused=True)
    crowd(driver)
    for topic, most in (("push.a", 100), ("push.b", 60), ("mail.d", 40)):
        driver.settle(driver.lease(most, topics=[topic]))
    sample = driver.engine.lane_rates(FEW, now_us=driver.now)
    fast = sorted((each for each in sample if each.rate), key=lambda each: -each.rate)
    assert [each.tier for each in fast] == ["mid", "mid", "high"]
    assert [each.rate for each in fast] == pytest.approx([10.0, 6.0, 4.0])
    shards = driver.engine.capabilities.shards
    assert FEW / 2 < len(sample) <= FEW + shards
    few = driver.engine.lane_rates(4 * shards, now_us=driver.now)
    assert max(few, key=lambda each: each.rate).rate == pytest.approx(10.0)
    assert len(few) <= 4 * shards
    driver.later(60)
    assert not any(each.rate for each in driver.engine.lane_rates(FEW, now_us=driver.now))
