"""
The grants of gates in a namespace with several shards: each shard has a part of a gate's limits,
which follows demand about once a second.

Grants that shrink are written before others grow, and never below what is leased. So the sum of all
grants never exceeds the gate's limits; for a moment after a shift it may be less. The first process
in a second moves the grants for all processes. It asks only about gates that lanes wait at: the
others have what they need. Independent of the kind of server.

What the partitions of a topic share is a gate, too. Each shard has a part of it by the number of
its partitions, without a grant, so an idle topic needs no record. Grants move these parts where
lanes wait, and end when nothing of the topic waits or is leased. Of a concurrency that adapts, the
limit that the shards have found together is divided, see `adaptive`.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from laneway.engines.sharded.splitting import pages
from laneway.engines.shared import adaptive, gates
from laneway.policy import Gate
from laneway.topic_groups import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from laneway.engines.shared.adaptive import Share

EVERY = 1.0
"""Seconds between two looks at the demand."""

LONGEST = 0.05
"""
Seconds after which a look ends, because a lease waits for it. With thousands of gates that lanes
wait at, the others have their turn at the next looks: they are in random order.
"""

AT_ONCE = 20
"""Gates whose usage is read together."""

MOST_WAITED = 1000
"""Gates of one shard that a look asks about."""


class Usage(msgspec.Struct):
    """
    A gate on one shard: its leases, the lanes that wait at it, and the concurrency that was granted
    (None: no grant yet). A lane with several gates waits at all of them: if it were a demand of one
    only, grants of two gates could follow each other from shard to shard for ever.
    """

    leased: int
    waiting: int
    granted: int | None
    part: Grant | None = None
    """Of a topic's gate: what the shard has without a grant; None: it has no partition there."""
    share: Share | None = None
    """Of a topic whose concurrency adapts, where it has partitions."""

    @property
    def demand(self) -> int:
        """What the shard could use."""
        return self.leased + self.waiting


class Grant(msgspec.Struct, frozen=True):
    """
    A shard's part of a gate's limits; None: that one is not limited.

    Of a concurrency that adapts: `out_of`: the limit that was divided; `moves`: by how much the
    shard's own limit changes, so that it is that one. (A sum: what the shard has learned since it
    was read is not lost.)
    """

    rate: float | None
    burst: float | None
    concurrency: int | None
    out_of: int | None = None
    moves: int = 0


class Gates(Protocol):
    """How an engine stores gates on its shards."""

    shards: int

    def has_gates(self) -> bool:
        """Whether the namespace has a gate, or a topic group with settings."""
        ...

    def waited_gates(self) -> Collection[str]:
        """
        The gates that lanes wait at, and those of topics that have grants; of each shard at most
        `MOST_WAITED` of either, drawn at random.
        """
        ...

    def claim_grants(self, seconds: float) -> bool:
        """Claim the renewal for so many seconds; False: another process has claimed it."""
        ...

    def gate_usages(self, gates: Sequence[str]) -> list[tuple[Gate, list[Usage]] | None]:
        """
        For each gate its limits and its usage on each shard; None: not every shard that needs the
        gate has it yet.
        """
        ...

    def grant(self, gate: str, shard: int, grant: Grant) -> int:
        """
        Set a shard's grant. Returns the concurrency that it has then, at least what is leased;
        negative: it is not limited.
        """
        ...

    def end_grant(self, gate: str, shard: int) -> None:
        """End a shard's grant of a topic's gate."""
        ...

    def grant_each(self, gate: str, grants: Sequence[Grant]) -> list[int]:
        """Set the grants of all shards. Returns what `grant` returns for each."""
        ...


