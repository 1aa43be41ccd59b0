"""Policies of exact topics: one acts at once on its topic's lanes, and on nothing else, however many there are."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.errors import BadMessage, BadPolicy, TopicInUse
from laneway.testing.bench import EngineBench
from laneway.units import SECOND


def own_of_all(bench: EngineBench, page: int = 1000) -> dict[str, object]:
    found: dict[str, object] = {}
    after: str | None = ""
    while after is not None:
        rows, after = bench.engine.policy_own_list(after, page)
        assert not found.keys() & dict(rows).keys(), "each topic comes once"
        found |= dict(rows)
    return found


def test_an_exact_policy_acts_on_what_waits_and_on_its_topic_only(bench: EngineBench) -> None:
    """In the call that sets it."""
    bench.put("a", "1", "2")
    bench.put("b", "1", "2")
    bench.policy("a", paused=True)
    assert bench.run() == ["1", "2"]
    bench.policy("a", paused=None)
    assert bench.run() == ["1", "2"]


def test_an_exact_policy_set_before_its_topic_has_a_lane_holds_for_it(bench: EngineBench) -> None:
    bench.policy("a", concurrency=1)
    bench.put("a", "1", "2")
    bench.put("b", "1", "2")
    assert sorted(lease.topic for lease in bench.lease()) == ["a", "b", "b"]


def test_an_exact_policy_outlives_its_lane(bench: EngineBench) -> None:
    """Also one that was set, changed or removed while the lane was remembered."""
    bench.put("a", "1")
    bench.policy("a", concurrency=1)
    bench.run()
    bench.later(100)
    bench.lease()
    bench.put("a", "1", "2")
    leases = bench.lease()
    assert len(leases) == 1
    bench.policy("a", concurrency=None)
    bench.settle(leases)
    bench.run()
    bench.later(100)
    bench.lease()
    bench.put("a", "1", "2")
    assert len(bench.lease()) == 2


def test_the_table_in_memory_has_patterns_only(bench: EngineBench) -> None:
    """Topics are listed page by page, and looked up one by one."""
    bench.policy("t.*", retries=3)
    topics = [f"t.{n}" for n in range(25)]
    bench.engine.policy_set_many("code", [(topic, {"rate": 5}) for topic in topics], now_us=bench.now)
    bench.policy("t.3", layer="operator", paused=True)
    book = bench.engine.policies()
    assert book.rows() == [("code", "t.*", {"retries": 3})]
    assert book.why("t.3") == {"paused": (True, "operator", "t.3"), "rate": (5.0, "code", "t.3"), "retries": (3, "code", "t.*")}
    assert (book.resolve("t.4").rate, book.resolve("t.4").retries, book.resolve("u").rate) == (5.0, 3, None)
    assert bench.engine.policy_own("t.3") == {"code": {"rate": 5.0}, "operator": {"paused": True}}
    assert bench.engine.policy_own("u") == {}
    expected: dict[str, object] = {topic: {"code": {"rate": 5.0}} for topic in topics}
    expected["t.3"] = {"code": {"rate": 5.0}, "operator": {"paused": True}}
    assert own_of_all(bench, 10) == own_of_all(bench) == expected


def test_patterns_and_layers_stand_between_as_they_do_for_patterns(bench: EngineBench) -> None:
    """An operator's pattern goes before the code's exact policy, field by field; a later pattern too."""
    bench.policy("a.*", layer="operator", retries=0)
    bench.policy("a.1", retries=5, weight=2)
    found = bench.engine.policy_of("a.1")
    assert (found.retries, found.weight) == (0, 2.0)
    bench.policy("*", layer="operator", weight=7)
    assert bench.engine.policy_of("a.1").weight == 7.0
    bench.put("a.1", "1")
    bench.settle(bench.lease(), "retry", delay_us=0)
    assert bench.engine.topic_stats("a.1", now_us=bench.now).dead == 1
    bench.policy("a.1", layer="operator", retries=1)
    bench.put("a.1", "2")
    bench.settle(bench.lease(), "retry", delay_us=0)
    assert bench.engine.topic_stats("a.1", now_us=bench.now).dead == 1


def test_many_are_set_together(bench: EngineBench) -> None:
    """Topics and patterns mixed, the same topic twice, removed ones; the answer is what each sets now."""
    told = bench.engine.policy_set_many(
        "code", [("a", {"rate": 5}), ("b.*", {"retries": 1}), ("a", {"weight": 2}), ("b.1", {"paused": True}), ("a", {"rate": None})],
        now_us=bench.now,
    )  # fmt: skip
    assert told == [{"rate": 5.0}, {"retries": 1}, {"rate": 5.0, "weight": 2.0}, {"paused": True}, {"weight": 2.0}]
    assert own_of_all(bench) == {"a": {"code": {"weight": 2.0}}, "b.1": {"code": {"paused": True}}}
    assert bench.engine.policy_reset("code", "a", now_us=bench.now)
    assert not bench.engine.policy_reset("code", "a", now_us=bench.now)
    assert not bench.engine.policy_reset("operator", "b.1", now_us=bench.now)
    assert own_of_all(bench) == {"b.1": {"code": {"paused": True}}}
    assert bench.engine.policy_set_many("code", [], now_us=bench.now) == []


@pytest.mark.parametrize("fields", [{"rate": "fast"}, {"gate": "nowhere"}, {"window": 5}, {"tier": "nowhere"}])
def test_a_batch_with_a_bad_one_changes_nothing(bench: EngineBench, fields: dict[str, object]) -> None:
    """The error names its topic."""
    with pytest.raises(BadPolicy, match=r"policy b"):
        bench.engine.policy_set_many("code", [("a", {"rate": 5}), ("b", fields)], now_us=bench.now)
    assert own_of_all(bench) == {}


def test_a_pattern_that_takes_away_what_an_exact_policy_needs(bench: EngineBench) -> None:
    """The exact policy stays as it is; the field that needs it has no effect until it is there again."""
    bench.policy("a.*", merge="last")
    bench.policy("a.1", window=5)
    bench.policy("a.*", merge=None)
    assert bench.engine.policy_of("a.1").window is None
    bench.put("a.1", "1", key="k")
    assert bench.run() == ["1"]
    bench.policy("*", merge="first")
    bench.put("a.1", "2", "3", key="k")
    assert bench.run() == []
    bench.later(5)
    assert bench.run() == ["2"]


def test_contradictions_that_come_from_a_pattern_are_settled(bench: EngineBench) -> None:
    bench.policy("a", serial="yield", concurrency=1)
    bench.policy("*", delivery="at_most_once")
    assert bench.engine.policy_of("a").serial == "hold"
    bench.policy("m", merge="first", window=5, edge="leading")
    bench.policy("*", debounce=None, merge="last")
    assert bench.engine.policy_of("m").edge == "leading"


def test_the_body_limit_of_an_exact_policy_holds_for_every_publisher(bench: EngineBench) -> None:
    bench.put("a", "123456")
    bench.policy("a", max_body=5)
    with pytest.raises(BadMessage, match="max_body"):
        bench.put("a", "123456")
    with pytest.raises(BadMessage, match="max_body"):
        bench.put("a", "123456", key="k", priority=1)
    bench.policy("a", max_body=None)
    bench.put("a", "123456")


def test_what_is_decided_at_publish_follows_an_exact_policy_at_once(bench: EngineBench) -> None:
    """Serial, merge, ttl and backlog: set, changed and removed after messages were published without."""
    bench.put("a", "0", key="k")
    bench.policy("a", serial=True)
    bench.put("a", "1", "2", key="k")
    assert bench.bodies() == ["0", "1"]
    bench.policy("b", merge="last")
    bench.put("b", "1", "2", key="k")
    bench.policy("b", merge=None)
    bench.put("b", "3", key="k")
    assert bench.run() == ["2", "3"]
    bench.policy("c", ttl=1)
    bench.put("c", "1")
    bench.later(2)
    assert bench.run() == []
    bench.policy("d", max_backlog=1)
    assert [receipt.outcome for receipt in bench.put("d", "1", "2")] == ["accepted", "refused"]
    bench.policy("d", max_backlog=None)
    assert [receipt.outcome for receipt in bench.put("d", "3")] == ["accepted"]


def test_an_exact_policy_takes_its_topic_out_of_the_bucket(bench: EngineBench) -> None:
    """And removed, it folds again; only while the topic is empty."""
    bench.policy("b.*", buckets=1, concurrency=1)
    bench.policy("b.1", weight=2)
    bench.put("b.1", "1")
    bench.put("b.2", "2")
    bench.put("b.3", "3")
    assert sorted(bench.bodies()) == ["1", "2"]
    with pytest.raises(TopicInUse):
        bench.policy("b.1", weight=None)
    with pytest.raises(TopicInUse):
        bench.policy("b.3", weight=2)
    bench.later(100)
    while leases := bench.lease():
        bench.settle(leases)
    bench.policy("b.1", weight=None)
    bench.policy("b.3", weight=2)
    for topic in ("b.1", "b.2", "b.3"):
        bench.put(topic, topic)
    assert sorted(bench.bodies()) in (["b.1", "b.3"], ["b.2", "b.3"])


@pytest.mark.parametrize("own", [{}, {"weight": 2}], ids=str)
@pytest.mark.parametrize("shape", [{}, {"buckets": 1}, {"partitions": 2}], ids=str)
def test_an_exact_policy_that_changes_nothing_places_no_lane(bench: EngineBench, shape: dict[str, Any], own: dict[str, Any]) -> None:
    """Here one whose rest is over: it wakes with the next tick or lease."""
    bench.policy("b.*", **shape)
    bench.policy("b.1", **own)
    bench.put("b.1", "1", "2", key="k")
    bench.settle(bench.lease(1), "rest", delay_us=30 * SECOND)
    bench.later(31)
    bench.policy("b.1", **own)
    assert bench.engine.topic_stats("b.1", now_us=bench.now).state == "asleep"
    assert bench.bodies() == ["1"]


def test_exact_policies_under_a_bucket_that_comes_later(bench: EngineBench) -> None:
    """Their topics keep lanes of their own."""
    bench.engine.policy_set_many("code", [(f"b.{n}", {"weight": 2}) for n in range(5)], now_us=bench.now)
    bench.policy("b.*", buckets=1, concurrency=1)
    for n in range(10):
        bench.put(f"b.{n}", str(n))
    assert sorted(bench.bodies())[:5] == ["0", "1", "2", "3", "4"]
    assert len(own_of_all(bench)) == 5


def test_exact_policies_of_partitioned_topics_hold_for_all_their_lanes(bench: EngineBench) -> None:
    """Whether the partitions are the topic's own or a pattern's, and whichever came first."""
    bench.policy("p.1", partitions=4)
    bench.policy("p.2", paused=True)
    bench.policy("p.2", partitions=4, paused=None)
    bench.policy("q.2", weight=2)
    bench.policy("q.*", partitions=4)
    bench.policy("q.1", weight=2)
    for topic in ("p.1", "p.2", "q.1", "q.2"):
        for n in range(16):
            bench.put(topic, str(n), key=str(n))
        bench.policy(topic, paused=True)
    assert bench.bodies() == []
    for topic in ("p.1", "p.2", "q.1", "q.2"):
        bench.policy(topic, paused=None)
        assert len(bench.run()) == 16
    bench.policy("p.1", partitions=None)
    bench.policy("q.*", partitions=None)
    assert bench.engine.policy_of("q.1").weight == 2.0
    bench.put("q.1", "x", "y", key="k")
    assert bench.run() == ["x", "y"]


def test_a_partitioned_topic_that_is_in_use_is_left_alone(bench: EngineBench) -> None:
    bench.policy("p", partitions=2)
    bench.put("p", "1", key="k")
    with pytest.raises(TopicInUse, match="drain"):
        bench.policy("p", partitions=4)
    assert bench.run() == ["1"]
    bench.policy("p", partitions=4)


def test_programs_have_layers_of_their_own(bench: EngineBench) -> None:
    """Together they are the code's; what was set at run time goes before, and what goes before comes back when it is reset."""
    for name in ("a.*", "a.1"):
        bench.policy(name, layer="program:shop", retries=1, weight=2)
        bench.policy(name, layer="program:billing", retries=1, concurrency=3)
        bench.policy(name, weight=4)
    for topic in ("a.1", "a.2"):
        policy = bench.engine.policy_of(topic)
        assert (policy.retries, policy.weight, policy.concurrency) == (1, 4.0, 3)
    own = bench.engine.policy_own("a.1")
    assert (own["program:shop"], own["program:billing"]) == ({"retries": 1, "weight": 2.0}, {"retries": 1, "concurrency": 3})
    for name in ("a.*", "a.1"):
        assert bench.engine.policy_reset("code", name, now_us=bench.now)
        assert bench.engine.policy_reset("program:billing", name, now_us=bench.now)
    assert bench.engine.policies().source_rows() == [("program:shop", "a.*", {"retries": 1, "weight": 2.0})]
    assert bench.engine.policy_own("a.1") == {"code": {"retries": 1, "weight": 2.0}, "program:shop": {"retries": 1, "weight": 2.0}}
    assert (bench.engine.policy_of("a.1").weight, bench.engine.policy_of("a.2").concurrency) == (2.0, None)


