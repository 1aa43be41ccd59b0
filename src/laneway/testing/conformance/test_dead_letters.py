"""Dead letters: redrive and drop."""

from __future__ import annotations

import pytest

from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND


def test_redriven_ttl_starts_when_due(driver: EngineDriver) -> None:
    """The ttl of a redriven message starts when it is due, so spacing cannot expire it."""
    driver.policy("a", ttl=60)
    driver.put("a", "1", "2")
    driver.settle(driver.lease(), "dead")
    assert driver.engine.dead_redrive("a", spacing_us=120 * SECOND, now_us=driver.now) == 2
    assert driver.run() == ["1"]
    assert driver.run(after=120) == ["2"]


def test_redrive_drop_and_dead_ttl(
    driver: EngineDriver,
) -> None:
    """
    A dead letter shows the attempt that was refused; it is redriven with its first attempt,
    dropped, or forgotten after `dead_ttl`.
    """
    driver.policy("a", dead_ttl=100)
    driver.put("a", "1", "2", "3")
    driver.settle(driver.lease(), "dead", reason="no")
    ids = [view.id for _, view in driver.engine.dead_list("a") if view.attempts == 1]
    assert driver.engine.dead_redrive("a", [ids[0]], now_us=driver.now) == 1
    (again,) = driver.lease()
    assert (again.id, again.attempt) == (ids[0], 1)
    assert driver.engine.dead_drop("a", [ids[1]], now_us=driver.now) == 1
    driver.tick_after(100)
    assert driver.engine.dead_list() == []


def test_dead_letters_that_are_kept_for_ever(driver: EngineDriver) -> None:
    driver.policy("a", dead_ttl="forever")
    driver.put("a", "1")
    driver.settle(driver.lease(), "dead")
    driver.tick_after(50 * 365 * 86400)
    assert len(driver.engine.dead_list("a")) == 1


def test_redrive_spacing_over_pages(driver: EngineDriver) -> None:
    """`first_us` continues the spacing of an earlier call, so pages keep one rate."""
    driver.put("a", "1", "2", "3", "4")
    driver.settle(driver.lease(4), "dead")
    assert [
        driver.engine.dead_redrive(
            limit=2, first_us=first * SECOND, spacing_us=SECOND, now_us=driver.now
        )
        for first in (0, 2)
    ] == [2, 2]
    assert driver.run() == ["1"]
    assert driver.run(after=2) == ["2", "3"]
    assert driver.run(after=1) == ["4"]


def test_redrive_into_a_bucket(driver: EngineDriver) -> None:
    """A redrive uses the topic's present lane; an id that is named twice is redriven once."""
    (receipt,) = driver.put("b.1", "1")
    driver.settle(driver.lease(), "dead")
    driver.later(2)
    driver.policy("b.*", buckets=2)
    assert driver.engine.dead_redrive("b.1", [receipt.id, receipt.id], now_us=driver.now) == 1
    assert driver.waiting("b.1") == 1
    assert [(lease.topic, lease.body) for lease in driver.lease()] == [("b.1", b"1")]


def test_redrive_restarts_on_unhandled(driver: EngineDriver) -> None:
    """The `on_unhandled` time of a redriven message starts again."""
    driver.policy("a", on_unhandled="1h")
    driver.put("a", "1")
    driver.settle(driver.lease(), "unhandled")
    assert driver.settle(driver.lease(after=3_700), "unhandled") == ["died"]
    driver.engine.dead_redrive("a", now_us=driver.now)
    assert driver.settle(driver.lease(), "unhandled") == ["released"]


@pytest.mark.parametrize("is_settled", [True, False])
def test_redriven_and_delivered_at_most_once(driver: EngineDriver, *, is_settled: bool) -> None:
    """The history of a message whose death nobody leased does not outlive it."""
    driver.put("a", "1", id="x", headers={"h": "1"})
    assert driver.engine.message_move("x", "a", to="dead", now_us=driver.now) == "moved"
    assert driver.engine.dead_redrive("a", now_us=driver.now) == 1
    driver.policy("a", delivery="at_most_once")
    leases = driver.lease()
    if is_settled:
        assert driver.settle(leases, "retry") == ["released"]
    driver.put("a", "2")
    assert driver.run(after=100) == ["2"]


def test_history_of_a_redriven_message(driver: EngineDriver) -> None:
    """It begins with the death that an operator chose, although nobody had leased the message."""
    driver.put("a", "1", id="x")
    driver.engine.message_move("x", "a", to="dead", now_us=driver.now)
    driver.engine.dead_redrive("a", now_us=driver.now)
    driver.settle(driver.lease(), "dead", reason="no")
    ((_, letter),) = driver.engine.dead_list("a")
    assert [entry["what"] for entry in letter.history] == ["an operator ended it", "no"]
