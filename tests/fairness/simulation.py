"""Runs a case on an engine in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from laneway.headers import COST
from laneway.message import Draft, Lease, Settlement
from laneway.policy import Gate, default_burst
from laneway.testing.simulation.checks import Bucket, shared_bucket
from laneway.testing.simulation.clock import Clock
from laneway.testing.simulation.store import AGAIN_US
from laneway.units import SECOND
from tests.fairness.cases import LONGEST, SHORTEST, Case, keys_of, rated
from tests.model.fair_rates import Topic


@dataclass(frozen=True)
class Delivery:
    at: float
    topic: str


def policy_of(case: Case, topic: Topic) -> dict[str, Any]:
    """The policy of a topic of a case."""
    policy = {
        "weight": topic.weight,
        "tier": topic.tier,
        "group": topic.group,
        "gate": list(topic.gates) or None,
        "rate": topic.rate,
        "burst": case.bursts.get(f"topic {topic.name}"),
        "concurrency": topic.concurrency,
        "partitions": topic.partitions if topic.partitions > 1 else None,
        "key_rate": topic.key_rate,
        "key_concurrency": topic.key_concurrency,
        "serial": True if topic.is_serial else None,
    }
    if topic.name in case.adaptive:
        most = case.adaptive[topic.name]
        policy |= {"concurrency": "auto", "max_concurrency": most}
    return {name: value for name, value in policy.items() if value is not None}


class Simulation:
    """
    The workers of a case, which lease as many messages as they have free slots.

    - `deliveries`: in the order in which they began.
    - `exceeded`: by limit, the most by which it was exceeded.
    """

    def __init__(self, case: Case, engine: Any, shards: int = 1) -> None:
        self.case, self.engine, self.shards = case, engine, shards
        self.clock = Clock(case.seed)
        self.draw = self.clock.random
        self.deliveries: list[Delivery] = []
        self.exceeded: dict[str, float] = {}
        self.running: Counter[str] = Counter()
        self.topics = {topic.name: topic for topic in case.system.topics}
        self.free = list(case.workers)
        self.waiting: dict[str, Counter[str | None]] = {}
        self._buckets: dict[str, Bucket] = {}
        self._largest = {
            what: max((topic.cost for topic in topics), default=1)
            for what, _, topics in rated(case.system)
        }
        self._keys = {topic.name: keys_of(topic) for topic in case.system.topics}
        self._ended: list[Settlement] = []
        self._wake: int | None = None

    @property
    def now(self) -> int:
        """Microseconds."""
        return self.clock.now

    def run(self) -> None:
        self._set_up()
        end = self._time(self.case.length)
        while (at := min(self._times(), default=end)) < end:
            self.clock.run(at)
            self._settle()
            self._top_up()
            while self._lease_round() and self._top_up():
                pass

    def _time(self, seconds: float) -> int:
        return self.clock.start + round(seconds * SECOND)

    def _times(self) -> Iterator[int]:
        if (event := self.clock.next) is not None:
            yield event
        if self._wake is not None and any(self.free):
            yield self._wake

    # Setting up

    def _set_up(self) -> None:
        system, bursts = self.case.system, self.case.bursts
        for name, gate in system.gates.items():
            limits = Gate(gate.rate, bursts.get(f"gate {name}"), gate.concurrency)
            self.engine.gate_set(name, limits, now_us=self.now)
        for name, group in system.groups.items():
            burst = bursts.get(f"group {name}")
            limits = Gate(group.rate, burst, group.concurrency, group.weight)
            self.engine.topic_group_set(name, limits, now_us=self.now)
        for topic in system.topics:
            self.engine.policy_set("code", topic.name, policy_of(self.case, topic), now_us=self.now)
            for begin, end in self.case.active[topic.name]:
                self.clock.at(self._time(begin), partial(self._come, topic.name))
                self.clock.at(self._time(end), partial(self._leave, topic.name))
        if self.shards > 1:
            self._renew()

    # Events

    def _come(self, topic: str) -> None:
        self.waiting[topic] = Counter(dict.fromkeys(self._keys[topic], 0))

    def _leave(self, topic: str) -> None:
        del self.waiting[topic]
        self.engine.topic_purge(topic, now_us=self.now)

    def _end(self, worker: int, lease: Lease, cost_us: int) -> None:
        self.free[worker] += 1
        for what, _ in self._concurrencies(self.topics[lease.topic], lease.key):
            self.running[what] -= 1
        self._ended.append(Settlement(lease.handle, lease.fence, cost_us=cost_us))

    def _settle(self) -> None:
        """Settle in one call what has ended at this time."""
        if self._ended:
            answers = self.engine.settle(self._ended, now_us=self.now)
            assert set(answers) == {"acked"}, answers
            self._ended = []

    def _renew(self) -> None:
        """Let shards exchange their grants, also while no worker leases."""
        grants = self.engine._grants
        grants.renew(self.now)
        self.clock.after(grants._every, self._renew)

    def _top_up(self) -> bool:
        """Publish, so that each active topic has a backlog; returns whether it published."""
        drafts = []
        for name, counts in self.waiting.items():
            topic = self.topics[name]
            least = 3 if topic.keys else max(self.case.workers) + 2
            headers = {COST: str(topic.cost)} if topic.cost > 1 else None
            for key, count in counts.items():
                if count < least:
                    drafts += [Draft(name, b"x", key=key, headers=headers)] * (2 * least - count)
                    counts[key] = 2 * least
        if drafts:
            self.draw.shuffle(drafts)
            self.engine.put(drafts, now_us=self.now)
        return bool(drafts)

    # Leases

    def _lease_round(self) -> bool:
        """
        Workers lease one after the other, until one gets less than it has slots for.

        Each of several shards may have more, so all workers ask there.
        """
        workers = [worker for worker, free in enumerate(self.free) if free]
        self.draw.shuffle(workers)
        got = False
        for worker in workers:
            count = self._lease(worker)
            got = got or count > 0
            if self.free[worker] and self.shards == 1:
                break
        return got

    def _lease(self, worker: int) -> int:
        n = self.free[worker]
        batch = self.engine.lease(n, startable=n, now_us=self.now)
        for lease in batch.leases:
            self._begin(worker, lease)
        wake = batch.next_wake_us
        self._wake = max(wake, self.now + AGAIN_US) if wake is not None else None
        if wake is not None and wake > self.now:
            self._wake = wake
        return len(batch.leases)

    def _begin(self, worker: int, lease: Lease) -> None:
        topic = self.topics[lease.topic]
        self.deliveries.append(Delivery(self.clock.seconds, lease.topic))
        self.waiting[lease.topic][lease.key] -= 1
        self.free[worker] -= 1
        self._check(topic, lease.key)
        took = round(topic.seconds * self.draw.uniform(SHORTEST, LONGEST) * SECOND)
        self.clock.at(self.now + took, partial(self._end, worker, lease, took))

    # Limits

    def _check(self, topic: Topic, key: str | None) -> None:
        for what, most in self._concurrencies(topic, key):
            self.running[what] += 1
            self._note(f"concurrency of {what}", self.running[what] - most)
        for what, rate, burst, cost in self._rates(topic, key):
            if what not in self._buckets:
                self._buckets[what] = self._bucket(what, rate, burst)
            self._note(f"rate of {what}", self._buckets[what].take(self.now, cost))

    def _bucket(self, what: str, rate: float, burst: float | None) -> Bucket:
        whole = burst if burst is not None else default_burst(rate)
        return shared_bucket(rate, whole, self._largest.get(what, 1), self.shards)

    def _note(self, what: str, excess: float) -> None:
        if excess > self.exceeded.get(what, 0.0):
            self.exceeded[what] = excess

    def _concurrencies(self, topic: Topic, key: str | None) -> Iterator[tuple[str, int]]:
        """The concurrencies that a message uses, each with its limit."""
        system = self.case.system
        settings: list[tuple[str, int | None]] = [(f"topic {topic.name}", topic.concurrency)]
        settings += [(f"gate {name}", system.gates[name].concurrency) for name in topic.gates]
        if topic.group is not None:
            settings.append((f"group {topic.group}", system.groups[topic.group].concurrency))
        most = 1 if topic.is_serial else topic.key_concurrency
        settings.append((f"key {topic.name} {key}", most))
        return ((what, limit) for what, limit in settings if limit is not None)

    def _rates(
        self, topic: Topic, key: str | None
    ) -> Iterator[tuple[str, float, float | None, int]]:
        """The rates that a message uses: name, rate, burst and the permits that it uses."""
        system, bursts = self.case.system, self.case.bursts
        settings: list[tuple[str, float | None]] = [(f"topic {topic.name}", topic.rate)]
        settings += [(f"gate {name}", system.gates[name].rate) for name in topic.gates]
        if topic.group is not None:
            settings.append((f"group {topic.group}", system.groups[topic.group].rate))
        for what, rate in settings:
            if rate is not None:
                yield what, rate, bursts.get(what), topic.cost
        if topic.key_rate is not None:
            yield f"key {topic.name} {key}", topic.key_rate, None, 1