@pytest.mark.parametrize("name", ["a.*", "a"])
def test_a_program_declares_no_other_value_than_another(bench: EngineBench, name: str) -> None:
    """The error names the other; without it the field is free again."""
    bench.policy(name, layer="program:shop", rate=5)
    with pytest.raises(BadPolicy, match=r'"shop" declares 5\.0'):
        bench.policy(name, layer="program:billing", rate=6)
    bench.policy(name, layer="program:billing", rate="300/m")
    bench.policy(name, layer="program:billing", rate=None)
    bench.policy(name, layer="program:shop", rate=None)
    bench.policy(name, layer="program:billing", rate=6)
    assert bench.engine.policy_of("a.1" if name == "a.*" else "a").rate == 6.0


def test_what_code_set_before_programs_had_names_goes_when_a_program_declares_it(bench: EngineBench) -> None:
    bench.policy("a", layer="program:", rate=5, weight=2)
    bench.policy("a", layer="program:shop", rate=6)
    assert bench.engine.policy_of("a").rate == 6.0
    bench.policy("a", layer="program:shop", rate=None)
    assert bench.engine.policy_own("a") == {"code": {"weight": 2.0}, "program:": {"weight": 2.0}}


def test_patterns_that_are_set_together_are_checked_together(bench: EngineBench) -> None:
    """Their order does not matter, and one that contradicts another changes nothing."""
    bench.engine.policy_set_many("code", [("a.b.*", {"window": 5}), ("a.*", {"merge": "last"})], now_us=bench.now)
    with pytest.raises(BadPolicy, match="window"):
        bench.engine.policy_set_many("code", [("c.*", {"rate": 5}), ("a.*", {"merge": None})], now_us=bench.now)
    assert [row[1] for row in bench.engine.policies().rows()] == ["a.*", "a.b.*"]
    bench.engine.policy_set_many("code", [("a.*", {"merge": None}), ("a.b.*", {"window": None})], now_us=bench.now)
    assert bench.engine.policies().rows() == []


