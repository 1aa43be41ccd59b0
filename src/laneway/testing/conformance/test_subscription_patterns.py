"""Subscriptions of many topics by pattern: their policies, and those with one consumer."""

from __future__ import annotations

import pytest

from laneway.engines.base import TopicOrder, TopicStats
from laneway.errors import BadPolicy, TopicInUse, UsageError
from laneway.testing.conformance.test_subscriptions import subscribe
from laneway.testing.engine_driver import EngineDriver

EU, US = "orders.eu#audit", "orders.us#audit"


def publish(driver: EngineDriver, *bodies: str) -> None:
    for topic in ("orders.eu", "orders.us"):
        driver.put(topic, *(f"{topic[-2:]}{body}" for body in bodies))


def pool_of(driver: EngineDriver, topic: str) -> str:
    return driver.engine.policy_of(topic).pool


# Policies


def test_pattern_policy_of_copies(driver: EngineDriver) -> None:
    """It holds for the copies of one name, and neither for topics nor for other names."""
    subscribe(driver, "orders.*", "audit", "billing")
    driver.policy("orders.*#audit", concurrency=1, retries=0)
    publish(driver, "1", "2")
    found = driver.lease()
    assert sorted(lease.topic for lease in found) == sorted(
        [EU, US, *(topic for topic in ("orders.eu", "orders.us") for _ in range(2))]
        + [f"orders.{part}#billing" for part in ("eu", "us") for _ in range(2)]
    )
    driver.settle([lease for lease in found if lease.topic in (EU, US)], "retry")
    assert [driver.engine.topic_stats(topic).dead for topic in (EU, US, "orders.eu")] == [1, 1, 0]
    assert sorted(driver.run(topics=[EU, US])) == ["eu2", "us2"]


def test_pattern_lists_copies(driver: EngineDriver) -> None:
    """A pattern of subscriptions lists those of its name, in every order but by name."""
    subscribe(driver, "orders.*", "audit", "billing")
    driver.put("stock", "1")
    publish(driver, "1")
    driver.put("orders.us", "us2")
    firsts: list[tuple[TopicOrder, str]] = [("backlog", US), ("age", EU), ("dead", EU)]
    for order, first in firsts:
        if order == "dead":
            driver.policy("*", retries=0)
            driver.settle(driver.lease(1, topics=[EU]), "retry")
        found = driver.engine.topic_list(order=order, pattern="orders.*#audit", now_us=driver.now)
        assert [stats.topic for stats in found][:1] == [first]
        assert {stats.topic for stats in found} <= {EU, US}
    assert [stats.waiting for stats in _listed(driver, "*#audit")] == [2]
    assert [stats.topic for stats in _listed(driver, "orders.us#audit")] == [US]
    assert _listed(driver, "stock.*#audit") == []
    with pytest.raises(UsageError, match="by name"):
        driver.engine.topic_list(pattern="orders.*#audit", now_us=driver.now)


def _listed(driver: EngineDriver, pattern: str) -> list[TopicStats]:
    return driver.engine.topic_list(order="backlog", pattern=pattern, now_us=driver.now)


def test_pattern_policy_more_specific(driver: EngineDriver) -> None:
    """Patterns that name the subscription precede those of topics; the exact policy is first."""
    driver.policy("*", retries=1, weight=2, lease=10)
    driver.policy("*#audit", retries=2, lease=20, max_body=7)
    driver.policy("orders.*", retries=3, lease=30)
    driver.policy("orders.eu.*#audit", retries=4)
    driver.policy("orders.eu.a", retries=5)
    driver.policy("orders.eu.a#audit", lease=40)

    def of(topic: str) -> tuple[int, float, int]:
        policy = driver.engine.policy_of(topic)
        return policy.retries, policy.weight, policy.lease // 1_000_000

    assert of("orders.eu.a#audit") == (4, 2, 40)
    assert of("orders.eu.b#audit") == (4, 2, 20)
    assert of("orders.us#audit") == (2, 2, 20)
    assert of("stock#audit") == (2, 2, 20)
    assert of("orders.us#billing") == (3, 2, 30)
    assert of("orders.eu.b") == (3, 2, 30)
    assert of("orders.eu.a") == (5, 2, 30)
    assert driver.engine.policies().why("orders.us#audit") == {
        "retries": (2, "code", "*#audit"),
        "lease": (20, "code", "*#audit"),
        "max_body": (7, "code", "*#audit"),
        "weight": (2, "code", "*"),
    }


