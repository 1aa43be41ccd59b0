"""Subscriptions where topics are on several shards, and clients that know old policies."""

from __future__ import annotations

import uuid

import pytest

from laneway import Laneway, Message
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement
from tests.conformance.valkey_setups import server


@pytest.fixture
def app() -> Laneway:
    return Laneway(f"{server().url}?shards=8", namespace=uuid.uuid4().hex)


def test_keyless_messages_are_in_partitions_of_their_shards(app: Laneway) -> None:
    """All of them are counted and peeked; some were in lanes that no view looked for."""
    with app:
        app.policy("p", partitions=8)
        app.publish_many(Message("p", n) for n in range(80))
        assert app.topic("p").stats().waiting == 80
        assert len(app.topic("p").peek(100)) == 80


def test_copies_of_a_partitioned_topic(app: Laneway) -> None:
    """They are on the shards of their messages, and views find them there."""
    with app:
        app.policy("p", partitions=8)
        app.topic("p").subscribe("s")
        app.publish_many(Message("p", n, key=f"k{n % 5}" if n % 2 else None) for n in range(100))
        copies = app.topic("p#s")
        assert copies.stats().waiting == app.topic("p").stats().waiting == 100
        assert len(copies.peek(200)) == 100
        deliveries = app.lease(200, topics=["p#s"])
        for delivery in deliveries[:7]:
            delivery.dead()
        app.ack_many(deliveries[7:])
        assert (copies.stats().dead, copies.redrive(), copies.stats().waiting) == (7, 7, 7)
        assert copies.purge() == 7


def test_subscribing_partitions_later(app: Laneway) -> None:
    """A subscription's own policy follows its topic to the topic's shards."""
    with app:
        app.topic("p").subscribe("s")
        app.policy("p#s", max_backlog=3, on_full="drop_oldest")
        app.policy("p", partitions=8)
        app.publish_many(Message("p", n, key="k") for n in range(10))
        assert app.topic("p#s").stats().waiting == 3
        app.topic("p").purge()
        app.topic("p#s").purge()
        app.policy("p", partitions=None)
        app.publish_many(Message("p", n, key="k") for n in range(10))
        assert app.topic("p#s").stats().waiting == 3


@pytest.mark.parametrize("shards", [1, 8])
def test_other_clients_know_a_new_subscription(shards: int) -> None:
    """Also one that has published to the topic before: every publish and every ack has copies."""
    url, settings = f"{server().url}?shards={shards}", Settings(namespace=uuid.uuid4().hex)
    one, other = open_engine(url, settings), open_engine(url, settings)
    other.put([Draft("a", b"0"), Draft("b", b"0")])
    one.policy_set("code", "a", {"subscription:s": {}})
    other.put([Draft("a", b"1")])
    one.policy_set("code", "a", {"subscription:t": {}, "own_backlog": False})
    other.put([Draft("a", b"2"), Draft("a", b"3")])
    (lease,) = other.lease(1, topics=["b"]).leases
    other.settle([Settlement(lease.handle, lease.fence)], publish={0: [Draft("a", b"4")]})
    assert [other.topic_stats(topic).waiting for topic in ("a", "a#s", "a#t")] == [2, 4, 3]
    one.policy_set("code", "a", dict.fromkeys(["subscription:s", "subscription:t", "own_backlog"]))
    other.put([Draft("a", b"5")])
    assert [other.topic_stats(topic).waiting for topic in ("a", "a#s", "a#t")] == [3, 4, 3]
    for engine in (one, other):
        engine.close()


def test_a_body_that_a_new_limit_refuses(app: Laneway) -> None:
    """The limit of a subscription counts for clients that did not know it."""
    url, settings = server().url, Settings(namespace=uuid.uuid4().hex)
    one, other = open_engine(url, settings), open_engine(url, settings)
    one.policy_set("code", "a", {"subscription:s": {}})
    other.put([Draft("a", b"0000")])
    one.policy_set("code", "a#s", {"max_body": 3})
    with pytest.raises(Exception, match="a#s"):
        other.put([Draft("a", b"0000")])
    assert [other.topic_stats(topic).waiting for topic in ("a", "a#s")] == [1, 1]
    for engine in (one, other):
        engine.close()
    app.close()


@pytest.mark.parametrize("priority", [0, 1])
@pytest.mark.parametrize("shards", [1, 8])
def test_copies_are_named_after_their_settlement(shards: int, priority: int) -> None:
    """Also where the settlements of one call publish the same; a repeat publishes nothing."""
    settings = Settings(namespace=uuid.uuid4().hex)
    engine = open_engine(f"{server().url}?shards={shards}", settings)
    engine.policy_set("code", "a", {"subscription:s": {}})
    engine.put([Draft("in", b"", id=f"parent{n}") for n in range(3)])
    leases = engine.lease(3, topics=["in"]).leases
    engine.settle(
        [Settlement(lease.handle, lease.fence) for lease in leases],
        publish={n: [Draft("a", b"same", priority=priority)] * 2 for n in range(3)},
    )
    expected = [f"parent{n}:{k}" for n in range(3) for k in range(2)]
    for topic in ("a", "a#s"):
        found = engine.lease(10, topics=[topic]).leases
        assert sorted(lease.id for lease in found) == expected
        engine.settle([Settlement(lease.handle, lease.fence) for lease in found])
    again = [Draft("a", b"same", id=name, sticky=True, priority=priority) for name in expected]
    assert {receipt.outcome for receipt in engine.put(again)} == {"duplicate"}
    engine.close()
