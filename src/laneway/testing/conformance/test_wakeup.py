"""Who is told that something came."""

from __future__ import annotations

import threading

from laneway.testing.engine_driver import EngineDriver

SOON, NOT_YET = 10.0, 0.2


def test_who_is_busy_hears_of_what_comes_to_a_quiet_topic(driver: EngineDriver) -> None:
    """Not of more that comes to a lane which could deliver already: he has that in hand."""
    listener = driver.engine.arrival_listener()
    try:
        assert not listener.poll(NOT_YET), "nothing came yet"
        driver.put("busy", "1")
        assert listener.poll(SOON)
        driver.put("busy", "2", "3")
        assert not listener.poll(NOT_YET)
        for topic in ("quiet", "other"):
            driver.put(topic, "1")
            assert listener.poll(SOON), "each time anew"
    finally:
        listener.close()
    driver.put("later", "1")  # nobody listens any more


def test_another_pool_is_not_told_of(driver: EngineDriver) -> None:
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


def test_listening_is_ended_from_outside(driver: EngineDriver) -> None:
    listener = driver.engine.arrival_listener()
    told: list[bool] = []
    waiter = threading.Thread(target=lambda: told.append(listener.poll(SOON)))
    waiter.start()
    listener.wake()
    waiter.join(SOON / 2)
    assert told == [False]
    listener.close()
