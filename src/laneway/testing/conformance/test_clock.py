"""The engine's clock, and times in explanations."""

from __future__ import annotations

import time

from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND


def test_clock_never_goes_back(driver: EngineDriver) -> None:
    """A clock set back is stopped until it is caught up; no lease ends early."""
    driver.put("a", "x")
    (lease,) = driver.lease()
    driver.engine.lease(1, now_us=driver.now - 3600 * SECOND)
    assert driver.lease(after=59) == []
    assert [again.id for again in driver.lease(after=1)] == [lease.id]


def test_time_never_goes_back(driver: EngineDriver) -> None:
    """`time_us` never goes back, and explain reports a clock that stands still."""
    assert driver.engine.time_us(now_us=driver.now) == driver.now
    driver.put("a", "x")
    driver.later(-3600)
    assert driver.engine.time_us("a", now_us=driver.now) == driver.now + 3_600_000_000
    (lease,) = driver.lease(1)
    explanation = driver.engine.explain(lease.id, now_us=driver.now)
    assert any(
        "clock is stopped until 2039-09-18 23:06:40 UTC, for 60.0 min more" in reason
        for reason in explanation.reasons
    ), explanation.reasons


def test_own_clock(driver: EngineDriver) -> None:
    """Without `now_us` the engine's time is about this machine's."""
    assert abs(driver.engine.time_us() - time.time_ns() // 1000) < 600_000_000


def test_explain_with_a_clock_set_back(
    driver: EngineDriver,
) -> None:
    """After a clock was set back, explained times are relative to that clock."""
    driver.policy("a", rate=1, burst=1)
    first, second = driver.put("a", "x", "y")
    driver.lease(1)
    driver.later(-3600)
    explanation = driver.engine.explain(second.id, now_us=driver.now)
    assert "is stopped until" in explanation.reasons[0]
    assert "admits the next delivery in 60.0 min" in explanation.reasons[1], (
        "the hour, and a second"
    )
    assert explanation.now_us == driver.now
    assert explanation.starts_us is not None
    assert 3_600_000_000 < explanation.starts_us - driver.now <= 3_602_000_000
    assert first.id != second.id
