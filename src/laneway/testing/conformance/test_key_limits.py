"""Limits per key inside a topic: key_concurrency and key_rate."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.codec import MAX_PRIORITY
from laneway.errors import BadPolicy
from laneway.message import Draft, Lease
from laneway.policy import Gate
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND


def put(driver: EngineDriver, topic: str, *bodies: str, **options: object) -> list[str]:
    """Messages with bodies like "k1", whose key is the first letter. Returns their ids."""
    drafts = [
        Draft(topic, body.encode(), key=body[0], **options)  # type: ignore[arg-type]
        for body in bodies
    ]
    return [receipt.id for receipt in driver.engine.put(drafts, now_us=driver.now)]


def bodies_of(leases: list[Lease]) -> list[str]:
    return [lease.body.decode() for lease in leases]


def why(driver: EngineDriver, message_id: str, topic: str = "a") -> str:
    return " ".join(driver.engine.explain(message_id, topic, now_us=driver.now).reasons)


def test_key_concurrency(driver: EngineDriver) -> None:
    """At most so many messages of a key are leased. Other keys and messages without one go on."""
    driver.policy("a", key_concurrency=2)
    *_, last = put(driver, "a", "k1", "k2", "k3", "k4", "m1")[:4]
    driver.put("a", "free", "free")
    held = driver.lease(10)
    assert bodies_of(held) == ["k1", "k2", "m1", "free", "free"]
    assert driver.lease(10) == []
    assert 'its key "k" has 2 of 2 leased' in why(driver, last)
    stats = driver.engine.topic_stats("a", now_us=driver.now)
    assert (stats.parked, stats.ready, stats.leased) == (2, 0, 5)
    driver.settle(held[:1])
    assert driver.bodies() == ["k3"]
    driver.settle(held[1:2], "dead")
    assert driver.bodies() == ["k4"]


def test_key_rate(driver: EngineDriver) -> None:
    """Each key has a rate of its own, and a worker sleeps until the first permit."""
    driver.policy("a", key_rate="60/m")
    put(driver, "a", "k1", "k2", "k3", "m1")
    assert driver.run() == ["k1", "m1"]
    waiting = driver.engine.topic_peek("a", now_us=driver.now)
    assert 'the rate of its key "k" (1/s) admits the next message' in why(driver, waiting[0].id)
    wake = driver.batch().next_wake_us
    assert wake is not None
    assert driver.now < wake <= driver.now + SECOND
    driver.now = wake
    assert driver.run() == ["k2"]
    assert driver.run(after=0.5) == []
    assert driver.run(after=0.5) == ["k3"]


def test_a_key_rate_outlives_the_lane(driver: EngineDriver) -> None:
    """A key's clock is kept while it counts, even if its topic is empty; then it is deleted."""
    driver.policy("a", key_rate="1/m")
    put(driver, "a", "k1")
    assert driver.run() == ["k1"]
    driver.tick_after(30)
    put(driver, "a", "k2")
    assert driver.run() == []
    assert driver.run(after=30) == ["k2"]
    driver.tick_after(120)
    driver.tick_after(2)
    assert driver.engine.tick(now_us=driver.now) is None, "nothing is left to wake for"


def test_a_key_with_many_messages_holds_nothing_back(driver: EngineDriver) -> None:
    """One call gets to the messages behind thousands of a key at its limit."""
    driver.policy("a", key_concurrency=1)
    put(driver, "a", *(f"k{n}" for n in range(2500)))
    put(driver, "a", "m1")
    held = driver.lease(2)
    while len(held) < 2:
        batch = driver.batch(2 - len(held))
        assert batch.leases or batch.next_wake_us == driver.now
        held += batch.leases
    assert bodies_of(held) == ["k0", "m1"]
    for n in range(1, 6):
        driver.settle(held[:1])
        held = driver.lease(2)
        assert bodies_of(held) == [f"k{n}"]


def test_a_lost_lease_frees_its_key(driver: EngineDriver) -> None:
    """The lease of a worker that died ends, and the key goes on."""
    driver.policy("a", key_concurrency=1, lease=5)
    put(driver, "a", "k1", "k2")
    assert driver.bodies() == ["k1"]
    assert driver.lease() == []
    assert driver.bodies(after=5) == ["k1"], "the message that came back is before the next one"
    assert driver.lease(after=4) == []