class Grants:
    """Keeps the grants of one namespace where they are needed."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self._next = 0.0

    def begin(self, gate: str, limits: Gate) -> None:
        """Divide a new or changed gate into equal parts, beside what is leased by now."""
        shards = self._gates.shards
        luck = [random.random() for _ in range(shards)]
        most = slots(limits.concurrency, [Usage(0, 1, None) for _ in range(shards)], luck)
        if limits.concurrency is not None:
            # Each shard keeps what is leased there and leases nothing more until all have answered.
            shut = [grant_of(limits, 1 / shards, 0)] * shards
            leased = [max(0, granted) for granted in self._gates.grant_each(gate, shut)]
            most = beside(limits.concurrency, most, leased)
        self._gates.grant_each(gate, [grant_of(limits, 1 / shards, each) for each in most])

    def renew(self) -> bool:
        """
        Move the grants, if it is time and no other process has just done it. Returns whether there
        may be gates.
        """
        gates, now = self._gates, time.monotonic()
        if gates.shards == 1:
            return False
        if now < self._next:
            return True
        self._next = now + EVERY
        has_gates = gates.has_gates()
        if has_gates and gates.claim_grants(EVERY * 0.9):
            luck = [random.random() for _ in range(gates.shards)]
            self._renew_all(sorted(gates.waited_gates()), luck)
        return has_gates

    def _renew_all(self, names: list[str], luck: Sequence[float]) -> None:
        end = time.monotonic() + LONGEST
        random.shuffle(names)
        for page in pages(names, AT_ONCE):
            for name, found in zip(page, self._gates.gate_usages(page), strict=True):
                if found is not None:
                    self._renew(name, *found, luck)
            if time.monotonic() > end:
                return

    def _renew(
        self, gate: str, limits: Gate, usage: Sequence[Usage], luck: Sequence[float]
    ) -> None:
        is_topic = gate.startswith(TOPIC)

        def write(shard: int, grant: Grant) -> int:
            if is_topic and usage[shard].part is None:
                return 0
            return self._gates.grant(gate, shard, grant)

        if any(each.demand for each in usage):
            if limits.least is not None:
                divide_adapting(limits, usage, luck, write)
            else:
                divide(limits, usage, luck, write)
        elif is_topic:
            self._end(gate, usage)

    def _end(self, gate: str, usage: Sequence[Usage]) -> None:
        """End all grants of an idle topic: those above their parts shrink first."""
        parts = [(shard, each.part) for shard, each in enumerate(usage) if each.part is not None]
        for shard, part in parts:
            granted = self._gates.grant(gate, shard, at_most(part, usage[shard].granted))
            if granted > (part.concurrency or 0) and part.concurrency is not None:
                return  # something was leased meanwhile
        for shard, _ in parts:
            self._gates.end_grant(gate, shard)


def divide(
    limits: Gate,
    usage: Sequence[Usage],
    luck: Sequence[float],
    write: Callable[[int, Grant], int],
    *,
    is_moved: bool = False,
) -> None:
    """
    Divide a gate's limits by demand. `write(shard, grant)` returns the concurrency that the shard
    has then (negative: not limited): a shard cannot give up what is leased. `luck`: see `slots`.
    `is_moved`: also write a concurrency that stays.
    """
    total = sum(each.demand for each in usage)
    wanted = slots(limits.concurrency, usage, luck)
    left = limits.concurrency
    # Shards that shrink come first: the others get only what these gave up.
    for shard in sorted(
        range(len(usage)), key=lambda shard: wanted[shard] - (usage[shard].granted or 0)
    ):
        share = usage[shard].demand / total
        most = wanted[shard]
        if left is not None and share:
            held = sum(max(usage[n].granted or 0, 0) for n in range(len(usage)) if n != shard)
            most = max(0, min(most, left - held))
        if limits.rate is None and most == usage[shard].granted and not is_moved:
            continue
        granted = write(shard, grant_of(limits, share, most))
        usage[shard].granted = granted if granted >= 0 else None


def divide_adapting(
    limits: Gate,
    usage: Sequence[Usage],
    luck: Sequence[float],
    write: Callable[[int, Grant], int],
) -> None:
    """As `divide`, of a concurrency that adapts."""
    shares = [each.share for each in usage if each.share is not None]
    if not shares:
        return
    limit = adaptive.limit_of_all(shares, luck[0])

    def write_part(shard: int, grant: Grant) -> int:
        share, most = usage[shard].share, grant.concurrency
        if share is None or most is None:
            return write(shard, grant)
        if limits.rate is None and share.limit == limit and share.part == most / limit:
            return most
        moves = limit - share.limit
        return write(shard, Grant(grant.rate, grant.burst, most, limit, moves))

    divide(Gate(limits.rate, limits.burst, limit), usage, luck, write_part, is_moved=True)


def topic_usage(
    part: Grant | None, limits: Gate | None, share: Share | None, leased: int, waiting: int
) -> Usage:
    """
    A topic's gate on a shard with this part of it. `limits`: those in force there; None: it has no
    record.
    """
    if part is None:
        return Usage(0, 0, 0)
    return Usage(leased, waiting, (limits or part).concurrency, part, share)


def no_share(limits: Gate, part: Grant | None) -> Share | None:
    """The share of a shard without a record of the topic's gate."""
    if part is None:
        return None
    return gates.share_of(limits, Gate(concurrency=part.concurrency), None, 0)


def at_most(part: Grant, granted: int | None) -> Grant:
    """The part, with no larger concurrency than was granted."""
    if part.concurrency is None or granted is None:
        return part
    return Grant(part.rate, part.burst, min(part.concurrency, granted))


def grant_of(limits: Gate, share: float, concurrency: int) -> Grant:
    """A shard's part of the limits. Without demand the gate is shut there."""
    if not share:
        return Grant(limits.rate, 1.0 if limits.burst is not None else None, 0)
    return Grant(
        limits.rate * share if limits.rate is not None else None,
        max(1.0, limits.burst * share) if limits.burst is not None else None,
        concurrency if limits.concurrency is not None else None,
    )


def slots(concurrency: int | None, usage: Sequence[Usage], luck: Sequence[float]) -> list[int]:
    """
    The concurrency of each shard: in proportion to its demand. If there are fewer slots than shards
    with demand, those with the smallest `luck` get one. It is drawn for each renewal, so that each
    shard gets a slot sooner or later, and is the same for all gates, so that a shard whose lanes
    have several gates gets a slot of all of them at once.
    """
    if concurrency is None:
        return [0] * len(usage)
    total = sum(each.demand for each in usage)
    parts = [concurrency * each.demand // total for each in usage]
    by_need = sorted(
        (n for n, each in enumerate(usage) if each.demand),
        key=lambda n: (parts[n] > 0, luck[n]),
    )
    for n in by_need[: concurrency - sum(parts)]:
        parts[n] += 1
    return parts


def beside(concurrency: int, parts: Sequence[int], leased: Sequence[int]) -> list[int]:
    """
    The parts of a concurrency, where shards have leased more than theirs: others get what is left.
    """
    left = max(0, concurrency - sum(leased))
    most = []
    for part, held in zip(parts, leased, strict=True):
        more = max(0, min(part - held, left))
        left -= more
        most.append(held + more)
    return most
