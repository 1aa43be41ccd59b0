"""Simulations find defects that Laneway once had: each is made again, and noticed."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import msgspec
import pytest

from laneway.cluster.term_store import EngineTerms
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.shared import fairness
from laneway.engines.sql import purging, rows
from laneway.engines.sql.lane_cache import LaneCache
from laneway.message import Draft, Message
from laneway.policy import Gate
from laneway.schedules import store as schedule_store, times
from laneway.testing.simulation import Actor, Broken, Chaos, End, Fleet, Network, Operator
from laneway.testing.simulation.store import Call
from laneway.units import SECOND
from tests.simulation.blocking import blocking, engine_of
from tests.simulation.elections import Candidate, Elections
from tests.simulation.fleets import ENGINES, run
from tests.simulation.operations import Ends, Follower, Handler, Meddler
from tests.simulation.schedules import SchedulingWorker, install


def a_fleet(seed: int, network: Network | None = None) -> Fleet:
    return Fleet(partial(open_engine, "sqlite://"), Settings(), seed=seed, network=network)


def test_permits_that_are_returned_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Permits of messages that did not begin were returned although others had used that time."""

    def whole(tat: int, rate: float, returned: int, since_us: int) -> int:
        return max(0, tat - returned * fairness.interval(rate))

    def run() -> None:
        fleet = a_fleet(0)
        fleet.store.apply("policy_set", "code", "t", {"rate": 40, "burst": 5})
        fleet.publisher("t", rate=60)
        behavior = fleet.destination(0.1, {"healthy": 3, "unstarted": 3}).handle
        fleet.workers(3, slots=5, behavior=behavior)
        fleet.run(2)
        fleet.limits.end()
        fleet.close()

    run()
    monkeypatch.setattr(fairness, "return_permits", whole)
    with pytest.raises(Broken, match="topic t exceeded its rate of 40/s"):
        run()


def test_a_topic_at_two_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic with a rate and a concurrency starved among topics with one of them."""

    def delivered() -> int:
        fleet = a_fleet(1)
        fleet.store.apply("gate_set", "A", Gate(10.0))
        fleet.store.apply("gate_set", "B", Gate(None, None, 1))
        for topic, gate in (("a", ["A"]), ("b", ["B"]), ("ab", ["A", "B"])):
            fleet.store.apply("policy_set", "code", topic, {"gate": gate})
            fleet.publisher(topic, rate=30)
        fleet.workers(3, slots=4, seconds=0.05)
        got = fleet.run(10)["ab"].delivered
        fleet.close()
        return got

    assert delivered() > 40
    monkeypatch.setattr(rows.GateState, "hold", lambda *_: None)
    assert delivered() < 15


def test_a_clock_that_jumps_in_an_election(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a jump of the store's clock a candidate took the term while its holder still acted."""

    def run() -> None:
        fleet = a_fleet(1)
        elections = Elections(fleet.store)
        fleet.check(elections)
        candidates = [
            fleet.add(Candidate(fleet.store, "leader", f"c{n}", 6.0, elections)) for n in range(3)
        ]
        chaos = fleet.add(Chaos(fleet.store, 10.0, ["jump"], candidates))
        chaos.jumps = [20.0, 600.0]
        try:
            fleet.run(300)
        finally:
            fleet.close()

    run()

    def left(terms: Any, term: float) -> float:
        return terms._seen[2]

    monkeypatch.setattr(EngineTerms, "_left", left)
    with pytest.raises(Broken, match=r"leader: c. holds it, and c. for"):
        run()


def test_a_clock_that_jumps_while_a_term_is_claimed() -> None:
    """A candidate claimed a term whose end, read before a jump, had passed when it was written."""
    run(26, "sqlite-4", 10.0, with_publishing=False)


