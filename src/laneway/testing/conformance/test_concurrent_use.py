"""
Rules that meet seldom: buckets with keys, limits with at most once, merges under a policy that
changes.
"""

from __future__ import annotations

import pytest

from laneway.errors import BacklogFull, TopicInUse
from laneway.message import Draft, Settlement
from laneway.policy import Gate, Tier
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND


def test_topics_of_a_bucket_have_keys_of_their_own(driver: EngineDriver) -> None:
    """What is merged, and what runs one at a time, is a matter of one topic."""
    driver.policy("b.*", buckets=1, merge="first")
    assert [driver.put(topic, "x", key="k")[0].outcome for topic in ("b.1", "b.2", "b.1")] == [
        "accepted",
        "accepted",
        "merged",
    ]
    driver.policy("s.*", buckets=1, serial=True)
    driver.put("s.1", "1", "2", key="k")
    driver.put("s.2", "3", key="k")
    assert sorted(lease.topic for lease in driver.lease()) == ["b.1", "b.2", "s.1", "s.2"]


def test_a_wrong_handle_takes_nothing_from_the_right_one(driver: EngineDriver) -> None:
    """In one call too; and a lease is settled once."""
    driver.put("a", "1")
    (lease,) = driver.lease()
    right, wrong = Settlement(lease.handle, lease.fence), Settlement(lease.handle + 1, lease.fence)
    assert driver.engine.settle([wrong, right, right], now_us=driver.now) == [
        "lost",
        "acked",
        "lost",
    ]


def test_who_names_a_folded_topic_is_given_no_other(driver: EngineDriver) -> None:
    """In that topic's order, and of several in the order named."""
    driver.policy("b.*", buckets=1)
    for n in range(3):
        driver.put(f"b.{n % 2}", f"{n}")
    driver.put("b.1", "first", priority=5)
    assert driver.bodies(topics=["b.2"]) == []
    assert driver.bodies(1, topics=["b.1"]) == ["first"]
    assert driver.bodies(2, topics=["b.1", "b.0", "b.1"]) == ["1", "0"]
    assert driver.bodies() == ["2"]


def test_what_is_published_with_an_ack_is_told_apart_also_at_most_once(
    driver: EngineDriver,
) -> None:
    """Each has an id made of its own parent's."""
    driver.policy("a", delivery="at_most_once")
    driver.put("a", "1", "2")
    settlements = [Settlement(lease.handle, lease.fence) for lease in driver.lease()]
    driver.engine.settle(
        settlements, publish={n: [Draft("next", b"x")] for n in range(2)}, now_us=driver.now
    )
    assert driver.waiting("next") == 2


def test_an_ack_whose_next_message_is_refused_changes_nothing(driver: EngineDriver) -> None:
    """Both or none: what was to be published is not lost without a word."""
    driver.policy("next", max_backlog=1)
    driver.put("next", "1")
    driver.put("a", "1")
    (lease,) = driver.lease(topics=["a"])
    settlement = Settlement(lease.handle, lease.fence)
    with pytest.raises(BacklogFull):
        driver.engine.settle([settlement], publish={0: [Draft("next", b"2")]}, now_us=driver.now)
    driver.run(topics=["next"])
    assert driver.engine.settle(
        [settlement], publish={0: [Draft("next", b"2")]}, now_us=driver.now
    ) == ["acked"]
    assert driver.waiting("next") == 1


def test_an_unwell_destination_rests_also_at_most_once(driver: EngineDriver) -> None:
    """And is probed, and is well again with an ack."""
    driver.policy("a", delivery="at_most_once")
    driver.put("a", *map(str, range(9)))
    driver.settle(driver.lease(1), "back_off")
    assert driver.lease() == []
    driver.later(1)
    probe = driver.lease()
    assert len(probe) == 1
    driver.settle(probe)
    assert len(driver.lease()) == 7


def test_bodies_that_were_collected_are_delivered_whatever_the_policy_says_now(
    driver: EngineDriver,
) -> None:
    """Nothing that was accepted is lost; a last word replaces them all."""
    driver.policy("*", merge="all")
    for topic in ("kept", "replaced"):
        driver.put(topic, "1", "2", key="k")
    driver.policy("*", merge="last")
    driver.put("replaced", "3", key="k")
    found = {lease.topic: lease.bodies for lease in driver.lease()}
    assert found == {"kept": [b"1", b"2"], "replaced": None}


def test_a_message_that_is_taken_in_stays_known(driver: EngineDriver) -> None:
    """Until the survivor is finished, by whatever id it had."""
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


