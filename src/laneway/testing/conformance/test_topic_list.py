"""`topic_list` among more lanes than an engine reads one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from laneway.engines.shared.listing import FEW, MEASURES
from laneway.message import Draft
from laneway.testing.engine_driver import EngineDriver

if TYPE_CHECKING:
    from collections.abc import Iterable

    from laneway.engines.base import TopicOrder

LARGE = {"push.a": 900, "push.b": 700, "push.c": 500, "mail.d": 350, "mail.e": 250}

"""Backlogs that no two size classes confuse."""


def crowd(driver: EngineDriver, *, topics: Iterable[str] = LARGE, prefix: str = "small") -> None:
    """Large topics among more small ones than are looked at one by one."""
    drafts = [Draft(topic, b"x") for topic in topics for _ in range(LARGE[topic])]
    drafts += [Draft(f"{prefix}.{n}", b"x") for n in range(FEW + 50)]
    driver.engine.put(drafts, now_us=driver.now)


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
    assert found == {"backlog": ["push.a", "small.0", "small.1"]}.get(order, found)
    assert len(found) == (3 if order in ("backlog", "age") else 0)
