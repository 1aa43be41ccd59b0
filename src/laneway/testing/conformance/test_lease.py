"""`lease` and `extend`: order, delays, expiry, lanes, and leases that run out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from laneway.codec import MAX_PRIORITY
from laneway.engines.base import MAX_PASSED_OVER
from laneway.errors import TopicInUse
from laneway.message import Draft, Settlement
from laneway.policy import Gate, Tier
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND


def test_priority_order(driver: EngineDriver) -> None:
    """Higher priorities first, then `at_front` messages, the latest first, then publish order."""
    driver.put("a", "1", "2")
    driver.put("a", "high", priority=5)
    driver.put("a", "front1", at_front=True)
    driver.put("a", "front2", at_front=True)
    driver.put("a", "low", priority=-5)
    assert driver.run() == ["high", "front2", "front1", "1", "2", "low"]


def test_delayed_messages(driver: EngineDriver) -> None:
    """A delayed message is delivered at its time; overdue ones in the order of their due times."""
    driver.put("a", "two", delay_us=2 * SECOND)
    driver.put("a", "one", delay_us=1 * SECOND)
    driver.put("a", "at", at_us=driver.now + 3 * SECOND)
    batch = driver.batch()
    assert batch.leases == []
    assert batch.next_wake_us == driver.now + 1 * SECOND
    assert driver.run(after=0.999999) == []
    assert driver.run(after=10) == ["one", "two", "at"]


def test_ttl(
    driver: EngineDriver,
) -> None:
    """An expired message becomes a dead letter, or is dropped with `on_expiry="drop"`."""
    driver.policy("drop", on_expiry="drop", ttl=5)
    driver.put("a", "x", ttl_us=5 * SECOND)
    driver.put("drop", "y")
    assert driver.run(after=5) == []
    assert [(view.body, view.state) for _, view in driver.engine.dead_list()] == [(b"x", "dead")]
    assert driver.engine.overview(now_us=driver.now).expired == 2


def test_expired_lease_is_lost(
    driver: EngineDriver,
) -> None:
    """
    A message whose lease ran out is delivered again with a higher fence; the old lease is lost.
    """
    driver.put("a", "x")
    (old,) = driver.lease()
    assert driver.lease() == []
    (new,) = driver.lease(after=60)
    assert new.fence > old.fence
    assert (new.attempt, new.deliveries, new.suspect) == (1, 2, True)
    assert driver.settle([old]) == ["lost"]
    assert driver.engine.extend(
        [(old.handle, old.fence), (new.handle, new.fence)], SECOND, now_us=driver.now
    ) == [False, True]
    assert driver.settle([new]) == ["acked"]
    assert driver.settle([new]) == ["lost"]


def test_extend(driver: EngineDriver) -> None:
    """`extend` moves a deadline to at least now + by, and never shortens it."""
    driver.put("a", "x", "y")
    x, y = driver.lease()
    driver.later(50)
    assert driver.engine.extend([(x.handle, x.fence)], 60 * SECOND, now_us=driver.now) == [True]
    assert driver.engine.extend([(x.handle, x.fence)], 1 * SECOND, now_us=driver.now) == [True]
    assert driver.bodies(after=10) == ["y"]
    assert driver.bodies(after=49) == []
    assert driver.bodies(after=1) == ["x"]
    assert y.fence


def test_longest_lease(driver: EngineDriver) -> None:
    """
    `max_lease_us` shortens a policy's `lease`, and never lengthens it. A lease that is not extended
    ends then, and a caller that waits is told when.
    """
    driver.policy("short", lease=2)
    driver.engine.gate_set("g", Gate(concurrency=1), now_us=driver.now)
    driver.policy("gated", gate="g")
    driver.policy("once", delivery="at_most_once")
    for topic in ("a", "short", "gated", "once"):
        driver.put(topic, topic)
    leases = {each.topic: each for each in driver.lease(max_lease_us=9 * SECOND)}
    ends = {topic: (each.deadline_us - driver.now) / SECOND for topic, each in leases.items()}
    assert ends == {"a": 9, "short": 2, "gated": 9, "once": 9}
    assert driver.batch().next_wake_us == driver.now + 2 * SECOND
    pairs = [(leases[topic].handle, leases[topic].fence) for topic in ("a", "gated")]
    driver.later(1)
    assert driver.engine.extend(pairs[:1], 9 * SECOND, now_us=driver.now) == [True]
    assert driver.bodies(after=7.999) == ["short"]
    assert driver.bodies(after=0.001) == ["gated"]
    assert driver.engine.extend(pairs, 9 * SECOND, now_us=driver.now) == [True, False]


def test_keys_of_topics_in_a_bucket(driver: EngineDriver) -> None:
    """Topics in one bucket merge and serialize by their own keys."""
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


def test_empty_messages_in_a_bucket(driver: EngineDriver) -> None:
    """They change no number of bytes, and are delivered, returned and ended as others."""
    driver.policy("b.*", buckets=1, retries=0)
    driver.put("b.1", "", "", "", "")
    leases = driver.lease()
    assert driver.settle(leases[:1], "release") == ["released"]
    assert driver.settle(leases[1:2], "retry") == ["died"]
    assert driver.settle(leases[2:]) == ["acked"] * 2
    assert driver.bodies() == [""]


def test_named_topic_in_a_bucket(driver: EngineDriver) -> None:
    """Naming a folded topic delivers only its messages, in its order."""
    driver.policy("b.*", buckets=1)
    for n in range(3):
        driver.put(f"b.{n % 2}", f"{n}")
    driver.put("b.1", "first", priority=5)
    assert driver.bodies(topics=["b.2"]) == []
    assert driver.bodies(1, topics=["b.1"]) == ["first"]
    assert driver.bodies(2, topics=["b.1", "b.0", "b.1"]) == ["1", "0"]
    assert driver.bodies() == ["2"]


def test_a_topic_leaves_its_bucket_while_empty(driver: EngineDriver) -> None:
    """A topic leaves its bucket only while it is empty; other topics do not matter."""
    driver.policy("b.*", buckets=1)
    driver.put("b.1", "1")
    driver.put("b.2", "1")
    with pytest.raises(TopicInUse):
        driver.policy("b.1", weight=2)
    driver.engine.topic_purge("b.1", now_us=driver.now)
    driver.policy("b.1", weight=2)


def test_extended_leases_end_in_order(driver: EngineDriver) -> None:
    """An extended lease ends at its new deadline, after others and before what expires."""
    driver.policy("*", lease=10, retries=0, ttl=20)
    driver.put("a", "1", "2")
    first, second = driver.lease()
    driver.engine.start(
        [(lease.handle, lease.fence) for lease in (first, second)], now_us=driver.now
    )
    driver.engine.extend([(first.handle, first.fence)], 30 * SECOND, now_us=driver.now)
    driver.put("b", "3")
    driver.tick_after(60)
    assert [view.body for _, view in driver.engine.dead_list()] == [b"2", b"1", b"3"]


def test_startable(driver: EngineDriver) -> None:
    """Limited topics are leased only as far as they can start, and later lanes are withheld."""
    driver.policy("limited", concurrency=10)
    driver.put("limited", *map(str, range(10)))
    driver.put("free", *map(str, range(100)))
    first = Counter(lease.topic for lease in driver.lease(50, startable=0))
    assert first["limited"] == 0
    assert Counter(lease.topic for lease in driver.lease(50, startable=2))["limited"] == 2


def test_serial_keys(driver: EngineDriver) -> None:
    """A serial key runs one message at a time; `hold` keeps it for a retry, `yield` does not."""
    for mode, after_retry in (("hold", ["k1"]), ("yield", ["k2"])):
        topic = f"s.{mode}"
        driver.policy(topic, serial=mode, backoff=1)
        for body, key in (("k1", "k"), ("k2", "k"), ("o1", "o"), ("n1", None)):
            driver.put(topic, body, key=key)
        leases = driver.lease()
        assert sorted(lease.body.decode() for lease in leases) == ["k1", "n1", "o1"]
        assert driver.lease() == []
        driver.settle([lease for lease in leases if lease.body == b"k1"], "retry")
        driver.settle([lease for lease in leases if lease.body != b"k1"])
        if mode == "yield":
            assert driver.bodies() == after_retry
        else:
            assert driver.lease() == []
            assert driver.bodies(after=1) == after_retry
        driver.engine.topic_delete(topic, now_us=driver.now)


def test_partitions(
    driver: EngineDriver,
) -> None:
    """Partitions share the concurrency."""
    driver.policy("a", partitions=4, concurrency=8)
    for n in range(40):
        driver.put("a", str(n), key=f"k{n % 8}")
    assert len(driver.lease()) <= 8


@pytest.mark.parametrize("partitions", [3, 7, 100])
def test_any_number_of_partitions(driver: EngineDriver, partitions: int) -> None:
    """Any number spreads the messages; views, retries and redrives find all of them."""
    driver.policy("a", partitions=partitions, serial="hold", retries=0)
    for n in range(200):
        driver.put("a", str(n), key=f"k{n % 20}")
    driver.put("a", *(f"no key {n}" for n in range(20)))
    assert driver.waiting("a") == 220
    leases = driver.lease(500)
    by_key: dict[str | None, list[str]] = {}
    while leases:
        for lease in leases:
            by_key.setdefault(lease.key, []).append(lease.body.decode())
        driver.settle(leases)
        leases = driver.lease(500)
    for key in {f"k{n}" for n in range(20)}:
        assert by_key[key] == sorted(by_key[key], key=int)
    assert sum(map(len, by_key.values())) == 220
    driver.put("a", *(f"no key {n}" for n in range(20)))
    driver.settle(driver.lease(500), "dead")
    assert driver.engine.dead_redrive("a", now_us=driver.now) == 20
    assert driver.waiting("a") == 20
    assert len(driver.run(500)) == 20


def test_buckets(driver: EngineDriver) -> None:
    """Buckets fold topics into few lanes; counts and purges are still the topic's."""
    driver.policy("b.*", buckets=2)
    for n in range(10):
        driver.put(f"b.{n}", "x", "y")
    assert driver.engine.overview(now_us=driver.now).topics <= 2
    assert driver.waiting("b.3") == 2
    assert driver.engine.topic_purge("b.3", now_us=driver.now) == 2
    assert len(driver.lease()) == 18


