"""`put`: ids, dedupe, limits of bodies and backlogs."""

from __future__ import annotations

import pytest

from laneway.errors import BadMessage
from laneway.message import Draft, Settlement
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND


def test_pending_id_is_a_duplicate(driver: EngineDriver) -> None:
    """
    An id is a duplicate while its message waits, is leased or dead. Ids belong to their topic.
    """
    assert [receipt.outcome for receipt in driver.put("a", "1", "2", id="x")] == [
        "accepted",
        "duplicate",
    ]
    assert driver.put("b", "1", id="x")[0].outcome == "accepted"
    (lease,) = driver.lease(topics=["a"])
    assert driver.put("a", "3", id="x")[0].outcome == "duplicate"
    driver.settle([lease], "dead")
    assert driver.put("a", "4", id="x")[0].outcome == "duplicate"
    driver.engine.dead_drop("a", now_us=driver.now)
    assert driver.put("a", "5", id="x")[0].outcome == "accepted"


def test_generated_id_is_a_duplicate(driver: EngineDriver) -> None:
    """
    A generated id is a duplicate too, so repeating a publish after an unclear failure is safe.
    """
    (receipt,) = driver.put("a", "1")
    assert driver.put("a", "1", id=receipt.id)[0].outcome == "duplicate"
    assert driver.engine.find(receipt.id) is not None


@pytest.mark.parametrize("window", [10, "forever"])
def test_dedupe_window(driver: EngineDriver, window: object) -> None:
    """With `dedupe` the id of a finished message stays a duplicate for the window, or forever."""
    driver.policy("a", dedupe=window)
    driver.put("a", "1", id="x")
    driver.run()
    assert driver.engine.lookup("a", ["x", "y"], now_us=driver.now) == {
        "x": "finished",
        "y": "unknown",
    }
    driver.later(9)
    assert driver.put("a", "2", id="x")[0].outcome == "duplicate"
    driver.later(2)
    assert driver.put("a", "3", id="x")[0].outcome == (
        "duplicate" if window == "forever" else "accepted"
    )


def test_backlog_limit_refuses(driver: EngineDriver) -> None:
    """A full backlog, by count or size, refuses single messages. Retries are never refused."""
    driver.policy("a", max_backlog=2, backoff=0)
    receipts = driver.engine.put(
        [Draft("a", b"1"), Draft("a", b"2"), Draft("a", b"3"), Draft("b", b"4")], now_us=driver.now
    )
    assert [receipt.outcome for receipt in receipts] == [
        "accepted",
        "accepted",
        "refused",
        "accepted",
    ]
    assert "max_backlog is 2" in (receipts[2].reason or "")
    (lease,) = driver.lease(1, topics=["a"])
    driver.put("a", "5")
    assert driver.settle([lease], "retry") == ["retried"]
    assert driver.waiting("a") == 3
    driver.policy("s", max_backlog="10B")
    assert [receipt.outcome for receipt in driver.put("s", "123456", "1234", "1")] == [
        "accepted",
        "accepted",
        "refused",
    ]


def test_namespace_backlog_limit(driver: EngineDriver) -> None:
    """The namespace's backlog limit counts the messages of all topics."""
    driver.open(max_backlog=2)
    assert [driver.put(topic, "x")[0].outcome for topic in "abc"] == [
        "accepted",
        "accepted",
        "refused",
    ]


def test_delay_longer_than_ttl_is_refused(driver: EngineDriver) -> None:
    """A delay longer than the ttl is an error, and nothing of the batch is accepted."""
    with pytest.raises(BadMessage, match="outlasts"):
        driver.engine.put(
            [Draft("a", b"1"), Draft("a", b"2", delay_us=9 * SECOND, ttl_us=5 * SECOND)],
            now_us=driver.now,
        )
    assert driver.waiting("a") == 0


def test_nul_is_refused(driver: EngineDriver) -> None:
    """A key or an id with NUL: not every database can keep it. Nothing is stored."""
    driver.put("a", "1")
    (lease,) = driver.lease()
    for draft in (Draft("a", b"x", key="k\0"), Draft("a", b"x", id="\0i")):
        with pytest.raises(BadMessage):
            driver.engine.put([draft], now_us=driver.now)
        with pytest.raises(BadMessage):
            driver.engine.put([Draft("b", b"y"), draft], now_us=driver.now)
        with pytest.raises(BadMessage):
            driver.engine.settle(
                [Settlement(lease.handle, lease.fence)], publish={0: [draft]}, now_us=driver.now
            )
    assert driver.settle([lease]) == ["acked"]
    assert driver.lease() == []


@pytest.mark.parametrize("buckets", [None, 1])
@pytest.mark.parametrize("serial", ["hold", "yield"])
def test_drop_oldest_keeps_the_message_that_holds_its_serial_key(
    driver: EngineDriver, serial: str, buckets: int | None
) -> None:
    """A message that was delivered and released holds it: what others of the key wait for stays."""
    driver.policy("a.*", serial=serial, buckets=buckets, max_backlog=2, on_full="drop_oldest")
    driver.put("a.1", "first", key="k")
    driver.settle(driver.lease(), "release")
    driver.put("a.1", "second", "third")
    assert sorted(driver.run()) == ["first", "third"]


@pytest.mark.parametrize("buckets", [None, 1])
def test_a_lowered_limit_drops_a_bounded_number_at_a_time(
    driver: EngineDriver, buckets: int | None
) -> None:
    """
    A call drops at most 250 messages besides one for each that it publishes, however far the topic
    is above its limit: nobody else waits for the rest.
    """
    driver.policy("a.*", buckets=buckets)
    driver.put("a.1", *map(str, range(500)))
    driver.policy("a.*", max_backlog=10, on_full="drop_oldest")
    assert [receipt.outcome for receipt in driver.put("a.1", "x", "y")] == ["accepted"] * 2
    assert driver.waiting("a.1") == 500 - 252 + 2
    driver.put("a.1", "z")
    assert driver.waiting("a.1") == 10
    assert driver.bodies(10)[-4:] == ["499", "x", "y", "z"]
    assert driver.engine.overview(now_us=driver.now).dead == 493


def test_too_large_message_drops_no_others(driver: EngineDriver) -> None:
    """A message over the whole backlog limit is refused and drops no others."""
    driver.policy("a", max_backlog="10B", on_full="drop_oldest")
    driver.put("a", "1234", "5678")
    assert driver.put("a", "x" * 11)[0].outcome == "refused"
    assert driver.waiting("a") == 2
    assert driver.put("a", "x" * 10)[0].outcome == "accepted"
    assert driver.waiting("a") == 1


def test_sticky_ids(driver: EngineDriver) -> None:
    """A sticky id, generated or merged too, stays known for a day after the finish."""
    (receipt,) = driver.put("a", "1", sticky=True)
    driver.run()
    driver.policy("b", merge="first")
    driver.put("b", "1", key="k")
    driver.put("b", "2", key="k", id="mine", sticky=True)
    driver.run()
    assert driver.put("a", "1", id=receipt.id)[0].outcome == "duplicate"
    assert driver.put("b", "2", id="mine")[0].outcome == "duplicate"