def test_pattern_policy_as_lanes_have_it(driver: EngineDriver) -> None:
    """Lanes obey the same precedence as the views show, whatever is set first."""
    subscribe(driver, "orders.*", "audit")
    driver.policy("*#audit", concurrency=1)
    driver.policy("orders.*", concurrency=3)
    publish(driver, *"abcd")
    assert len(driver.lease(topics=[EU])) == 1
    assert len(driver.lease(topics=["orders.eu"])) == 3
    driver.policy("orders.*#audit", concurrency=2)
    assert len(driver.lease(topics=[EU])) == 1
    driver.policy("orders.us#audit", concurrency=4)
    assert len(driver.lease(topics=[US])) == 4
    driver.policy("orders.*#audit", concurrency=None)
    driver.policy("*#audit", concurrency=None)
    assert len(driver.lease(topics=[EU])) == 1
    driver.policy("orders.*", concurrency=None)
    assert len(driver.lease(topics=[EU])) == 1


def test_pattern_policy_layers(driver: EngineDriver) -> None:
    """The operator's pattern precedes the code's exact policy; reset, that one holds again."""
    subscribe(driver, "orders.*", "audit")
    driver.policy(EU, concurrency=3)
    driver.policy("*#audit", layer="operator", paused=True, concurrency=1)
    publish(driver, *"abcd")
    assert driver.lease(topics=[EU]) == []
    driver.policy("*#audit", layer="operator", paused=None)
    assert len(driver.lease(topics=[EU])) == 1
    assert driver.engine.policy_reset("operator", "*#audit", now_us=driver.now)
    assert len(driver.lease(topics=[EU])) == 2
    assert not driver.engine.policy_reset("operator", "*#audit", now_us=driver.now)


def test_pattern_policy_of_partitions(driver: EngineDriver) -> None:
    """They change only while the topics of this name are empty."""
    subscribe(driver, "orders.*", "audit", "billing")
    publish(driver, "1")
    with pytest.raises(TopicInUse, match=r"policy \*#audit: .*orders\..*#audit holds 1 waiting"):
        driver.policy("*#audit", partitions=4)
    driver.run()
    driver.put("orders.eu", "2")
    driver.run(topics=[EU])
    driver.policy("*#audit", partitions=4)
    for n in range(12):
        driver.put("orders.eu", f"{n:02}", key=f"k{n % 3}")
    assert sorted(driver.run(topics=[EU])) == [f"{n:02}" for n in range(12)]
    assert driver.engine.policy_of("orders.eu").partitions == 1


@pytest.mark.parametrize(
    ("pattern", "fields", "error"),
    [
        ("orders.*#*", {"retries": 1}, "expected a name of 1 to 64"),
        ("orders.*#", {"retries": 1}, "expected a name of 1 to 64"),
        ("orders.*#a#b", {"retries": 1}, "expected a name of 1 to 64"),
        ("orders*#audit", {"retries": 1}, "may only stand alone or at the end"),
        ("#audit", {"retries": 1}, "expected a name, got ''"),
        ("*#audit", {"buckets": 4}, "set buckets on a pattern of topics"),
        ("*#audit", {"own_backlog": False}, "set it on a topic or a pattern of topics"),
        ("*#audit", {"retry": 4}, 'did you mean "retries"'),
        ("*#audit", {"subscription:x": {}}, "a subscription has no subscriptions"),
    ],
)
def test_pattern_policy_bad(
    driver: EngineDriver, pattern: str, fields: dict[str, object], error: str
) -> None:
    with pytest.raises(BadPolicy, match=error.replace("(", r"\(")):
        driver.engine.policy_set("code", pattern, fields, now_us=driver.now)


# One consumer


def test_consumed_pool_of_a_pattern(driver: EngineDriver) -> None:
    """All copies of the pattern are in one pool, which its consumer leases alone."""
    subscribe(driver, "orders.*", "audit", kind="failover")
    publish(driver, "1", "2")
    assert sorted(driver.run()) == ["eu1", "eu2", "us1", "us2"]
    assert driver.lease(topics=[EU, US]) == []
    assert driver.engine.policies().why(EU)["pool"] == ("orders.*#audit", "code", "orders.*")
    found = driver.lease(pool="orders.*#audit")
    assert sorted(lease.topic for lease in found) == [EU, EU, US, US]
    assert {each.kind for each in driver.engine.policy_of("orders.eu").subscriptions} == {
        "failover"
    }


