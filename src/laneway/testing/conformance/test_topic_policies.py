"""Policies of single topics: each acts immediately, on its topic's lanes only."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.errors import BadMessage, BadPolicy, TopicInUse
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND


def own_of_all(driver: EngineDriver, page: int = 1000) -> dict[str, object]:
    found: dict[str, object] = {}
    after: str | None = ""
    while after is not None:
        rows, after = driver.engine.policy_own_list(after, page)
        assert not found.keys() & dict(rows).keys(), "each topic is listed once"
        found |= dict(rows)
    return found


def test_acts_on_its_topic_only(driver: EngineDriver) -> None:
    """A topic's policy acts on its waiting messages at once, and on no other topic."""
    driver.put("a", "1", "2")
    driver.put("b", "1", "2")
    driver.policy("a", paused=True)
    assert driver.run() == ["1", "2"]
    driver.policy("a", paused=None)
    assert driver.run() == ["1", "2"]


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_disabled_endpoint_pauses_whatever_else_is_set(
    driver: EngineDriver, partitions: int
) -> None:
    """Neither an operator's policy of the topic, nor one of its pattern, delivers its messages."""
    driver.policy("a.b", layer="operator", paused=False)
    driver.policy("a.*", layer="operator", paused=False)
    driver.policy("a.b", partitions=partitions)
    driver.put("a.b", "1", "2")
    driver.policy("a.b", endpoint_disabled=True)
    assert driver.run() == []
    assert driver.engine.policy_of("a.b").paused
    driver.policy("a.b", layer="operator", paused=None)
    driver.policy("a.b", layer="operator", rate=5)
    assert driver.run() == []
    for layer, name in (("operator", "a.b"), ("code", "a.*")):
        with pytest.raises(BadPolicy):
            driver.policy(name, layer=layer, endpoint_disabled=True)
    driver.policy("a.b", layer="operator", rate=None)
    driver.policy("a.b", endpoint_disabled=None)
    assert sorted(driver.run()) == ["1", "2"]


def test_set_before_the_first_message(driver: EngineDriver) -> None:
    """A topic's policy may be set before its first message."""
    driver.policy("a", concurrency=1)
    driver.put("a", "1", "2")
    driver.put("b", "1", "2")
    assert sorted(lease.topic for lease in driver.lease()) == ["a", "b", "b"]


def test_policy_outlives_its_lane(driver: EngineDriver) -> None:
    """A topic's policy outlives its lane, also if changed while the lane was idle."""
    driver.put("a", "1")
    driver.policy("a", concurrency=1)
    driver.run()
    driver.lease(after=100)
    driver.put("a", "1", "2")
    leases = driver.lease()
    assert len(leases) == 1
    driver.policy("a", concurrency=None)
    driver.settle(leases)
    driver.run()
    driver.lease(after=100)
    driver.put("a", "1", "2")
    assert len(driver.lease()) == 2


def test_policies_of_topics_are_paged(driver: EngineDriver) -> None:
    """The policy table holds patterns only; policies of topics are listed in pages."""
    driver.policy("t.*", retries=3)
    topics = [f"t.{n}" for n in range(25)]
    driver.engine.policy_set_many(
        "code", [(topic, {"rate": 5}) for topic in topics], now_us=driver.now
    )
    driver.policy("t.3", layer="operator", paused=True)
    policy_table = driver.engine.policies()
    assert policy_table.rows() == [("code", "t.*", {"retries": 3})]
    assert policy_table.why("t.3") == {
        "paused": (True, "operator", "t.3"),
        "rate": (5.0, "code", "t.3"),
        "retries": (3, "code", "t.*"),
    }
    assert (
        policy_table.resolve("t.4").rate,
        policy_table.resolve("t.4").retries,
        policy_table.resolve("u").rate,
    ) == (
        5.0,
        3,
        None,
    )
    assert driver.engine.policy_own("t.3") == {"code": {"rate": 5.0}, "operator": {"paused": True}}
    assert driver.engine.policy_own("u") == {}
    expected: dict[str, object] = {topic: {"code": {"rate": 5.0}} for topic in topics}
    expected["t.3"] = {"code": {"rate": 5.0}, "operator": {"paused": True}}
    assert own_of_all(driver, 10) == own_of_all(driver) == expected


def test_precedence(driver: EngineDriver) -> None:
    """An operator's pattern precedes the code's topic policy, field by field."""
    driver.policy("a.*", layer="operator", retries=0)
    driver.policy("a.1", retries=5, weight=2)
    found = driver.engine.policy_of("a.1")
    assert (found.retries, found.weight) == (0, 2.0)
    driver.policy("*", layer="operator", weight=7)
    assert driver.engine.policy_of("a.1").weight == 7.0
    driver.put("a.1", "1")
    driver.settle(driver.lease(), "retry", delay_us=0)
    assert driver.engine.topic_stats("a.1", now_us=driver.now).dead == 1
    driver.policy("a.1", layer="operator", retries=1)
    driver.put("a.1", "2")
    driver.settle(driver.lease(), "retry", delay_us=0)
    assert driver.engine.topic_stats("a.1", now_us=driver.now).dead == 1


