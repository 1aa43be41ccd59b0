"""Concurrency that adapts to the destination."""

from __future__ import annotations

from typing import Any

from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND

QUICK_US = 100_000


KEYS = ["k5", "k1", "k4", "k0"]
"""One for each of four partitions."""


def _windows(driver: EngineDriver, count: int, cost_us: int = QUICK_US) -> list[int]:
    """Lease all that the topic may have and ack it, so often; how many it had each time."""
    found = []
    for _ in range(count):
        leases = driver.lease(100)
        found.append(len(leases))
        driver.later(cost_us / SECOND)
        driver.settle(leases, cost_us=cost_us)
    return found


def _auto(driver: EngineDriver, **fields: Any) -> None:
    driver.policy("a", concurrency="auto", retries=1000, **fields)
    driver.put("a", *map(str, range(1000)))


def test_grows_while_the_destination_is_quick(driver: EngineDriver) -> None:
    """The limit begins at 2 and grows by one with each window, up to the largest."""
    _auto(driver, max_concurrency=5)
    assert _windows(driver, 6) == [2, 3, 4, 5, 5, 5]


def test_bounds(driver: EngineDriver) -> None:
    """The least and the largest limit hold, also when they change."""
    _auto(driver, min_concurrency=4, max_concurrency=6)
    assert _windows(driver, 4) == [4, 5, 6, 6]
    driver.policy("a", max_concurrency=3, min_concurrency=1)
    assert _windows(driver, 1) == [3]


def test_unused_limit_does_not_grow(driver: EngineDriver) -> None:
    """Successes of a topic that never uses its limit up say nothing about a larger one."""
    driver.policy("a", concurrency="auto", min_concurrency=2)
    for _ in range(20):
        driver.put("a", "1")
        driver.run()
    driver.put("a", *map(str, range(10)))
    assert len(driver.lease()) == 2


def test_overload_lowers_the_limit_once(driver: EngineDriver) -> None:
    """A timeout lowers it to 7/10, once for all leases from before; later ones lower it again."""
    _auto(driver)
    _windows(driver, 8)
    leases = driver.lease()
    assert len(leases) == 10
    driver.settle(leases[:5], "retry", delay_us=0, overload="timeout")
    newer = driver.lease()
    assert len(newer) == 2
    driver.settle(leases[5:], "retry", delay_us=0, overload="answer")
    newer += driver.lease()
    assert len(newer) == 7
    driver.settle(newer, "retry", delay_us=0, overload="answer")
    assert len(driver.lease()) == 4


def test_slow_destination(driver: EngineDriver) -> None:
    """Three windows in a row that take more than twice the best time lower it by one."""
    _auto(driver)
    assert _windows(driver, 5)[-1] == 6
    assert _windows(driver, 5, cost_us=3 * QUICK_US) == [7, 7, 7, 6, 6]


def test_unavailable_destination(driver: EngineDriver) -> None:
    """Above the least limit the message only waits; at the least the topic backs off."""
    _auto(driver)
    _windows(driver, 2)
    leases = driver.lease()
    assert len(leases) == 4
    assert driver.settle(leases, "back_off") == ["released"] * 4
    assert len(driver.lease()) == 2
    stats = driver.engine.topic_stats("a", now_us=driver.now)
    assert (stats.delayed, stats.backs_off_until_us) == (4, None)


def test_least_limit_backs_off(driver: EngineDriver) -> None:
    """A destination that is unavailable at the least limit makes the topic back off."""
    _auto(driver, max_concurrency=1)
    leases = driver.lease()
    driver.settle(leases, "back_off")
    stats = driver.engine.topic_stats("a", now_us=driver.now)
    assert stats.backs_off_until_us == driver.now + SECOND


def test_retry_after_backs_off(driver: EngineDriver) -> None:
    """A destination that says for how long is obeyed at any limit, which shrinks too."""
    _auto(driver)
    _windows(driver, 8)
    driver.settle(driver.lease(), "back_off", delay_us=5 * SECOND)
    assert driver.lease() == []
    driver.settle(driver.lease(after=5), cost_us=QUICK_US)
    assert len(driver.lease()) == 7


def test_limit_outlives_a_pause(driver: EngineDriver) -> None:
    """A topic that is empty for a while keeps its limit, also for engines opened later."""
    driver.policy("a", concurrency="auto")
    for limit in range(2, 6):
        driver.put("a", *map(str, range(limit)))
        assert _windows(driver, 1) == [limit]
    driver.tick_after(300)
    driver.put("a", *map(str, range(20)))
    assert len(driver.lease()) == 6


