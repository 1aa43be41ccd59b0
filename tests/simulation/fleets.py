"""Random fleets: rules, actors and faults, drawn from a seed."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

from laneway.engines import open_engine
from laneway.engines.base import Capabilities, FullEngine, Settings
from laneway.headers import COST
from laneway.message import Draft, Message
from laneway.policy import Gate
from laneway.schedules import store as schedule_store, times
from laneway.testing.engine_driver import TIERS
from laneway.testing.simulation import (
    Chaos,
    Fault,
    Fleet,
    Network,
    Operator,
    Publisher,
    Spool,
    Store,
    Worker,
)
from laneway.units import SECOND
from tests.conformance.postgres_setups import server as postgres_server
from tests.conformance.valkey_setups import server
from tests.model import Model
from tests.server_groups import Cluster
from tests.simulation import publishing
from tests.simulation.elections import Candidate, Elections
from tests.simulation.schedules import Schedules, SchedulingWorker, install

MEMORY = "/dev/shm"
"""A folder in memory."""


class ClosedModel(Model):
    """The model, opened and closed as engines are."""

    capabilities = Capabilities("model", frozenset(), False, False, False)

    def __init__(self, settings: Settings) -> None:
        super().__init__(TIERS, random=settings.random or random.random)

    def close(self) -> None:
        pass


@cache
def folder() -> str:
    """A folder for all fleets, in memory where the system has one."""
    path = tempfile.mkdtemp(dir=MEMORY if os.path.isdir(MEMORY) else None)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def cluster() -> Cluster:
    """Two servers, between which shards move."""
    started = Cluster(2, 0).__enter__()
    atexit.register(started.close)
    started.never_replace()
    return started


TIMEOUT = "timeout=3600"
"""A server that is slow, or stopped for minutes, because of other programs has not failed."""

ENGINES: dict[str, Callable[[Settings], FullEngine]] = {
    "sqlite": lambda settings: open_engine("sqlite://", settings),
    "sqlite-file": lambda settings: open_engine(f"sqlite:///{folder()}/fleet.db", settings),
    "model": lambda settings: cast("FullEngine", ClosedModel(settings)),
    "valkey": lambda settings: open_engine(f"{server().url}?{TIMEOUT}", settings),
    "sqlite-4": lambda settings: open_engine(f"sqlite:///{folder()}?shards=4", settings),
    "valkey-4": lambda settings: open_engine(f"{server().url}?shards=4&{TIMEOUT}", settings),
    "postgres": lambda settings: open_engine(postgres_server().url, settings),
    "valkey-moves": lambda settings: open_engine(f"{cluster().url}?shards=4&{TIMEOUT}", settings),
}

SEVERAL = {"sqlite-file", "sqlite-4", "valkey", "valkey-4", "postgres"}
"""Engines that several processes of a fleet have open."""

STATES: list[dict[str, float]] = [
    {},
    {},
    {"healthy": 30, "failing": 10},
    {"healthy": 30, "slow": 5},
    {"healthy": 20, "away": 10},
    {"healthy": 5, "unstarted": 5},
]

POLICIES: list[dict[str, Any]] = [
    {},
    {"rate": 5, "burst": 3},
    {"rate": 20, "burst": 5, "concurrency": 4},
    {"concurrency": 1},
    {"concurrency": "auto", "max_concurrency": 5},
    {"gate": "g"},
    {"gate": ["g", "h"]},
    {"gate": "h", "rate": 10},
    {"group": "{0}"},
    {"group": "{0}", "gate": "g"},
    {"serial": "hold"},
    {"serial": "hold", "rate": 20},
    {"serial": "yield"},
    {"key_concurrency": 2},
    {"key_rate": 2},
    {"partitions": 3, "rate": 20},
    {"subscription:s": {}},
    {"subscription:s": {}, "serial": "hold"},
    {"tier": "high", "weight": 3},
    {"tier": "low", "lease": 1},
    {"retries": 1},
    {"dedupe": 60},
]
"""Policies of topics."""

GATES = [Gate(10.0, 4), Gate(40.0), Gate(None, None, 2), Gate(10.0, 4, 3), Gate(5.0, 1)]


class Drawing:
    """Adds rules, actors and faults to a fleet."""

    def __init__(self, seed: int, fleet: Fleet, length: float) -> None:
        self.draw = random.Random(seed)
        self.fleet, self.length = fleet, length
        self.topics: list[str] = []

    def everything(self) -> None:
        draw, fleet, store = self.draw, self.fleet, self.fleet.store
        late = store.network.late_calls
        store.network = Network(
            (0.0005, draw.choice([0.001, 0.01, 0.1])),
            lost_calls=draw.choice([0, 0, 0.01, 0.1]),
            lost_answers=draw.choice([0, 0, 0.01, 0.1]),
            slow=draw.choice([0, 0, 0.02]),
            late_calls=late,
        )
        for name in ("g", "h"):
            store.apply("gate_set", name, draw.choice(GATES))
        if self.chance(0.5):
            store.apply("topic_group_set", "a", draw.choice(GATES))
        for number in range(draw.randint(2, 8)):
            self.topic(f"{draw.choice('ab')}.{number}")
        workers = self.workers()
        faults: list[Fault] = [
            each for each in ("crash", "stop", "restart", "jump") if self.chance(0.5)
        ]
        if len(store.engines) > 1 and self.chance(0.5):
            faults.append("drift")
        processes: list[Any] = [*workers]
        if self.chance(0.4):
            candidates = self.candidates()
            if "crash" not in faults or not {"jump", "drift"} & set(faults):
                # One that begins after a jump cannot know of it: docs/elections.md.
                processes += candidates
        if self.chance(0.4):
            self.schedules()
        if self.chance(0.5):
            actions = [self.cancel, self.change_policy, self.pause, self.redrive, self.purge]
            actions.append(self.delete)
            fleet.add(Operator(store, self.length / 10, actions))
        if "cluster" in getattr(store.engine, "url", ""):
            fleet.add(Operator(store, self.length / 20, [self.move_shard]))
        if faults:
            if {"jump", "drift"} & set(faults):
                fleet.run(10)  # candidates know each other before the first jump
            every = self.length / draw.choice([3, 10, 30])
            chaos = fleet.add(Chaos(store, every, faults, processes))
            # A jump back and one forward between two looks of a candidate deceive it.
            chaos.jumps = draw.choice([(-30.0, -1.0), (0.5, 20.0, 600.0)])

    def chance(self, part: float) -> bool:
        return self.draw.random() < part

    def topic(self, topic: str) -> None:
        draw, fleet = self.draw, self.fleet
        policy = {"dead_ttl": "10d", "backoff": 1, **draw.choice(POLICIES)}
        fleet.store.apply("policy_set", "code", topic, policy)
        self.topics.append(topic)
        keys = draw.choice([0, 1, 3]) if "serial" not in policy else draw.choice([1, 3])
        cost = draw.choice([1, 1, 1, 3])
        delay_us = draw.choice([0, 0, 0, 2 * SECOND])

        def make(number: int) -> Draft:
            key = f"k{number % keys}" if keys else None
            headers = {COST: str(cost)} if cost > 1 else None
            return Draft(topic, b"x", key=key, headers=headers, delay_us=delay_us)

        kind = Spool if self.chance(0.2) else Publisher
        rate = draw.choice([0.2, 1, 3, 10])
        fleet.add(kind(fleet.store, topic, make, rate))

    def workers(self) -> list[Worker]:
        draw, fleet = self.draw, self.fleet
        states, seconds = draw.choice(STATES), draw.choice([0.01, 0.1, 0.5, 4.0])
        behavior = fleet.destination(seconds, states).handle
        return [
            fleet.add(
                SchedulingWorker(
                    fleet.store,
                    draw.choice([1, 4, 10]),
                    behavior,
                    is_careless=self.chance(0.3),
                )
            )
            for _ in range(draw.choice([1, 3, 20]))
        ]

    def candidates(self) -> list[Candidate]:
        elections = Elections(self.fleet.store)
        self.fleet.check(elections)
        return [
            self.fleet.add(Candidate(self.fleet.store, "leader", f"c{n}", 6.0, elections))
            for n in range(self.draw.randint(2, 4))
        ]

    def schedules(self) -> None:
        when = times.chosen("tick", 5, None, None, None, "UTC", None)
        message = Message("ticks")  # no operator purges it
        tick = schedule_store.new_schedule("tick", when, message, missed="all")
        self.fleet.check(Schedules(self.fleet.store, {"tick": 5.0}))
        install(self.fleet.store, [tick])

    # What operators do

    def any_topic(self) -> str:
        return self.fleet.clock.random.choice(self.topics)

    async def cancel(self, store: Store) -> None:
        topic = self.any_topic()
        for view in await store.call("topic_peek", topic, limit=2):
            await store.call("cancel", view.id, topic)

    async def change_policy(self, store: Store) -> None:
        fields: Any = store.clock.random.choice([{"rate": 3}, {"rate": None}, {"concurrency": 2}])
        await store.call("policy_set", "operator", self.any_topic(), fields)

    async def pause(self, store: Store) -> None:
        paused = store.clock.random.choice([True, None])
        await store.call("policy_set", "operator", self.any_topic(), {"paused": paused})

    async def redrive(self, store: Store) -> None:
        await store.call("dead_redrive", self.any_topic())

    async def move_shard(self, store: Store) -> None:
        """Move the slot of a shard to the other server."""
        key = cast("Any", store.engine)._space.key(
            store.clock.random.randrange(store.shards), "shard"
        )
        slot = int(cluster().masters[0].run("CLUSTER", "KEYSLOT", key))
        source = cluster().owner(slot)
        cluster().move_keys(slot, next(each for each in cluster().masters if each is not source))

    async def purge(self, store: Store) -> None:
        await store.call("topic_purge", self.any_topic())

    async def delete(self, store: Store) -> None:
        await store.call("topic_delete", self.any_topic())


@contextmanager
def drawn(
    seed: int, engine: str, length: float, *, with_publishing: bool = True
) -> Iterator[Fleet]:
    """The fleet with this seed. `with_publishing`: with what `tests.simulation.publishing` adds."""
    settings = Settings(namespace=uuid.uuid4().hex, tiers=TIERS, durability="memory")
    processes = random.Random(seed).choice([1, 2, 3]) if engine in SEVERAL else 1
    fleet = Fleet(ENGINES[engine], settings, seed=seed, processes=processes)
    try:
        if with_publishing:
            publishing.add(seed, fleet)
        Drawing(seed, fleet, length).everything()
        yield fleet
    finally:
        fleet.close()


def run(seed: int, engine: str, length: float, *, with_publishing: bool = True) -> Fleet:
    """Run the fleet with this seed for some seconds of virtual time, then to its end."""
    with drawn(seed, engine, length, with_publishing=with_publishing) as fleet:
        fleet.run(length)
        schedule_store.remove(fleet.store.direct, "tick")
        fleet.finish()
    return fleet
