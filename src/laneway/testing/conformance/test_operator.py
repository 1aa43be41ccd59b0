"""What an operator does to messages that wait: ready now, dead, and a topic that backs off."""

from __future__ import annotations

import pytest

from laneway.engines.base import BY_OPERATOR, SIGNALS_HEADER, MoveAnswer, MoveTarget
from laneway.message import Settlement
from laneway.testing import EngineDriver
from laneway.units import SECOND

HOUR = 3600 * SECOND


def move(driver: EngineDriver, name: str, to: MoveTarget) -> MoveAnswer:
    return driver.engine.message_move(name, "a", to=to, now_us=driver.now)


def sound(driver: EngineDriver) -> bool:
    return all(check.ok for check in driver.engine.doctor())


def test_ready_now(driver: EngineDriver) -> None:
    """A delayed message, or one that waits for a retry, is ready now, behind those that are."""
    driver.policy("a", backoff=[3600.0])
    driver.put("a", "delayed", id="delayed", delay_us=HOUR, ttl_us=2 * HOUR)
    driver.put("a", "retried", id="retried")
    driver.settle(driver.lease(), "retry")
    driver.later(1)
    driver.put("a", "first", id="first")
    assert driver.batch(after=1).leases[0].id == "first"
    assert move(driver, "delayed", "ready") == "moved"
    driver.later(1)
    assert move(driver, "retried", "ready") == "moved"
    assert move(driver, "retried", "ready") == "waiting"
    assert sound(driver)
    assert driver.engine.topic_stats("a", now_us=driver.now).delayed == 0
    assert driver.bodies() == ["delayed", "retried"]
    assert move(driver, "retried", "ready") == "leased"
    assert move(driver, "none", "ready") == "unknown"


def test_ready_now_with_serial_keys(driver: EngineDriver) -> None:
    """The message that holds its key during a retry goes first; a parked one stays parked."""
    driver.policy("a", serial="hold", backoff=[3600.0])
    driver.put("a", "1", id="1", key="k")
    driver.put("a", "2", id="2", key="k")
    driver.settle(driver.lease(), "retry")
    assert driver.bodies() == []
    assert move(driver, "2", "ready") == "waiting"
    assert move(driver, "1", "ready") == "moved"
    assert driver.run() + driver.run() == ["1", "2"]
    assert sound(driver)


def test_ready_now_and_merging(driver: EngineDriver) -> None:
    """New messages go on joining a message that became ready early."""
    driver.policy("a", merge="last")
    driver.put("a", "1", id="1", key="k", delay_us=HOUR)
    assert move(driver, "1", "ready") == "moved"
    driver.put("a", "2", key="k")
    assert driver.run() == ["2"]
    assert sound(driver)


def test_ready_now_without_signals(driver: EngineDriver) -> None:
    """A message that waits for signals goes on waiting."""
    driver.put("a", "1", id="1", headers={SIGNALS_HEADER: "2"})
    assert move(driver, "1", "ready") == "waiting"
    assert driver.bodies() == []


def test_dead_by_hand(driver: EngineDriver) -> None:
    """A ready, delayed or parked message becomes a dead letter; a leased one does not."""
    driver.policy("a", serial="hold")
    for name, options in (
        ("ready", {"key": "k"}),
        ("parked", {"key": "k"}),
        ("last", {"key": "k"}),
        ("delayed", {"delay_us": HOUR}),
        ("plain", {}),
    ):
        driver.put("a", name, id=name, **options)
    for name in ("parked", "delayed", "ready", "plain"):
        assert move(driver, name, "dead") == "moved"
        assert move(driver, name, "dead") == "dead"
        assert move(driver, name, "ready") == "dead"
        assert sound(driver)
    stats = driver.engine.topic_stats("a", now_us=driver.now)
    assert (stats.waiting, stats.dead, stats.died) == (1, 4, 4)
    number, view = driver.engine.dead_list("a")[0]
    assert (view.id, view.reason) == ("parked", BY_OPERATOR)
    assert view.history[-1]["what"] == BY_OPERATOR
    (lease,) = driver.lease()
    assert move(driver, "last", "dead") == "leased"
    driver.settle([lease])
    assert driver.engine.dead_redrive("a", now_us=driver.now) == 4
    assert sorted(driver.run() + driver.run()) == ["delayed", "parked", "plain", "ready"]
    assert number > 0


