"""
The fair rates of topics that share limits: weighted max-min rates, as messages per second.

It shares no code with the engines or the rest of the model. docs/specification.md, "Fair rates",
has the definition; the algorithm is progressive filling (Bertsekas and Gallager, *Data Networks*,
6.5), with groups inside each limit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

ROUNDS = 15
"""Most rounds until rates that depend on each other stay the same."""

SAME = 1e-6
"""Relative difference of rates that count as equal."""

EXACT = 1e-8
"""Relative error of a limit's level."""

NEARLY = 0.001
"""Bounds that come closer by less are not followed further."""


@dataclass(frozen=True)
class Topic:
    """
    A topic with a backlog.

    - `weight`: of each partition.
    - `rate` (permits per second), `concurrency`: its own limits.
    - `cost`: permits that a message uses. `seconds`: the mean time of a handler.
    - `keys`: how many keys its messages have, with `key_rate`, `key_concurrency` or `is_serial`
      for each of them.
    - `most`: messages per second that it uses at most, whatever the limits allow.
    """

    name: str
    seconds: float
    weight: float = 1.0
    tier: str = "mid"
    group: str | None = None
    gates: tuple[str, ...] = ()
    rate: float | None = None
    concurrency: int | None = None
    cost: int = 1
    keys: int = 0
    key_rate: float | None = None
    key_concurrency: int | None = None
    is_serial: bool = False
    partitions: int = 1
    most: float = inf

    @property
    def entry_weight(self) -> float:
        """The weight of all its partitions, each of which is an entry."""
        return self.weight * self.partitions

    @property
    def most_alone(self) -> float:
        """Its rate under the limits that it shares with no other topic."""
        rates = [self.most]
        if self.rate is not None:
            rates.append(self.rate / self.cost)
        if self.concurrency is not None:
            rates.append(self.concurrency / self.seconds)
        if self.key_rate is not None:
            rates.append(self.keys * self.key_rate)
        if self.key_concurrency is not None or self.is_serial:
            rates.append(self.keys * (self.key_concurrency or 1) / self.seconds)
        return min(rates)


@dataclass(frozen=True)
class Gate:
    """The limits of a gate: permits per second, and handlers that run at the same time."""

    rate: float | None = None
    concurrency: int | None = None


@dataclass(frozen=True)
class Group:
    """The settings of a topic group."""

    weight: float = 1.0
    rate: float | None = None
    concurrency: int | None = None


@dataclass(frozen=True)
class Tier:
    """The settings of a tier."""

    share: float | Literal["strict"] = 1.0
    fair_by: Literal["messages", "time"] = "messages"


@dataclass(frozen=True)
class System:
    """All that decides about the rates. `slots`: handlers that all workers run at the same time."""

    topics: Sequence[Topic]
    slots: int
    gates: Mapping[str, Gate] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)
    tiers: Mapping[str, Tier] = field(default_factory=dict)

    def most_alone(self, name: str) -> float:
        return next(topic.most_alone for topic in self.topics if topic.name == name)

    def group_weight(self, name: str) -> float:
        return self.groups.get(name, Group()).weight


@dataclass
class _Limit:
    """
    A limit with its topics: `uses` is how much of the capacity a message of each topic uses.

    `is_slots`: the tiers compete first, by their shares. `is_group`: the limit of a group, whose
    topics compete as themselves.
    """

    capacity: float
    uses: dict[str, float]
    members: list[Topic]
    is_slots: bool = False
    is_group: bool = False

    def has(self, name: str) -> bool:
        return any(topic.name == name for topic in self.members)

    def rates(self, system: System, most: Mapping[str, float]) -> dict[str, float]:
        """What each topic gets at this limit, if none wants more than that. Strict tiers first."""
        found: dict[str, float] = {}
        for is_strict in (True, False):
            members = [each for each in self.members if _is_strict(system, each) is is_strict]
            left = self.capacity - sum(rate * self.uses[name] for name, rate in found.items())
            found |= self._shared(system, members, most, max(left, 0.0))
        return found

    def _shared(
        self, system: System, members: list[Topic], most: Mapping[str, float], capacity: float
    ) -> dict[str, float]:
        if self.is_group:
            members = [replace(topic, group=None) for topic in members]
        root = _Entry(1.0, children=_entries(system, members, most, is_slots=self.is_slots))
        return root.rates_at(_highest(lambda level: root.sum_at(level, self.uses), capacity))