def test_named_topics(driver: EngineDriver) -> None:
    """Named topics are served strictly in the given order, and no others."""
    driver.put("low", "3", "4")
    driver.put("high", "1", "2")
    driver.put("other", "5")
    assert driver.run(topics=["high", "low"]) == ["1", "2", "3", "4"]


def test_at_most_once(driver: EngineDriver) -> None:
    """An at-most-once message is finished at delivery; its lease keeps the slot."""
    driver.policy("a", delivery="at_most_once", concurrency=1)
    driver.put("a", "1", "2")
    assert driver.bodies() == ["1"]
    assert driver.bodies() == []
    (second,) = driver.lease(after=60)
    assert second.body == b"2"
    assert driver.settle([second], "retry") == ["released"], "there is nothing left to retry"
    assert driver.engine.dead_list("a") == []
    assert driver.bodies(after=3600) == []


def test_only(driver: EngineDriver) -> None:
    """
    `only` delivers the topics of its patterns by weight, and reports that it passed over
    others.
    """
    if not driver.engine.capabilities.only:
        pytest.skip("the engine does not know it")
    driver.policy("push.heavy", weight=3)
    driver.put("mail.a", "m1", "m2")
    for topic in ("push.a", "push.heavy", "single"):
        driver.put(topic, *(f"{topic} {n}" for n in range(40)))
    batch = driver.batch(40, only=["push.*", "single"])
    assert batch.passed_over
    counts = Counter(lease.topic for lease in batch.leases)
    assert counts == {"push.heavy": 24, "push.a": 8, "single": 8}
    assert {lease.topic for lease in driver.lease(200, only=["push.*"])} == {"push.a", "push.heavy"}
    assert driver.lease(only=["nothing.*"]) == []
    assert driver.bodies(2, only=["*"]) == ["m1", "m2"] or driver.waiting("mail.a") == 2
    assert (
        driver.waiting("mail.a") + driver.engine.topic_stats("mail.a", now_us=driver.now).leased
        == 2
    )


