"""Wakeup: which listeners are notified of new messages."""

from __future__ import annotations

import threading

from laneway.testing.engine_driver import EngineDriver

SOON, NOT_YET = 60.0, 0.2


def test_arrival_listener(driver: EngineDriver) -> None:
    """A listener is notified of messages in idle topics, not of more for a runnable lane."""
    listener = driver.engine.arrival_listener()
    try:
        assert not listener.poll(NOT_YET), "nothing has arrived"
        driver.put("busy", "1")
        assert listener.poll(SOON)
        driver.put("busy", "2", "3")
        assert not listener.poll(NOT_YET)
        for topic in ("quiet", "other"):
            driver.put(topic, "1")
            assert listener.poll(SOON), "each time again"
    finally:
        listener.close()
    driver.put("later", "1")  # the listener is closed


def test_arrivals_of_another_pool(driver: EngineDriver) -> None:
    """A listener is notified of arrivals in its own pool only."""
    driver.policy("gpu.*", pool="gpu")
    listener = driver.engine.arrival_listener("gpu")
    try:
        assert not listener.poll(NOT_YET)
        driver.put("a", "1")
        assert not listener.poll(NOT_YET)
        driver.put("gpu.a", "1")
        assert listener.poll(SOON)
    finally:
        listener.close()


def test_wake(driver: EngineDriver) -> None:
    """`wake` ends a `poll` in another thread."""
    listener = driver.engine.arrival_listener()
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(listener.poll(SOON)))
    waiter.start()
    listener.wake()
    waiter.join(SOON / 2)
    assert answers == [False]
    listener.close()


def test_work_listener(driver: EngineDriver) -> None:
    """A listener is notified of what can be leased, and looks for it after a pause."""
    listener = driver.engine.work_listener()
    try:
        assert listener.poll(NOT_YET) is False, "nothing is there"
        driver.put("a", "1")
        assert listener.poll(SOON) is True
        assert driver.lease(10)
        assert listener.pause() is False
        driver.put("a", "2")
        assert listener.poll(SOON) is True, "it was there before"
    finally:
        listener.close()


def test_work_listener_without_topics(driver: EngineDriver) -> None:
    """It is notified of each lane that becomes runnable, although other messages wait."""
    driver.put("a", "1")
    listener = driver.engine.work_listener(topics=[])
    try:
        assert listener.poll(SOON) is True, "its caller looks once"
        for topic in ("b.x", "c", "b.y"):
            driver.put(topic, "1")
            assert listener.poll(SOON) is True
        listener.pause()
        assert listener.poll(SOON) is True, "something may have arrived during the pause"
    finally:
        listener.pause()
        listener.close()


def test_wake_of_a_work_listener(driver: EngineDriver) -> None:
    """`wake` ends a `poll` in another thread, and the next one waits again."""
    listener = driver.engine.work_listener()
    answers: list[object] = []
    waiter = threading.Thread(target=lambda: answers.append(listener.poll(SOON)))
    waiter.start()
    listener.wake()
    waiter.join(SOON / 2)
    assert answers == [False]
    listener.poll(0.0)
    driver.put("a", "1")
    assert listener.poll(SOON) is True
    listener.pause()
    listener.close()