def fair_rates(system: System) -> dict[str, float]:
    """
    Return the weighted max-min rate of each topic.

    A strict tier uses the slots before the others; how much it uses depends on what its topics
    share with theirs elsewhere. So the rates are filled until that amount stays the same.
    """
    strict = [topic for topic in system.topics if _is_strict(system, topic)]
    taken: dict[str, float] = {}
    rates: dict[str, float] = {}
    for _ in range(ROUNDS):
        rates = _filled(system, sum(taken.get(each.name, 0.0) * each.seconds for each in strict))
        before, taken = taken, {each.name: rates[each.name] for each in strict}
        if all(abs(taken[name] - before.get(name, 0.0)) <= NEARLY for name in taken):
            break
    return rates


def _tier(system: System, topic: Topic) -> Tier:
    return system.tiers.get(topic.tier, Tier())


def _is_strict(system: System, topic: Topic) -> bool:
    return _tier(system, topic).share == "strict"


def _filled(system: System, strict_use: float) -> dict[str, float]:
    """
    Progressive filling, if the strict tiers use so many of the slots.

    `most` bounds each rate from above. What the limits offer if all others use that bounds it from
    below. A topic is fixed when both are equal, and the topics of a limit that holds back all of
    them are. If there are none, what the limits offer when the others use only the lower bounds is
    a new upper bound.
    """
    limits = [limit for limit in _limits(system, strict_use) if limit.members]
    most = {topic.name: topic.most_alone for topic in system.topics}
    left = {topic.name: topic for topic in system.topics}
    while left:
        by_limit = [limit.rates(system, most) for limit in limits]
        offers = {
            name: min(most[name], *(rates.get(name, inf) for rates in by_limit)) for name in left
        }
        found = _to_fix(left, by_limit, offers, most)
        if not found:
            lower = most | offers
            upper = {name: _alone(system, name, limits, lower, most[name]) for name in left}
            if all(upper[name] > most[name] * (1 - NEARLY) for name in left):
                return most | _least_of_settled(system, left, limits, lower)
            most |= upper
        for name in found:
            most[name] = offers[name]
            del left[name]
    return most


def _least_of_settled(
    system: System, left: Collection[str], limits: Sequence[_Limit], lower: Mapping[str, float]
) -> dict[str, float]:
    """
    What each topic gets in both allocations that are found if one after the other takes what the
    others leave it, from the first topic to the last one and back; else its lower bound.
    """
    least: dict[str, float] = {}
    for order in (list(left), list(left)[::-1]):
        rates = dict(lower)
        for _ in range(ROUNDS):
            before = dict(rates)
            for name in order:
                rates[name] = _alone(system, name, limits, rates, system.most_alone(name))
            if all(abs(rates[name] - before[name]) <= NEARLY * rates[name] for name in left):
                break
        else:
            rates = dict(lower)
        for name in left:
            least[name] = min(rates[name], least.get(name, inf))
    return least


def _is_same(one: float, other: float) -> bool:
    return one == other or abs(one - other) <= SAME * max(1.0, min(one, other))


def _to_fix(
    left: Mapping[str, Topic],
    by_limit: Sequence[Mapping[str, float]],
    offers: Mapping[str, float],
    most: Mapping[str, float],
) -> list[str]:
    """The topics whose offers are their rates."""
    if found := [name for name in left if _is_same(offers[name], most[name])]:
        return found
    for rates in by_limit:
        members = [name for name in rates if name in left]
        if members and all(_is_same(rates[name], offers[name]) for name in members):
            return members
    return []


def _alone(
    system: System,
    name: str,
    limits: Sequence[_Limit],
    uses: Mapping[str, float],
    most: float,
) -> float:
    """What the limits offer a topic that wants all, if the others use that."""
    wanted = {**uses, name: most}
    return min([most, *(each.rates(system, wanted)[name] for each in limits if each.has(name))])


def _limits(system: System, strict_use: float) -> Iterable[_Limit]:
    """The limits that topics share. A concurrency is used for the mean time of a handler."""
    shared: list[tuple[Gate | Group, list[Topic]]] = [
        (gate, [topic for topic in system.topics if name in topic.gates])
        for name, gate in system.gates.items()
    ]
    shared += [
        (group, [topic for topic in system.topics if topic.group == name])
        for name, group in system.groups.items()
    ]
    for settings, topics in shared:
        if settings.rate is not None:
            costs = {each.name: float(each.cost) for each in topics}
            yield _Limit(settings.rate, costs, topics, is_group=isinstance(settings, Group))
        if settings.concurrency is not None:
            uses = {each.name: each.seconds for each in topics}
            yield _Limit(settings.concurrency, uses, topics, is_group=isinstance(settings, Group))
    seconds = {topic.name: topic.seconds for topic in system.topics}
    strict = [topic for topic in system.topics if _is_strict(system, topic)]
    others = [topic for topic in system.topics if topic not in strict]
    yield _Limit(system.slots, seconds, strict, is_slots=True)
    yield _Limit(max(0.0, system.slots - strict_use), seconds, others, is_slots=True)