def test_only_passes_over_a_bounded_number(driver: EngineDriver) -> None:
    """`only` passes over a bounded number of lanes; the next call continues until all are found."""
    if not driver.engine.capabilities.only:
        pytest.skip("the engine does not know it")
    others = 2 * MAX_PASSED_OVER + 500
    driver.engine.put([Draft(f"mail.{n}", b"x") for n in range(others)], now_us=driver.now)
    driver.engine.put([Draft(f"push.{n}", b"x") for n in range(50)], now_us=driver.now)
    found: set[str] = set()
    calls = 0
    while True:
        batch = driver.batch(100, only=["push.*"])
        calls += 1
        found |= {lease.topic for lease in batch.leases}
        assert calls < 50
        if not batch.goes_on:
            break
    assert found == {f"push.{n}" for n in range(50)}
    assert calls >= 2
    assert batch.passed_over
    assert driver.engine.overview(now_us=driver.now).leased == 50


OWN = ("own.a", "own.b", "own.in_group", "own.at_gate", "own.both", "own.parts", "single")


def fill_with_others(driver: EngineDriver) -> None:
    """Messages of `OWN`, and of far more topics that other workers serve, with the same limits."""
    driver.engine.gate_set("A", Gate(1_000, 1_000), now_us=driver.now)
    for pattern in ("other.in_group.*", "own.in_group"):
        driver.policy(pattern, group="g")
    for pattern in ("other.at_gate.*", "own.at_gate"):
        driver.policy(pattern, gate="A")
    for pattern in ("other.both.*", "own.both"):
        driver.policy(pattern, gate="A", group="g")
    driver.policy("own.parts", partitions=2)
    kinds = ("plain", "in_group", "at_gate", "both")
    others = [f"other.{kind}.{n}" for n in range(2 * MAX_PASSED_OVER) for kind in kinds]
    for first in range(0, len(others), 1_000):
        drafts = [Draft(topic, b"x") for topic in others[first : first + 1_000]]
        driver.engine.put(drafts, now_us=driver.now)
    driver.engine.put([Draft(topic, b"x") for topic in OWN], now_us=driver.now)


