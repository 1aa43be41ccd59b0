"""Compares what the topics of a case got with their fair rates."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from tests.fairness.cases import LONGEST, Case
from tests.fairness.simulation import Delivery
from tests.model.fair_rates import System, Topic, fair_rates

WINDOW = 60.0
"""Seconds over which a topic gets its part."""

LEAST = 0.8
"""The part of its fair rate that each topic should get at least."""

FLOOR = 0.2
"""
The part that each topic gets at least, whatever the limits are. A topic is between this and `LEAST`
where one to seven slots are used up by several tiers, or where its messages cost many permits at
several gates: both come in whole units that are larger than its part.
"""

MAY_MISS = 0.15
"""Of the topics of ten cases, the part that may be between the two."""

MAY_MISS_SHARDED = 0.4
"""The same on several shards: permits move between them in whole units."""

DRAIN = 2.0
"""Seconds after a change that are not judged: running handlers hold limits for that long."""

INTERVALS, MORE = 5, 2.0
"""A pause is at most that many mean intervals, and that many seconds."""


class Judged(Protocol):
    """A case that was run."""

    case: Case
    deliveries: list[Delivery]
    exceeded: dict[str, float]


@dataclass(frozen=True)
class Verdict:
    """
    What a topic got in its worst window, and its longest pause.

    `ratio`: of what it got, and a message more for rounding, to what was due.
    """

    topic: Topic
    got: int
    due: float
    ratio: float
    pause: float
    longest: float
    """The longest pause that it may have."""

    @property
    def is_failed(self) -> bool:
        return self.ratio < LEAST or self.pause > self.longest

    @property
    def is_starved(self) -> bool:
        return self.ratio < FLOOR or self.pause > 2 * self.longest


@dataclass(frozen=True)
class Judgment:
    case: Case
    verdicts: list[Verdict]
    exceeded: dict[str, float]

    @property
    def failed(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.is_failed]

    @property
    def is_failed(self) -> bool:
        return bool(self.failed or self.exceeded)

    @property
    def worst(self) -> float:
        return min((verdict.ratio for verdict in self.verdicts), default=inf)

    def table(self) -> str:
        """The case and its topics, for people."""
        system = self.case.system
        lines = [
            f"seed {self.case.seed}: workers {list(self.case.workers)}"
            + (", small bursts" if self.case.is_tight else "")
        ]
        for kind, settings in (("gate", system.gates), ("group", system.groups)):
            for name, limit in settings.items():
                burst = self.case.bursts.get(f"{kind} {name}", "default")
                lines.append(f"  {kind} {name}: {_settings(limit)} burst={burst}")
        tiers = ", ".join(
            f"{name} {tier.share} {tier.fair_by}" for name, tier in system.tiers.items()
        )
        lines += [f"  tiers: {tiers}", "", HEAD]
        lines += [self._row(verdict) for verdict in self.verdicts]
        lines += [f"  EXCEEDED {what} by {most:.2f}" for what, most in self.exceeded.items()]
        return "\n".join(lines)

    def _row(self, verdict: Verdict) -> str:
        topic = verdict.topic
        own = _settings(
            topic, "rate concurrency cost keys key_rate key_concurrency is_serial partitions"
        )
        if topic.name in self.case.adaptive:
            own += " auto"
        spans = self.case.active[topic.name]
        if len(spans) > 1 or spans[0] != (0.0, self.case.length):
            own += " " + " ".join(f"{begin:g}-{end:g}s" for begin, end in spans)
        return (
            f"{'FAIL' if verdict.is_failed else '':4} {topic.name:4} {topic.tier:5} "
            f"{topic.weight:<4g} {topic.group or '-':8} {','.join(topic.gates) or '-':18} "
            f"{topic.seconds:<6g} {verdict.got:5} {verdict.due:7.1f} {verdict.ratio:6.2f} "
            f"{verdict.pause:6.1f} {verdict.longest:7.1f}  {own}"
        )


HEAD = (
    f"{'':4} {'':4} {'tier':5} {'w':4} {'group':8} {'gates':18} {'mean s':6} {'got':>5} {'due':>7} "
    f"{'ratio':>6} {'pause':>6} {'allowed':>7}"
)


DEFAULTS = {"weight": 1.0, "cost": 1, "keys": 0, "is_serial": False, "partitions": 1}


def _settings(of: object, names: str = "rate concurrency weight") -> str:
    values = {name: getattr(of, name, None) for name in names.split()}
    return " ".join(
        f"{name}={value:g}"
        for name, value in values.items()
        if value is not None and value != DEFAULTS.get(name)
    )


def _lowered(system: System, *, is_tight: bool) -> System:
    """
    The rates that small bursts can keep.

    A bucket that is full while its topic waits for a slot or at another limit loses permits. So
    the whole rate is impossible there: each permit may come later by the longest handler.
    Keys always have small bursts.
    """
    wait = LONGEST * max((topic.seconds for topic in system.topics), default=0.0)

    def lower(rate: float | None) -> float | None:
        return rate / (1 + rate * wait) if rate is not None else None

    topics = [replace(topic, key_rate=lower(topic.key_rate)) for topic in system.topics]
    if not is_tight:
        return replace(system, topics=topics)
    return replace(
        system,
        topics=[replace(topic, rate=lower(topic.rate)) for topic in topics],
        gates={name: replace(gate, rate=lower(gate.rate)) for name, gate in system.gates.items()},
        groups={name: replace(one, rate=lower(one.rate)) for name, one in system.groups.items()},
    )


class _Due:
    """The fair rates of a case between its changes."""

    def __init__(self, simulation: Judged) -> None:
        self.case = simulation.case
        self.times = self.case.changes()
        self.at: dict[str, list[float]] = {topic.name: [] for topic in self.case.system.topics}
        """When messages of each topic were delivered."""
        for delivery in simulation.deliveries:
            self.at[delivery.topic].append(delivery.at)
        self.spans = list(zip(self.times, self.times[1:], strict=False))
        self.rates = [self._rates_in(*span) for span in self.spans]

    def got(self, topic: str, begin: float, end: float) -> int:
        return bisect_left(self.at[topic], end) - bisect_left(self.at[topic], begin)

    def _rates_in(self, begin: float, end: float) -> dict[str, float]:
        """
        What each topic is due in a span. A topic that adapts wants at least what it got, and at
        most what its largest concurrency allows; the others are due what both leave them.
        """
        topics = [
            each
            for each in self.case.system.topics
            if any(first <= begin < last for first, last in self.case.active[each.name])
        ]
        as_got = [
            replace(each, most=self.got(each.name, begin, end) / (end - begin))
            if each.name in self.case.adaptive
            else each
            for each in topics
        ]
        systems = [replace(self.case.system, topics=each) for each in (as_got, topics)]
        systems += [_lowered(each, is_tight=self.case.is_tight) for each in systems]
        every = [fair_rates(each) for n, each in enumerate(systems) if each not in systems[:n]]
        return {name: min(rates[name] for rates in every) for name in every[0]}

    def due(self, topic: str, begin: float, end: float) -> float:
        return sum(
            rates.get(topic, 0.0) * max(0.0, min(end, last) - max(begin, first + DRAIN))
            for (first, last), rates in zip(self.spans, self.rates, strict=True)
        )

    def least_rate(self, topic: str, begin: float, end: float) -> float:
        return min(
            (
                rates.get(topic, 0.0)
                for (first, last), rates in zip(self.spans, self.rates, strict=True)
                if first < end and last > begin
            ),
            default=0.0,
        )


def judge(simulation: Judged) -> Judgment:
    due = _Due(simulation)
    verdicts = [_verdict(due, topic) for topic in simulation.case.system.topics]
    return Judgment(simulation.case, verdicts, dict(simulation.exceeded))


def _verdict(due: _Due, topic: Topic) -> Verdict:
    if topic.name in due.case.adaptive:
        got = due.got(topic.name, 0.0, due.case.length)
        return Verdict(topic, got, got, inf, 0.0, inf)
    got, owed, ratio = 0, 0.0, inf
    pause, longest = 0.0, inf
    for begin, end in due.case.active[topic.name]:
        for start in range(int(begin) + 1, int(end - WINDOW) + 1):
            count = due.got(topic.name, start, start + WINDOW)
            part = due.due(topic.name, start, start + WINDOW)
            if part and (count + 1) / part < ratio:
                got, owed, ratio = count, part, (count + 1) / part
        for one, most in _pauses(due, topic.name, begin, end):
            if one - most > pause - longest:
                pause, longest = one, most
    return Verdict(topic, got, owed, ratio, pause, longest)


def _pauses(due: _Due, topic: str, begin: float, end: float) -> list[tuple[float, float]]:
    """Each pause between two deliveries, and the longest one allowed."""
    times = [at for at in due.at[topic] if begin + DRAIN <= at < end]
    pauses = []
    for before, after in zip([begin + DRAIN, *times], [*times, end], strict=True):
        if rate := due.least_rate(topic, before, after):
            pauses.append((after - before, INTERVALS / rate + MORE))
    return pauses
