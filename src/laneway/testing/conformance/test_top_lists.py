"""Top lists among more lanes than an engine looks at one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from laneway.engines.listing import FEW, MEASURES
from laneway.message import Draft
from laneway.testing.bench import EngineBench

if TYPE_CHECKING:
    from collections.abc import Iterable

LARGE = {"push.a": 900, "push.b": 700, "push.c": 500, "mail.d": 350, "mail.e": 250}
"""Backlogs that no two size classes confuse."""


def crowd(bench: EngineBench, *, topics: Iterable[str] = LARGE, prefix: str = "small") -> None:
    """Large topics among more small ones than are looked at one by one."""
    drafts = [Draft(topic, b"x") for topic in topics for _ in range(LARGE[topic])]
    drafts += [Draft(f"{prefix}.{n}", b"x") for n in range(FEW + 50)]
    bench.engine.put(drafts, now_us=bench.now)


def top(bench: EngineBench, order: str, pattern: str = "*", limit: int = 5) -> list[str]:
    found = bench.engine.topic_list(order=order, pattern=pattern, limit=limit, now_us=bench.now)
    return [stats.topic for stats in found]


def test_the_largest_backlogs_are_found_among_many(bench: EngineBench) -> None:
    crowd(bench)
    assert top(bench, "backlog") == list(LARGE)
    assert top(bench, "backlog", limit=2) == ["push.a", "push.b"]
    assert top(bench, "backlog", "push.*") == ["push.a", "push.b", "push.c"]
    assert top(bench, "backlog", "mail.d") == ["mail.d"]
    assert top(bench, "backlog", "none.*") == []


def test_a_top_list_is_as_long_as_asked_for_where_few_are_large(bench: EngineBench) -> None:
    """Small topics follow the large ones: as many as there is room for."""
    crowd(bench)
    found = bench.engine.topic_list(order="backlog", limit=20, now_us=bench.now)
    assert [stats.waiting for stats in found] == [*LARGE.values(), *[1] * 15]
    assert len(top(bench, "backlog", "small.*", limit=20)) == 20
    assert len(top(bench, "age", "small.*", limit=20)) == 20


def test_paused_topics_are_in_the_lists(bench: EngineBench) -> None:
    bench.policy("*", paused=True)
    crowd(bench)
    assert top(bench, "backlog") == list(LARGE)
    assert len(top(bench, "backlog", "small.*")) == 5


def test_the_oldest_are_found_among_many(bench: EngineBench) -> None:
    for topic in ("push.c", "push.a", "push.b"):
        bench.engine.put([Draft(topic, b"x") for _ in range(50)], now_us=bench.now)
        bench.later(20)
    crowd(bench, topics=["mail.d"])
    assert top(bench, "age", limit=4) == ["push.c", "push.a", "push.b", "mail.d"]
    assert top(bench, "age", "push.*", limit=2) == ["push.c", "push.a"]


def test_what_runs_and_what_is_held_back_is_found_among_many(bench: EngineBench) -> None:
    """The busiest first, and the topics that their rates held back longest."""
    bench.policy("mail.d", rate=10, burst=1)
    crowd(bench)
    for _ in range(4):
        for topic, most in (("push.b", 100), ("push.c", 60), ("mail.d", 1)):
            bench.settle(bench.lease(most, topics=[topic]))
        bench.later(1)
    assert top(bench, "rate", limit=2) == ["push.b", "push.c"]
    assert top(bench, "rate", "push.*", limit=2) == ["push.b", "push.c"]
    bench.later(20)
    assert top(bench, "rate") == []
    assert top(bench, "throttled") in (["mail.d"], [])


def test_a_topic_counts_whole_whose_lanes_are_many(bench: EngineBench) -> None:
    """Partitioned topics are compared by the sum of their lanes, topics in buckets by what is theirs."""
    bench.policy("push.a", partitions=8)
    bench.policy("mail.*", buckets=4)
    crowd(bench)
    assert top(bench, "backlog") == list(LARGE)
    assert top(bench, "backlog", "mail.*") == ["mail.d", "mail.e"]
    assert set(top(bench, "age", "mail.*")) == {"mail.d", "mail.e"}


@pytest.mark.parametrize("order", MEASURES)
def test_many_topics_in_few_buckets(bench: EngineBench, order: str) -> None:
    """Among the topics of buckets, so many are looked at that the cost does not grow with their number."""
    bench.policy("small.*", buckets=4)
    crowd(bench, topics=["push.a"])
    found = top(bench, order, limit=3)
    assert found == {"backlog": ["push.a", "small.0", "small.1"]}.get(order, found)
    assert len(found) == (3 if order in ("backlog", "age") else 0)
