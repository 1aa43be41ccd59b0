"""Limits: rates, concurrency, gates, pause and back-off."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from laneway.errors import BadPolicy
from laneway.policy import Gate
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND

_KEYS_OF_FOUR = ["k5", "k1", "k4", "k0"]
"""One for each of four partitions."""


def test_gate_freed_by_an_expired_lease(driver: EngineDriver) -> None:
    """A gate freed by an expired lease is used in the same call, by lanes of any tier."""
    driver.engine.gate_set("g", Gate(concurrency=1), now_us=driver.now)
    driver.policy("*", gate="g", lease=1)
    driver.policy("b", tier="high")
    driver.put("a", "1")
    driver.lease()
    driver.put("b", "2")
    assert driver.lease() == []
    driver.policy("a", paused=True)
    assert driver.bodies(after=1) == ["2"]


def test_rate(driver: EngineDriver) -> None:
    """A rate admits its burst at once, then one message per interval, and reports the next time."""
    driver.policy("a", rate=10, burst=2)
    driver.put("a", *map(str, range(20)))
    batch = driver.batch()
    assert len(batch.leases) == 2
    assert batch.next_wake_us == driver.now + 100_000
    assert len(driver.lease(after=0.1)) == 1
    assert len(driver.lease(after=10)) == 2


def test_concurrency(driver: EngineDriver) -> None:
    """Concurrency limits leases; a settle or an expired lease frees a slot."""
    driver.policy("a", concurrency=2)
    driver.put("a", *map(str, range(5)))
    leases = driver.lease()
    assert len(leases) == 2
    assert driver.lease() == []
    driver.settle(leases[:1])
    assert len(driver.lease()) == 1
    assert len(driver.lease(after=60)) == 2


def test_gate_concurrency(driver: EngineDriver) -> None:
    """Topics share a gate's concurrency fairly, and never exceed it."""
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


def test_pause(driver: EngineDriver) -> None:
    """A paused topic accepts messages and delivers none until it is resumed, by pattern too."""
    driver.put("p.a", "1")
    driver.policy("p.*", layer="operator", paused=True)
    driver.put("p.a", "2")
    assert driver.run() == []
    driver.policy("p.*", layer="operator", paused=None)
    assert driver.run() == ["1", "2"]


def test_changed_limits_apply_to_waiting_messages(driver: EngineDriver) -> None:
    """Changed rates, pools and tiers apply to waiting messages at once."""
    driver.policy("a", rate=0.001)
    driver.put("a", "1", "2", "3")
    assert driver.run() == ["1"]
    driver.policy("a", rate=10)
    assert driver.run(after=0.1) == ["2"]
    driver.policy("a", rate=None, pool="gpu", tier="low")
    assert driver.run() == []
    assert driver.run(pool="gpu") == ["3"]


def test_backs_off_until(driver: EngineDriver) -> None:
    """Stats and lists show until when a topic backs off, and no longer."""
    driver.put("a", "1", "2")
    driver.put("b", "1")
    driver.settle(driver.lease(topics=["a"])[:1], "back_off", delay_us=30 * SECOND)
    until = driver.now + 30 * SECOND
    assert driver.engine.topic_stats("a", now_us=driver.now).backs_off_until_us == until
    listed = {
        stats.topic: stats.backs_off_until_us
        for stats in driver.engine.topic_list(order="backlog", now_us=driver.now)
    }
    assert listed == {"a": until, "b": None}
    driver.later(31)
    assert driver.engine.topic_stats("a", now_us=driver.now).backs_off_until_us is None


def test_back_off(driver: EngineDriver) -> None:
    """A back-off counts no attempt and doubles with each failed probe; a success ends it."""
    driver.put("a", *map(str, range(5)))
    leases = driver.lease(3)
    assert driver.settle(leases, "back_off") == ["released"] * 3
    assert driver.batch().next_wake_us == driver.now + SECOND
    (probe,) = driver.lease(after=1)
    assert probe.attempt == 1
    driver.settle([probe], "back_off")
    assert driver.lease(after=1) == []
    (probe,) = driver.lease(after=1)
    driver.settle([probe])
    assert len(driver.lease()) == 4


