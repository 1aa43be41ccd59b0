"""Rules that meet seldom: buckets with keys, limits with at most once, merges under a policy that changes."""

from __future__ import annotations

import pytest

from laneway.errors import BacklogFull, TopicInUse
from laneway.message import Draft, Settlement
from laneway.policy import Gate, Tier
from laneway.testing.bench import EngineBench
from laneway.units import SECOND


def test_topics_of_a_bucket_have_keys_of_their_own(bench: EngineBench) -> None:
    """What is merged, and what runs one at a time, is a matter of one topic."""
    bench.policy("b.*", buckets=1, merge="first")
    assert [bench.put(topic, "x", key="k")[0].outcome for topic in ("b.1", "b.2", "b.1")] == ["accepted", "accepted", "merged"]
    bench.policy("s.*", buckets=1, serial=True)
    bench.put("s.1", "1", "2", key="k")
    bench.put("s.2", "3", key="k")
    assert sorted(lease.topic for lease in bench.lease()) == ["b.1", "b.2", "s.1", "s.2"]


def test_a_wrong_handle_takes_nothing_from_the_right_one(bench: EngineBench) -> None:
    """In one call too; and a lease is settled once."""
    bench.put("a", "1")
    (lease,) = bench.lease()
    right, wrong = Settlement(lease.handle, lease.fence), Settlement(lease.handle + 1, lease.fence)
    assert bench.engine.settle([wrong, right, right], now_us=bench.now) == ["lost", "acked", "lost"]


def test_who_names_a_folded_topic_is_given_no_other(bench: EngineBench) -> None:
    """In that topic's order, and of several in the order named."""
    bench.policy("b.*", buckets=1)
    for n in range(3):
        bench.put(f"b.{n % 2}", f"{n}")
    bench.put("b.1", "first", priority=5)
    assert bench.bodies(topics=["b.2"]) == []
    assert bench.bodies(1, topics=["b.1"]) == ["first"]
    assert bench.bodies(2, topics=["b.1", "b.0", "b.1"]) == ["1", "0"]
    assert bench.bodies() == ["2"]


def test_what_is_published_with_an_ack_is_told_apart_also_at_most_once(bench: EngineBench) -> None:
    """Each has an id made of its own parent's."""
    bench.policy("a", delivery="at_most_once")
    bench.put("a", "1", "2")
    settlements = [Settlement(lease.handle, lease.fence) for lease in bench.lease()]
    bench.engine.settle(settlements, publish={n: [Draft("next", b"x")] for n in range(2)}, now_us=bench.now)
    assert bench.waiting("next") == 2


def test_an_ack_whose_next_message_is_refused_changes_nothing(bench: EngineBench) -> None:
    """Both or none: what was to be published is not lost without a word."""
    bench.policy("next", max_backlog=1)
    bench.put("next", "1")
    bench.put("a", "1")
    (lease,) = bench.lease(topics=["a"])
    settlement = Settlement(lease.handle, lease.fence)
    with pytest.raises(BacklogFull):
        bench.engine.settle([settlement], publish={0: [Draft("next", b"2")]}, now_us=bench.now)
    bench.run(topics=["next"])
    assert bench.engine.settle([settlement], publish={0: [Draft("next", b"2")]}, now_us=bench.now) == ["acked"]
    assert bench.waiting("next") == 1


def test_an_unwell_destination_rests_also_at_most_once(bench: EngineBench) -> None:
    """And is probed, and is well again with an ack."""
    bench.policy("a", delivery="at_most_once")
    bench.put("a", *map(str, range(9)))
    bench.settle(bench.lease(1), "rest")
    assert bench.lease() == []
    bench.later(1)
    probe = bench.lease()
    assert len(probe) == 1
    bench.settle(probe)
    assert len(bench.lease()) == 7


def test_bodies_that_were_collected_are_delivered_whatever_the_policy_says_now(bench: EngineBench) -> None:
    """Nothing that was accepted is lost; a last word replaces them all."""
    bench.policy("*", merge="all")
    for topic in ("kept", "replaced"):
        bench.put(topic, "1", "2", key="k")
    bench.policy("*", merge="last")
    bench.put("replaced", "3", key="k")
    found = {lease.topic: lease.bodies for lease in bench.lease()}
    assert found == {"kept": [b"1", b"2"], "replaced": None}


def test_a_message_that_is_taken_in_stays_known(bench: EngineBench) -> None:
    """Until the survivor is finished, by whatever id it had."""
    bench.policy("a", merge="first")
    (first,) = bench.put("a", "1", key="k")
    leases = bench.lease()
    (second,) = bench.put("a", "2", key="k")
    bench.settle(leases, "release")
    assert bench.engine.lookup("a", [first.id, second.id], now_us=bench.now) == {first.id: "waiting", second.id: "waiting"}
    bench.run()
    assert bench.engine.lookup("a", [second.id], now_us=bench.now) == {second.id: "unknown"}


