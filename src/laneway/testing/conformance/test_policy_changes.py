"""
Every policy field, changed while messages wait: they obey it, or keep what their publish decided.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from laneway.errors import BadMessage, TopicInUse
from laneway.headers import COST
from laneway.policy import FIELDS, Gate
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND


def rate(driver: EngineDriver) -> None:
    driver.put("a", *"123456")
    driver.policy("a", rate=10)
    assert driver.run() == ["1"]
    driver.policy("a", rate=100, burst=1)
    assert driver.run(after=0.01) == ["2"]
    driver.policy("a", rate=None, burst=None)
    assert driver.run() == ["3", "4", "5", "6"]


def burst(driver: EngineDriver) -> None:
    driver.policy("a", rate=10, burst=1)
    driver.put("a", *"123456")
    assert driver.run() == ["1"]
    driver.policy("a", burst=4)
    assert driver.run(after=10) == ["2", "3", "4", "5"]


def concurrency(driver: EngineDriver) -> None:
    driver.policy("a", concurrency=1)
    driver.put("a", *"12345")
    first = driver.lease()
    driver.policy("a", concurrency=3)
    assert len(driver.lease()) == 2
    driver.policy("a", concurrency=1)
    driver.settle(first)
    assert driver.lease() == []


def weight(driver: EngineDriver) -> None:
    for topic in "ab":
        driver.put(topic, *map(str, range(300)))
    driver.settle(driver.lease(100))
    driver.policy("a", weight=3)
    before = driver.waiting("a")
    for _ in range(20):
        driver.settle(driver.lease(10))
    assert before - driver.waiting("a") == pytest.approx(150, abs=12)


def group(driver: EngineDriver) -> None:
    for topic in ("a", "b", "c"):
        driver.put(topic, *map(str, range(300)))
    driver.settle(driver.lease(100))
    driver.policy("a", group="all")
    driver.policy("b", group="all")
    before = driver.waiting("c")
    for _ in range(20):
        driver.settle(driver.lease(10))
    assert before - driver.waiting("c") == pytest.approx(100, abs=12)


def tier(driver: EngineDriver) -> None:
    driver.put("a", *"123")
    driver.policy("a", tier="high")
    assert driver.engine.topic_stats("a", now_us=driver.now).tier == "high"
    assert driver.run() == ["1", "2", "3"]


def pool(driver: EngineDriver) -> None:
    driver.put("a", *"12")
    driver.policy("a", pool="gpu")
    assert driver.run() == []
    assert driver.run(pool="gpu") == ["1", "2"]


def key_concurrency(driver: EngineDriver) -> None:
    driver.policy("a", key_concurrency=1)
    driver.put("a", *"1234", key="k")
    assert driver.bodies() == ["1"]
    driver.policy("a", key_concurrency=3)
    assert driver.bodies() == ["2", "3"]


def key_rate(driver: EngineDriver) -> None:
    driver.policy("a", key_rate="1/h")
    driver.put("a", *"123", key="k")
    assert driver.bodies() == ["1"]
    assert driver.bodies() == []
    driver.policy("a", key_rate=10)
    assert driver.bodies(after=0.1) == ["2"]


def gate(driver: EngineDriver) -> None:
    driver.engine.gate_set("g", Gate(concurrency=1), now_us=driver.now)
    driver.put("a", *"123")
    driver.policy("a", gate="g")
    assert driver.bodies() == ["1"]
    assert driver.bodies() == []
    driver.policy("a", gate=None)
    assert driver.bodies() == ["2", "3"]


def paused(driver: EngineDriver) -> None:
    driver.put("a", *"12")
    driver.policy("a", paused=True)
    assert driver.run() == []
    driver.policy("a", paused=False)
    assert driver.run() == ["1", "2"]


def lease(driver: EngineDriver) -> None:
    driver.put("a", "1")
    driver.policy("a", lease=5)
    assert driver.lease()[0].deadline_us == driver.now + 5 * SECOND


def retries(driver: EngineDriver) -> None:
    driver.put("a", "1")
    driver.policy("a", retries=0)
    assert driver.settle(driver.lease(), "retry") == ["died"]


def backoff(driver: EngineDriver) -> None:
    driver.put("a", "1")
    driver.policy("a", backoff=7)
    driver.settle(driver.lease(), "retry")
    assert driver.batch().next_wake_us == driver.now + 7 * SECOND


def ttl(driver: EngineDriver) -> None:
    """It was given at publish: a message keeps the one that it has; newcomers have the new one."""
    driver.put("a", "kept")
    driver.policy("a", ttl=5)
    driver.put("a", "short")
    assert driver.run(after=5) == ["kept"]


def on_expiry(driver: EngineDriver) -> None:
    driver.policy("a", ttl=5)
    driver.put("a", "1")
    driver.policy("a", on_expiry="drop")
    driver.tick_after(5)
    assert driver.engine.dead_list() == []


def dead_ttl(driver: EngineDriver) -> None:
    driver.put("a", "1")
    driver.policy("a", dead_ttl=5)
    driver.settle(driver.lease(), "dead")
    driver.tick_after(5)
    assert driver.engine.dead_list() == []


def on_unhandled(driver: EngineDriver) -> None:
    """It counts from the first time that a worker had no handler."""
    driver.put("a", "1")
    driver.settle(driver.lease(), "unhandled")
    driver.policy("a", on_unhandled="1h")
    assert driver.settle(driver.lease(after=3_600), "unhandled") == ["died"]
    ((_, letter),) = driver.engine.dead_list()
    assert letter.reason == "no handler: no worker had a handler for it within on_unhandled"


def serial(driver: EngineDriver) -> None:
    """
    It was decided at publish: who stands in line stays there, newcomers do as the policy says now.
    """
    driver.policy("a", serial=True)
    driver.put("a", *"12", key="k")
    driver.policy("a", serial=None)
    driver.put("a", "3", key="k")
    leases = driver.lease()
    assert [each.body for each in leases] == [b"1", b"3"]
    driver.settle(leases)
    assert driver.bodies() == ["2"]


def merge(driver: EngineDriver) -> None:
    """
    Whether a message can be joined was decided at its publish; whose body survives is as the policy
    says now.
    """
    driver.put("a", "alone", key="k")
    driver.policy("a", merge="first")
    driver.put("a", "1", "2", key="k")
    driver.policy("a", merge="last")
    driver.put("a", "3", key="k")
    driver.policy("a", merge=None)
    driver.put("a", "4", key="k")
    assert driver.bodies() == ["alone", "3", "4"]


def merge_limit(driver: EngineDriver) -> None:
    driver.policy("a", merge="all")
    driver.put("a", *"12", key="k")
    driver.policy("a", merge_limit=3)
    driver.put("a", *"34", key="k")
    assert [each.bodies for each in driver.lease()] == [[b"1", b"2", b"3"], [b"4"]]


def window(driver: EngineDriver) -> None:
    driver.policy("a", merge="last", window=10)
    driver.put("a", "old", key="k")
    driver.policy("a", window=2)
    driver.put("a", "new", key="l")
    assert driver.run(after=2) == ["new"]
    assert driver.run(after=8) == ["old"]


def debounce(driver: EngineDriver) -> None:
    driver.policy("a", merge="last", window=10)
    driver.put("a", "1", key="k")
    driver.policy("a", debounce=True)
    driver.later(5)
    driver.put("a", "2", key="k")
    assert driver.run(after=5) == []
    assert driver.run(after=5) == ["2"]


def max_wait(driver: EngineDriver) -> None:
    driver.policy("a", merge="last", window=10, debounce=True)
    driver.put("a", "1", key="k")
    driver.policy("a", max_wait=12)
    driver.later(5)
    driver.put("a", "2", key="k")
    assert driver.run(after=7) == ["2"]


def edge(driver: EngineDriver) -> None:
    driver.policy("a", merge="last", window=10)
    driver.put("a", "waits", key="k")
    driver.policy("a", edge="leading")
    driver.put("a", "at once", key="l")
    assert driver.run() == ["at once"]


def max_body(driver: EngineDriver) -> None:
    driver.put("a", "x" * 11)
    driver.policy("a", max_body=10)
    with pytest.raises(BadMessage):
        driver.put("a", "x" * 11)
    assert driver.run() == ["x" * 11]


def max_cost(driver: EngineDriver) -> None:
    driver.put("a", "2", headers={COST: "2"})
    driver.policy("a", max_cost=1)
    with pytest.raises(BadMessage):
        driver.put("a", "2", headers={COST: "2"})
    assert driver.run() == ["2"]


def dedupe(driver: EngineDriver) -> None:
    driver.put("a", "1", id="x")
    driver.policy("a", dedupe=10)
    driver.run()
    assert driver.put("a", "2", id="x")[0].outcome == "duplicate"


def max_backlog(driver: EngineDriver) -> None:
    """What waits beyond a lowered limit stays."""
    driver.put("a", *"123")
    driver.policy("a", max_backlog=2)
    assert driver.put("a", "4")[0].outcome == "refused"
    assert driver.run() == ["1", "2", "3"]


def on_full(driver: EngineDriver) -> None:
    driver.policy("a", max_backlog=2)
    driver.put("a", *"12")
    driver.policy("a", on_full="drop_oldest")
    driver.put("a", "3")
    assert driver.run() == ["2", "3"]


def partitions(driver: EngineDriver) -> None:
    """Only of an empty topic."""
    driver.put("a", "1")
    with pytest.raises(TopicInUse):
        driver.policy("a", partitions=2)
    driver.run()
    driver.policy("a", partitions=2)


def buckets(driver: EngineDriver) -> None:
    """Only while none of its topics holds anything."""
    driver.policy("b.*", buckets=1)
    driver.put("b.1", "1")
    with pytest.raises(TopicInUse):
        driver.policy("b.*", buckets=2)
    driver.run()
    driver.policy("b.*", buckets=2)


def delivery(driver: EngineDriver) -> None:
    driver.put("a", "1")
    driver.policy("a", delivery="at_most_once")
    driver.lease()
    assert driver.lease(after=60) == []


def min_concurrency(driver: EngineDriver) -> None:
    driver.policy("a", concurrency="auto", min_concurrency=1)
    driver.put("a", *"123456")
    assert len(driver.lease(6)) == 2, "the limit begins at 2"
    driver.policy("a", concurrency="auto", min_concurrency=5)
    assert len(driver.lease(6)) == 3


def max_concurrency(driver: EngineDriver) -> None:
    driver.policy("a", concurrency="auto", max_concurrency=1)
    driver.put("a", *"123")
    assert len(driver.lease(3)) == 1
    driver.policy("a", concurrency="auto", max_concurrency=8)
    assert len(driver.lease(3)) == 1


def own_backlog(driver: EngineDriver) -> None:
    """What waits stays; only later messages are not stored."""
    driver.put("a", "1")
    driver.policy("a", own_backlog=False)
    assert driver.put("a", "2")[0].outcome == "unrouted"
    assert driver.run() == ["1"]


def history(driver: EngineDriver) -> None:
    """What waits counted for its pattern; what happens to it from then on counts apart."""
    driver.put("a", "1")
    driver.policy("a", history=True)
    assert driver.run() == ["1"]
    (pattern, topic) = driver.engine.tallies(now_us=driver.now).tallies
    assert (pattern.pattern, pattern.published, pattern.done) == ("*", 1, 0)
    assert (topic.pattern, topic.published, topic.done) == ("a", 0, 1)


def time_limit(driver: EngineDriver) -> None:
    """Workers read it while a handler runs; an engine stores it."""
    driver.put("a", "1")
    driver.policy("a", time_limit=5)
    assert driver.engine.policy_of("a").time_limit == 5_000_000
    assert driver.run() == ["1"]


CHANGES: dict[str, Callable[[EngineDriver], None]] = {
    change.__name__: change
    for change in (
        rate,
        burst,
        concurrency,
        weight,
        group,
        tier,
        pool,
        lease,
        retries,
        time_limit,
        backoff,
        ttl,
        on_expiry,
        dead_ttl,
        on_unhandled,
        serial,
        key_concurrency,
        key_rate,
        gate,
        merge,
        merge_limit,
        window,
        debounce,
        max_wait,
        edge,
        max_body,
        max_cost,
        dedupe,
        max_backlog,
        on_full,
        partitions,
        buckets,
        delivery,
        min_concurrency,
        max_concurrency,
        own_backlog,
        history,
        paused,
    )
}


@pytest.mark.parametrize("field", list(FIELDS))
def test_changed_field(driver: EngineDriver, field: str) -> None:
    """Each field acts on waiting messages as its function above shows."""
    CHANGES[field](driver)