@pytest.mark.parametrize(
    ("before", "after", "then"),
    [
        ({"key_concurrency": 1}, {"key_concurrency": 3}, ["k2", "k3"]),
        ({"key_concurrency": 1}, {"key_concurrency": None}, ["k2", "k3", "k4"]),
        ({"key_rate": "1/h"}, {"key_rate": 1000}, ["k2", "k3", "k4"]),
        ({"key_rate": "1/h"}, {"key_rate": None}, ["k2", "k3", "k4"]),
        ({"key_concurrency": 1}, {"key_concurrency": None, "serial": True}, ["k2", "k3", "k4"]),
    ],
    ids=str,
)
def test_raised_and_removed_limits_act_at_once(
    driver: EngineDriver, before: dict[str, Any], after: dict[str, Any], then: list[str]
) -> None:
    """What is parked goes on in the next call, without an end of a lease."""
    driver.policy("a", **before)
    put(driver, "a", "k1", "k2", "k3", "k4")
    assert driver.bodies() == ["k1"]
    assert driver.lease() == []
    driver.policy("a", **after)
    if "key_rate" in after:
        driver.later(1)
    assert driver.bodies() == then


def test_new_and_lower_limits_hold_for_what_waits(driver: EngineDriver) -> None:
    """A limit counts for messages that were published before it, and takes no lease back."""
    put(driver, "a", "k1", "k2", "k3", "k4", "m1", "m2")
    driver.policy("a", key_concurrency=2)
    held = driver.lease()
    assert bodies_of(held) == ["k1", "k2", "m1", "m2"]
    driver.policy("a", key_concurrency=1)
    driver.settle(held[:1])
    assert driver.lease() == []
    driver.settle(held[1:2])
    assert driver.bodies() == ["k3"]


def test_parked_messages_can_be_removed(driver: EngineDriver) -> None:
    """Cancel, purge, expiry and dead letters of parked messages leave the others in order."""
    driver.policy("a", key_concurrency=1)
    ids = put(driver, "a", "k1", "k2", "k3")
    put(driver, "a", "k4", ttl_us=2 * SECOND)
    put(driver, "a", "k5")
    held = driver.lease()
    assert driver.lease() == []
    assert driver.engine.cancel(ids[1], "a", now_us=driver.now) == "cancelled"
    assert driver.lease(after=3) == []
    driver.settle(held)
    held = driver.lease()
    assert bodies_of(held) == ["k3"]
    assert [view.body for _, view in driver.engine.dead_list("a")] == [b"k4"]
    assert driver.engine.topic_purge("a", now_us=driver.now) == 1
    put(driver, "a", "k6")
    assert driver.lease() == []
    driver.settle(held)
    assert driver.bodies() == ["k6"]


def test_a_removed_message_makes_room_for_the_next(driver: EngineDriver) -> None:
    """A message that became ready and is removed before its delivery does not strand its key."""
    driver.policy("a", key_concurrency=1)
    ids = put(driver, "a", "k1", "k2", "k3")
    held = driver.lease()
    assert driver.lease() == []
    driver.settle(held)
    assert driver.engine.cancel(ids[1], "a", now_us=driver.now) == "cancelled"
    assert driver.bodies() == ["k3"]


def test_retries_and_releases(driver: EngineDriver) -> None:
    """A message that waits for a retry frees its key; a release returns the key's permit."""
    driver.policy("a", key_concurrency=1, backoff=10)
    put(driver, "a", "k1", "k2")
    driver.settle(driver.lease(), "retry")
    assert driver.run() == ["k2"]
    assert driver.run(after=10) == ["k1"]
    driver.policy("a", key_concurrency=None, key_rate="1/m")
    put(driver, "a", "m1", "m2")
    driver.settle(driver.lease(), "release", begun=False)
    assert driver.run() == ["m1"]
    assert driver.run() == []


def test_priorities(driver: EngineDriver) -> None:
    """Of a key at its limit the highest priority is next, also before what became ready."""
    driver.policy("a", key_concurrency=1)
    put(driver, "a", "k1", "k2")
    held = driver.lease()
    assert driver.lease() == []
    put(driver, "a", "k9", priority=5)
    assert driver.lease() == []
    driver.settle(held)
    put(driver, "a", "k8", priority=9)
    assert [driver.run()[0] for _ in range(3)] == ["k8", "k9", "k2"]


def test_a_lease_by_priority(driver: EngineDriver) -> None:
    """A caller that names the least priority parks nothing below it."""
    driver.policy("a", key_concurrency=1)
    put(driver, "a", "k1", "m1")
    put(driver, "a", "k8", "k9", priority=5)
    assert driver.bodies(priorities=(5, MAX_PRIORITY)) == ["k8"]
    assert driver.bodies() == ["m1"]