@pytest.mark.parametrize(
    ("per_second", "burst", "step_us"),
    [(3, 1, 50_000), (100, 5, 1_700), (1_000, 50, 900), (10_000, 1, 100), (10_000, 500, 3_000)],
)
def test_rate_in_every_window(
    driver: EngineDriver, per_second: int, burst: int, step_us: int
) -> None:
    """Any window T has at most rate · T + burst deliveries, and with work 0.99 · rate · T - 1."""
    seconds = {3: 2.0, 100: 1.0, 1_000: 0.3, 10_000: 0.1}[per_second]
    driver.policy("a", rate=per_second, burst=burst)
    driver.put("a", *["x"] * int(per_second * seconds + burst + 10))
    began, moments = driver.now, []
    while driver.now <= began + seconds * SECOND:
        leases = driver.lease(1_000)
        driver.settle(leases)
        moments += [(driver.now - began) / SECOND] * len(leases)
        driver.later(step_us / SECOND)
    _check_rate(moments, per_second, burst, seconds)


@pytest.mark.parametrize("per_second", [0.1, 1, 5, 10, 25, 39, 40, 400, 10_000])
@pytest.mark.parametrize("limit", ["topic", "gate"])
def test_late_visit_loses_no_permit(driver: EngineDriver, per_second: float, limit: str) -> None:
    """With the default burst, 1 + rate / 20, a visit up to 50 ms late loses no permit."""
    _visit_late(driver, per_second, limit)


@pytest.mark.parametrize("per_second", [1, 25, 400])
def test_late_visit_of_partitions_loses_no_permit(driver: EngineDriver, per_second: float) -> None:
    """Nor of the rate that they share."""
    _visit_late(driver, per_second, "partitions")


def _visit_late(driver: EngineDriver, per_second: float, limit: str) -> None:
    draw = random.Random(f"{per_second} {limit}")
    seconds = 0.2 if per_second == 10_000 else max(4.0 if per_second < 400 else 1.0, 5 / per_second)
    parts = 4 if limit == "partitions" else 1
    if limit == "gate":
        driver.engine.gate_set("g", Gate(rate=per_second), now_us=driver.now)
        driver.policy("a", gate="g")
    else:
        driver.policy("a", rate=per_second, partitions=parts)
    count = int(1.1 * per_second * seconds + 5)
    for lane in range(parts):
        driver.put("a", *["x"] * count, key=_KEYS_OF_FOUR[lane])
    began, moments = driver.now, list[float]()
    while driver.now <= began + seconds * SECOND:
        batch = driver.batch(1_000)
        driver.settle(batch.leases)
        moments += [(driver.now - began) / SECOND] * len(batch.leases)
        if not batch.leases:
            assert batch.next_wake_us is not None
            driver.now = batch.next_wake_us + draw.choice([0, 49_999, draw.randint(0, 49_999)])
    _check_rate(moments, per_second, 1 + per_second / 20, seconds)


def _check_rate(moments: list[float], per_second: float, burst: float, seconds: float) -> None:
    """Never more than rate · T + burst in any time T, and at least 0.99 · rate · T - 1 in all."""
    earliest = float("-inf")
    for number, moment in enumerate(moments):
        # From the message i to this one the window holds number - i + 1.
        earliest = max(earliest, per_second * moment - number)
        assert number + 1 - per_second * moment + earliest <= burst + 1e-6
    assert len(moments) >= 0.99 * per_second * seconds - 1


def _skewed(driver: EngineDriver, count: int) -> None:
    """All messages are in one partition of four."""
    driver.put("a", *["x"] * count, key=_KEYS_OF_FOUR[0])


