"""
The costs of an engine's operations: measured, kept in a file, and used to predict.

A cost is linear in what an operation does: its calls, its messages, the lanes that it visits, the
topics that it creates or ends, and the calls that create topics, which run more statements on
PostgreSQL. A lane costs more if the machine has many topics, because its records are in none of the
processor's caches: that part grows with the logarithm of their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from operator import mul
from pathlib import Path
from typing import Annotated

import msgspec

from laneway.engines.shared.fairness import chunk
from laneway.errors import UsageError

OPERATIONS = ("put", "lease", "settle", "forget")
"""What happens to a message; `forget`: an idle topic ends."""

STEPS = OPERATIONS[:3]

SIDES = ("client", "server")

Number = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
"""In a file: a number with which no computation overflows."""

CACHED_TOPICS = 30_000
"""
The number of topics above which their records are in none of the processor's caches: 16 MB on
Valkey, where the costs that we measured begin to grow.
"""

OURS = Path(__file__).with_name("costs.json")
"""The costs that were measured on the machine of the authors."""


class Work(msgspec.Struct, frozen=True):
    """
    What an operation does, for one message or for a whole run. `new`: topics that it creates,
    empties or ends; `topics`: those of the machine that have messages; `creating`: the calls that
    create topics; `in_group`: the lanes if the topics were in topic groups, or None if as many.
    """

    calls: float
    messages: float
    lanes: float
    new: float = 0.0
    topics: float = 0.0
    creating: float = 0.0
    in_group: float | None = None

    def under(self, shares: Mapping[str, float] | None) -> Work:
        """The work if rules hold for these shares of the messages."""
        if self.in_group is None:
            return self
        more = (shares or {}).get("group", 0.0) * (self.in_group - self.lanes)
        return msgspec.structs.replace(self, lanes=self.lanes + more, in_group=None)

    @property
    def quantities(self) -> tuple[float, ...]:
        """What the parts of a cost are multiplied by."""
        grown = (self.lanes + self.new) * math.log10(1 + self.topics / CACHED_TOPICS)
        return self.calls, self.messages, self.lanes, self.new, grown, self.creating


class Step(msgspec.Struct, frozen=True):
    """
    What an operation costs for each quantity of its work: microseconds, or round trips.
    """

    call: Number = 0.0
    message: Number = 0.0
    lane: Number = 0.0
    new: Number = 0.0
    growth: Number = 0.0
    creating: Number = 0.0

    def cost(self, work: Work) -> float:
        """What the work costs."""
        parts = msgspec.structs.astuple(self)
        return float(sum(part * times for part, times in zip(parts, work.quantities, strict=True)))


class Rule(msgspec.Struct, frozen=True):
    """
    What a rule costs more than plain messages: by side and operation, and bytes of a message and of
    its topic. `trips`: round trips of a call, by operation. `group`: of the rules of a group that
    hold for a message only the dearest counts; "": of none.
    """

    steps: dict[str, dict[str, Step]] = {}
    message_bytes: Number = 0.0
    topic_bytes: Number = 0.0
    trips: dict[str, Number] = {}
    group: str = ""


class EngineCosts(msgspec.Struct, frozen=True):
    """
    The costs of one engine on one machine. Times are microseconds by side.

    `body_bytes`: of the bodies in the measurement; `message_bytes`, `topic_bytes`: of a waiting
    message with such a body, and of its topic; `policy_bytes`: of a topic's own policy; `trips`:
    round trips by operation; `network_bytes`: of a message; `beat`: a heartbeat; `wait`: a call
    by which an idle worker looks at a shard; `sample`: one of the history, for one shard.
    """

    date: str
    machine: str
    command: str
    body_bytes: int
    steps: dict[str, dict[str, Step]]
    rules: dict[str, Rule]
    message_bytes: Number
    topic_bytes: Number
    policy_bytes: Number
    network_bytes: dict[str, Number]
    trips: dict[str, Step]
    beat: dict[str, Number]
    beat_bytes: Number
    wait: dict[str, Number]
    wait_bytes: Number
    sample: dict[str, Number]

    def missing(self) -> Iterator[str]:
        """What is needed for predictions and not here, such as "steps.server.put"."""
        of_rules = {f"rules.{name}.steps": rule.steps for name, rule in self.rules.items()}
        for where, steps in {"steps": self.steps, **of_rules}.items():
            for side, operation in product(SIDES, OPERATIONS):
                if operation not in steps.get(side, ()):
                    yield f"{where}.{side}.{operation}"
        for where, names, found in (
            ("trips", OPERATIONS, self.trips),
            ("beat", SIDES, self.beat),
            ("wait", SIDES, self.wait),
            ("sample", SIDES, self.sample),
        ):
            yield from (f"{where}.{name}" for name in names if name not in found)

    def microseconds(
        self, side: str, operation: str, work: Work, shares: Mapping[str, float] | None = None
    ) -> float:
        """
        Processor time of an operation. `shares`: which share of the messages each rule holds for.
        Raises UsageError for an unknown rule.
        """
        work = work.under(shares)
        more = self._of_rules(shares, lambda rule: rule.steps[side][operation].cost(work))
        return max(self.steps[side][operation].cost(work) + more, 0.0)

    def round_trips(
        self, operation: str, work: Work, shares: Mapping[str, float] | None = None
    ) -> float:
        """The round trips of an operation. `shares`: as for `microseconds`."""
        more = self._of_rules(shares, lambda rule: rule.trips.get(operation, 0.0))
        return self.trips[operation].cost(work.under(shares)) + more * work.calls

    def stored_bytes(
        self, messages: float, topics: float, body: float, shares: Mapping[str, float] | None = None
    ) -> float:
        """Bytes of waiting messages, and of their topics."""
        each, lane = self.message_bytes + body - self.body_bytes, self.topic_bytes
        each += self._of_rules(shares, lambda rule: rule.message_bytes)
        lane += self._of_rules(shares, lambda rule: rule.topic_bytes)
        return max(messages * each + topics * lane, 0.0)

    def _of_rules(self, shares: Mapping[str, float] | None, cost: Callable[[Rule], float]) -> float:
        """What all rules cost for a message; rules hold for it independently of each other."""
        total, left = 0.0, dict[str, float]()
        rules = [(cost(self.rule(name)), name, share) for name, share in (shares or {}).items()]
        for more, name, share in sorted(rules, reverse=True):
            group = self.rule(name).group or name
            total += more * share * left.get(group, 1.0)
            left[group] = left.get(group, 1.0) * (1 - share)
        return total

    def rule(self, name: str) -> Rule:
        """The costs of a rule. Raises UsageError."""
        if name not in self.rules:
            raise UsageError(
                f'the costs have no rule "{name}", only {", ".join(self.rules) or "none"}'
            )
        return self.rules[name]


def works(
    *, batch: float, shards: int, topics: float, depth: float, machines: float = 1.0
) -> dict[str, Work]:
    """
    What each operation does for one message. `batch`: messages of one put, lease or settlement;
    `topics`: those that have messages, over all shards; `depth`: messages that wait in each;
    `machines`: how many the topics are divided over. All topics are new, and get their first
    messages before the first one gets its second.

    A lease reads at most as many lanes as it asks for messages. In a topic group it knows how many
    lanes the group has. It takes more from each lane if it knows more.
    """
    touched = shards * (1 - (1 - 1 / shards) ** min(batch, topics))
    calls, new, here = touched / batch, 1 / max(depth, 1.0), topics / machines
    put = Work(calls, 1.0, min(batch, topics) / batch, new, here, calls * new)
    lanes = max(topics / shards, 1.0)
    alone, in_group = (
        min(_visits(depth, chunk(math.ceil(batch), math.ceil(known), 1.0)), lanes / batch)
        for known in (min(lanes, batch), lanes)
    )
    lease = Work(1 / batch, 1.0, alone, new, here, in_group=in_group)
    return {"put": put, "lease": lease, "settle": lease, "forget": Work(0.0, 0.0, 0.0, new, here)}


def _visits(depth: float, most: int) -> float:
    """
    Visits of a lane for each of its messages, if each visit takes up to `most`. Between two whole
    numbers some lanes have one message more than others.
    """
    if depth <= 1:
        return 1.0
    least = math.floor(depth)
    few, many = math.ceil(least / most), math.ceil((least + 1) / most)
    return (few + (many - few) * (depth - least)) / depth


def fitted(works_: Sequence[Work], measured: Sequence[float]) -> Step:
    """
    The cost that explains what was measured best, by relative squares; no part is negative.
    """
    rows = [
        [quantity / cost for quantity in work.quantities]
        for work, cost in zip(works_, measured, strict=True)
        if cost > 0
    ]
    columns = list(zip(*rows, strict=True))
    products = [[sum(map(mul, one, other)) for other in columns] for one in columns]
    parts = [0.0] * len(columns)
    for _ in range(5_000):  # one coordinate after the other
        for n, row in enumerate(products):
            if row[n]:
                parts[n] = max(
                    0.0, parts[n] + (sum(columns[n]) - sum(map(mul, parts, row))) / row[n]
                )
    return Step(*parts)


def load(path: str | Path = OURS) -> dict[str, EngineCosts]:
    """The costs in a file, by engine. Raises UsageError."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, EngineCosts])
        for engine, costs in found.items():
            if missing := next(costs.missing(), None):
                raise ValueError(f"{engine}.{missing} is missing")
    except OSError as error:
        raise UsageError(f"costs {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(
            f"costs {path}: {error}; write the file with `laneway bench --costs {path}`"
        ) from error
    return found


def save(path: str, engine: str, costs: EngineCosts) -> None:
    """Write the costs of an engine; the file keeps those of other engines. Raises UsageError."""
    kept = load(path) if Path(path).exists() else {}
    text = msgspec.json.format(msgspec.json.encode(kept | {engine: costs}), indent=1)
    try:
        Path(path).write_bytes(text + b"\n")
    except OSError as error:
        raise UsageError(f"costs {path}: {error.strerror}") from error