def test_topics_of_other_workers_cost_a_filtered_call_nothing(driver: EngineDriver) -> None:
    """
    After a call that passed over many topics, the next one finds all that its patterns match, in
    groups, at gates and in partitions, and later what is new there, and has seen everything.
    """
    if not driver.engine.capabilities.only:
        pytest.skip("the engine does not know it")
    fill_with_others(driver)
    first, second = (driver.batch(100, only=["own.*", "single"]) for _ in range(2))
    assert first.goes_on
    assert not second.goes_on
    assert sorted(each.topic for each in (*first.leases, *second.leases)) == sorted(OWN)
    for _ in range(3):
        for topic in (*OWN, "own.new"):
            driver.put(topic, "y")
        batch = driver.batch(100, only=["own.*", "single"])
        assert sorted(each.topic for each in batch.leases) == sorted((*OWN, "own.new"))
        assert not batch.goes_on


def test_many_own_topics_and_those_of_other_workers(driver: EngineDriver) -> None:
    """A few calls serve all own topics, although one call reads fewer by name."""
    if not driver.engine.capabilities.only:
        pytest.skip("the engine does not know it")
    fill_with_others(driver)
    driver.engine.put([Draft(f"own.{n}", b"x") for n in range(350)], now_us=driver.now)
    found: Counter[str] = Counter()
    for _ in range(12):
        found += Counter(each.topic for each in driver.lease(500, only=["own.*"]))
    assert len(found) == 350 + len(OWN) - 1, found


@pytest.mark.parametrize("without", [[], ["other.*"]], ids=["only", "without"])
def test_topics_of_other_workers_and_priorities(driver: EngineDriver, without: list[str]) -> None:
    """The second call finds all messages of a range of priorities, and no others."""
    if not driver.engine.capabilities.reserves:
        pytest.skip("the engine does not know it")
    fill_with_others(driver)
    for priority in (3, 5, 7):
        for topic in (*OWN, "own.first"):
            driver.put(topic, f"{topic} {priority}", priority=priority)
    only = None if without else ["own.*", "single"]
    filters = {"only": only, "without": without, "priorities": (4, 6)}
    found = [body for _ in range(2) for body in driver.bodies(100, **filters)]
    assert sorted(found) == sorted(f"{topic} 5" for topic in (*OWN, "own.first"))
    driver.put("own.late", "late 2", priority=2)
    assert driver.lease(100, **filters) == []
    driver.put("own.late", "late 4", priority=4)
    assert driver.bodies(100, **filters) == ["late 4"]


