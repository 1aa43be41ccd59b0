"""Ids, dedupe, merging, backlog limits, looking up."""

from __future__ import annotations

import pytest

from laneway.message import Draft
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND


def test_an_id_that_is_pending_is_a_duplicate(driver: EngineDriver) -> None:
    """While it waits, is leased or dead; afterwards it is free again. Ids belong to their topic."""
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


def test_an_id_that_laneway_made_is_known_too(driver: EngineDriver) -> None:
    """So a repeat after an unclear failure is safe."""
    (receipt,) = driver.put("a", "1")
    assert driver.put("a", "1", id=receipt.id)[0].outcome == "duplicate"
    assert driver.engine.find(receipt.id) is not None


@pytest.mark.parametrize("window", [10, "forever"])
def test_dedupe_refuses_ids_that_were_finished(driver: EngineDriver, window: object) -> None:
    """Within the window after the finish, or for ever."""
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


def test_merge_first_keeps_the_waiting_one(driver: EngineDriver) -> None:
    """The receipt names what it joined; a leased one is not joined."""
    driver.policy("a", merge="first")
    (first,) = driver.put("a", "1", key="k")
    (second,) = driver.put("a", "2", key="k", id="mine")
    assert (second.outcome, second.joined) == ("merged", first.id)
    assert driver.engine.lookup("a", ["mine"], now_us=driver.now) == {"mine": "waiting"}
    assert driver.bodies() == ["1"]
    assert driver.put("a", "3", key="k")[0].outcome == "accepted"


def test_merge_last_takes_body_priority_and_time(driver: EngineDriver) -> None:
    """The last word counts."""
    driver.policy("a", merge="last")
    driver.put("a", "old", key="k")
    driver.put("a", "other", key="o")
    driver.put("a", "new", key="k", priority=5)
    assert driver.bodies() == ["new", "other"]
    driver.put("a", "now", key="q")
    driver.put("a", "later", key="q", delay_us=5 * SECOND)
    assert driver.bodies() == []
    driver.later(5)
    assert driver.bodies() == ["later"]


def test_merge_all_collects_the_bodies_in_order(driver: EngineDriver) -> None:
    """Up to the limit, then a second message begins."""
    driver.policy("a", merge="all", merge_limit=3)
    outcomes = [driver.put("a", str(n), key="k")[0].outcome for n in range(5)]
    assert outcomes == ["accepted", "merged", "merged", "accepted", "merged"]
    assert [lease.bodies for lease in driver.lease()] == [[b"0", b"1", b"2"], [b"3", b"4"]]


def test_messages_without_a_key_merge_by_their_body(driver: EngineDriver) -> None:
    """The same work is done once."""
    driver.policy("a", merge="first")
    assert [receipt.outcome for receipt in driver.put("a", "same", "same", "other")] == [
        "accepted",
        "merged",
        "accepted",
    ]


def test_a_window_waits_from_the_first_a_debounce_from_the_last(driver: EngineDriver) -> None:
    """With debounce at most `max_wait` after the first."""
    driver.policy("w", merge="last", window=5)
    driver.policy("d", merge="last", window=5, debounce=True, max_wait=8)
    for second in range(4):
        driver.put("w", f"w{second}", key="k")
        driver.put("d", f"d{second}", key="k")
        driver.later(1.25)
    assert driver.bodies() == ["w3"]
    driver.later(3)
    assert driver.bodies() == ["d3"]


def test_the_leading_edge_goes_at_once_then_once_per_window(driver: EngineDriver) -> None:
    """Repeats are merged into the one at the window's end."""
    driver.policy("a", merge="last", window=5, edge="leading")
    driver.put("a", "1", key="k")
    assert driver.run() == ["1"]
    driver.put("a", "2", key="k")
    driver.put("a", "3", key="k")
    assert driver.run() == []
    driver.later(5)
    assert driver.run() == ["3"]


def test_a_leased_message_that_comes_back_joins_the_one_that_waits(driver: EngineDriver) -> None:
    """As if it had been published first, its attempts kept."""
    driver.policy("a", merge="first", backoff=0)
    driver.put("a", "1", key="k")
    leases = driver.lease()
    driver.put("a", "2", key="k")
    driver.settle(leases, "retry")
    (again,) = driver.lease()
    assert (again.body, again.attempt) == (b"1", 2)
    assert driver.waiting("a") == 0


def test_a_full_backlog_refuses_per_message(driver: EngineDriver) -> None:
    """By count and by size; retries are never refused."""
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