def test_set_many(driver: EngineDriver) -> None:
    """`policy_set_many` takes topics and patterns, and returns what each sets now."""
    answers = driver.engine.policy_set_many(
        "code",
        [
            ("a", {"rate": 5}),
            ("b.*", {"retries": 1}),
            ("a", {"weight": 2}),
            ("b.1", {"paused": True}),
            ("a", {"rate": None}),
        ],
        now_us=driver.now,
    )
    assert answers == [
        {"rate": 5.0},
        {"retries": 1},
        {"rate": 5.0, "weight": 2.0},
        {"paused": True},
        {"weight": 2.0},
    ]
    assert own_of_all(driver) == {"a": {"code": {"weight": 2.0}}, "b.1": {"code": {"paused": True}}}
    assert driver.engine.policy_reset("code", "a", now_us=driver.now)
    assert not driver.engine.policy_reset("code", "a", now_us=driver.now)
    assert not driver.engine.policy_reset("operator", "b.1", now_us=driver.now)
    assert own_of_all(driver) == {"b.1": {"code": {"paused": True}}}
    assert driver.engine.policy_set_many("code", [], now_us=driver.now) == []


@pytest.mark.parametrize(
    "fields", [{"rate": "fast"}, {"gate": "nowhere"}, {"window": 5}, {"tier": "nowhere"}]
)
def test_set_many_is_atomic(driver: EngineDriver, fields: dict[str, object]) -> None:
    """A batch with an invalid policy changes nothing; the error names its topic."""
    with pytest.raises(BadPolicy, match=r"policy b"):
        driver.engine.policy_set_many(
            "code", [("a", {"rate": 5}), ("b", fields)], now_us=driver.now
        )
    assert own_of_all(driver) == {}


def test_field_without_what_it_needs(driver: EngineDriver) -> None:
    """A field whose requirement a pattern removes has no effect until it is set again."""
    driver.policy("a.*", merge="last")
    driver.policy("a.1", window=5)
    driver.policy("a.*", merge=None)
    assert driver.engine.policy_of("a.1").window is None
    driver.put("a.1", "1", key="k")
    assert driver.run() == ["1"]
    driver.policy("*", merge="first")
    driver.put("a.1", "2", "3", key="k")
    assert driver.run() == []
    assert driver.run(after=5) == ["2"]


def test_contradictions_with_a_pattern(driver: EngineDriver) -> None:
    """A pattern that contradicts a topic's field changes its effective value."""
    driver.policy("a", serial="yield", concurrency=1)
    driver.policy("*", delivery="at_most_once")
    assert driver.engine.policy_of("a").serial == "hold"
    driver.policy("m", merge="first", window=5, edge="leading")
    driver.policy("*", debounce=None, merge="last")
    assert driver.engine.policy_of("m").edge == "leading"


def test_stored_fields_that_contradict_each_other(driver: EngineDriver) -> None:
    """
    The policies of another store are set as they are, in any order of their layers; only a tier
    that does not exist is refused. A later change of a topic is checked as usual.
    """
    driver.engine.policy_set_many(
        "code",
        [("a.*", {"min_concurrency": 5}), ("a.1", {"window": 5}), ("b.*", {"window": 5})],
        as_stored=True,
        now_us=driver.now,
    )
    driver.policy("a.*", layer="operator", concurrency="auto", merge="last")
    assert driver.engine.policy_of("a.1").window == 5 * SECOND
    assert driver.engine.policy_of("b.1").window is None
    with pytest.raises(BadPolicy, match='"window" has no meaning'):
        driver.policy("b.*", weight=2)
    with pytest.raises(BadPolicy, match='tier "nowhere" does not exist'):
        driver.engine.policy_set_many(
            "code", [("a.1", {"tier": "nowhere"})], as_stored=True, now_us=driver.now
        )


def test_body_limit_of_a_topic(driver: EngineDriver) -> None:
    """A topic's `max_body` holds for every publisher at once."""
    driver.put("a", "123456")
    driver.policy("a", max_body=5)
    with pytest.raises(BadMessage, match=r"6 bytes.* max_body"):
        driver.put("a", "123456")
    with pytest.raises(BadMessage, match="max_body"):
        driver.put("a", "123456", key="k", priority=1)
    driver.policy("a", max_body=None)
    driver.put("a", "123456")