def test_explain(driver: EngineDriver) -> None:
    """`explain` names the limit and why it is what it is."""
    _auto(driver)
    driver.put("a", "last", id="last")
    leases = driver.lease()
    assert driver.engine.topic_stats("a", now_us=driver.now).limit == 2
    driver.later(1)
    (reason, _) = driver.engine.explain("last", "a", now_us=driver.now).reasons
    assert "2 messages of its topic are leased, and its concurrency is 2 now (auto, 1 to" in reason
    driver.settle(leases, "retry", delay_us=0, overload="timeout")
    driver.lease(after=3)
    assert driver.engine.topic_list(limit=1, now_us=driver.now)[0].limit == 1
    (reason, _) = driver.engine.explain("last", "a", now_us=driver.now).reasons
    assert reason.endswith("is 1 now (auto, 1 to 64): lowered 3.0 s ago after a timeout")


def _auto_of_four(driver: EngineDriver, **fields: Any) -> None:
    driver.policy("a", concurrency="auto", partitions=4, retries=1000, **fields)
    for key in KEYS:
        driver.put("a", *(f"{key} {n}" for n in range(100)), key=key)


def test_partitions_share_one_limit(driver: EngineDriver) -> None:
    """It grows as that of one lane, whichever partitions the messages are in."""
    _auto_of_four(driver, max_concurrency=7)
    assert _windows(driver, 7) == [2, 3, 4, 5, 6, 7, 7]
    driver.policy("a", max_concurrency=3)
    assert _windows(driver, 1) == [3]
    assert driver.engine.topic_stats("a", now_us=driver.now).limit == 3


def test_partitions_shrink_one_limit(driver: EngineDriver) -> None:
    """An overload that one partition reports holds for all, once for all earlier leases."""
    _auto_of_four(driver)
    _windows(driver, 8)
    leases = driver.lease(100)
    assert len(leases) == 10
    driver.settle(leases[:5], "retry", delay_us=0, overload="timeout")
    driver.settle(leases[5:], "retry", delay_us=0, overload="answer")
    assert len(driver.lease(100)) == 7
    driver.put("b", "1")
    assert [lease.topic for lease in driver.lease(100)] == ["b"]


def test_partitions_with_fewer_calls_than_partitions(driver: EngineDriver) -> None:
    """All partitions have their turn, and the topic backs off at its least limit only."""
    _auto_of_four(driver, max_concurrency=2)
    assert _windows(driver, 2) == [2, 2]
    leases = driver.lease(100)
    assert driver.settle(leases, "back_off") == ["released"] * 2
    stats = driver.engine.topic_stats("a", now_us=driver.now)
    assert (stats.limit, stats.backs_off_until_us) == (1, None)
    keys: set[str | None] = set()
    for _ in range(200):
        leases = driver.lease(100)
        keys |= {lease.key for lease in leases}
        driver.later(QUICK_US / SECOND)
        driver.settle(leases, cost_us=QUICK_US)
    assert keys >= set(KEYS)


def test_limit_of_partitions_outlives_a_pause(driver: EngineDriver) -> None:
    """A topic that is empty for a while keeps it for ten minutes."""
    driver.policy("a", concurrency="auto", partitions=4)
    for limit in range(2, 6):
        driver.put("a", *map(str, range(limit)))
        assert _windows(driver, 1) == [limit]
    driver.tick_after(300)
    driver.put("a", *map(str, range(20)))
    leases = driver.lease(100)
    assert len(leases) == 6
    driver.engine.topic_purge("a", now_us=driver.now)
    driver.settle(leases, cost_us=QUICK_US)
    driver.tick_after(601)
    assert driver.engine.overview(now_us=driver.now).topics == 0
    driver.put("a", *map(str, range(20)))
    assert len(driver.lease(100)) == 2


def test_explain_partitions(driver: EngineDriver) -> None:
    """`explain` names the topic's limit and its reason, whatever the message's partition is."""
    _auto_of_four(driver)
    driver.settle(driver.lease(100), "retry", delay_us=0, overload="timeout")
    assert len(driver.lease(100, after=3)) == 1
    for key in KEYS:
        (reason, _) = driver.engine.explain(_last_of(driver, key), "a", now_us=driver.now).reasons
        assert reason == (
            "1 message of its topic is leased, and its concurrency is 1 now (auto, 1 to 64):"
            " lowered 3.0 s ago after a timeout"
        )


def _last_of(driver: EngineDriver, key: str) -> str:
    receipts = driver.put("a", "last", key=key)
    return receipts[0].id
