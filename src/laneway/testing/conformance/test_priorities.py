"""Priorities: any integer that a double holds twice."""

from __future__ import annotations

import random
from typing import Any

import pytest

from laneway.codec import MAX_PRIORITY as MOST, MIN_PRIORITY as LEAST
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND

NOW_US = 1_800_000_000_000_000
PRIORITIES = [
    *(MOST, MOST - 1, NOW_US + 1, NOW_US, 1 << 31, 1_000_000, 256, 129, 128, 127, 1, 0, -1, -255),
    *(-256, -257, -NOW_US, LEAST + 1, LEAST),
]
"""Engines may store some of them in other ways than those near 0."""

SEED = 11


def _put_all(driver: EngineDriver, topic: str = "a", **options: Any) -> list[str]:
    """Put a message of each priority, shuffled; returns the bodies in the order of delivery."""
    for priority in random.Random(SEED).sample(PRIORITIES, len(PRIORITIES)):
        driver.put(topic, str(priority), priority=priority, **options)
    return [str(priority) for priority in PRIORITIES]


@pytest.mark.parametrize("fields", [{}, {"buckets": 1}, {"merge": "first"}], ids=str)
def test_order_of_priorities(driver: EngineDriver, fields: dict[str, Any]) -> None:
    """The larger one is delivered first, and each lease says which it is."""
    driver.policy("*", **fields)
    order = _put_all(driver)
    assert [view.priority for view in driver.engine.topic_peek("a", limit=99)] == PRIORITIES
    leases = driver.lease(5)
    leases += driver.lease()
    assert [lease.body.decode() for lease in leases] == order, f"seed {SEED}"
    assert [lease.priority for lease in leases] == PRIORITIES
    assert driver.settle(leases) == ["acked"] * len(leases)
    assert driver.engine.overview(now_us=driver.now).waiting == 0


def test_at_front_of_its_priority(driver: EngineDriver) -> None:
    """`at_front` is before others of the priority, the latest first, and behind higher ones."""
    for priority in (MOST, LEAST, 5):
        driver.put("a", f"{priority} 1", priority=priority)
        driver.put("a", f"{priority} 2", priority=priority, at_front=True)
        driver.put("a", f"{priority} 3", priority=priority, at_front=True)
    expected = [f"{priority} {n}" for priority in (MOST, 5, LEAST) for n in (3, 2, 1)]
    assert driver.bodies() == expected


def test_delayed_and_retried_priorities(driver: EngineDriver) -> None:
    """A message keeps its priority through a delay, a retry, a release and a redrive."""
    driver.policy("a", backoff=1, retries=1)
    order = _put_all(driver, delay_us=SECOND)
    assert driver.lease() == []
    leases = driver.lease(after=1)
    assert [lease.body.decode() for lease in leases] == order
    driver.settle(leases, "retry")
    leases = driver.lease(after=1)
    assert [lease.priority for lease in leases] == PRIORITIES
    driver.settle(leases, "release")
    driver.settle(driver.lease(), "retry")
    assert driver.engine.topic_stats("a", now_us=driver.now).dead == len(PRIORITIES)
    driver.engine.dead_redrive("a", now_us=driver.now)
    assert driver.bodies() == order


def test_serial_keys_with_priorities(driver: EngineDriver) -> None:
    """Of one serial key the highest priority is next."""
    driver.policy("a", serial="hold")
    order = _put_all(driver, key="k")
    assert [driver.run()[0] for _ in PRIORITIES] == order


def test_merge_changes_the_priority(driver: EngineDriver) -> None:
    """With `last` a message takes the newcomer's priority, near 0 or far from it."""
    driver.policy("a", merge="last", window=5)
    driver.put("a", "other", key="other", priority=7)
    for priority in (0, MOST, 3, LEAST, 1_000_000):
        driver.put("a", str(priority), key="k", priority=priority)
    assert driver.bodies(after=5) == ["1000000", "other"]


def test_lowest_priority_is_dropped(driver: EngineDriver) -> None:
    """With `drop_oldest` the lowest priority goes first."""
    driver.policy("a", max_backlog=len(PRIORITIES), on_full="drop_oldest")
    order = _put_all(driver)
    driver.put("a", "new", priority=0)
    driver.put("a", "newer", priority=0)
    behind = order.index("0") + 1
    assert driver.bodies() == [*order[:behind], "new", "newer", *order[behind:-2]]


def test_views_of_priorities(driver: EngineDriver) -> None:
    """Cursors and the oldest message of all priorities; a purge removes all of them."""
    _put_all(driver)
    cursors = driver.engine.cursors("a")
    assert sorted(cursors) == sorted(PRIORITIES)
    leases = driver.lease(1)
    assert driver.engine.cursors("a")[MOST][0] > driver.engine.cursors("a")[MOST][1]
    driver.settle(leases)
    assert MOST not in driver.engine.cursors("a")
    stats = driver.engine.topic_stats("a", now_us=driver.now)
    assert stats.oldest_us == driver.now
    assert all(check.ok for check in driver.engine.doctor())
    assert driver.engine.topic_purge("a", now_us=driver.now) == len(PRIORITIES) - 1


@pytest.mark.parametrize("least", PRIORITIES)
def test_lease_at_least_a_priority(driver: EngineDriver, least: int) -> None:
    """`lease(priorities=…)` takes any of them, and exactly one."""
    _put_all(driver)
    expected = [str(priority) for priority in PRIORITIES if priority >= least]
    assert driver.bodies(priorities=(least, least)) == [str(least)]
    expected.remove(str(least))
    assert driver.bodies(priorities=(least, MOST)) == expected
