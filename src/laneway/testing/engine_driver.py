"""`EngineDriver`: an engine with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from laneway.engines.base import FullEngine, Settings
from laneway.message import Action, Batch, Draft, Lease, Receipt, Settlement, SettlementAnswer
from laneway.policy import Tier
from laneway.units import SECOND

START = 2_200_000_000 * SECOND
"""Later than every real clock: calls that are not given the time do not move the engine's."""

TIERS = {"high": Tier(6), "mid": Tier(3), "low": Tier(1)}


class EngineDriver:
    """
    An engine, and a clock that moves by `later`, and by `after` of a lease, only.

    `make` opens an empty engine; `open` calls it again. `now` is the engine's time in microseconds
    since 1970, which every method here passes as `now_us`. The engine's `random` is 1.0, so every
    retry has its longest delay.
    """

    def __init__(self, make: Callable[[Settings], FullEngine]) -> None:
        self._make = make
        self.engine = make(Settings(random=lambda: 1.0))
        self.now = START

    def open(self, **settings: object) -> None:
        """Close the engine and open another one, with other settings."""
        self.engine.close()
        self.engine = self._make(Settings(random=lambda: 1.0, **settings))  # type: ignore[arg-type]

    def later(self, seconds: float) -> None:
        """Move the clock; nothing happens until the next call."""
        self.now += round(seconds * SECOND)

    def policy(self, pattern: str, *, layer: str = "code", **fields: object) -> None:
        self.engine.policy_set(layer, pattern, fields, now_us=self.now)  # type: ignore[arg-type]

    def put(self, topic: str, *bodies: str, **options: object) -> list[Receipt]:
        drafts = [Draft(topic, body.encode(), **options) for body in bodies]  # type: ignore[arg-type]
        return self.engine.put(drafts, now_us=self.now)

    def batch(self, n: int = 100, *, after: float = 0, **options: object) -> Batch:
        """Lease, as `lease`, `bodies` and `run` do, `after` that many seconds."""
        self.later(after)
        return self.engine.lease(n, now_us=self.now, **options)  # type: ignore[arg-type]

    def lease(self, n: int = 100, **options: Any) -> list[Lease]:
        return self.batch(n, **options).leases

    def bodies(self, n: int = 100, **options: Any) -> list[str]:
        """Lease, and return the bodies."""
        return [lease.body.decode() for lease in self.lease(n, **options)]

    def bodies_after(self, quiet: float, more: float = 0.1) -> list[str]:
        """Lease nothing for `quiet` seconds; `more` seconds later lease, and return the bodies."""
        assert self.lease(after=quiet) == []
        return self.bodies(after=more)

    def tick_after(self, seconds: float) -> None:
        """Move the clock, and let the engine do its housekeeping."""
        self.later(seconds)
        self.engine.tick(now_us=self.now)

    def settle(
        self, leases: list[Lease], action: Action = "ack", **options: object
    ) -> list[SettlementAnswer]:
        settlements = [Settlement(lease.handle, lease.fence, action, **options) for lease in leases]  # type: ignore[arg-type]
        return self.engine.settle(settlements, now_us=self.now)

    def run(self, n: int = 100, **options: Any) -> list[str]:
        """Lease and ack, and return the bodies."""
        leases = self.lease(n, **options)
        self.settle(leases)
        return [lease.body.decode() for lease in leases]

    def waiting(self, topic: str) -> int:
        return self.engine.topic_stats(topic, now_us=self.now).waiting
