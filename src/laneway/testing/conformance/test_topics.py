"""Topics: purge, delete, cursors, explain, and the sum of all counts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from laneway.engines.base import HeldState
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND


def test_purge_and_delete(driver: EngineDriver) -> None:
    """A purge does not touch leases. After a delete, a settle answers gone."""
    driver.put("a", "1", "2", "3", id=None)
    (lease,) = driver.lease(1)
    assert driver.engine.topic_purge("a", now_us=driver.now) == 2
    assert driver.settle([lease], "retry") == ["retried"]
    (lease,) = driver.lease(after=3600)
    driver.engine.topic_delete("a", now_us=driver.now)
    assert driver.settle([lease]) == ["gone"]
    assert driver.engine.topic_list(now_us=driver.now) == []


def test_topic_list_orders(driver: EngineDriver) -> None:
    """Lists of few topics are exact in every order."""
    driver.put("old", "1")
    driver.later(10)
    driver.put("big", *map(str, range(9)))
    driver.policy("slow", rate=1, burst=1)
    driver.put("slow", *map(str, range(3)))
    driver.lease(1, topics=["slow"])
    driver.later(0.5)
    listed = {
        order: [stats.topic for stats in driver.engine.topic_list(order=order, now_us=driver.now)]
        for order in ("name", "backlog", "age", "throttled")
    }
    assert listed["name"] == ["big", "old", "slow"]
    assert listed["backlog"] == ["big", "slow", "old"]
    assert listed["age"][0] == "old"
    assert listed["throttled"] == ["slow"]


@pytest.mark.parametrize("partitions", [1, 2])
def test_throttled_time_has_passed(driver: EngineDriver, partitions: int) -> None:
    """A topic was throttled for the time that has passed, even if it is paused meanwhile."""

    def throttled() -> float:
        listed = driver.engine.topic_list(order="throttled", now_us=driver.now)
        of_list = sum(stats.throttled_us for stats in listed)
        assert of_list == driver.engine.topic_stats("a", now_us=driver.now).throttled_us
        return of_list / SECOND

    driver.policy("a", rate=1 / 3600, burst=1, partitions=partitions)
    driver.put("a", "1", "2", "3", key="k")
    if partitions > 1 and driver.engine.capabilities.shards > 1:
        pytest.skip("a shard waits for its turn, and not for the rate")
    driver.settle(driver.lease(1))
    driver.later(20)
    assert throttled() == 20
    driver.policy("a", paused=True)
    driver.later(60)
    assert throttled() == 20
    driver.policy("a", paused=None)
    assert driver.lease(after=10) == []
    assert 20 <= throttled() <= 30
    driver.later(3600)
    assert 20 <= throttled() <= 3600
    assert driver.bodies(1) == ["2"]
    before = throttled()
    driver.later(1)
    assert throttled() == before + 1


def test_explain_reasons(driver: EngineDriver) -> None:
    """
    Explain names the rate, pause, serial key, due time, lease or death that a message waits
    for.
    """
    driver.policy("r", rate=1, burst=1)
    first, second = driver.put("r", "1", "2")
    leases = driver.lease()

    def explain(message_id: str) -> str:
        return " ".join(driver.engine.explain(message_id, now_us=driver.now).reasons)

    assert "admits the next delivery in 1.0 s" in explain(second.id)
    assert "it is leased (fence" in explain(first.id)
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


def test_cursors(driver: EngineDriver) -> None:
    """Scan and done cursors only grow; a returning message does not move the scan cursor."""
    driver.put("a", "1", "2", "3")
    first = driver.engine.cursors("a")[0]
    leases = driver.lease(2)
    assert driver.engine.cursors("a")[0] == (first[0] + 2, first[1])
    driver.settle([leases[1]])
    assert driver.engine.cursors("a")[0] == (first[0] + 2, first[1])
    driver.settle([leases[0]], "retry")
    assert driver.engine.cursors("a")[0] == (first[0] + 2, first[1])
    driver.run(after=3600)
    last = driver.engine.overview(now_us=driver.now).last_number
    assert driver.engine.cursors("a") == {0: (last, last)}


def test_idle_topic_is_forgotten(driver: EngineDriver) -> None:
    """An idle topic's lane is forgotten when its limits have recovered."""
    driver.policy("*", rate=1)
    for n in range(50):
        driver.put(f"t.{n}", "x")
    driver.run()
    driver.tick_after(61)
    assert driver.engine.overview(now_us=driver.now).topics == 0


def test_purge_of_serial_keys_in_a_bucket(driver: EngineDriver) -> None:
    """A purge also removes messages that become ready when the head of their key is removed."""
    driver.policy("b.*", buckets=2, serial="hold")
    driver.put("b.1", "head", "second", "third", key="k")
    driver.put("b.1", "free")
    assert driver.engine.topic_purge("b.1", now_us=driver.now) == 4
    assert [check for check in driver.engine.doctor() if not check.ok] == []
    assert driver.bodies() == []
    driver.put("b.1", "new", key="k")
    assert driver.bodies() == ["new"]