def test_many_topics_that_a_call_leaves_out(driver: EngineDriver) -> None:
    """
    The second call finds what is not left out, however much is. Copies for subscriptions are found
    by the order of all topics.
    """
    if not driver.engine.capabilities.reserves:
        pytest.skip("the engine does not know it")
    fill_with_others(driver)
    driver.put("other.plain.1#audit", "copy")
    filters = {"only": None, "without": ["other.*"]}
    found = [lease.topic for _ in range(2) for lease in driver.lease(100, **filters)]
    assert sorted(set(found) - {"other.plain.1#audit"}) == sorted(OWN)
    for _ in range(200):
        found += (lease.topic for lease in driver.lease(100, **filters))
        if len(found) > len(OWN):
            break
    assert sorted(found) == sorted((*OWN, "other.plain.1#audit"))


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({"without": ["push.*"]}, "bucket.a mail.a mail.b push.a#audit"),
        ({"without": ["*"]}, "push.a#audit"),
        ({"without": ["*"], "only": ["mail.*"]}, "mail.a mail.b"),
        ({"without": ["mail.a"], "only": ["mail.*", "mail.a"]}, "bucket.a mail.b"),
        ({"without": ["push.*#audit", "bucket.*", "mail.a", "mail.b"]}, "push.a push.b"),
        ({"without": ["*", "*#*"]}, ""),
        ({"tiers": ["high"]}, "push.a"),
        ({"tiers": ["high", "low"], "without": ["push.a"]}, "push.b"),
        ({"tiers": []}, ""),
        ({"tiers": ["unknown"]}, ""),
    ],
    ids=str,
)
def test_without_and_tiers(driver: EngineDriver, filters: dict[str, Any], wanted: str) -> None:
    """The most specific of the patterns that match a topic decides; `without` if both name it."""
    if not driver.engine.capabilities.reserves:
        pytest.skip("the engine does not know it")
    driver.policy("push.a", tier="high")
    driver.policy("push.b", tier="low")
    driver.policy("bucket.*", buckets=2)
    audit: dict[str, Any] = {"subscription:audit": {}}
    driver.policy("push.a", **audit)
    for topic in ("push.a", "push.b", "mail.a", "mail.b", "bucket.a"):
        driver.put(topic, "1", "2")
    batch = driver.batch(**filters)
    topics = wanted.split()
    assert sorted(lease.topic for lease in batch.leases) == sorted(2 * topics)
    assert not batch.goes_on
    assert len(driver.lease()) == 12 - 2 * len(topics), "the others are still there"


@pytest.mark.parametrize("priority", [None, 1])
def test_each_tier_goes_on_by_itself(driver: EngineDriver, priority: int | None) -> None:
    """Calls come to what waits behind lanes that they pass over, in each tier and at gates."""
    if not driver.engine.capabilities.only:
        pytest.skip("the engine does not know it")
    driver.open(tiers={"a": Tier(2), "b": Tier(1)}, default_tier="a")
    driver.engine.gate_set("open", Gate(concurrency=1000), now_us=driver.now)
    driver.policy("b.*", tier="b")
    driver.policy("b.gated.*", gate="open")
    kinds, wanted = ("a", "b", "b.gated"), set()
    for kind in kinds:
        others = [Draft(f"{kind}.mail.{n}", b"x") for n in range(MAX_PASSED_OVER + 300)]
        between = [Draft(f"{kind}.push.{n}", b"x", priority=1) for n in range(3)]
        driver.engine.put([*others[:500], *between, *others[500:]], now_us=driver.now)
        wanted |= {draft.topic for draft in between}
    only = [f"{kind}.push.*" for kind in kinds] if priority is None else None
    priorities = None if priority is None else (priority, MAX_PRIORITY)
    found: set[str] = set()
    goes_on, calls = True, 0
    while goes_on:
        batch = driver.batch(100, only=only, priorities=priorities)
        found |= {lease.topic for lease in batch.leases}
        goes_on, calls = batch.goes_on, calls + 1
        assert calls < 30
    assert found == wanted


