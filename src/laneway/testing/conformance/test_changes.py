"""Every field of a policy that is changed while messages wait under the old one: what waits obeys, or keeps what was decided at its publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from laneway.errors import BadMessage, TopicInUse
from laneway.policy import FIELDS, Gate
from laneway.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from laneway.testing.bench import EngineBench


def rate(bench: EngineBench) -> None:
    bench.put("a", *"123456")
    bench.policy("a", rate=10)
    assert bench.run() == ["1"]
    bench.policy("a", rate=100, burst=1)
    bench.later(0.01)
    assert bench.run() == ["2"]
    bench.policy("a", rate=None, burst=None)
    assert bench.run() == ["3", "4", "5", "6"]


def burst(bench: EngineBench) -> None:
    bench.policy("a", rate=10, burst=1)
    bench.put("a", *"123456")
    assert bench.run() == ["1"]
    bench.policy("a", burst=4)
    bench.later(10)
    assert bench.run() == ["2", "3", "4", "5"]


def concurrency(bench: EngineBench) -> None:
    bench.policy("a", concurrency=1)
    bench.put("a", *"12345")
    first = bench.lease()
    bench.policy("a", concurrency=3)
    assert len(bench.lease()) == 2
    bench.policy("a", concurrency=1)
    bench.settle(first)
    assert bench.lease() == []


def weight(bench: EngineBench) -> None:
    for topic in "ab":
        bench.put(topic, *map(str, range(300)))
    bench.settle(bench.lease(100))
    bench.policy("a", weight=3)
    before = bench.waiting("a")
    for _ in range(20):
        bench.settle(bench.lease(10))
    assert before - bench.waiting("a") == pytest.approx(150, abs=12)


def tier(bench: EngineBench) -> None:
    bench.put("a", *"123")
    bench.policy("a", tier="high")
    assert bench.engine.topic_stats("a", now_us=bench.now).tier == "high"
    assert bench.run() == ["1", "2", "3"]


def pool(bench: EngineBench) -> None:
    bench.put("a", *"12")
    bench.policy("a", pool="gpu")
    assert bench.run() == []
    assert bench.run(pool="gpu") == ["1", "2"]


def gate(bench: EngineBench) -> None:
    bench.engine.gate_set("g", Gate(concurrency=1), now_us=bench.now)
    bench.put("a", *"123")
    bench.policy("a", gate="g")
    assert bench.bodies() == ["1"]
    assert bench.bodies() == []
    bench.policy("a", gate=None)
    assert bench.bodies() == ["2", "3"]


def paused(bench: EngineBench) -> None:
    bench.put("a", *"12")
    bench.policy("a", paused=True)
    assert bench.run() == []
    bench.policy("a", paused=False)
    assert bench.run() == ["1", "2"]


def lease(bench: EngineBench) -> None:
    bench.put("a", "1")
    bench.policy("a", lease=5)
    assert bench.lease()[0].deadline_us == bench.now + 5 * SECOND


def retries(bench: EngineBench) -> None:
    bench.put("a", "1")
    bench.policy("a", retries=0)
    assert bench.settle(bench.lease(), "retry") == ["died"]


def backoff(bench: EngineBench) -> None:
    bench.put("a", "1")
    bench.policy("a", backoff=7)
    bench.settle(bench.lease(), "retry")
    assert bench.batch().next_wake_us == bench.now + 7 * SECOND


def ttl(bench: EngineBench) -> None:
    """It was given at publish: a message keeps the one that it has; newcomers have the new one."""
    bench.put("a", "kept")
    bench.policy("a", ttl=5)
    bench.put("a", "short")
    bench.later(5)
    assert bench.run() == ["kept"]


def on_expiry(bench: EngineBench) -> None:
    bench.policy("a", ttl=5)
    bench.put("a", "1")
    bench.policy("a", on_expiry="drop")
    bench.later(5)
    bench.engine.tick(now_us=bench.now)
    assert bench.engine.dead_list() == []


def dead_ttl(bench: EngineBench) -> None:
    bench.put("a", "1")
    bench.policy("a", dead_ttl=5)
    bench.settle(bench.lease(), "dead")
    bench.later(5)
    bench.engine.tick(now_us=bench.now)
    assert bench.engine.dead_list() == []


def on_unhandled(bench: EngineBench) -> None:
    """It counts from the first time that a worker had no handler."""
    bench.put("a", "1")
    bench.settle(bench.lease(), "unhandled")
    bench.policy("a", on_unhandled="1h")
    bench.later(3_600)
    assert bench.settle(bench.lease(), "unhandled") == ["died"]
    ((_, letter),) = bench.engine.dead_list()
    assert letter.reason == "no handler: no worker had a handler for it within on_unhandled"


def serial(bench: EngineBench) -> None:
    """It was decided at publish: who stands in line stays there, newcomers do as the policy says now."""
    bench.policy("a", serial=True)
    bench.put("a", *"12", key="k")
    bench.policy("a", serial=None)
    bench.put("a", "3", key="k")
    leases = bench.lease()
    assert [each.body for each in leases] == [b"1", b"3"]
    bench.settle(leases)
    assert bench.bodies() == ["2"]


def merge(bench: EngineBench) -> None:
    """Whether a message can be joined was decided at its publish; whose body survives is as the policy says now."""
    bench.put("a", "alone", key="k")
    bench.policy("a", merge="first")
    bench.put("a", "1", "2", key="k")
    bench.policy("a", merge="last")
    bench.put("a", "3", key="k")
    bench.policy("a", merge=None)
    bench.put("a", "4", key="k")
    assert bench.bodies() == ["alone", "3", "4"]


def merge_limit(bench: EngineBench) -> None:
    bench.policy("a", merge="all")
    bench.put("a", *"12", key="k")
    bench.policy("a", merge_limit=3)
    bench.put("a", *"34", key="k")
    assert [each.bodies for each in bench.lease()] == [[b"1", b"2", b"3"], [b"4"]]


def window(bench: EngineBench) -> None:
    bench.policy("a", merge="last", window=10)
    bench.put("a", "old", key="k")
    bench.policy("a", window=2)
    bench.put("a", "new", key="l")
    bench.later(2)
    assert bench.run() == ["new"]
    bench.later(8)
    assert bench.run() == ["old"]


def debounce(bench: EngineBench) -> None:
    bench.policy("a", merge="last", window=10)
    bench.put("a", "1", key="k")
    bench.policy("a", debounce=True)
    bench.later(5)
    bench.put("a", "2", key="k")
    bench.later(5)
    assert bench.run() == []
    bench.later(5)
    assert bench.run() == ["2"]


def max_wait(bench: EngineBench) -> None:
    bench.policy("a", merge="last", window=10, debounce=True)
    bench.put("a", "1", key="k")
    bench.policy("a", max_wait=12)
    bench.later(5)
    bench.put("a", "2", key="k")
    bench.later(7)
    assert bench.run() == ["2"]


def edge(bench: EngineBench) -> None:
    bench.policy("a", merge="last", window=10)
    bench.put("a", "waits", key="k")
    bench.policy("a", edge="leading")
    bench.put("a", "at once", key="l")
    assert bench.run() == ["at once"]


def max_body(bench: EngineBench) -> None:
    bench.put("a", "x" * 11)
    bench.policy("a", max_body=10)
    with pytest.raises(BadMessage):
        bench.put("a", "x" * 11)
    assert bench.run() == ["x" * 11]


def dedupe(bench: EngineBench) -> None:
    bench.put("a", "1", id="x")
    bench.policy("a", dedupe=10)
    bench.run()
    assert bench.put("a", "2", id="x")[0].outcome == "duplicate"


def max_backlog(bench: EngineBench) -> None:
    """What waits beyond a lowered limit stays."""
    bench.put("a", *"123")
    bench.policy("a", max_backlog=2)
    assert bench.put("a", "4")[0].outcome == "refused"
    assert bench.run() == ["1", "2", "3"]


def on_full(bench: EngineBench) -> None:
    bench.policy("a", max_backlog=2)
    bench.put("a", *"12")
    bench.policy("a", on_full="drop_oldest")
    bench.put("a", "3")
    assert bench.run() == ["2", "3"]


def partitions(bench: EngineBench) -> None:
    """Only of an empty topic."""
    bench.put("a", "1")
    with pytest.raises(TopicInUse):
        bench.policy("a", partitions=2)
    bench.run()
    bench.policy("a", partitions=2)


def buckets(bench: EngineBench) -> None:
    """Only while none of its topics holds anything."""
    bench.policy("b.*", buckets=1)
    bench.put("b.1", "1")
    with pytest.raises(TopicInUse):
        bench.policy("b.*", buckets=2)
    bench.run()
    bench.policy("b.*", buckets=2)


def delivery(bench: EngineBench) -> None:
    bench.put("a", "1")
    bench.policy("a", delivery="at_most_once")
    bench.lease()
    bench.later(60)
    assert bench.lease() == []


CHANGES: dict[str, Callable[[EngineBench], None]] = {
    change.__name__: change
    for change in (
        rate, burst, concurrency, weight, tier, pool, lease, retries, backoff, ttl, on_expiry, dead_ttl, on_unhandled, serial, gate, merge,
        merge_limit, window, debounce, max_wait, edge, max_body, dedupe, max_backlog, on_full, partitions, buckets, delivery, paused,
    )
}  # fmt: skip


@pytest.mark.parametrize("field", list(FIELDS))
def test_a_change_acts_on_what_waits(bench: EngineBench, field: str) -> None:
    """Each field, as its function above tells."""
    CHANGES[field](bench)
