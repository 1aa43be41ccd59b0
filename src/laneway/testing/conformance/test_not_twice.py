"""Ids, dedupe, merging, backlog limits, looking up."""

from __future__ import annotations

import pytest

from laneway.message import Draft
from laneway.testing.bench import EngineBench
from laneway.units import SECOND


def test_an_id_that_is_pending_is_a_duplicate(bench: EngineBench) -> None:
    """While it waits, is leased or dead; afterwards it is free again. Ids belong to their topic."""
    assert [receipt.outcome for receipt in bench.put("a", "1", "2", id="x")] == ["accepted", "duplicate"]
    assert bench.put("b", "1", id="x")[0].outcome == "accepted"
    (lease,) = bench.lease(topics=["a"])
    assert bench.put("a", "3", id="x")[0].outcome == "duplicate"
    bench.settle([lease], "dead")
    assert bench.put("a", "4", id="x")[0].outcome == "duplicate"
    bench.engine.dead_drop("a", now_us=bench.now)
    assert bench.put("a", "5", id="x")[0].outcome == "accepted"


def test_an_id_that_laneway_made_is_known_too(bench: EngineBench) -> None:
    """So a repeat after an unclear failure is safe."""
    (receipt,) = bench.put("a", "1")
    assert bench.put("a", "1", id=receipt.id)[0].outcome == "duplicate"
    assert bench.engine.find(receipt.id) is not None


@pytest.mark.parametrize("window", [10, "forever"])
def test_dedupe_refuses_ids_that_were_finished(bench: EngineBench, window: object) -> None:
    """Within the window after the finish, or for ever."""
    bench.policy("a", dedupe=window)
    bench.put("a", "1", id="x")
    bench.run()
    assert bench.engine.lookup("a", ["x", "y"], now_us=bench.now) == {"x": "finished", "y": "unknown"}
    bench.later(9)
    assert bench.put("a", "2", id="x")[0].outcome == "duplicate"
    bench.later(2)
    assert bench.put("a", "3", id="x")[0].outcome == ("duplicate" if window == "forever" else "accepted")


def test_merge_first_keeps_the_waiting_one(bench: EngineBench) -> None:
    """The receipt names what it joined; a leased one is not joined."""
    bench.policy("a", merge="first")
    (first,) = bench.put("a", "1", key="k")
    (second,) = bench.put("a", "2", key="k", id="mine")
    assert (second.outcome, second.joined) == ("merged", first.id)
    assert bench.engine.lookup("a", ["mine"], now_us=bench.now) == {"mine": "waiting"}
    assert bench.bodies() == ["1"]
    assert bench.put("a", "3", key="k")[0].outcome == "accepted"


def test_merge_last_takes_body_priority_and_time(bench: EngineBench) -> None:
    """The last word counts."""
    bench.policy("a", merge="last")
    bench.put("a", "old", key="k")
    bench.put("a", "other", key="o")
    bench.put("a", "new", key="k", priority=5)
    assert bench.bodies() == ["new", "other"]
    bench.put("a", "now", key="q")
    bench.put("a", "later", key="q", delay_us=5 * SECOND)
    assert bench.bodies() == []
    bench.later(5)
    assert bench.bodies() == ["later"]


def test_merge_all_collects_the_bodies_in_order(bench: EngineBench) -> None:
    """Up to the limit, then a second message begins."""
    bench.policy("a", merge="all", merge_limit=3)
    outcomes = [bench.put("a", str(n), key="k")[0].outcome for n in range(5)]
    assert outcomes == ["accepted", "merged", "merged", "accepted", "merged"]
    assert [lease.bodies for lease in bench.lease()] == [[b"0", b"1", b"2"], [b"3", b"4"]]


def test_messages_without_a_key_merge_by_their_body(bench: EngineBench) -> None:
    """The same work is done once."""
    bench.policy("a", merge="first")
    assert [receipt.outcome for receipt in bench.put("a", "same", "same", "other")] == ["accepted", "merged", "accepted"]


def test_a_window_waits_from_the_first_a_debounce_from_the_last(bench: EngineBench) -> None:
    """With debounce at most `max_wait` after the first."""
    bench.policy("w", merge="last", window=5)
    bench.policy("d", merge="last", window=5, debounce=True, max_wait=8)
    for second in range(4):
        bench.put("w", f"w{second}", key="k")
        bench.put("d", f"d{second}", key="k")
        bench.later(1.25)
    assert bench.bodies() == ["w3"]
    bench.later(3)
    assert bench.bodies() == ["d3"]


def test_the_leading_edge_goes_at_once_then_once_per_window(bench: EngineBench) -> None:
    """Repeats are merged into the one at the window's end."""
    bench.policy("a", merge="last", window=5, edge="leading")
    bench.put("a", "1", key="k")
    assert bench.run() == ["1"]
    bench.put("a", "2", key="k")
    bench.put("a", "3", key="k")
    assert bench.run() == []
    bench.later(5)
    assert bench.run() == ["3"]


def test_a_leased_message_that_comes_back_joins_the_one_that_waits(bench: EngineBench) -> None:
    """As if it had been published first, its attempts kept."""
    bench.policy("a", merge="first", backoff=0)
    bench.put("a", "1", key="k")
    leases = bench.lease()
    bench.put("a", "2", key="k")
    bench.settle(leases, "retry")
    (again,) = bench.lease()
    assert (again.body, again.attempt) == (b"1", 2)
    assert bench.waiting("a") == 0