def test_every_message_is_counted(driver: EngineDriver) -> None:
    """
    Each accepted message waits, is leased, finished, dead or removed; `lookup` and overview
    agree.
    """
    draw = random.Random(7)
    driver.policy("*", retries=1, backoff=1, lease=3, dedupe="forever")
    driver.policy("serial", serial=True)
    driver.policy("full", max_backlog=3, on_full="drop_oldest")
    accepted: dict[str, list[str]] = {"plain": [], "serial": [], "full": []}
    purged = 0
    for _ in range(300):
        topic = draw.choice(list(accepted))
        match draw.choice(["put", "put", "lease", "later", "redrive", "purge"]):
            case "put":
                receipts = driver.put(
                    topic, *["x"] * draw.randrange(1, 4), key=draw.choice([None, "k"])
                )
                accepted[topic] += [
                    receipt.id for receipt in receipts if receipt.outcome == "accepted"
                ]
            case "lease":
                driver.settle(
                    driver.lease(draw.randrange(1, 5))[:2],
                    draw.choice(["ack", "retry", "release", "dead"]),
                )
            case "later":
                driver.later(draw.choice([0.5, 4]))
            case "redrive":
                driver.engine.dead_redrive(limit=1, now_us=driver.now)
            case "purge" if draw.random() < 0.2:
                purged += driver.engine.topic_purge(topic, now_us=driver.now)
        now = driver.engine.overview(now_us=driver.now)
        states = Counter(
            state
            for name, ids in accepted.items()
            for state in driver.engine.lookup(name, ids, now_us=driver.now).values()
        )
        assert (now.waiting, now.leased, now.dead, now.done, purged) == tuple(
            states[state] for state in ("waiting", "leased", "dead", "finished", "unknown")
        )
        assert now.published == sum(len(ids) for ids in accepted.values())
    end = driver.engine.overview(now_us=driver.now)
    assert min(end.done, end.died, end.retried, purged) > 0


def test_explain_free_worker(driver: EngineDriver) -> None:
    """Explain says that a message only waits for a free worker, also behind others at a rate."""
    driver.policy("a", rate=20)
    driver.put("a", "x", "y")
    last = driver.put("a", "z")[0].id
    reasons = driver.engine.explain(last, now_us=driver.now).reasons
    assert reasons[0] == 'its topic can deliver now: it waits for a free worker of pool "default"'
    assert reasons[1].startswith("2 messages of its topic are ahead of it")


def test_explain_one_before(driver: EngineDriver) -> None:
    """Of one topic, message or lease, explain speaks in the singular."""
    driver.put("b", "v", "w", "y", "z")
    driver.lease(2)
    driver.put("a", "x")
    last = driver.engine.topic_peek("b", state="ready", now_us=driver.now)[-1].id
    reasons = driver.engine.explain(last, now_us=driver.now).reasons
    assert any(reason.startswith("1 message of its topic is ahead of it") for reason in reasons)
    if driver.engine.capabilities.shards == 1:  # else the other one may be on another shard
        assert reasons[-1].startswith('1 topic of tier "mid"')
        assert reasons[-1].endswith(" is served before its own")


@pytest.mark.parametrize("buckets", [None, 2])
def test_peek_by_state(driver: EngineDriver, buckets: int | None) -> None:
    """Messages of one state are read alone, and delayed ones are counted by when they are due."""
    if buckets is not None:
        driver.policy("p.*", buckets=buckets)
    driver.put("p.1", "leased", "ready")
    driver.lease(1)
    driver.put("p.2", "other")
    for seconds in (5, 15, 100, 3600):
        driver.put("p.1", f"in {seconds}", at_us=driver.now + seconds * SECOND)
    driver.put("p.1", "first", at_us=driver.now + 7200 * SECOND, priority=5)

    def bodies(state: HeldState) -> list[bytes]:
        views = driver.engine.topic_peek("p.1", state=state, now_us=driver.now)
        assert {view.state for view in views} <= {state}
        return [view.body for view in views]

    assert bodies("leased") == [b"leased"]
    assert bodies("ready") == [b"ready"]
    assert bodies("delayed") == [b"in 5", b"in 15", b"in 100", b"in 3600", b"first"]
    assert bodies("parked") == []
    ends = [driver.now + seconds * SECOND for seconds in (5, 60, 3600)]
    assert driver.engine.delayed_counts("p.1", ends, now_us=driver.now) == [0, 2, 1, 2]
    assert driver.engine.delayed_counts("p.2", ends, now_us=driver.now) == [0, 0, 0, 0]
    assert driver.engine.delayed_counts("none", [], now_us=driver.now) == [0]