def test_partitions_and_buckets(driver: EngineDriver) -> None:
    """A limit is not divided among partitions. In a bucket each topic has keys of its own."""
    driver.policy("a", partitions=4, key_concurrency=2)
    put(driver, "a", *(f"{key}{n}" for n in range(3) for key in "klmnop"))
    assert sorted(driver.bodies()) == sorted(f"{key}{n}" for n in range(2) for key in "klmnop")
    driver.policy("b.*", buckets=1, key_concurrency=1)
    put(driver, "b.1", "k1", "k2", "m1")
    put(driver, "b.2", "k3", "k4")
    assert driver.bodies(topics=["b.2"]) == ["k3"]
    assert driver.bodies(topics=["b.1"]) == ["k1", "m1"]
    assert driver.lease() == []


def test_other_limits_hold_too(driver: EngineDriver) -> None:
    """A key at its limit uses no permit of the topic's rate, and no slot of a gate."""
    driver.engine.gate_set("g", Gate(concurrency=2), now_us=driver.now)
    driver.policy("a", key_concurrency=1, gate="g", rate=10, burst=2)
    put(driver, "a", "k1", "k2", "k3", "m1", "n1")
    held = driver.lease()
    assert bodies_of(held) == ["k1", "m1"]
    assert driver.lease(after=10) == []
    driver.settle(held[1:])
    assert driver.bodies() == ["n1"]


def test_delivery_at_most_once(driver: EngineDriver) -> None:
    """A message that is finished at its delivery holds its key until its lease ends."""
    driver.policy("a", key_concurrency=1, delivery="at_most_once")
    put(driver, "a", "k1", "k2")
    held = driver.lease()
    assert driver.lease() == []
    driver.settle(held)
    assert driver.bodies() == ["k2"]


def test_own_ids_and_headers(driver: EngineDriver) -> None:
    """Messages that are more than a body and a key free their keys too."""
    driver.policy("a", key_concurrency=1, dedupe=60)
    for n in range(3):
        put(driver, "a", f"k{n}", id=f"i{n}", headers={"a": "b"}, ttl_us=9 * SECOND)
    for n in range(3):
        assert driver.run() == [f"k{n}"]


def test_serial_is_stronger(driver: EngineDriver) -> None:
    """Serial keys and limits per key are refused together; an own serial policy has no limits."""
    for field in ("key_concurrency", "key_rate"):
        with pytest.raises(BadPolicy, match="serial delivers one message"):
            driver.engine.policy_set("code", "s", {"serial": True, field: 2}, now_us=driver.now)
    driver.policy("b.*", key_concurrency=2)
    put(driver, "b.1", "k1", "k2")
    driver.policy("c.*", serial=True)
    put(driver, "c.1", "k1", "k2", "k3")
    driver.policy("c.*", serial=None, key_concurrency=2)
    held = driver.lease(10, topics=["c.1"])
    assert bodies_of(held) == ["k1"], "published as serial ones"


def test_a_deleted_topic_leaves_nothing(driver: EngineDriver) -> None:
    """After a delete, keys begin again."""
    driver.policy("a", key_concurrency=1, key_rate="1/h")
    put(driver, "a", "k1", "k2")
    held = driver.lease()
    driver.engine.topic_delete("a", now_us=driver.now)
    assert driver.settle(held) == ["gone"]
    put(driver, "a", "k3")
    assert driver.run() == ["k3"]


def test_a_raised_limit_of_many_keys(driver: EngineDriver) -> None:
    """More keys than one call looks at go on within a few calls, and then nothing wakes."""
    driver.policy("a", key_concurrency=1)
    keys = [f"{n}" for n in range(1200)]
    for _ in range(2):
        driver.engine.put([Draft("a", b"", key=key) for key in keys], now_us=driver.now)
    held = driver.lease(2000)
    while driver.batch().next_wake_us == driver.now:
        pass
    assert len(held) == driver.engine.topic_stats("a", now_us=driver.now).parked == 1200
    driver.policy("a", key_concurrency=2)
    # how many calls depends on the size that an engine gives them, which may adapt to their time
    assert sum(len(driver.lease(2000)) for _ in range(20)) == 1200
    assert driver.engine.tick(now_us=driver.now) != driver.now


def test_key_limits_and_cursors(driver: EngineDriver) -> None:
    """The scan cursor stays below what waits behind its key."""
    driver.policy("a", key_concurrency=1)
    first = driver.engine.cursors("a")[0]
    for key in ("x", "x", "y", "x", "y"):
        driver.put("a", "1", key=key)
    leases = driver.lease()
    assert driver.engine.cursors("a")[0] == (first[0] + 1, first[1])
    driver.settle(leases)
    assert driver.engine.cursors("a")[0] == (first[0] + 1, first[1] + 1)
    driver.lease()
    assert driver.engine.cursors("a")[0] == (first[0] + 3, first[1] + 1)
