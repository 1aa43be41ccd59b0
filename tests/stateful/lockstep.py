"""An engine and the model side by side: the same call to both, and every answer compared."""

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
Ahead of every real clock, so that the engine's own never counts, and small enough for rate clocks
in 53 bits.
"""

TIERS = {"high": Tier(6), "mid": Tier(3), "low": Tier(1, fair_by="time"), "vip": Tier("strict")}
RANDOM = 0.5
LAST_CALLS = 12
"""So many are told with a difference."""


class Names:
    """
    What the engine calls what the model calls otherwise: ids and handles of their own making,
    learned from their answers.
    """

    def __init__(self) -> None:
        self._by_model: dict[Any, Any] = {}
        self._by_engine: dict[Any, Any] = {}

    def same(self, engines: Any, models: Any) -> bool:
        """Whether they name the same thing; what neither has named before is learned."""
        return (
            self._by_model.setdefault(models, engines) == engines
            and self._by_engine.setdefault(engines, models) == models
        )

    def same_id(self, engines: str, models: str) -> bool:
        """Ids that are made of a made one (`made-7:0`) are the same where their beginnings are."""
        if not models.startswith("made-"):
            return engines == models
        begin, colon, end = models.partition(":")
        return engines.endswith(colon + end) and self.same(engines.removesuffix(colon + end), begin)

    def knows(self, models: str) -> bool:
        return models in self._by_model

    def for_engine(self, models: str) -> str:
        """The model's id as the engine knows it."""
        begin, colon, end = models.partition(":")
        return (
            f"{self._by_model.get(begin, begin)}{colon}{end}"
            if begin.startswith("made-")
            else models
        )


class Lockstep:
    """
    One engine of the table (two objects of it, where several processes may use one store), and the
    model.
    """

    def __init__(self, name: str, **settings: Any) -> None:
        self._name = name
        self._settings = Settings(
            tiers=TIERS, random=lambda: RANDOM, durability="memory", **settings
        )
        self._folder = Path(tempfile.mkdtemp())
        self.engine = self._open()
        self._idle = (
            [self._open()] if self.engine.capabilities.processes else []
        )  # as another process would have it
        self.model = Model(TIERS, random=lambda: RANDOM, **settings)
        self.names = Names()
        self._calls: deque[tuple[Any, ...]] = deque(maxlen=LAST_CALLS)
        self.now = START

    def _open(self) -> FullEngine:
        return ENGINES[self._name](self._folder, self._settings)

    def crash(self) -> None:
        """The engine goes away and is opened again, where it keeps anything."""
        if self.engine.capabilities.persistent:
            self.engine.close()
            self.engine = self._open()

    def change_over(self) -> None:
        """What follows is done by another process on the same store, where there may be several."""
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
        Call both, with arguments of their own where they differ; both answers, after they were
        found to agree.
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
                f"{where}: the engine says {ours!r}, the model {theirs!r}, after (in the model's"
                f" words)\n{calls}"
            )

    def compare_everything(self) -> None:
        """The whole state."""
        snapshots = [side.snapshot(now_us=self.now) for side in (self.engine, self.model)]
        for snapshot in snapshots:
            snapshot["totals"]["tiers"].sort(key=lambda tier: (tier.pool, tier.tier))
        self.compare("snapshot", *snapshots)

    def _difference(self, engines: Any, models: Any, where: str) -> tuple[str, Any, Any] | None:
        """The first place where they differ."""
        if type(engines) is type(models) and engines == models:
            return None
        if isinstance(engines, msgspec.Struct) and type(engines) is type(models):
            engines, models = msgspec.structs.asdict(engines), msgspec.structs.asdict(models)
        if (
            isinstance(engines, dict)
            and isinstance(models, dict)
            and engines.keys() == models.keys()
        ):
            found = (
                self._difference(engines[key], models[key], f"{where}.{key}") for key in engines
            )
        elif (
            isinstance(engines, (list, tuple))
            and isinstance(models, (list, tuple))
            and len(engines) == len(models)
        ):
            found = (
                self._difference(one, other, f"{where}[{n}]")
                for n, (one, other) in enumerate(zip(engines, models, strict=True))
            )
        else:
            return (
                None
                if self._is_same(engines, models, where.rpartition(".")[2])
                else (where, engines, models)
            )
        return next((difference for difference in found if difference is not None), None)

    def _is_same(self, engines: Any, models: Any, what: str) -> bool:
        if what == "handle":
            return self.names.same(("handle", engines), ("handle", models))
        if what in ("id", "joined") and isinstance(engines, str) and isinstance(models, str):
            return self.names.same_id(engines, models)
        if what in ("next_wake_us", "tick"):
            return engines == models or self._is_stale(engines, models)
        if what == "reason" and isinstance(models, str) and models == "full":
            return bool(engines)  # the sentence is the engine's own
        if isinstance(engines, float) and isinstance(models, (int, float)):
            return math.isclose(engines, models, rel_tol=1e-9, abs_tol=1e-9)
        return type(engines) is type(models) and engines == models

    def _is_stale(self, engines: int | None, models: int | None) -> bool:
        """
        An engine may also wake at a deadline that a lease had before it was settled or extended; at
        once where that has passed.
        """
        given = self.model.deadlines_given
        is_one = engines in given or (
            engines == self.model.now and min(given, default=engines + 1) <= engines
        )
        return is_one and (models is None or (engines is not None and engines < models))


def handles(leases: list[Lease]) -> list[tuple[int, int]]:
    return [(lease.handle, lease.fence) for lease in leases]


def _outcome(operation: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The answer, or the class of the error."""
    try:
        return operation(*arguments, **options)
    except LanewayError as error:
        return type(error).__name__