def test_a_redrive_finds_the_topic_where_it_is_now(driver: EngineDriver) -> None:
    """Folded meanwhile; and an id that is named twice is put back once."""
    (receipt,) = driver.put("b.1", "1")
    driver.settle(driver.lease(), "dead")
    driver.later(2)
    driver.policy("b.*", buckets=2)
    assert driver.engine.dead_redrive("b.1", [receipt.id, receipt.id], now_us=driver.now) == 1
    assert driver.waiting("b.1") == 1
    assert [(lease.topic, lease.body) for lease in driver.lease()] == [("b.1", b"1")]


def test_a_redriven_message_has_not_been_without_a_handler(driver: EngineDriver) -> None:
    """The time begins again."""
    driver.policy("a", on_unhandled="1h")
    driver.put("a", "1")
    driver.settle(driver.lease(), "unhandled")
    driver.later(3_700)
    assert driver.settle(driver.lease(), "unhandled") == ["died"]
    driver.engine.dead_redrive("a", now_us=driver.now)
    assert driver.settle(driver.lease(), "unhandled") == ["released"]


def test_the_lanes_of_one_topic_change_only_while_it_is_empty(driver: EngineDriver) -> None:
    """Also where its policy is set by its own name; its neighbours do not matter."""
    driver.put("a", "1")
    with pytest.raises(TopicInUse):
        driver.policy("a", partitions=2)
    driver.policy("b.*", buckets=1)
    driver.put("b.1", "1")
    driver.put("b.2", "1")
    with pytest.raises(TopicInUse):
        driver.policy("b.1", weight=2)
    driver.engine.topic_purge("b.1", now_us=driver.now)
    driver.policy("b.1", weight=2)


def test_a_message_that_is_too_large_by_itself_drops_no_others(driver: EngineDriver) -> None:
    """It is refused."""
    driver.policy("a", max_backlog="10B", on_full="drop_oldest")
    driver.put("a", "1234", "5678")
    assert driver.put("a", "x" * 11)[0].outcome == "refused"
    assert driver.waiting("a") == 2
    assert driver.put("a", "x" * 10)[0].outcome == "accepted"
    assert driver.waiting("a") == 1


def test_a_gate_that_a_lost_lease_frees_is_used_in_the_same_call(driver: EngineDriver) -> None:
    """By whoever waits at it, in any tier."""
    driver.engine.gate_set("g", Gate(concurrency=1), now_us=driver.now)
    driver.policy("*", gate="g", lease=1)
    driver.policy("b", tier="high")
    driver.put("a", "1")
    driver.lease()
    driver.put("b", "2")
    assert driver.lease() == []
    driver.policy("a", paused=True)
    driver.later(1)
    assert driver.bodies() == ["2"]


def test_leases_that_were_extended_run_out_at_their_own_time(driver: EngineDriver) -> None:
    """Among all that happened since, in its order: the first to die is the first listed."""
    driver.policy("*", lease=10, retries=0, ttl=20)
    driver.put("a", "1", "2")
    first, second = driver.lease()
    driver.engine.start(
        [(lease.handle, lease.fence) for lease in (first, second)], now_us=driver.now
    )
    driver.engine.extend([(first.handle, first.fence)], 30 * SECOND, now_us=driver.now)
    driver.put("b", "3")
    driver.later(60)
    driver.engine.tick(now_us=driver.now)
    assert [view.body for _, view in driver.engine.dead_list()] == [b"2", b"3", b"1"]


def test_a_merge_that_puts_the_only_one_off_leaves_nothing_to_serve(driver: EngineDriver) -> None:
    """Its tier takes no share of the others' meanwhile."""
    driver.open(tiers={"one": Tier(1), "mid": Tier(1)})
    driver.policy("a", merge="last", tier="one")
    driver.put("a", "1", key="k")
    driver.put("a", "2", key="k", delay_us=5 * SECOND)
    stats = driver.engine.topic_stats("a", now_us=driver.now)
    assert (stats.state, stats.delayed) == ("idle", 1)


def test_a_sticky_id_of_laneways_own_making_is_kept_too(driver: EngineDriver) -> None:
    """For a day after the finish; also that of one which joined."""
    (receipt,) = driver.put("a", "1", sticky=True)
    driver.run()
    driver.policy("b", merge="first")
    driver.put("b", "1", key="k")
    driver.put("b", "2", key="k", id="mine", sticky=True)
    driver.run()
    assert driver.put("a", "1", id=receipt.id)[0].outcome == "duplicate"
    assert driver.put("b", "2", id="mine")[0].outcome == "duplicate"
