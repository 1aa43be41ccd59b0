"""
`concurrency="auto"` beside the best fixed limit: a destination whose capacity changes from 40 to 10
and back to 40 calls at once.

The clock is virtual (`now_us`), so a run is exact: random numbers only vary the service times, by
their seed. A call takes 0.2 s. What a destination does with calls above its capacity:

- `queues`: they wait in line.
- `times out`: they wait in line, and the handler gives up after 1 s.
- `refuses`: it answers 503 at once.
- `unavailable`: as `refuses`, and the handler raises DestinationUnavailable.

The same of a topic with 4 partitions, which share the limit, in one shard and on 4; a virtual
second apart the limit is divided among the shards again.

A phase lasts 60 s. The best fixed limit is the best of several in a run of its own, in which the
capacity stays the same; nobody knows it beforehand.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from bench.common import options, pick, publish_table, store
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.message import Draft, Lease, Settlement

START = 1_700_000_000_000_000
SECOND = 1_000_000
TICK_US = 20_000
SERVICE_US = 200_000
REFUSAL_US = 5_000
PATIENCE_US = 1_000_000
CAPACITIES = (40, 10, 40)
PHASE_SECONDS = 60
TOPIC = "push.acme"
KINDS = ("queues", "times out", "refuses", "unavailable")
PARTITIONS = 4
KEYS = ("k5", "k1", "k4", "k0")
"""One for each of four partitions, which are on four shards."""

BACKLOG = 500
"""Messages that wait at least."""

ENDS: dict[str, dict[str, Any]] = {
    "done": {"action": "ack"},
    "timeout": {"action": "retry", "overload": "timeout", "delay_us": 0},
    "refuses": {"action": "retry", "overload": "answer", "delay_us": SECOND},
    "unavailable": {"action": "back_off"},
}
"""How a handler's delivery is settled."""


class Destination:
    """Serves `capacity` calls at once."""

    def __init__(self, kind: str, capacity: int, seed: int) -> None:
        self.kind = kind
        self.capacity = capacity
        self.service_us = SERVICE_US
        self._random = random.Random(seed)
        self._running = 0
        self._line: deque[Lease] = deque()
        self._ends: list[tuple[int, int, str, Lease]] = []
        self._open: dict[int, int] = {}
        """When each call began, by fence."""

    def call(self, lease: Lease, now: int) -> None:
        """A handler begins a call."""
        self._open[lease.fence] = now
        if self._running < self.capacity:
            self._begin(lease, now)
        elif self.kind in ("queues", "times out"):
            self._line.append(lease)
            if self.kind == "times out":
                self._end(now + PATIENCE_US, "timeout", lease)
        else:
            self._end(now + REFUSAL_US, self.kind, lease)

    def _begin(self, lease: Lease, now: int) -> None:
        self._running += 1
        self._end(now + round(self.service_us * self._random.uniform(0.8, 1.2)), "done", lease)

    def _end(self, at: int, how: str, lease: Lease) -> None:
        heapq.heappush(self._ends, (at, lease.fence, how, lease))

    def ended(self, until: int) -> list[tuple[Lease, str, int]]:
        """The calls that have ended by then: how, and how long they took."""
        found = []
        while self._ends and self._ends[0][0] <= until:
            at, fence, how, lease = heapq.heappop(self._ends)
            if how == "done":
                self._running -= 1
                while self._line and self._running < self.capacity:
                    waiting = self._line.popleft()
                    if waiting.fence in self._open:
                        self._begin(waiting, at)
            if fence in self._open:
                found.append((lease, how, at - self._open.pop(fence)))
        return found