def test_what_is_kept_of_a_program_is_swapped(bench: EngineBench) -> None:
    """By whoever knows what is there."""
    engine = bench.engine
    assert engine.programs() == {}
    assert engine.program_swap("shop", None, b'{"version":"1"}')
    assert not engine.program_swap("shop", None, b'{"version":"2"}')
    assert not engine.program_swap("shop", b"{}", None)
    assert engine.programs() == {"shop": b'{"version":"1"}'}
    assert engine.program_swap("shop", b'{"version":"1"}', b"{}")
    assert engine.program_swap("shop", b"{}", None)
    assert engine.programs() == {}


def test_an_exact_policy_holds_for_lanes_that_are_left_from_other_partitions(bench: EngineBench) -> None:
    """They are remembered for a moment after they are empty, and may come back."""
    bench.policy("q.*", partitions=4)
    for n in range(16):
        bench.put("q.1", str(n), key=str(n))
    assert len(bench.run()) == 16
    bench.policy("q.*", partitions=None)
    bench.policy("q.1", paused=True)
    bench.policy("q.*", partitions=4)
    for n in range(16):
        bench.put("q.1", str(n), key=str(n))
    assert bench.lease() == []
    bench.policy("q.1", paused=None)
    assert len(bench.run()) == 16


def test_a_change_of_nothing_is_not_refused(bench: EngineBench) -> None:
    """Not even where a pattern's change has made the topic's own fields impossible together."""
    bench.policy("a.1", serial="yield")
    bench.policy("a.*", delivery="at_most_once")
    assert bench.engine.policy_set("code", "a.1", {}, now_us=bench.now) == {"serial": "yield"}
    with pytest.raises(BadPolicy):
        bench.policy("a.1", weight=2)