def test_fields_that_act_at_publish(driver: EngineDriver) -> None:
    """Serial, merge, ttl and backlog limits act on the next publish."""
    driver.put("a", "0", key="k")
    driver.policy("a", serial=True)
    driver.put("a", "1", "2", key="k")
    assert driver.bodies() == ["0", "1"]
    driver.policy("b", merge="last")
    driver.put("b", "1", "2", key="k")
    driver.policy("b", merge=None)
    driver.put("b", "3", key="k")
    assert driver.run() == ["2", "3"]
    driver.policy("c", ttl=1)
    driver.put("c", "1")
    assert driver.run(after=2) == []
    driver.policy("d", max_backlog=1)
    assert [receipt.outcome for receipt in driver.put("d", "1", "2")] == ["accepted", "refused"]
    driver.policy("d", max_backlog=None)
    assert [receipt.outcome for receipt in driver.put("d", "3")] == ["accepted"]


def test_topic_policy_leaves_the_bucket(driver: EngineDriver) -> None:
    """A topic with a policy leaves its bucket, and folds again without one, only while empty."""
    driver.policy("b.*", buckets=1, concurrency=1)
    driver.policy("b.1", weight=2)
    driver.put("b.1", "1")
    driver.put("b.2", "2")
    driver.put("b.3", "3")
    assert sorted(driver.bodies()) == ["1", "2"]
    with pytest.raises(TopicInUse):
        driver.policy("b.1", weight=None)
    with pytest.raises(TopicInUse):
        driver.policy("b.3", weight=2)
    driver.later(100)
    while leases := driver.lease():
        driver.settle(leases)
    driver.policy("b.1", weight=None)
    driver.policy("b.3", weight=2)
    for topic in ("b.1", "b.2", "b.3"):
        driver.put(topic, topic)
    assert sorted(driver.bodies()) in (["b.1", "b.3"], ["b.2", "b.3"])


@pytest.mark.parametrize("own", [{}, {"weight": 2}], ids=str)
@pytest.mark.parametrize("shape", [{}, {"buckets": 1}, {"partitions": 2}], ids=str)
def test_unchanged_policy_moves_no_lane(
    driver: EngineDriver, shape: dict[str, Any], own: dict[str, Any]
) -> None:
    """Setting the same policy again does not wake a lane whose back-off is over."""
    driver.policy("b.*", **shape)
    driver.policy("b.1", **own)
    driver.put("b.1", "1", "2", key="k")
    driver.settle(driver.lease(1), "back_off", delay_us=30 * SECOND)
    driver.later(31)
    driver.policy("b.1", **own)
    assert driver.engine.topic_stats("b.1", now_us=driver.now).state == "asleep"
    assert driver.bodies() == ["1"]


def test_topic_policies_before_a_bucket(driver: EngineDriver) -> None:
    """Topics with policies keep their lanes when a bucket is set later."""
    driver.engine.policy_set_many(
        "code", [(f"b.{n}", {"weight": 2}) for n in range(5)], now_us=driver.now
    )
    driver.policy("b.*", buckets=1, concurrency=1)
    for n in range(10):
        driver.put(f"b.{n}", str(n))
    assert sorted(driver.bodies())[:5] == ["0", "1", "2", "3", "4"]
    assert len(own_of_all(driver)) == 5


def test_partitioned_topics(
    driver: EngineDriver,
) -> None:
    """A topic's policy holds for all its partitions, whichever was set first."""
    driver.policy("p.1", partitions=4)
    driver.policy("p.2", paused=True)
    driver.policy("p.2", partitions=4, paused=None)
    driver.policy("q.2", weight=2)
    driver.policy("q.*", partitions=4)
    driver.policy("q.1", weight=2)
    for topic in ("p.1", "p.2", "q.1", "q.2"):
        for n in range(16):
            driver.put(topic, str(n), key=str(n))
        driver.policy(topic, paused=True)
    assert driver.bodies() == []
    for topic in ("p.1", "p.2", "q.1", "q.2"):
        driver.policy(topic, paused=None)
        assert len(driver.run()) == 16
    driver.policy("p.1", partitions=None)
    driver.policy("q.*", partitions=None)
    assert driver.engine.policy_of("q.1").weight == 2.0
    driver.put("q.1", "x", "y", key="k")
    assert driver.run() == ["x", "y"]


def test_partitions_of_a_topic_in_use(driver: EngineDriver) -> None:
    """Partitions of a topic in use cannot change."""
    driver.policy("p", partitions=2)
    driver.put("p", "1", key="k")
    with pytest.raises(TopicInUse, match="drain"):
        driver.policy("p", partitions=4)
    assert driver.run() == ["1"]
    driver.policy("p", partitions=4)