def test_a_full_backlog_refuses_per_message(bench: EngineBench) -> None:
    """By count and by size; retries are never refused."""
    bench.policy("a", max_backlog=2, backoff=0)
    receipts = bench.engine.put([Draft("a", b"1"), Draft("a", b"2"), Draft("a", b"3"), Draft("b", b"4")], now_us=bench.now)
    assert [receipt.outcome for receipt in receipts] == ["accepted", "accepted", "refused", "accepted"]
    assert "max_backlog is 2" in (receipts[2].reason or "")
    (lease,) = bench.lease(1, topics=["a"])
    bench.put("a", "5")
    assert bench.settle([lease], "retry") == ["retried"]
    assert bench.waiting("a") == 3
    bench.policy("s", max_backlog="10B")
    assert [receipt.outcome for receipt in bench.put("s", "123456", "1234", "1")] == ["accepted", "accepted", "refused"]


def test_a_full_backlog_can_drop_the_oldest(bench: EngineBench) -> None:
    """The lowest priority's oldest, into the dead letters; never a leased one."""
    bench.policy("a", max_backlog=2, on_full="drop_oldest")
    bench.put("a", "high", priority=5)
    bench.put("a", "old")
    bench.put("a", "new")
    assert [view.body for _, view in bench.engine.dead_list()] == [b"old"]
    assert bench.bodies() == ["high", "new"]


def test_the_namespace_has_a_limit_of_its_own(bench: EngineBench) -> None:
    """Over all topics."""
    bench.open(max_backlog=2)
    assert [bench.put(topic, "x")[0].outcome for topic in "abc"] == ["accepted", "accepted", "refused"]


def test_purge_leaves_leases_whole_and_delete_does_not(bench: EngineBench) -> None:
    """After a delete a settle answers gone."""
    bench.put("a", "1", "2", "3", id=None)
    (lease,) = bench.lease(1)
    assert bench.engine.topic_purge("a", now_us=bench.now) == 2
    assert bench.settle([lease], "retry") == ["retried"]
    bench.later(3600)
    (lease,) = bench.lease()
    bench.engine.topic_delete("a", now_us=bench.now)
    assert bench.settle([lease]) == ["gone"]
    assert bench.engine.topic_list(now_us=bench.now) == []


def test_lists_show_the_top_by_backlog_age_and_throttling(bench: EngineBench) -> None:
    """Exactly, where there are few."""
    bench.put("old", "1")
    bench.later(10)
    bench.put("big", *map(str, range(9)))
    bench.policy("slow", rate=1, burst=1)
    bench.put("slow", *map(str, range(3)))
    bench.lease(1, topics=["slow"])
    listed = {
        order: [stats.topic for stats in bench.engine.topic_list(order=order, now_us=bench.now)] for order in ("name", "backlog", "age", "throttled")
    }
    assert listed["name"] == ["big", "old", "slow"]
    assert listed["backlog"] == ["big", "slow", "old"]
    assert listed["age"][0] == "old"
    assert listed["throttled"] == ["slow"]


def test_explain_names_what_binds(bench: EngineBench) -> None:
    """Rate, pause, serial key, due time, rest, lease, dead, unknown."""
    bench.policy("r", rate=1, burst=1)
    first, second = bench.put("r", "1", "2")
    leases = bench.lease()

    def explain(message_id: str) -> str:
        return " ".join(bench.engine.explain(message_id, now_us=bench.now).reasons)

    assert "may send again in 1.0 s" in explain(second.id)
    assert "a worker holds it" in explain(first.id)
    bench.settle(leases, "dead", reason="no such order")
    assert "no such order" in explain(first.id)
    bench.policy("r", paused=True)
    assert "paused" in explain(second.id)
    bench.policy("s", serial=True)
    _, parked = bench.put("s", "1", "2", key="k")
    assert "one at a time" in explain(parked.id)
    (later,) = bench.put("s", "3", delay_us=SECOND)
    assert "due in 1.0 s" in explain(later.id)
    assert bench.engine.explain("nobody").state == "unknown"


def test_a_redriven_message_lives_from_when_it_is_due(bench: EngineBench) -> None:
    """Spread out by a rate, the last ones would expire before their turn."""
    bench.policy("a", ttl=60)
    bench.put("a", "1", "2")
    bench.settle(bench.lease(), "dead")
    assert bench.engine.dead_redrive("a", spacing_us=120 * SECOND, now_us=bench.now) == 2
    assert bench.run() == ["1"]
    bench.later(120)
    assert bench.run() == ["2"]


def test_a_message_without_a_handler_waits_and_says_so(bench: EngineBench) -> None:
    """It comes again after 5 s to 5 min, no attempt is counted, it never dies by itself; explain and the doctor tell."""
    (receipt,) = bench.put("a", "1")
    for delay in (5, 10, 20, 40, 80, 160, 300, 300):
        (lease,) = bench.lease()
        assert lease.attempt == 1
        assert bench.settle([lease], "unhandled") == ["released"]
        bench.later(delay - 0.001)
        assert bench.lease() == []
        bench.later(0.001)
    (lease,) = bench.lease()
    bench.settle([lease], "unhandled")
    explained = bench.engine.explain(receipt.id, "a", now_us=bench.now)
    assert explained.starts_us is None, "a free worker is not what it waits for"
    (reason,) = explained.reasons
    assert reason.startswith("no worker that got it had a handler for it, for 15.2 min now; a worker gets it again in 5.0 min")
    (told,) = [check for check in bench.engine.doctor() if check.name == "handlers"]
    assert told.ok
    assert told.detail.startswith("1 message waits for a handler")