@pytest.mark.parametrize("topics", [None, ["a", "b"]], ids=["pool", "topics"])
@pytest.mark.parametrize("fields", [{}, {"buckets": 1}], ids=str)
def test_priority_at_least(
    driver: EngineDriver, topics: list[str] | None, fields: dict[str, Any]
) -> None:
    """Only messages of at least the priority are delivered; the others stay, in their order."""
    driver.policy("*", **fields)
    driver.put("a", "a0", "a0 too")
    driver.put("a", "a5", priority=5)
    driver.put("a", "a-5", priority=-5)
    driver.put("b", "b0")
    driver.put("b", "b7", priority=7)
    driver.put("b", "b4 front", priority=4, at_front=True)
    assert driver.bodies(priorities=(8, MAX_PRIORITY), topics=topics) == []
    assert sorted(driver.bodies(priorities=(5, MAX_PRIORITY), topics=topics)) == ["a5", "b7"]
    assert driver.bodies(1, priorities=(1, MAX_PRIORITY), topics=topics) == ["b4 front"]
    assert driver.bodies(priorities=(1, MAX_PRIORITY), topics=topics) == []
    assert sorted(driver.bodies(priorities=(0, MAX_PRIORITY), topics=topics)) == [
        "a0",
        "a0 too",
        "b0",
    ]
    assert driver.bodies(priorities=(-5, MAX_PRIORITY), topics=topics) == ["a-5"]


@pytest.mark.parametrize("topics", [None, ["a"]], ids=["pool", "topics"])
@pytest.mark.parametrize("fields", [{}, {"buckets": 1}, {"key_concurrency": 2}], ids=str)
def test_exactly_one_priority(
    driver: EngineDriver, topics: list[str] | None, fields: dict[str, Any]
) -> None:
    """
    Messages of higher and lower priorities stay, in their order; retried ones and those at the
    front count, too.
    """
    driver.policy("*", backoff=0, **fields)
    for name, priority in (("high", 5), ("mid", 2), ("none", 0), ("low", -5)):
        driver.put("a", *(f"{name} {n}" for n in range(3)), priority=priority, key=name)
    driver.put("a", "mid front", priority=2, at_front=True)
    assert driver.bodies(priorities=(1, 1), topics=topics) == []
    leases = driver.lease(2, priorities=(2, 2), topics=topics)
    assert [each.body for each in leases] == [b"mid front", b"mid 0"]
    driver.settle(leases[1:], "retry")
    driver.settle(leases[:1])
    assert sorted(driver.bodies(2, priorities=(1, 4), topics=topics)) == ["mid 0", "mid 1"]
    assert driver.bodies(2, priorities=(0, 0), topics=topics) == ["none 0", "none 1"]
    assert driver.bodies(2, priorities=(-5, -5), topics=topics) == ["low 0", "low 1"]
    assert driver.bodies(2, topics=topics) == ["high 0", "high 1"]
    driver.policy("*", key_concurrency=None)
    assert driver.bodies(9, priorities=(-9, 4), topics=topics) == ["mid 2", "none 2", "low 2"]
    assert driver.bodies(9, topics=topics) == ["high 2"]


def test_priority_and_limits(driver: EngineDriver) -> None:
    """A lane's limits hold for messages of a priority as for others."""
    driver.policy("a", concurrency=2)
    driver.put("a", *map(str, range(5)), priority=5)
    driver.put("a", "low")
    assert driver.bodies(priorities=(5, MAX_PRIORITY)) == ["0", "1"]
    assert driver.bodies(priorities=(5, MAX_PRIORITY)) == []


def test_new_store_repeats_no_number(driver: EngineDriver) -> None:
    """A new store repeats no id, handle or fence: leases of the old one are lost in it."""
    drafts = [Draft("a", b"%d" % n) for n in range(20)]
    driver.engine.put(drafts)
    before = driver.engine.lease(20).leases
    driver.open()
    ids = {receipt.id for receipt in driver.engine.put(drafts)}
    after = driver.engine.lease(20).leases
    assert not ids & {lease.id for lease in before}
    assert not {lease.handle for lease in before} & {lease.handle for lease in after}
    assert min(lease.fence for lease in after) > max(lease.fence for lease in before)
    assert (
        driver.engine.extend([(lease.handle, lease.fence) for lease in before], 60_000_000)
        == [False] * 20
    )
    assert (
        driver.engine.settle([Settlement(lease.handle, lease.fence, "dead") for lease in before])
        == ["lost"] * 20
    )
    assert (
        driver.engine.settle([Settlement(lease.handle, lease.fence) for lease in after])
        == ["acked"] * 20
    )
    assert all(lease.handle < 1 << 53 and lease.fence < 1 << 53 for lease in after), (
        "numbers that JSON and Lua hold exactly"
    )