def test_a_schedule_that_is_removed_while_it_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule that was removed while a worker had its entry fired again."""
    names = [f"s{n}" for n in range(5)]

    class Remover(Actor):
        async def main(self) -> None:
            for name in names:
                await self.clock.sleep(self.clock.random.uniform(0.5, 2))
                engine = engine_of(self.store)
                await blocking(partial(schedule_store.remove, engine, name))

    def left(seed: int) -> int:
        fleet = a_fleet(seed, Network((0.001, 0.05)))
        when = times.chosen("s", 1, None, None, None, "UTC", None)
        message = Message("calls")
        install(fleet.store, [schedule_store.new_schedule(each, when, message) for each in names])
        behavior = fleet.destination(0.01).handle
        for _ in range(2):
            fleet.add(SchedulingWorker(fleet.store, 3, behavior))
        fleet.add(Remover(fleet.store))
        fleet.run(15)
        found = len(schedule_store.planned(fleet.store.direct, 10))
        fleet.close()
        return found

    assert [left(seed) for seed in (0, 2)] == [0, 0]

    def purge(engine: FullEngine, name: str) -> bool:
        return engine.topic_purge(schedule_store.PREFIX + name) > 0

    monkeypatch.setattr(schedule_store, "remove", purge)
    assert all(left(seed) for seed in (0, 2))


def test_a_lane_that_another_process_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that does not read again what others changed leases beyond a concurrency."""

    def run() -> None:
        namespace = uuid.uuid4().hex
        fleet = Fleet(ENGINES["sqlite-file"], Settings(namespace=namespace), seed=1, processes=2)
        fleet.store.apply("policy_set", "code", "t", {"concurrency": 2})
        fleet.publisher("t", rate=20)
        fleet.workers(3, slots=4, seconds=0.3)
        try:
            fleet.run(10)
        finally:
            fleet.close()

    run()
    clear = LaneCache.clear

    def keeps_lanes(cache: LaneCache) -> None:
        lanes, names = cache.lanes, cache.names
        clear(cache)
        cache.lanes, cache.names = lanes, names

    monkeypatch.setattr(LaneCache, "clear", keeps_lanes)
    with pytest.raises(Broken, match="topic t has 3 leases, and a concurrency of 2"):
        run()


def test_clocks_that_drift_apart() -> None:
    """The store's time follows the clock that is ahead, and never goes back."""
    settings = Settings(namespace=uuid.uuid4().hex)
    fleet = Fleet(ENGINES["sqlite-file"], settings, seed=1, processes=3)
    fleet.store.apply("policy_set", "code", "t", {"rate": 5, "concurrency": 3})
    fleet.publisher("t", rate=10)
    workers = fleet.workers(3, slots=2, seconds=0.3)
    chaos = fleet.add(Chaos(fleet.store, 2.0, ["drift"], workers))
    times: list[tuple[int, int]] = []

    def saw(call: Call) -> None:
        if call.operation == "lease":
            times.append((call.answer.now_us, fleet.clock.now))

    fleet.store.watchers.append(saw)
    fleet.run(60)
    fleet.finish()
    fleet.close()
    assert times == sorted(times)
    assert max(now - clock for now, clock in times) == max(chaos.drifts) * SECOND


def test_a_second_purge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge removed the notices of what the purge before it had removed."""

    def run() -> None:
        fleet = a_fleet(1)
        ends = Ends(fleet.store, fleet.messages)
        fleet.check(ends)
        fleet.store.apply("policy_set", "code", "t", {"rate": 2, "burst": 1})
        fleet.add(Follower(fleet.store, "t", lambda _: Draft("t", b"x"), 5, ends=ends))
        fleet.add(Handler(fleet.store, 1, lambda _: End(0.2), options={}))
        fleet.add(Operator(fleet.store, 1.0, [Meddler(fleet.store, ["t"], []).purge]))
        try:
            fleet.run(20)
            fleet.finish()
        finally:
            fleet.close()

    run()
    monkeypatch.setattr(purging, "_to_purge", purging._waiting)
    with pytest.raises(Broken, match="nobody was told of the ends of"):
        run()


def test_a_history_without_a_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator's death wrote was read as what is kept of a message at most once."""

    def run() -> None:
        fleet = a_fleet(1)
        fleet.publisher("t", rate=2)
        fleet.workers(1, behavior=lambda _: End(0.5, "dead"))
        meddler = Meddler(fleet.store, ["t"], ["delivery"])
        fleet.add(Operator(fleet.store, 0.5, [meddler.move, meddler.redrive, meddler.change]))
        try:
            fleet.run(60)
        finally:
            fleet.close()

    run()
    monkeypatch.setattr(rows.Row, "has_note", property(lambda row: row.deliveries))
    with pytest.raises(msgspec.ValidationError):
        run()