def test_consumed_kind_changes(driver: EngineDriver) -> None:
    """What waits follows the kind, also if policies of the topics name a pool."""
    driver.policy("orders.*", pool="gpu")
    driver.policy(EU, pool="cpu")
    subscribe(driver, "orders.*", "audit")
    publish(driver, "1", "2")
    assert driver.run(1, pool="gpu", topics=[US]) == ["us1"]
    subscribe(driver, "orders.*", "audit", kind="exclusive")
    driver.policy(US, pool="cpu")
    driver.policy("orders.*#audit", pool="cpu")
    publish(driver, "3")
    assert driver.lease(pool="cpu") == []
    assert sorted(driver.run(pool="orders.*#audit")) == ["eu1", "eu2", "eu3", "us2", "us3"]
    publish(driver, "4")
    subscribe(driver, "orders.*", "audit")
    assert driver.lease(pool="orders.*#audit") == []
    assert sorted(driver.run(pool="cpu")) == ["eu4", "us4"]


def test_consumed_more_specific(driver: EngineDriver) -> None:
    """The most specific pattern decides who consumes; a topic's own declaration has its kind."""
    subscribe(driver, "orders.eu", "audit", where={"type": "a"})
    subscribe(driver, "*", "audit", kind="failover")
    subscribe(driver, "orders.us.*", "audit", kind="exclusive")
    subscribe(driver, "stock.*", "audit")
    for topic in ("orders.eu", "orders.us.x", "stock.a", "other"):
        driver.put(topic, topic, headers={"type": "a"})
        driver.put(topic, "b")
    pools = {
        topic: pool_of(driver, f"{topic}#audit")
        for topic in ("orders.eu", "orders.us.x", "stock.a", "other")
    }
    assert pools == {
        "orders.eu": "*#audit",
        "orders.us.x": "orders.us.*#audit",
        "stock.a": "default",
        "other": "*#audit",
    }
    (own,) = driver.engine.policy_of("orders.eu").subscriptions
    assert (own.kind, own.where_by_header) == ("failover", {"type": "a"})
    assert sorted(driver.run(pool="*#audit")) == ["b", "orders.eu", "other"]
    assert sorted(driver.run(pool="orders.us.*#audit")) == ["b", "orders.us.x"]
    assert sorted(driver.run(topics=["stock.a#audit"])) == ["b", "stock.a"]


def test_consumed_by_layer(driver: EngineDriver) -> None:
    """The operator's kind precedes the code's."""
    subscribe(driver, "orders.*", "audit")
    publish(driver, "1")
    fields = {"subscription:audit": {"kind": "exclusive"}}
    driver.engine.policy_set("operator", "*", fields, now_us=driver.now)
    assert pool_of(driver, EU) == "*#audit"
    assert sorted(driver.run(pool="*#audit")) == ["eu1", "us1"]
    driver.engine.policy_reset("operator", "*", now_us=driver.now)
    assert pool_of(driver, EU) == "default"


def test_consumed_with_limits(driver: EngineDriver) -> None:
    """Policies of the pattern's copies hold for each topic by itself, in the pool as well."""
    subscribe(driver, "orders.*", "audit", kind="failover")
    driver.policy("orders.*#audit", concurrency=1, retries=0)
    publish(driver, "1", "2")
    found = driver.lease(pool="orders.*#audit")
    assert sorted(lease.body for lease in found) == [b"eu1", b"us1"]
    driver.settle(found, "retry")
    assert [driver.engine.topic_stats(topic).dead for topic in (EU, US)] == [1, 1]
    assert sorted(driver.run(pool="orders.*#audit")) == ["eu2", "us2"]


def test_consumed_partitions(driver: EngineDriver) -> None:
    """The topics of a pattern may be spread over partitions, and their copies with them."""
    driver.policy("orders.*", partitions=4)
    subscribe(driver, "orders.*", "audit", kind="failover")
    for n in range(12):
        driver.put("orders.eu", f"{n:02}", key=f"k{n}")
    assert sorted(driver.run(pool="orders.*#audit")) == [f"{n:02}" for n in range(12)]