def test_a_redrive_finds_the_topic_where_it_is_now(bench: EngineBench) -> None:
    """Folded meanwhile; and an id that is named twice is put back once."""
    (receipt,) = bench.put("b.1", "1")
    bench.settle(bench.lease(), "dead")
    bench.later(2)
    bench.policy("b.*", buckets=2)
    assert bench.engine.dead_redrive("b.1", [receipt.id, receipt.id], now_us=bench.now) == 1
    assert bench.waiting("b.1") == 1
    assert [(lease.topic, lease.body) for lease in bench.lease()] == [("b.1", b"1")]


def test_a_redriven_message_has_not_been_without_a_handler(bench: EngineBench) -> None:
    """The time begins again."""
    bench.policy("a", on_unhandled="1h")
    bench.put("a", "1")
    bench.settle(bench.lease(), "unhandled")
    bench.later(3_700)
    assert bench.settle(bench.lease(), "unhandled") == ["died"]
    bench.engine.dead_redrive("a", now_us=bench.now)
    assert bench.settle(bench.lease(), "unhandled") == ["released"]


def test_the_lanes_of_one_topic_change_only_while_it_is_empty(bench: EngineBench) -> None:
    """Also where its policy is set by its own name; its neighbours do not matter."""
    bench.put("a", "1")
    with pytest.raises(TopicInUse):
        bench.policy("a", partitions=2)
    bench.policy("b.*", buckets=1)
    bench.put("b.1", "1")
    bench.put("b.2", "1")
    with pytest.raises(TopicInUse):
        bench.policy("b.1", weight=2)
    bench.engine.topic_purge("b.1", now_us=bench.now)
    bench.policy("b.1", weight=2)


def test_a_message_that_is_too_large_by_itself_drops_no_others(bench: EngineBench) -> None:
    """It is refused."""
    bench.policy("a", max_backlog="10B", on_full="drop_oldest")
    bench.put("a", "1234", "5678")
    assert bench.put("a", "x" * 11)[0].outcome == "refused"
    assert bench.waiting("a") == 2
    assert bench.put("a", "x" * 10)[0].outcome == "accepted"
    assert bench.waiting("a") == 1


def test_a_gate_that_a_lost_lease_frees_is_used_in_the_same_call(bench: EngineBench) -> None:
    """By whoever waits at it, in any tier."""
    bench.engine.gate_set("g", Gate(concurrency=1), now_us=bench.now)
    bench.policy("*", gate="g", lease=1)
    bench.policy("b", tier="high")
    bench.put("a", "1")
    bench.lease()
    bench.put("b", "2")
    assert bench.lease() == []
    bench.policy("a", paused=True)
    bench.later(1)
    assert bench.bodies() == ["2"]


def test_leases_that_were_extended_run_out_at_their_own_time(bench: EngineBench) -> None:
    """Among all that happened since, in its order: the first to die is the first listed."""
    bench.policy("*", lease=10, retries=0, ttl=20)
    bench.put("a", "1", "2")
    first, second = bench.lease()
    bench.engine.start([(lease.handle, lease.fence) for lease in (first, second)], now_us=bench.now)
    bench.engine.extend([(first.handle, first.fence)], 30 * SECOND, now_us=bench.now)
    bench.put("b", "3")
    bench.later(60)
    bench.engine.tick(now_us=bench.now)
    assert [view.body for _, view in bench.engine.dead_list()] == [b"2", b"3", b"1"]


def test_a_merge_that_puts_the_only_one_off_leaves_nothing_to_serve(bench: EngineBench) -> None:
    """Its tier takes no share of the others' meanwhile."""
    bench.open(tiers={"one": Tier(1), "mid": Tier(1)})
    bench.policy("a", merge="last", tier="one")
    bench.put("a", "1", key="k")
    bench.put("a", "2", key="k", delay_us=5 * SECOND)
    stats = bench.engine.topic_stats("a", now_us=bench.now)
    assert (stats.state, stats.delayed) == ("idle", 1)


def test_a_sticky_id_of_laneways_own_making_is_kept_too(bench: EngineBench) -> None:
    """For a day after the finish; also that of one which joined."""
    (receipt,) = bench.put("a", "1", sticky=True)
    bench.run()
    bench.policy("b", merge="first")
    bench.put("b", "1", key="k")
    bench.put("b", "2", key="k", id="mine", sticky=True)
    bench.run()
    assert bench.put("a", "1", id=receipt.id)[0].outcome == "duplicate"
    assert bench.put("b", "2", id="mine")[0].outcome == "duplicate"
