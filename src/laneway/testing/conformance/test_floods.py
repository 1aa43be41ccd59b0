"""Many messages that are due or expire at one time, or topics that wake then, delay no others."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.message import Draft
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND

MANY = 1500
"""More than one call handles."""


def put_each(driver: EngineDriver, topics: int, *bodies: str, **options: Any) -> None:
    """Publish these messages to each of so many topics, all in one call."""
    driver.engine.put(
        [Draft(f"many.{n}", body.encode(), **options) for n in range(topics) for body in bodies],
        now_us=driver.now,
    )


def test_many_messages_of_a_topic(driver: EngineDriver) -> None:
    """Lanes with due messages share what a call handles."""
    driver.put("many", *map(str, range(MANY)), delay_us=SECOND)
    driver.put("other", "x", delay_us=SECOND)
    assert driver.bodies(1, after=1, topics=["other"]) == ["x"]


def test_many_topics(driver: EngineDriver) -> None:
    """A message that is due later does not wait until all earlier ones have arrived."""
    put_each(driver, MANY, "m", delay_us=SECOND)
    driver.put("other", "1", "2", "3", delay_us=SECOND + 1)
    assert driver.bodies(after=1.001, topics=["other"]) == ["1", "2", "3"]
    delivered = 0
    while bodies := driver.run():
        delivered += len(bodies)
    assert delivered == MANY


def test_many_topics_with_several_messages(driver: EngineDriver) -> None:
    put_each(driver, MANY // 2, "1", "2", "3", delay_us=SECOND)
    driver.put("other", "1", "2", "3", delay_us=SECOND + 1)
    assert driver.bodies(after=1.001, topics=["other"]) == ["1", "2", "3"]
    delivered = 0
    while bodies := driver.run():
        delivered += len(bodies)
    assert delivered == 3 * (MANY // 2)


def test_many_topics_take_turns(driver: EngineDriver) -> None:
    """A topic between others with many messages, all due at one time, does not wait for these."""
    bodies = list(map(str, range(8)))
    put_each(driver, 150, *bodies, delay_us=SECOND)
    driver.put("other", "x", delay_us=SECOND)
    put_each(driver, 300, *bodies, delay_us=SECOND)
    assert driver.bodies(after=1.001, topics=["other"]) == ["x"]


def test_many_messages_expire(driver: EngineDriver) -> None:
    """What is leased until then is delivered again."""
    driver.put("other", "x")
    (lease,) = driver.lease()
    driver.put("many", *map(str, range(MANY)), ttl_us=lease.deadline_us - driver.now - 1)
    driver.now = lease.deadline_us
    assert driver.bodies(topics=["other"]) == ["x"]


@pytest.mark.parametrize("are_one", [True, False])
def test_many_expired_messages_before_one(driver: EngineDriver, *, are_one: bool) -> None:
    """A lease of one message passes over expired ones of any topic."""
    expired = MANY // 2
    if are_one:
        driver.put("many", *map(str, range(expired)), ttl_us=SECOND)
    else:
        put_each(driver, expired, "m", ttl_us=SECOND)
    driver.put("many" if are_one else "other", "x")
    assert driver.bodies(1, after=1) == ["x"]


def test_many_topics_wake(driver: EngineDriver) -> None:
    """The same for topics that a rate has held back."""
    driver.policy("*", rate=1, burst=1)
    put_each(driver, MANY, "1", "2")
    assert len(driver.run(MANY)) == MANY
    driver.later(0.001)
    driver.put("other", "1", "2")
    assert driver.run(topics=["other"]) == ["1"]
    assert driver.bodies(after=1, topics=["other"]) == ["2"]


def test_many_topics_after_a_policy_change(driver: EngineDriver) -> None:
    """Leases of few messages place as many lanes as others, so shares are right soon."""
    driver.policy("*", paused=True)
    put_each(driver, 2 * MANY, "1")
    driver.put("other", "x")
    driver.policy("*", paused=False)
    for _ in range(3):
        driver.lease(1)
    assert driver.bodies(1, topics=["other"]) == ["x"]
