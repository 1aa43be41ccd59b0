"""Merging: a new message joins a waiting one."""

from __future__ import annotations

import pytest

from laneway.engines.base import FLOW_HEADER
from laneway.message import Draft
from laneway.policy import Tier
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND


def test_merge_first(driver: EngineDriver) -> None:
    """`first` keeps the waiting message. The receipt names it. A leased message is not joined."""
    driver.policy("a", merge="first")
    (first,) = driver.put("a", "1", key="k")
    (second,) = driver.put("a", "2", key="k", id="mine")
    assert (second.outcome, second.joined) == ("merged", first.id)
    assert driver.engine.lookup("a", ["mine"], now_us=driver.now) == {"mine": "waiting"}
    assert driver.bodies() == ["1"]
    assert driver.put("a", "3", key="k")[0].outcome == "accepted"


def test_merge_last(driver: EngineDriver) -> None:
    """`last` takes body, priority and due time of the newest message."""
    driver.policy("a", merge="last")
    driver.put("a", "old", key="k")
    driver.put("a", "other", key="o")
    driver.put("a", "new", key="k", priority=5)
    assert driver.bodies() == ["new", "other"]
    driver.put("a", "now", key="q")
    driver.put("a", "later", key="q", delay_us=5 * SECOND)
    assert driver.bodies() == []
    assert driver.bodies(after=5) == ["later"]


def test_merge_all(driver: EngineDriver) -> None:
    """`all` collects the bodies in order, up to the limit; then another message begins."""
    driver.policy("a", merge="all", merge_limit=3)
    outcomes = [driver.put("a", str(n), key="k")[0].outcome for n in range(5)]
    assert outcomes == ["accepted", "merged", "merged", "accepted", "merged"]
    assert [lease.bodies for lease in driver.lease()] == [[b"0", b"1", b"2"], [b"3", b"4"]]


def test_merge_by_body(driver: EngineDriver) -> None:
    """Messages without a key merge if their bodies are equal."""
    driver.policy("a", merge="first")
    assert [receipt.outcome for receipt in driver.put("a", "same", "same", "other")] == [
        "accepted",
        "merged",
        "accepted",
    ]


def test_window_and_debounce(driver: EngineDriver) -> None:
    """A window begins with the first message, a debounce with the last; at most `max_wait`."""
    driver.policy("w", merge="last", window=5)
    driver.policy("d", merge="last", window=5, debounce=True, max_wait=8)
    for second in range(4):
        driver.put("w", f"w{second}", key="k")
        driver.put("d", f"d{second}", key="k")
        driver.later(1.25)
    assert driver.bodies() == ["w3"]
    assert driver.bodies(after=3) == ["d3"]


def test_leading_edge(driver: EngineDriver) -> None:
    """With `edge="leading"` the first message is due at once, then one per window."""
    driver.policy("a", merge="last", window=5, edge="leading")
    driver.put("a", "1", key="k")
    assert driver.run() == ["1"]
    driver.put("a", "2", key="k")
    driver.put("a", "3", key="k")
    assert driver.run() == []
    assert driver.run(after=5) == ["3"]


def test_returning_message_merges(driver: EngineDriver) -> None:
    """
    A message that returns merges with the waiting one as the earlier of both, with its
    attempts.
    """
    driver.policy("a", merge="first", backoff=0)
    driver.put("a", "1", key="k")
    leases = driver.lease()
    driver.put("a", "2", key="k")
    driver.settle(leases, "retry")
    (again,) = driver.lease()
    assert (again.body, again.attempt) == (b"1", 2)
    assert driver.waiting("a") == 0


def test_collected_bodies_survive_a_policy_change(
    driver: EngineDriver,
) -> None:
    """Collected bodies are delivered after the policy changes; `last` replaces them all."""
    driver.policy("*", merge="all")
    for topic in ("kept", "replaced"):
        driver.put(topic, "1", "2", key="k")
    driver.policy("*", merge="last")
    driver.put("replaced", "3", key="k")
    found = {lease.topic: lease.bodies for lease in driver.lease()}
    assert found == {"kept": [b"1", b"2"], "replaced": None}


def test_merged_id_stays_known(driver: EngineDriver) -> None:
    """The id of a merged message is known until the survivor is finished."""
    driver.policy("a", merge="first")
    (first,) = driver.put("a", "1", key="k")
    leases = driver.lease()
    (second,) = driver.put("a", "2", key="k")
    driver.settle(leases, "release")
    assert driver.engine.lookup("a", [first.id, second.id], now_us=driver.now) == {
        first.id: "waiting",
        second.id: "waiting",
    }
    driver.run()
    assert driver.engine.lookup("a", [second.id], now_us=driver.now) == {second.id: "unknown"}


def test_merge_that_delays_the_only_message(driver: EngineDriver) -> None:
    """A lane whose only message a merge delays becomes idle."""
    driver.open(tiers={"one": Tier(1), "mid": Tier(1)})
    driver.policy("a", merge="last", tier="one")
    driver.put("a", "1", key="k")
    driver.put("a", "2", key="k", delay_us=5 * SECOND)
    stats = driver.engine.topic_stats("a", now_us=driver.now)
    assert (stats.state, stats.delayed) == ("idle", 1)


def test_merge_into_a_message_of_the_same_call(driver: EngineDriver) -> None:
    """It waits once, in the place of the last one, even if the call parks another in between."""
    driver.policy("a", merge="last", serial="hold")
    driver.put("a", "1", key="busy")
    leases = driver.lease()
    drafts = [
        Draft("a", b"first", key="k", priority=1),
        Draft("a", b"2", key="busy"),
        Draft("a", b"last", key="k"),
    ]
    driver.engine.put(drafts, now_us=driver.now)
    assert [check for check in driver.engine.doctor() if not check.ok] == []
    assert driver.bodies() == ["last"]
    driver.settle(leases, "ack")
    assert driver.bodies() == ["2"]


def test_what_expires_together_keeps_its_order_if_a_lease_ends_before(driver: EngineDriver) -> None:
    """
    Late housekeeping ends a lease first; the message takes the time of the one that joins it, and
    comes before a later message of the same time.
    """
    driver.policy("a", merge="last", lease=1)
    (first,) = driver.put("a", "1", key="k")
    assert driver.bodies() == ["1"]
    driver.put("a", "2", key="k", ttl_us=5 * SECOND)
    (last,) = driver.put("a", "3", key="o", ttl_us=5 * SECOND)
    driver.later(10)
    driver.engine.tick(now_us=driver.now)
    assert [view.id for _, view in driver.engine.dead_list("a")] == [first.id, last.id]


@pytest.mark.parametrize("merge", ["first", "last", "all"])
def test_steps_of_flows_do_not_merge(driver: EngineDriver, merge: str) -> None:
    """The steps after them would never run."""
    driver.policy("a", merge=merge, window=1)
    for headers in ({}, {FLOW_HEADER: "1"}, {FLOW_HEADER: "1"}, {}):
        driver.put("a", "x", key="k", headers=headers)
    leases = [*driver.lease(), *driver.lease(after=1)]
    steps = [lease for lease in leases if FLOW_HEADER in (lease.headers or {})]
    assert (len(leases), len(steps)) == (3, 2)
    driver.settle(steps, "retry", delay_us=0)
    assert len(driver.lease()) == 2