def test_a_full_backlog_can_drop_the_oldest(driver: EngineDriver) -> None:
    """The lowest priority's oldest, into the dead letters; never a leased one."""
    driver.policy("a", max_backlog=2, on_full="drop_oldest")
    driver.put("a", "high", priority=5)
    driver.put("a", "old")
    driver.put("a", "new")
    assert [view.body for _, view in driver.engine.dead_list()] == [b"old"]
    assert driver.bodies() == ["high", "new"]


def test_the_namespace_has_a_limit_of_its_own(driver: EngineDriver) -> None:
    """Over all topics."""
    driver.open(max_backlog=2)
    assert [driver.put(topic, "x")[0].outcome for topic in "abc"] == [
        "accepted",
        "accepted",
        "refused",
    ]


def test_purge_leaves_leases_whole_and_delete_does_not(driver: EngineDriver) -> None:
    """After a delete a settle answers gone."""
    driver.put("a", "1", "2", "3", id=None)
    (lease,) = driver.lease(1)
    assert driver.engine.topic_purge("a", now_us=driver.now) == 2
    assert driver.settle([lease], "retry") == ["retried"]
    driver.later(3600)
    (lease,) = driver.lease()
    driver.engine.topic_delete("a", now_us=driver.now)
    assert driver.settle([lease]) == ["gone"]
    assert driver.engine.topic_list(now_us=driver.now) == []


def test_lists_show_the_top_by_backlog_age_and_throttling(driver: EngineDriver) -> None:
    """Exactly, where there are few."""
    driver.put("old", "1")
    driver.later(10)
    driver.put("big", *map(str, range(9)))
    driver.policy("slow", rate=1, burst=1)
    driver.put("slow", *map(str, range(3)))
    driver.lease(1, topics=["slow"])
    listed = {
        order: [stats.topic for stats in driver.engine.topic_list(order=order, now_us=driver.now)]
        for order in ("name", "backlog", "age", "throttled")
    }
    assert listed["name"] == ["big", "old", "slow"]
    assert listed["backlog"] == ["big", "slow", "old"]
    assert listed["age"][0] == "old"
    assert listed["throttled"] == ["slow"]


def test_explain_names_what_binds(driver: EngineDriver) -> None:
    """Rate, pause, serial key, due time, rest, lease, dead, unknown."""
    driver.policy("r", rate=1, burst=1)
    first, second = driver.put("r", "1", "2")
    leases = driver.lease()

    def explain(message_id: str) -> str:
        return " ".join(driver.engine.explain(message_id, now_us=driver.now).reasons)

    assert "may send again in 1.0 s" in explain(second.id)
    assert "a worker holds it" in explain(first.id)
    driver.settle(leases, "dead", reason="no such order")
    assert "no such order" in explain(first.id)
    driver.policy("r", paused=True)
    assert "paused" in explain(second.id)
    driver.policy("s", serial=True)
    _, parked = driver.put("s", "1", "2", key="k")
    assert "one at a time" in explain(parked.id)
    (later,) = driver.put("s", "3", delay_us=SECOND)
    assert "due in 1.0 s" in explain(later.id)
    assert driver.engine.explain("nobody").state == "unknown"


def test_a_redriven_message_lives_from_when_it_is_due(driver: EngineDriver) -> None:
    """Spread out by a rate, the last ones would expire before their turn."""
    driver.policy("a", ttl=60)
    driver.put("a", "1", "2")
    driver.settle(driver.lease(), "dead")
    assert driver.engine.dead_redrive("a", spacing_us=120 * SECOND, now_us=driver.now) == 2
    assert driver.run() == ["1"]
    driver.later(120)
    assert driver.run() == ["2"]


def test_a_message_without_a_handler_waits_and_says_so(driver: EngineDriver) -> None:
    """
    It comes again after 5 s to 5 min, no attempt is counted, it never dies by itself; explain and
    the doctor tell.
    """
    (receipt,) = driver.put("a", "1")
    for delay in (5, 10, 20, 40, 80, 160, 300, 300):
        (lease,) = driver.lease()
        assert lease.attempt == 1
        assert driver.settle([lease], "unhandled") == ["released"]
        driver.later(delay - 0.001)
        assert driver.lease() == []
        driver.later(0.001)
    (lease,) = driver.lease()
    driver.settle([lease], "unhandled")
    explained = driver.engine.explain(receipt.id, "a", now_us=driver.now)
    assert explained.starts_us is None, "a free worker is not what it waits for"
    (reason,) = explained.reasons
    assert reason.startswith(
        "no worker that got it had a handler for it, for 15.2 min now; a worker gets it again in"
        " 5.0 min"
    )
    (told,) = [check for check in driver.engine.doctor() if check.name == "handlers"]
    assert told.ok
    assert told.detail.startswith("1 message waits for a handler")