def test_layers_of_programs(driver: EngineDriver) -> None:
    """Programs have layers; run-time settings precede them and give way when reset."""
    for name in ("a.*", "a.1"):
        driver.policy(name, layer="program:shop", retries=1, weight=2)
        driver.policy(name, layer="program:billing", retries=1, concurrency=3)
        driver.policy(name, weight=4)
    for topic in ("a.1", "a.2"):
        policy = driver.engine.policy_of(topic)
        assert (policy.retries, policy.weight, policy.concurrency) == (1, 4.0, 3)
    own = driver.engine.policy_own("a.1")
    assert (own["program:shop"], own["program:billing"]) == (
        {"retries": 1, "weight": 2.0},
        {"retries": 1, "concurrency": 3},
    )
    for name in ("a.*", "a.1"):
        assert driver.engine.policy_reset("code", name, now_us=driver.now)
        assert driver.engine.policy_reset("program:billing", name, now_us=driver.now)
    assert driver.engine.policies().source_rows() == [
        ("program:shop", "a.*", {"retries": 1, "weight": 2.0})
    ]
    assert driver.engine.policy_own("a.1") == {
        "code": {"retries": 1, "weight": 2.0},
        "program:shop": {"retries": 1, "weight": 2.0},
    }
    assert (driver.engine.policy_of("a.1").weight, driver.engine.policy_of("a.2").concurrency) == (
        2.0,
        None,
    )


@pytest.mark.parametrize("name", ["a.*", "a"])
def test_programs_that_disagree(driver: EngineDriver, name: str) -> None:
    """Programs cannot declare different values; the error names the other program."""
    driver.policy(name, layer="program:shop", rate=5)
    with pytest.raises(BadPolicy, match=r'"shop" declares 5\.0'):
        driver.policy(name, layer="program:billing", rate=6)
    driver.policy(name, layer="program:billing", rate="300/m")
    driver.policy(name, layer="program:billing", rate=None)
    driver.policy(name, layer="program:shop", rate=None)
    driver.policy(name, layer="program:billing", rate=6)
    assert driver.engine.policy_of("a.1" if name == "a.*" else "a").rate == 6.0


def test_layer_of_unnamed_programs(
    driver: EngineDriver,
) -> None:
    """A program's declaration replaces what an unnamed program set."""
    driver.policy("a", layer="program:", rate=5, weight=2)
    driver.policy("a", layer="program:shop", rate=6)
    assert driver.engine.policy_of("a").rate == 6.0
    driver.policy("a", layer="program:shop", rate=None)
    assert driver.engine.policy_own("a") == {"code": {"weight": 2.0}, "program:": {"weight": 2.0}}


def test_set_many_checks_together(driver: EngineDriver) -> None:
    """Patterns in a batch are checked together, in any order."""
    driver.engine.policy_set_many(
        "code", [("a.b.*", {"window": 5}), ("a.*", {"merge": "last"})], now_us=driver.now
    )
    with pytest.raises(BadPolicy, match="window"):
        driver.engine.policy_set_many(
            "code", [("c.*", {"rate": 5}), ("a.*", {"merge": None})], now_us=driver.now
        )
    assert [row[1] for row in driver.engine.policies().rows()] == ["a.*", "a.b.*"]
    driver.engine.policy_set_many(
        "code", [("a.*", {"merge": None}), ("a.b.*", {"window": None})], now_us=driver.now
    )
    assert driver.engine.policies().rows() == []


def test_program_swap(driver: EngineDriver) -> None:
    """`program_swap` replaces a program's record only if the caller knows the present one."""
    engine = driver.engine
    assert engine.programs() == {}
    assert engine.program_swap("shop", None, b'{"version":"1"}')
    assert not engine.program_swap("shop", None, b'{"version":"2"}')
    assert not engine.program_swap("shop", b"{}", None)
    assert engine.programs() == {"shop": b'{"version":"1"}'}
    assert engine.program_swap("shop", b'{"version":"1"}', b"{}")
    assert engine.program_swap("shop", b"{}", None)
    assert engine.programs() == {}


def test_lanes_of_former_partitions(
    driver: EngineDriver,
) -> None:
    """A topic's policy holds for idle lanes of former partitions that return."""
    driver.policy("q.*", partitions=4)
    for n in range(16):
        driver.put("q.1", str(n), key=str(n))
    assert len(driver.run()) == 16
    driver.policy("q.*", partitions=None)
    driver.policy("q.1", paused=True)
    driver.policy("q.*", partitions=4)
    for n in range(16):
        driver.put("q.1", str(n), key=str(n))
    assert driver.lease() == []
    driver.policy("q.1", paused=None)
    assert len(driver.run()) == 16


def test_empty_change(driver: EngineDriver) -> None:
    """An empty change is accepted even if a pattern has made the topic's fields invalid."""
    driver.policy("a.1", serial="yield")
    driver.policy("a.*", delivery="at_most_once")
    assert driver.engine.policy_set("code", "a.1", {}, now_us=driver.now) == {"serial": "yield"}
    with pytest.raises(BadPolicy):
        driver.policy("a.1", weight=2)