def test_one_partition_reaches_the_concurrency_of_all(driver: EngineDriver) -> None:
    """Partitions share it: one alone gets all of it, and all together never more."""
    driver.policy("a", partitions=4, concurrency=8)
    _skewed(driver, 30)
    held = driver.lease(100)
    assert len(held) == 8
    for key in _KEYS_OF_FOUR[1:]:
        driver.put("a", *["x"] * 10, key=key)
    assert driver.lease(100) == []
    driver.settle(held[:3])
    assert len(driver.lease(100)) == 3
    driver.policy("a", partitions=4, concurrency=10)
    assert len(driver.lease(100)) == 2
    driver.policy("a", partitions=4, concurrency=4)
    assert driver.lease(100) == []


def test_one_partition_reaches_the_rate_of_all(driver: EngineDriver) -> None:
    """Partitions share it, whichever of them have messages; the burst is the topic's, too."""
    driver.policy("a", partitions=4, rate=10.0, burst=5)
    _skewed(driver, 60)
    assert len(driver.lease(100)) == 5
    assert len(driver.lease(100, after=2)) == 5
    for key in _KEYS_OF_FOUR[1:]:
        driver.put("a", *["x"] * 60, key=key)
    moments = []
    for _ in range(40):
        moments += [driver.now / SECOND] * len(driver.lease(100))
        driver.later(0.1)
    assert abs(len(moments) - 40) <= 1
    (stats,) = driver.engine.topic_list(limit=1, now_us=driver.now)
    assert stats.throttled_us > 3 * SECOND


def test_partitions_behind_a_gate_share_their_limits_too(driver: EngineDriver) -> None:
    """A delivery goes through the gate and what the partitions share, or is not made."""
    driver.engine.gate_set("g", Gate(concurrency=6), now_us=driver.now)
    driver.policy("a", partitions=4, concurrency=4, gate="g")
    driver.policy("b", gate="g")
    driver.put("a", *["x"] * 20)
    held = driver.lease(100)
    assert len(held) == 4
    driver.put("b", *["x"] * 20)
    assert len(driver.lease(100)) == 2
    assert [gate["name"] for gate in driver.engine.gate_list()] == ["g"]
    driver.settle(held)
    assert len(driver.lease(100)) == 4


def test_explain_names_what_partitions_share(driver: EngineDriver) -> None:
    """As the topic's own rate and concurrency."""
    driver.policy("a", partitions=4, concurrency=4)
    driver.policy("b", partitions=4, rate=0.5, burst=1)
    for topic in "ab":
        driver.put(topic, *["x"] * 9, key="k0")
    assert len(driver.lease(100)) == 5
    reasons = {}
    for topic in "ab":
        (message,) = driver.engine.topic_peek(topic, limit=1, now_us=driver.now)
        explanation = driver.engine.explain(message.id, topic, now_us=driver.now)
        reasons[topic] = " ".join(explanation.reasons)
        assert len(explanation.causes) == len(explanation.reasons)
    assert "4 messages of its topic are leased, and its concurrency is 4" in reasons["a"]
    assert "the topic's rate (30/min) admits the next delivery in 2.0 s" in reasons["b"]


def test_partitions_leave_nothing_behind(driver: EngineDriver) -> None:
    """A topic that is idle and recovered is forgotten with what its partitions share."""
    driver.policy("a", partitions=4, rate=1.0, burst=4, concurrency=4)
    driver.put("a", *["x"] * 4)
    driver.settle(driver.lease(100))
    driver.tick_after(2)
    assert driver.engine.overview(now_us=driver.now).topics > 0
    driver.put("a", *["x"] * 9)
    assert len(driver.lease(100)) == 2
    driver.engine.topic_delete("a", now_us=driver.now)
    driver.tick_after(10)
    assert driver.engine.overview(now_us=driver.now).topics == 0
    driver.put("a", *["x"] * 9)
    assert len(driver.lease(100)) == 4
