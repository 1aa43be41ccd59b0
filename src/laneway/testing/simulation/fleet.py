"""`Fleet`: a store, actors and checks; `simulated`: a fleet for an application's policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import msgspec

from laneway import units
from laneway.admin.policies import every_policy
from laneway.app import Laneway
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.message import Draft, Lease
from laneway.testing.simulation.actors import Actor, Destination, End, Publisher, Worker
from laneway.testing.simulation.checks import Broken, Check, Limits, Messages, Order
from laneway.testing.simulation.clock import Clock
from laneway.testing.simulation.store import Network, Store
from laneway.units import Duration

A = TypeVar("A", bound=Actor)
STEP_US = 10 * units.SECOND
"""How often `finish` looks whether everything has ended."""


class TopicReport(msgspec.Struct):
    """
    What a topic got. `outcomes`: how many publishes had each outcome, and how many deliveries,
    acks, retries and deaths there were. The waits are those of first deliveries, in seconds after a
    message was due.
    """

    outcomes: dict[str, int]
    mean_wait: float = 0.0
    p99_wait: float = 0.0
    longest_wait: float = 0.0

    @property
    def delivered(self) -> int:
        """All deliveries, repetitions too."""
        return self.outcomes.get("delivered", 0)


class Fleet:
    """
    A simulation: an engine under a virtual clock, actors, and checks after every call.

    `make`: opens an engine, which is empty and used by nobody else; its times are those of the
    simulation. `processes`: how many have it open. One `seed` gives the same history each time. A
    promise that is broken raises `Broken` out of `run` or `finish`, with the seed.
    """

    def __init__(
        self,
        make: Callable[[Settings], FullEngine],
        settings: Settings,
        *,
        seed: int = 0,
        network: Network | None = None,
        processes: int = 1,
    ) -> None:
        self.seed = seed
        self.clock = Clock(seed)
        settings = msgspec.structs.replace(settings, random=self.clock.random.random)
        engine, *others = (make(settings) for _ in range(processes))
        self.store = Store(engine, self.clock, network, others)
        self.messages = Messages(self.store)
        self.limits = Limits(self.store, self.messages)
        self.checks: list[Check] = []
        for check in (self.messages, self.limits, Order(self.store, self.messages)):
            self.check(check)
        self.actors: list[Actor] = []

    def check(self, check: Check) -> None:
        """Check something else, too."""
        self.checks.append(check)
        self.store.watchers.append(check.saw)

    def add(self, actor: A) -> A:
        """Let an actor take part from now on."""
        self.actors.append(actor)
        actor.start()
        return actor

    def publisher(self, topic: str, rate: float, body: bytes = b"x") -> Publisher:
        """Publish to a topic, `rate` messages a second, at independent times."""
        return self.add(Publisher(self.store, topic, lambda _: Draft(topic, body), rate))

    def workers(
        self,
        count: int,
        slots: int = 1,
        *,
        seconds: float = 0.1,
        behavior: Callable[[Lease], End] | None = None,
        pool: str = "default",
    ) -> list[Worker]:
        """
        Add workers, which run `slots` handlers each at the same time.

        `seconds`: the mean time of a handler. `behavior` decides instead how long each takes, and
        how it ends.
        """
        behavior = behavior or self.destination(seconds).handle
        return [self.add(Worker(self.store, slots, behavior, pool=pool)) for _ in range(count)]

    def destination(self, seconds: float, states: dict[str, float] | None = None) -> Destination:
        """Add what handlers call, see `Destination`; its `handle` is a behavior of workers."""
        return self.add(Destination(self.store, seconds, states))

    def run(self, duration: Duration) -> dict[str, TopicReport]:
        """Let the clock run that long. Returns what each topic got so far."""
        self._run(self.clock.now + units.microseconds(duration))
        return self.report()

    def _run(self, until: int) -> None:
        try:
            self.clock.run(until)
        except Broken as error:
            error.add_note(f"seed {self.seed}")
            raise

    def report(self) -> dict[str, TopicReport]:
        """What each topic got so far."""
        topics: dict[str, TopicReport] = {}
        for (topic, what), count in sorted(self.messages.counts.items()):
            topics.setdefault(topic, TopicReport({})).outcomes[what] = count
        for topic, waits in self.messages.waits.items():
            waits.sort()
            report = topics[topic]
            report.mean_wait = sum(waits) / len(waits)
            report.p99_wait = waits[len(waits) * 99 // 100]
            report.longest_wait = waits[-1]
        return topics

    def finish(self, within: Duration = "12h") -> dict[str, TopicReport]:
        """
        End publishers, operators and faults, let the workers handle the rest, and check the end.
        """
        network, self.store.network = self.store.network, Network()
        late = network.timeout + (network.latest if network.late_calls else 0.0)
        for actor in self.actors:
            actor.finish()
        self._run(self.clock.now + round(late * units.SECOND))  # for late calls
        for layer, pattern, fields in list(every_policy(self.store.engine)):
            if fields.get("paused"):
                self.store.apply("policy_set", layer, pattern, {"paused": False})
        until = self.clock.now + units.microseconds(within)
        while self.clock.now < until:
            self._run(self.clock.now + STEP_US)
            totals = self.store.apply("overview")
            if not totals.waiting and not totals.leased:
                break
        try:
            for check in self.checks:
                check.end()
        except Broken as error:
            error.add_note(f"seed {self.seed}")
            raise
        return self.report()

    def close(self) -> None:
        """End all actors, and close the engine."""
        for actor in self.actors:
            actor.crash()
        for engine in self.store.engines:
            engine.close()


@contextmanager
def simulated(app: Laneway, *, seed: int = 0, network: Network | None = None) -> Iterator[Fleet]:
    """
    Simulate a fleet with the policies, gates, groups and tiers of an application, in memory.

    The application's real store is not touched, and its handlers are not called: simulated
    workers take the time that you set.
    """
    fleets: list[Fleet] = []

    def make(settings: Settings) -> FullEngine:
        settings = msgspec.structs.replace(
            settings, namespace="default", durability=None, create=True
        )
        fleets.append(
            Fleet(partial(open_engine, "sqlite://"), settings, seed=seed, network=network)
        )
        return fleets[-1].store.direct

    with app.runtime.replaced_engine(make):
        try:
            yield fleets[-1]
        finally:
            for actor in fleets[-1].actors:
                actor.crash()