def test_move_of_generated_ids(driver: EngineDriver) -> None:
    """A generated id needs no topic, and the reason may be another one."""
    (receipt,) = driver.put("a", "1")
    answer = driver.engine.message_move(receipt.id, to="dead", reason="mine", now_us=driver.now)
    assert answer == "moved"
    assert driver.engine.dead_list()[0][1].reason == "mine"


def test_end_of_a_lease_from_outside(driver: EngineDriver) -> None:
    """What `find` says of a lease ends it: its holder is late, and the message is delivered."""
    driver.put("a", "1", id="held")
    began = driver.now
    (lease,) = driver.lease()
    driver.later(1)
    view = driver.engine.find("held", "a")
    assert view is not None
    assert (view.handle, view.fence) == (lease.handle, lease.fence)
    assert (view.leased_us, view.deadline_us) == (began, lease.deadline_us)
    assert view.handle is not None
    assert view.fence is not None
    released = Settlement(view.handle, view.fence, "release")
    assert driver.engine.settle([released], now_us=driver.now) == ["released"]
    assert driver.settle([lease]) == ["lost"]
    (again,) = driver.lease()
    assert driver.settle([again]) == ["acked"]
    view = driver.engine.find("held", "a")
    assert view is None or view.handle is None


@pytest.mark.parametrize("options", [{}, {"key": "k", "id": "own"}])
def test_holder_of_a_lease(driver: EngineDriver, options: dict[str, str]) -> None:
    """A lease keeps its holder's name when it is extended, and loses it when it ends."""

    def holder() -> str | None:
        view = driver.engine.find(receipt.id, "a")
        assert view is not None
        return view.holder

    (receipt,) = driver.put("a", "1", **options)
    (lease,) = driver.lease(holder="program é:1")
    assert holder() == "program é:1"
    (view,) = driver.engine.topic_peek("a", state="leased", now_us=driver.now)
    assert view.holder == "program é:1"
    assert driver.engine.extend([(lease.handle, lease.fence)], SECOND, now_us=driver.now) == [True]
    assert holder() == "program é:1"
    driver.settle([lease], "release")
    assert holder() is None
    driver.lease(holder="another")
    assert holder() == "another"
    assert len(driver.lease(after=3600)) == 1
    assert holder() is None


def test_back_off_of_a_topic(driver: EngineDriver) -> None:
    """Nothing is delivered until the time is over; then one message until one is acked."""
    assert driver.engine.topic_back_off("a", 5 * SECOND, now_us=driver.now) == 0
    driver.policy("b", partitions=3)
    for n in range(6):
        driver.put("a", str(n))
        driver.put("b", "b", key=str(n))
    held = driver.engine.topic_back_off("a", 5 * SECOND, now_us=driver.now)
    assert held == 1
    assert driver.engine.topic_back_off("b", 5 * SECOND, now_us=driver.now) >= 1
    stats = driver.engine.topic_stats("a", now_us=driver.now)
    assert stats.backs_off_until_us == driver.now + 5 * SECOND
    assert driver.bodies() == []
    assert driver.engine.topic_back_off("b", 0, now_us=driver.now) >= 1
    assert driver.bodies() == ["b"] * 6
    (probe,) = driver.lease(after=5)
    assert driver.bodies() == []
    driver.settle([probe])
    assert len(driver.bodies()) == 5
    assert sound(driver)


def test_store_parts(driver: EngineDriver) -> None:
    """The files or servers have all shards together; a file or server uses some bytes."""
    driver.put("parts.a", "1")
    parts = driver.engine.store_parts()
    assert sum(part.shards for part in parts) == driver.engine.capabilities.shards
    assert len({part.name for part in parts}) == len(parts)
    for part in parts:
        assert part.what
        if driver.engine.capabilities.persistent:
            assert part.used > 0
        assert part.free is None or part.free >= 0
        assert part.log is None or part.log >= 0


def test_a_check_in_steps(driver: EngineDriver) -> None:
    """It finds what the doctor finds, pauses between its steps, and ends when it is told."""
    for n in range(120):
        driver.put(f"steps.{n}", "1")
    driver.lease(5)
    pauses: list[float] = []
    *steps, last = driver.engine.doctor_steps(pauses.append)
    own = {"cache"}  # of this process
    assert {check.name for check in last.checks} | own == {
        check.name for check in driver.engine.doctor()
    } | own
    assert all(check.ok for check in last.checks)
    assert last.done == last.total
    assert not any(step.checks for step in steps)
    assert all(0 <= step.done <= step.total for step in steps)
    if pauses:
        ended = list(driver.engine.doctor_steps(lambda _: True))
        assert not ended or len(ended) <= len(steps) + 1
