"""
Lockstep: an engine and the model get the same calls, and every answer is compared.

`Lockstep.call` calls both and compares the answers; `compare_everything` compares snapshots of
both stores. Values that may differ are compared by their meaning:

- Generated ids and handles are an engine's own. `Names` learns which belong together from the
  answers, and translates the model's ids for the engine.
- An engine may wake earlier than the model: at a deadline that a lease no longer has.
- Sentences for people are the engine's own, and floats may differ by rounding.

A difference raises an AssertionError with the last calls.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from laneway.engines.base import FullEngine, Settings
from laneway.errors import LanewayError
from laneway.message import Lease
from laneway.policy import Tier
from laneway.units import SECOND
from tests.conformance.conftest import ENGINES
from tests.model import Model

START = 2_200_000_000 * SECOND
"""
The first time of a history. It is later than every real clock, so the engine's clock never counts;
and early enough for rates to be exact in 53 bits.
"""

TIERS = {"high": Tier(6), "mid": Tier(3), "low": Tier(1, fair_by="time"), "vip": Tier("strict")}
RANDOM = 0.5
LAST_CALLS = 12
"""How many calls an error shows."""


class Names:
    """Which ids and handles of the engine and the model name the same message."""

    def __init__(self) -> None:
        self._by_model: dict[Any, Any] = {}
        self._by_engine: dict[Any, Any] = {}

    def same(self, engines: Any, models: Any) -> bool:
        """Whether both name the same message; a pair of new names is learned."""
        return bool(
            self._by_model.setdefault(models, engines) == engines
            and self._by_engine.setdefault(engines, models) == models
        )

    def same_id(self, engines: str, models: str) -> bool:
        """Like `same`, also for ids derived from generated ones (`generated-7:0`)."""
        if not models.startswith("generated-"):
            return engines == models
        begin, colon, end = models.partition(":")
        return engines.endswith(colon + end) and self.same(engines.removesuffix(colon + end), begin)

    def knows(self, models: str) -> bool:
        return models in self._by_model

    def for_engine(self, models: str) -> str:
        """The engine's id for the model's id."""
        begin, colon, end = models.partition(":")
        return (
            f"{self._by_model.get(begin, begin)}{colon}{end}"
            if begin.startswith("generated-")
            else models
        )


class Lockstep:
    """
    One engine of `ENGINES`, and the model.

    If several processes may use the store, two objects of the engine take turns, as two processes.
    """

    def __init__(self, name: str, **settings: Any) -> None:
        self._name = name
        self._settings = Settings(
            tiers=TIERS, random=lambda: RANDOM, durability="memory", **settings
        )
        self._folder = Path(tempfile.mkdtemp())
        self.engine = self._open()
        self._idle = [self._open()] if self.engine.capabilities.processes else []
        self.model = Model(TIERS, random=lambda: RANDOM, **settings)
        self.names = Names()
        self._calls: deque[tuple[Any, ...]] = deque(maxlen=LAST_CALLS)
        self.now = START

    def _open(self) -> FullEngine:
        return ENGINES[self._name](self._folder, self._settings)

    def crash(self) -> None:
        """Close and reopen the engine, if its store is persistent."""
        if self.engine.capabilities.persistent:
            self.engine.close()
            self.engine = self._open()

    def change_over(self) -> None:
        """Use the engine's other object from now on, if there is one."""
        self._idle.append(self.engine)
        self.engine = self._idle.pop(0)

    def close(self) -> None:
        for engine in (self.engine, *self._idle):
            engine.close()
        shutil.rmtree(self._folder)

    def call(
        self,
        operation: str,
        engines: tuple[Any, ...],
        models: tuple[Any, ...] | None = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """
        Call both and compare the answers. Returns (the engine's, the model's).

        `models`: the arguments for the model, if they differ from those for the engine.
        """
        self._calls.append(
            (self.now - START, operation, engines if models is None else models, options)
        )
        ours = _outcome(getattr(self.engine, operation), engines, options)
        theirs = _outcome(
            getattr(self.model, operation), engines if models is None else models, options
        )
        self.compare(operation, ours, theirs)
        return ours, theirs

    def compare(self, what: str, engines: Any, models: Any) -> None:
        difference = self._difference(engines, models, what)
        if difference is not None:
            where, ours, theirs = difference
            calls = "\n".join(
                f"  {at / SECOND:g} s  {operation} {arguments} {options}"
                for at, operation, arguments, options in self._calls
            )
            raise AssertionError(
                f"{where}: the engine says {ours!r}, the model {theirs!r}, after (with the"
                f" model's ids)\n{calls}"
            )

    def compare_everything(self) -> None:
        """Compare the whole state."""
        snapshots = [side.snapshot(now_us=self.now) for side in (self.engine, self.model)]
        for snapshot in snapshots:
            snapshot["totals"]["tiers"].sort(key=lambda tier: (tier.pool, tier.tier))
        self.compare("snapshot", *snapshots)
        tallies = self.engine.tallies(now_us=self.now).tallies
        for name in ("published", "delivered", "done", "retried", "died", "merged", "waiting"):
            counted = sum(getattr(each, name) for each in tallies)
            self.compare(f"tallies.{name}", counted, snapshots[0]["totals"][name])

    def _difference(self, engines: Any, models: Any, where: str) -> tuple[str, Any, Any] | None:
        """The first difference: its path, the engine's value, the model's value."""
        if type(engines) is type(models) and engines == models:
            return None
        if isinstance(engines, msgspec.Struct) and type(engines) is type(models):
            engines, models = msgspec.structs.asdict(engines), msgspec.structs.asdict(models)
            for each in (engines, models):  # a wish of the engine, no rule
                each.pop("prefers_large_leases", None)
        if (
            isinstance(engines, dict)
            and isinstance(models, dict)
            and engines.keys() == models.keys()
        ):
            differences = (
                self._difference(engines[key], models[key], f"{where}.{key}") for key in engines
            )
        elif (
            isinstance(engines, (list, tuple))
            and isinstance(models, (list, tuple))
            and len(engines) == len(models)
        ):
            differences = (
                self._difference(one, other, f"{where}[{n}]")
                for n, (one, other) in enumerate(zip(engines, models, strict=True))
            )
        else:
            return (
                None
                if self._is_same(engines, models, where.rpartition(".")[2])
                else (where, engines, models)
            )
        return next((difference for difference in differences if difference is not None), None)

    def _is_same(self, engines: Any, models: Any, what: str) -> bool:
        if what == "handle":
            return self.names.same(("handle", engines), ("handle", models))
        if what in ("id", "joined") and isinstance(engines, str) and isinstance(models, str):
            return self.names.same_id(engines, models)
        if what in ("next_wake_us", "tick"):
            return engines == models or self._is_stale(engines, models)
        if what == "reason" and isinstance(models, str) and models == "full":
            return bool(engines)  # the engine's own sentence
        if isinstance(engines, float) and isinstance(models, (int, float)):
            return math.isclose(engines, models, rel_tol=1e-9, abs_tol=1e-9)
        return type(engines) is type(models) and engines == models

    def _is_stale(self, engines: int | None, models: int | None) -> bool:
        """
        Whether the engine wakes at a deadline that a lease had before it was settled or extended,
        or at a time of a key of a deleted topic.

        If that deadline has passed, it wakes at once.
        """
        given = self.model.deadlines_given
        is_one = engines in given or (
            engines == self.model.now and min(given, default=engines + 1) <= engines
        )
        return is_one and (models is None or (engines is not None and engines < models))


def handles(leases: list[Lease]) -> list[tuple[int, int]]:
    return [(lease.handle, lease.fence) for lease in leases]


def _outcome(operation: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The answer, or the name of the error's class."""
    try:
        return operation(*arguments, **options)
    except LanewayError as error:
        return type(error).__name__
