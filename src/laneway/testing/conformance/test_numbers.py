"""Numbers of messages and leases are used once, whatever becomes of the store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from laneway.message import Draft, Settlement

if TYPE_CHECKING:
    from laneway.testing.engine_driver import EngineDriver


def test_a_store_that_is_made_again_repeats_no_number(driver: EngineDriver) -> None:
    """
    By the engine's own clock: what was delivered by an earlier store is lost, and touches nothing
    of the new one.
    """
    drafts = [Draft("a", b"%d" % n) for n in range(20)]
    driver.engine.put(drafts)
    before = driver.engine.lease(20).leases
    driver.open()
    ids = {receipt.id for receipt in driver.engine.put(drafts)}
    after = driver.engine.lease(20).leases
    assert not ids & {lease.id for lease in before}
    assert not {lease.handle for lease in before} & {lease.handle for lease in after}
    assert min(lease.fence for lease in after) > max(lease.fence for lease in before)
    assert (
        driver.engine.extend([(lease.handle, lease.fence) for lease in before], 60_000_000)
        == [False] * 20
    )
    assert (
        driver.engine.settle([Settlement(lease.handle, lease.fence, "dead") for lease in before])
        == ["lost"] * 20
    )
    assert (
        driver.engine.settle([Settlement(lease.handle, lease.fence) for lease in after])
        == ["acked"] * 20
    )
    assert all(lease.handle < 1 << 53 and lease.fence < 1 << 53 for lease in after), (
        "numbers that JSON and Lua hold exactly"
    )


def test_the_stores_time_never_goes_back(driver: EngineDriver) -> None:
    assert driver.engine.time_us(now_us=driver.now) == driver.now
    driver.put("a", "x")
    driver.later(-3600)
    assert driver.engine.time_us("a", now_us=driver.now) == driver.now + 3_600_000_000
    (told,) = [driver.engine.explain(lease.id, now_us=driver.now) for lease in driver.lease(1)]
    assert any(
        "clock stands still until 2027-01-15 08:00:00 UTC, for 60.0 min more" in reason
        for reason in told.reasons
    ), told.reasons


def test_by_its_own_clock_the_time_is_about_this_machines(driver: EngineDriver) -> None:
    assert abs(driver.engine.time_us() - time.time_ns() // 1000) < 600_000_000


def test_what_only_waits_for_a_worker_is_told_so(driver: EngineDriver) -> None:
    """
    Also in a topic with a rate, behind others: its next permit is there, and no worker has asked.
    """
    driver.policy("a", rate=20)
    driver.put("a", "x", "y")
    last = driver.put("a", "z")[0].id
    reasons = driver.engine.explain(last, now_us=driver.now).reasons
    assert reasons[0] == 'its topic can deliver now: it waits for a free worker of pool "default"'
    assert reasons[1].startswith("2 messages of its topic are ahead of it")


def test_behind_a_clock_that_was_set_back_times_are_told_by_that_clock(
    driver: EngineDriver,
) -> None:
    driver.policy("a", rate=1, burst=1)
    first, second = driver.put("a", "x", "y")
    driver.lease(1)
    driver.later(-3600)
    told = driver.engine.explain(second.id, now_us=driver.now)
    assert "stands still until" in told.reasons[0]
    assert "may send again in 60.0 min" in told.reasons[1], "the hour, and a second"
    assert told.now_us == driver.now
    assert told.starts_us is not None
    assert 3_600_000_000 < told.starts_us - driver.now <= 3_602_000_000
    assert first.id != second.id
