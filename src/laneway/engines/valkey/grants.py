"""
Gates of a namespace with several shards: each shard has a part of a gate, its *grant*, which
follows demand about once a second.

Parts that shrink do so before others grow, and never below what is leased: together they are never
more than the gate allows, and for a moment after a shift perhaps less. Whoever comes first in a
second does it for all.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import msgspec

from laneway.engines.valkey import records

if TYPE_CHECKING:
    from laneway.engines.valkey.namespace import Namespace
    from laneway.policy import Gate

EVERY = 1.0
"""Seconds between two looks at the demand."""


class _Part(msgspec.Struct):
    """A gate on one shard: what is leased, and how many lanes wait at it."""

    leased: int
    waiting: int
    granted: int | None

    @property
    def demand(self) -> int:
        return self.leased + self.waiting


class Grants:
    """Keeps the parts where they are needed."""

    def __init__(self, space: Namespace) -> None:
        self._space = space
        self._next = 0.0

    def begin(self, name: str, limits: Gate) -> None:
        """A gate was set: equal parts to begin with."""
        self._divide(name, limits, [_Part(0, 1, None) for _ in range(self._space.shards)])

    def renew(self) -> bool:
        """
        Move the parts, if it is time and nobody else has just done it. Whether there are gates at
        all.
        """
        space, now = self._space, time.monotonic()
        if space.shards == 1:
            return False
        if now < self._next:
            return True
        self._next = now + EVERY
        names = [name for name, _ in space.scan(0, "HSCAN", "gates")]
        if (
            names
            and space.read(0, "SET", "granting", "1", "NX", "PX", round(EVERY * 900)) is not None
        ):
            for name in names:
                self._renew(name.decode())
        return bool(names)

    def _renew(self, name: str) -> None:
        parts = []
        limits = None
        for shard in range(self._space.shards):
            counters = records.read_counters(self._space.read(shard, "GET", "shard"))
            lanes = [
                ("ZCARD", f"gate:{tier_queue}:{name}")
                for tier_queue in range(1, len(counters.tier_queues) + 1)
            ]
            stored, *waiting = self._space.read_many(shard, [("HGET", "gates", name), *lanes])
            if stored is None:  # whoever defines it has not told all shards yet
                return
            gate = records.read_gate(stored)
            limits = gate.limits
            parts.append(_Part(gate.leased, sum(waiting), gate.granted_concurrency))
        if limits is not None and any(part.demand for part in parts):
            self._divide(name, limits, parts)

    def _divide(self, name: str, limits: Gate, parts: list[_Part]) -> None:
        total = sum(part.demand for part in parts)
        wanted = _slots(limits.concurrency, parts)
        left = limits.concurrency
        # Those that shrink come first; what they could not give up yet is not there for the others.
        for shard in sorted(
            range(len(parts)), key=lambda shard: wanted[shard] - (parts[shard].granted or 0)
        ):
            share = parts[shard].demand / total
            most = wanted[shard]
            if left is not None and share:
                held = sum(max(parts[n].granted or 0, 0) for n in range(len(parts)) if n != shard)
                most = max(0, min(most, left - held))
            got = self._grant(name, shard, limits, share, most)
            parts[shard].granted = got if got >= 0 else None

    def _grant(self, name: str, shard: int, limits: Gate, share: float, slots: int) -> int:
        concurrency: int | bool = slots if limits.concurrency is not None else False
        if not share:
            concurrency = 0  # nobody is there: shut
        rate = limits.rate * share if limits.rate is not None and share else limits.rate or False
        burst = max(1, limits.burst * share) if limits.burst is not None else False
        told: int = self._space.run(
            "gate",
            shard,
            None,
            name,
            "grant",
            records.pack([rate, burst, concurrency]),
            durable=True,
        )
        return told


def _slots(concurrency: int | None, parts: list[_Part]) -> list[int]:
    """How many each is to have: in proportion to its demand, and one at least in turns."""
    if concurrency is None:
        return [0] * len(parts)
    total = sum(part.demand for part in parts)
    slots = [concurrency * part.demand // total for part in parts]
    # By chance, so that everybody has his turn where there are fewer slots than shards that want
    # one.
    hungry = sorted(
        (n for n, part in enumerate(parts) if part.demand),
        key=lambda n: (slots[n] > 0, random.random()),
    )
    for n in hungry[: concurrency - sum(slots)]:
        slots[n] += 1
    return slots