def _highest(amount: Callable[[float], float], most: float) -> float:
    """The highest level whose amount, which grows with the level, is at most that."""
    if most <= 0:
        return 0.0
    if amount(inf) <= most:
        return inf
    low, high = 0.0, 1.0
    while amount(high) < most:
        low, high = high, high * 2
    while high - low > EXACT * high:
        middle = (low + high) / 2
        low, high = (middle, high) if amount(middle) < most else (low, middle)
    below, above = amount(low), amount(high)
    return high if below == above else low + (high - low) * (most - below) / (above - below)


def _entries(
    system: System, members: Iterable[Topic], most: Mapping[str, float], *, is_slots: bool
) -> list[_Entry]:
    if not is_slots:
        return _group_entries(system, members, most, by_time=False)
    tiers: dict[str, list[Topic]] = {}
    for topic in members:
        tiers.setdefault(topic.tier, []).append(topic)
    entries = []
    for name, topics in tiers.items():
        tier = system.tiers.get(name, Tier())
        inside = _group_entries(system, topics, most, by_time=tier.fair_by == "time")
        share = 1.0 if tier.share == "strict" else tier.share
        kind = _TierByTime if tier.fair_by == "time" else _Entry
        entries.append(kind(share, children=inside))
    return entries


def _group_entries(
    system: System, topics: Iterable[Topic], most: Mapping[str, float], *, by_time: bool
) -> list[_Entry]:
    """
    The entries of a level: topics without a group, and groups with their topics of one tier.
    """
    grouped: dict[tuple[str, str], list[_Entry]] = {}
    entries = []
    for topic in topics:
        entry = _Entry(
            topic.entry_weight,
            topic.name,
            unit=topic.seconds if by_time else 1.0,
            most=most[topic.name],
        )
        if topic.group is None:
            entries.append(entry)
        else:
            grouped.setdefault((topic.tier, topic.group), []).append(entry)
    return entries + [
        _Entry(system.group_weight(name), children=inside) for (_, name), inside in grouped.items()
    ]


class _Entry:
    """
    A topic, or several that compete as one.

    It gets an amount: messages per second, or worker time where the tier counts that; `unit` is
    the amount of one message. `most`: the amount that it wants.
    """

    def __init__(
        self,
        weight: float,
        name: str = "",
        *,
        children: Sequence[_Entry] = (),
        unit: float = 1.0,
        most: float = inf,
    ) -> None:
        self.weight, self.name, self.unit = weight, name, unit
        self.children = sorted(children, key=lambda each: each.most / each.weight)
        self.weights = sum(each.weight for each in children)
        self.most: float = most * unit if name else sum(each.most for each in children)

    def at_level(self, level: float) -> float:
        """Its amount, if each weight of 1 gets `level`."""
        return min(self.most, self.weight * level)

    def rates(self, amount: float) -> dict[str, float]:
        """The rates of its topics, if it gets that amount."""
        if self.name:
            return {self.name: amount / self.unit}
        return self.rates_at(self._level(amount))

    def rates_at(self, level: float) -> dict[str, float]:
        rates: dict[str, float] = {}
        for each in self.children:
            rates.update(each.rates(each.at_level(level)))
        return rates

    def sum_at(self, level: float, factors: Mapping[str, float] | None = None) -> float:
        """The sum of the rates of its topics, each times its factor."""
        return sum(each.sum_of(each.at_level(level), factors) for each in self.children)

    def sum_of(self, amount: float, factors: Mapping[str, float] | None) -> float:
        """That sum, if it gets that amount."""
        if self.name:
            return amount / self.unit * (1.0 if factors is None else factors[self.name])
        return self.sum_at(self._level(amount), factors)

    def _level(self, amount: float) -> float:
        """The level at which its children together have that amount."""
        weights = self.weights
        for each in self.children:
            if amount * each.weight <= each.most * weights:
                return amount / weights
            amount, weights = amount - each.most, weights - each.weight
        return inf


class _TierByTime(_Entry):
    """A tier whose entries get worker time. The tier itself gets messages, as the others do."""

    def __init__(self, weight: float, *, children: Sequence[_Entry]) -> None:
        super().__init__(weight, children=children)
        self.most = self.sum_at(inf)

    def _level(self, amount: float) -> float:
        return _highest(self.sum_at, amount)
