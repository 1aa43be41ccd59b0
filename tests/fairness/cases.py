"""Random cases: topics that share limits, and workers."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.model.fair_rates import Gate, Group, System, Tier, Topic

LENGTH = 100.0
"""Seconds of a case."""

PER_SECOND = (4.0, 14.0)
"""Messages per second that the workers can handle, least and most."""

TIERS = {"high": Tier(6), "mid": Tier(3), "low": Tier(1)}

SHORTEST, LONGEST = 0.6, 1.4
"""The shortest and the longest time of a handler, by its mean."""

UNEVEN = 1 << 32
"""From this seed on, the topics of a case differ much in their costs, weights or times."""

KINDS_OF_KEYS = ("key_rate", "key_concurrency", "serial")


@dataclass(frozen=True)
class Case:
    """
    Topics with limits, when each has a backlog, and the slots of each worker.

    - `active`: by topic, from when to when it has a backlog, in seconds.
    - `bursts`: by "topic NAME", "gate NAME" or "group NAME"; the others have the default.
    - `is_tight`: rates have small bursts. Permits are lost then while their topics wait for slots.
    - `adaptive`: the topics with `concurrency="auto"`, and their `max_concurrency`.
    """

    seed: int
    system: System
    active: Mapping[str, Sequence[tuple[float, float]]]
    workers: Sequence[int]
    bursts: Mapping[str, int] = field(default_factory=dict)
    adaptive: Mapping[str, int] = field(default_factory=dict)
    is_tight: bool = False
    length: float = LENGTH

    def changes(self) -> list[float]:
        """The times between which the set of active topics stays the same."""
        times = {time for spans in self.active.values() for span in spans for time in span}
        return sorted(times | {0.0, self.length})


def draw_case(seed: int) -> Case:
    """Draw the case with this seed."""
    return _Uneven(seed - UNEVEN).case() if seed >= UNEVEN else _Drawing(seed).case()


class _Drawing:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = random.Random(seed)

    def case(self) -> Case:
        draw = self.draw
        gates = {f"gate{n}": self._gate() for n in range(draw.randint(1, 4))}
        groups = {f"group{n}": self._group() for n in range(draw.randint(0, 3))}
        tiers = self._tiers()
        topics = [
            self._topic(f"t{n}", list(gates), list(groups), list(tiers))
            for n in range(draw.randint(2, 12))
        ]
        adaptive = {
            topic.name: draw.randint(2, 5)
            for topic in topics
            if draw.random() < 0.06 and topic.concurrency is None
        }
        topics = [
            replace(each, concurrency=adaptive[each.name]) if each.name in adaptive else each
            for each in topics
        ]
        workers = self._workers(topics)
        system = System(topics, sum(workers), gates, groups, tiers)
        active = {topic.name: self._active() for topic in topics}
        is_tight = self._chance(0.25)
        bursts = self._small_bursts(system) if is_tight else _whole_bursts(system)
        return Case(self.seed, system, active, workers, bursts, adaptive, is_tight)

    def _chance(self, part: float) -> bool:
        return self.draw.random() < part

    def _between(self, least: float, most: float) -> float:
        """Evenly by the logarithm."""
        value = math.exp(self.draw.uniform(math.log(least), math.log(most)))
        return float(f"{value:.3g}")

    def _small_bursts(self, system: System) -> dict[str, int]:
        """Some limits have a burst of a few permits, the others the default."""
        return {what: self.draw.randint(1, 4) for what, _, _ in rated(system) if self._chance(0.4)}

    def _gate(self) -> Gate:
        kind = self.draw.choice(("rate", "rate", "concurrency", "both"))
        return Gate(
            self._between(0.7, 8.0) if kind != "concurrency" else None,
            self.draw.randint(1, 4) if kind != "rate" else None,
        )

    def _group(self) -> Group:
        kind = self.draw.choice(("none", "none", "rate", "concurrency", "both"))
        return Group(
            self.draw.choice((1.0, 1.0, 2.0, 3.0)),
            self._between(0.7, 8.0) if kind in ("rate", "both") else None,
            self.draw.randint(1, 4) if kind in ("concurrency", "both") else None,
        )

    def _tiers(self) -> dict[str, Tier]:
        tiers = dict(TIERS)
        if self._chance(0.25):
            name = self.draw.choice(list(tiers))
            tiers[name] = replace(tiers[name], fair_by="time")
        return {"vip": Tier("strict"), **tiers} if self._chance(0.15) else tiers

    def _topic(self, name: str, gates: list[str], groups: list[str], tiers: list[str]) -> Topic:
        draw = self.draw
        topic = Topic(
            name,
            self._between(0.15, 1.5),
            weight=draw.choice((1.0, 1.0, 1.0, 2.0, 3.0, 0.5)),
            tier=draw.choice(tiers) if self._chance(0.5) else "mid",
            group=draw.choice(groups) if groups and self._chance(0.5) else None,
            gates=tuple(draw.sample(gates, min(len(gates), draw.choice((0, 0, 1, 1, 1, 2, 2, 3))))),
            rate=self._between(0.3, 4.0) if self._chance(0.25) else None,
            concurrency=draw.randint(1, 3) if self._chance(0.2) else None,
            cost=draw.choice((2, 3, 5)) if self._chance(0.2) else 1,
            partitions=draw.randint(2, 4) if self._chance(0.12) else 1,
        )
        return self._with_keys(topic)

    def _with_keys(self, topic: Topic) -> Topic:
        """Topics with partitions have keys that spread evenly over them."""
        topic = replace(topic, keys=topic.partitions if topic.partitions > 1 else 0)
        if not self._chance(0.2):
            return topic
        keys = self.draw.randint(1, 3) * topic.partitions
        kind = self.draw.choice(KINDS_OF_KEYS)
        return replace(
            topic,
            keys=keys,
            key_rate=self._between(0.2, 2.0) if kind == "key_rate" else None,
            key_concurrency=self.draw.randint(1, 2) if kind == "key_concurrency" else None,
            is_serial=kind == "serial",
        )

    def _workers(self, topics: Sequence[Topic]) -> list[int]:
        seconds = sum(topic.seconds for topic in topics) / len(topics)
        slots = max(1, round(self._between(*PER_SECOND) * seconds))
        count = min(self.draw.randint(1, 3), slots)
        return [slots // count + (n < slots % count) for n in range(count)]

    def _active(self) -> list[tuple[float, float]]:
        """Most topics stay; the others come later, or leave and come back."""
        if self._chance(0.7):
            return [(0.0, LENGTH)]
        first, second = sorted(round(self.draw.uniform(5, LENGTH - 5), 3) for _ in range(2))
        return self.draw.choice(
            ([(0.0, second)], [(first, LENGTH)], [(0.0, first), (second, LENGTH)])
        )


class _Uneven(_Drawing):
    """Costs, weights or times of handlers that differ much between the topics of a case."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.kind = self.draw.choice(("costs", "weights", "times"))

    def _gate(self) -> Gate:
        gate = super()._gate()
        return replace(gate, rate=gate.rate and 8 * gate.rate) if self.kind == "costs" else gate

    def _group(self) -> Group:
        group = super()._group()
        return replace(group, rate=group.rate and 8 * group.rate) if self.kind == "costs" else group

    def _topic(self, name: str, gates: list[str], groups: list[str], tiers: list[str]) -> Topic:
        topic = super()._topic(name, gates, groups, tiers)
        if self.kind == "weights":
            return replace(topic, weight=self.draw.choice((0.01, 0.05, 1.0, 1.0, 20.0, 100.0)))
        if self.kind == "costs":
            rate = topic.rate and 8 * topic.rate
            return replace(topic, cost=self.draw.choice((1, 1, 10, 50)), rate=rate)
        rate = topic.rate or self._between(1.0, 6.0)
        return replace(topic, seconds=self.draw.choice((0.005, 0.05, 0.3, 1.0, 5.0)), rate=rate)


