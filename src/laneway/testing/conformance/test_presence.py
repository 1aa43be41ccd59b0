"""`beat`, `leave`, `workers` and `ping`: which workers are alive."""

from __future__ import annotations

import time

from laneway.engines.base import (
    MAX_WORKER_NAMES,
    MAX_WORKER_TEXT,
    PING,
    RunningMessage,
    WorkerFacts,
)
from laneway.message import Draft, Settlement
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND

SOON = 30.0
"""Seconds within which a notification arrives; a busy machine may take long."""


def beat(driver: EngineDriver, facts: WorkerFacts) -> int:
    return driver.engine.beat(
        facts, dead_after_us=9 * SECOND, listed_us=20 * SECOND, now_us=driver.now
    )


def ids(driver: EngineDriver, **options: object) -> list[str]:
    found = driver.engine.workers(now_us=driver.now, **options)  # type: ignore[arg-type]
    return [worker.facts.id for worker in found]


def test_worker_is_listed_until_it_is_dead_for_long(driver: EngineDriver) -> None:
    """
    A worker counts as dead 9 s after its last heartbeat, and leaves the list after 20 s. Its start
    is its first heartbeat.
    """
    facts = WorkerFacts(id="w1", pools=["default"])
    started = driver.now
    assert beat(driver, facts) == started
    driver.later(3)
    assert beat(driver, WorkerFacts(id="w1", pools=["default"], busy=1)) == driver.now
    (worker,) = driver.engine.workers(now_us=driver.now)
    assert (worker.started_us, worker.beat_us, worker.facts.busy) == (started, driver.now, 1)
    assert worker.dead_us == driver.now + 9 * SECOND
    states = []
    for seconds in (8.999, 0.001, 10.999, 0.001):
        driver.later(seconds)
        states.append([each.state for each in driver.engine.workers(now_us=driver.now)])
    assert states == [["running"], ["dead"], ["dead"], []]
    beat(driver, WorkerFacts(id="w2"))
    assert ids(driver) == ["w2"]
    beat(driver, facts)
    (again, _) = driver.engine.workers(now_us=driver.now)
    assert again.started_us == driver.now, "a worker that left the list begins again"


def test_worker_leaves(driver: EngineDriver) -> None:
    """A worker that stopped in order is off the list at once; leaving twice is no error."""
    beat(driver, WorkerFacts(id="w1"))
    beat(driver, WorkerFacts(id="w2", stopping=True))
    assert [each.state for each in driver.engine.workers(now_us=driver.now)] == [
        "running",
        "stopping",
    ]
    driver.engine.leave("w1")
    driver.engine.leave("w1")
    driver.engine.leave("never")
    assert ids(driver) == ["w2"]


def test_pages_of_workers(driver: EngineDriver) -> None:
    """The list is in the order of ids, in pages, and by pool."""
    names = sorted(f"web{n}-{n * 7919 % 61:x}" for n in range(23))
    for n, name in enumerate(names):
        beat(driver, WorkerFacts(id=name, pools=["gpu", "cpu"] if n % 3 == 0 else ["cpu"]))
    paged: list[str] = []
    while page := ids(driver, limit=5, after=paged[-1] if paged else ""):
        assert len(page) <= 5
        paged += page
    assert paged == names
    assert ids(driver, pool="gpu") == names[::3]
    assert ids(driver, pool="gpu", limit=2, after=names[0]) == names[3:9:3]
    assert ids(driver, pool="other") == []


def test_facts_are_bounded(driver: EngineDriver) -> None:
    """Facts come back as they were, but for long texts and lists, which are cut."""
    facts = WorkerFacts(
        id="w\n\x1b[31m-ü-'%s",
        host="h\x00st",
        pid=4711,
        program="shop",
        version="1.2",
        laneway="0.1",
        pools=["default"],
        topics=["a", "b\t"],
        patterns=["push.*"],
        concurrency=7,
        busy=2,
        leased=3,
        held=[7, 8, 2**62],
        oldest=RunningMessage("push.acme", "id-1", driver.now - 5 * SECOND),
        loop_lag=0.25,
    )
    beat(driver, facts)
    huge = WorkerFacts(
        id="x",
        host="h" * 10_000,
        program="\ud800",
        pools=["p"],
        topics=[f"t.{n}" for n in range(5_000)],
        held=list(range(5_000)),
        oldest=RunningMessage("t" * 10_000, "i" * 10_000, 1),
    )
    beat(driver, huge)
    one, other = (each.facts for each in driver.engine.workers(now_us=driver.now))
    assert one == facts
    assert other.host == "h" * MAX_WORKER_TEXT
    assert other.topics == [f"t.{n}" for n in range(MAX_WORKER_NAMES)]
    assert other.held == list(range(MAX_WORKER_NAMES))
    assert other.is_cut
    assert other.oldest is not None
    assert len(other.oldest.topic) == len(other.oldest.id) == MAX_WORKER_TEXT


def test_heartbeat_disturbs_nothing(driver: EngineDriver) -> None:
    """Messages, leases and the doctor's findings are the same with and without it."""
    driver.put("a", "1", "2")
    (lease,) = driver.lease(1)
    before = driver.engine.overview(now_us=driver.now)
    beat(driver, WorkerFacts(id="w1"))
    driver.engine.leave("w1")
    beat(driver, WorkerFacts(id="w1"))
    assert driver.engine.overview(now_us=driver.now) == before
    assert driver.settle([lease]) == ["acked"]
    assert driver.run() == ["2"]


def test_preferred_shards_hide_nothing(driver: EngineDriver) -> None:
    """Whichever shards a caller prefers, its leases find all messages."""
    engine = driver.engine
    for number, shards in enumerate(([0], range(engine.capabilities.shards), [], [99])):
        engine.prefer("default", shards)
        engine.put([Draft(f"t.{number}.{n}", b"") for n in range(40)])
        found: list[str] = []
        deadline = time.monotonic() + SOON
        while len(found) < 40:
            leases = engine.lease(7).leases
            found += [lease.topic for lease in leases]
            engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
            assert time.monotonic() < deadline
        assert len(set(found)) == 40


def test_ping(driver: EngineDriver) -> None:
    """A listener that subscribed to `PING` is notified with the ids that were asked."""
    listener = driver.engine.result_listener()
    try:
        listener.subscribe(PING)
        deadline = time.monotonic() + SOON
        notified: set[str] = set()
        while PING not in notified:  # its subscription is active
            notified |= set(listener.poll(1.0) or ())
            assert time.monotonic() < deadline
        driver.engine.ping(["w1", "w2"])
        while {PING + "w1", PING + "w2"} - notified:
            notified |= set(listener.poll(1.0) or ())
            assert time.monotonic() < deadline
    finally:
        listener.close()
