"""The random cases of tests/fairness with workers behind a network, judged by their fair rates."""

from __future__ import annotations

from laneway.engines.base import Settings
from laneway.headers import COST
from laneway.message import Draft, Lease
from laneway.policy import Gate
from laneway.testing.simulation import Actor, End, Fleet, Store, Worker
from laneway.testing.simulation.store import Call
from laneway.tiers import Tier
from tests.fairness.cases import LONGEST, SHORTEST, Case, draw_case, keys_of
from tests.fairness.judging import Judgment, judge
from tests.fairness.simulation import Delivery, policy_of
from tests.simulation.fleets import ENGINES

LOOKS_EVERY = 0.1
"""Seconds."""


class Backlog(Actor):
    """Keeps messages of each key waiting in each topic, while the topic is active."""

    def __init__(self, store: Store, case: Case) -> None:
        super().__init__(store)
        self.case = case
        self.waiting = {
            topic.name: dict.fromkeys(keys_of(topic), 0) for topic in case.system.topics
        }

    async def main(self) -> None:
        active: set[str] = set()
        while True:
            for topic in self.case.system.topics:
                spans = self.case.active[topic.name]
                if any(begin <= self.clock.seconds < end for begin, end in spans):
                    active.add(topic.name)
                    await self._fill(topic.name, {COST: str(topic.cost)})
                elif topic.name in active:
                    active.remove(topic.name)
                    await self.store.call("topic_purge", topic.name)
                    self.waiting[topic.name] = dict.fromkeys(self.waiting[topic.name], 0)
            await self.clock.sleep(LOOKS_EVERY)

    async def _fill(self, topic: str, headers: dict[str, str]) -> None:
        least = 2 * max(self.case.workers) + 4
        drafts = []
        for key, count in self.waiting[topic].items():
            if count < least:
                drafts += [Draft(topic, b"x", key=key, headers=headers)] * (2 * least - count)
                self.waiting[topic][key] = 2 * least
        if drafts:
            self.clock.random.shuffle(drafts)
            await self.store.call("put", drafts)


class FairFleet:
    """A case as a fleet; `judge` reads `case`, `deliveries` and `exceeded`."""

    def __init__(self, seed: int, engine: str) -> None:
        self.case = case = draw_case(seed)
        self.deliveries: list[Delivery] = []
        self.exceeded: dict[str, float] = {}  # the fleet's own checks raise
        tiers = {name: Tier(each.share, each.fair_by) for name, each in case.system.tiers.items()}
        self.fleet = Fleet(ENGINES[engine], Settings(tiers=tiers), seed=seed)
        store = self.fleet.store
        for name, gate in case.system.gates.items():
            limits = Gate(gate.rate, case.bursts.get(f"gate {name}"), gate.concurrency)
            store.apply("gate_set", name, limits)
        for name, group in case.system.groups.items():
            burst = case.bursts.get(f"group {name}")
            limits = Gate(group.rate, burst, group.concurrency, group.weight)
            store.apply("topic_group_set", name, limits)
        for topic in case.system.topics:
            store.apply("policy_set", "code", topic.name, policy_of(case, topic))
        self.seconds = {topic.name: topic.seconds for topic in case.system.topics}
        self.backlog = self.fleet.add(Backlog(store, case))
        for slots in case.workers:
            self.fleet.add(Worker(store, slots, self._handle))
        store.watchers.append(self._saw)

    def _handle(self, lease: Lease) -> End:
        return End(self.seconds[lease.topic] * self.fleet.clock.random.uniform(SHORTEST, LONGEST))

    def _saw(self, call: Call) -> None:
        if call.operation == "lease":
            for lease in call.answer.leases:
                self.backlog.waiting[lease.topic][lease.key] -= 1
                self.deliveries.append(Delivery(self.fleet.clock.seconds, lease.topic))


def run_fair(seed: int, engine: str) -> Judgment:
    """Run the case with this seed."""
    one = FairFleet(seed, engine)
    one.fleet.run(one.case.length)
    one.fleet.limits.end()
    one.fleet.close()
    return judge(one)