class Simulation:
    """One topic with a backlog that does not end, and its destination."""

    def __init__(
        self,
        engine: FullEngine,
        kind: str,
        capacity: int,
        seed: int,
        keys: Sequence[str | None] = (None,),
    ) -> None:
        self.engine = engine
        self.keys = keys
        """The keys that messages have in turns."""
        self.destination = Destination(kind, capacity, seed)
        self.now = START
        self.counts: Counter[str] = Counter()
        """How calls ended."""
        self.waiting = 0

    def run(self, seconds: float) -> Counter[str]:
        """Go on for so long; returns how the calls of that time ended."""
        self.counts = Counter()
        for _ in range(round(seconds * SECOND / TICK_US)):
            self._step()
        return self.counts

    def _step(self) -> None:
        self.now += TICK_US
        settlements = []
        for lease, how, took in self.destination.ended(self.now):
            self.counts[how] += 1
            settlements.append(Settlement(lease.handle, lease.fence, cost_us=took, **ENDS[how]))
            self.waiting += how != "done"
        if settlements:
            self.engine.settle(settlements, now_us=self.now)
        if self.waiting < BACKLOG:
            drafts = [Draft(TOPIC, b"{}", key=key) for key in self.keys]
            self.engine.put(drafts * (BACKLOG // len(drafts)), now_us=self.now)
            self.waiting += BACKLOG
        for lease in self.engine.lease(100, now_us=self.now).leases:
            self.waiting -= 1
            self.destination.call(lease, self.now)


def phases(
    engine: FullEngine, kind: str, seed: int, seconds: float, partitions: int = 1
) -> list[Counter[str]]:
    """How calls ended in each phase with `concurrency="auto"`."""
    policy = {"concurrency": "auto", "retries": 1_000, "partitions": partitions}
    engine.policy_set("code", TOPIC, policy, now_us=START)
    keys = KEYS if partitions > 1 else (None,)
    simulation = Simulation(engine, kind, CAPACITIES[0], seed, keys)
    found = []
    for capacity in CAPACITIES:
        simulation.destination.capacity = capacity
        found.append(simulation.run(seconds))
    return found


def fixed(engine: FullEngine, kind: str, limit: int, capacity: int, seconds: float) -> int:
    """How many calls succeed with a fixed limit in a phase."""
    engine.policy_set("code", TOPIC, {"concurrency": limit, "retries": 1_000}, now_us=START)
    return Simulation(engine, kind, capacity, seed=1).run(seconds)["done"]


def opened(url: str, name: str, shards: int = 1) -> FullEngine:
    """A namespace for one run."""
    space = f"{name}-{shards}".replace(" ", "-")
    if shards > 1 and url.startswith("sqlite"):
        return open_engine(f"{url}-{space}?shards={shards}", Settings())
    address = f"{url}?shards={shards}" if shards > 1 else url
    return open_engine(address, Settings(namespace=space))


def best_fixed(url: str, kind: str, capacity: int, seconds: float) -> int:
    """How many calls succeed with the best of several fixed limits in a phase."""
    found = []
    for limit in (capacity, capacity + 2, capacity + capacity // 4, 2 * capacity):
        engine = opened(url, f"{kind}-{capacity}-{limit}")
        found.append(fixed(engine, kind, limit, capacity, seconds))
        engine.close()
    return max(found)


def main() -> None:
    chosen = options(__doc__ or "")
    seconds = pick(chosen, PHASE_SECONDS, PHASE_SECONDS, 5)
    rows: list[tuple[object, ...]] = []
    with store(chosen) as place:
        for kind in KINDS:
            best = {
                capacity: best_fixed(place.url, kind, capacity, seconds)
                for capacity in set(CAPACITIES)
            }
            for partitions, shards in ((1, 1), (PARTITIONS, 1), (PARTITIONS, PARTITIONS)):
                what = (
                    "a topic" if partitions == 1 else f"{partitions} partitions, shards: {shards}"
                )
                engine = opened(place.url, f"{kind}-{partitions}", shards)
                found = phases(engine, kind, 1, seconds, partitions)
                engine.close()
                for capacity, counts in zip(CAPACITIES, found, strict=True):
                    others = sum(counts.values()) - counts["done"]
                    rows.append(
                        (
                            kind,
                            what,
                            capacity,
                            best[capacity] / seconds,
                            counts["done"] / seconds,
                            counts["done"] / best[capacity],
                            others / seconds,
                        )
                    )
    publish_table(
        "adaptive",
        chosen,
        ("above its capacity it", "of", "capacity", "best fixed/s", "auto/s", "ratio", "failed/s"),
        rows,
        f"phases of {seconds} s in virtual time; a call takes {SERVICE_US / SECOND} s",
    )


if __name__ == "__main__":
    main()