def rated(system: System) -> Iterator[tuple[str, float, list[Topic]]]:
    """The limits with a rate: name, rate and topics."""
    for topic in system.topics:
        if topic.rate is not None:
            yield f"topic {topic.name}", topic.rate, [topic]
    for name, gate in system.gates.items():
        if gate.rate is not None:
            topics = [topic for topic in system.topics if name in topic.gates]
            yield f"gate {name}", gate.rate, topics
    for name, group in system.groups.items():
        if group.rate is not None:
            topics = [topic for topic in system.topics if topic.group == name]
            yield f"group {name}", group.rate, topics


def _whole_bursts(system: System) -> dict[str, int]:
    """
    Bursts that lose no permit while a topic waits for the slot of another one.

    It waits as long as the longest handler takes, and then uses its cost.
    """
    longest = LONGEST * max(topic.seconds for topic in system.topics)
    return {
        what: math.ceil(rate * longest + max((topic.cost for topic in topics), default=1))
        for what, rate, topics in rated(system)
    }


def keys_of(topic: Topic) -> list[str | None]:
    """The keys of its messages: equally many in each partition."""
    if topic.keys == 0:
        return [None]
    each = topic.keys // topic.partitions
    found: dict[int, list[str | None]] = {part: [] for part in range(topic.partitions)}
    number = 0
    while any(len(keys) < each for keys in found.values()):
        key = f"k{number}"
        keys = found[zlib.crc32(key.encode()) % topic.partitions]
        if len(keys) < each:
            keys.append(key)
        number += 1
    return [key for keys in found.values() for key in keys]
