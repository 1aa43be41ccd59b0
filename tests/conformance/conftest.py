"""The engines that the suite runs on, and a bench with a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.engines import open_engine
from fairlead.engines.base import FullEngine, Settings
from fairlead.message import Batch, Draft, Lease, Receipt, Settlement
from fairlead.policy import Tier
from fairlead.units import SECOND

ENGINES: dict[str, Callable[[Path, Settings], FullEngine]] = {
    "sqlite file": lambda folder, settings: open_engine(f"sqlite:///{folder}/q.db", settings),
    "sqlite memory": lambda folder, settings: open_engine("sqlite://", settings),
}
"""The next engine joins with one line."""

START = 1_800_000_000 * SECOND


class Bench:
    """An engine and its clock (seconds from the start)."""

    def __init__(self, make: Callable[[Settings], FullEngine]) -> None:
        self._make = make
        self.engine = make(Settings(random=lambda: 1.0))
        self.now = START

    def open(self, **settings: object) -> None:
        """Another engine, with other settings."""
        self.engine.close()
        self.engine = self._make(Settings(random=lambda: 1.0, **settings))  # type: ignore[arg-type]

    def later(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)

    def policy(self, pattern: str, *, layer: str = "code", **fields: object) -> None:
        self.engine.policy_set(layer, pattern, fields, now_us=self.now)  # type: ignore[arg-type]

    def put(self, topic: str, *bodies: str, **options: object) -> list[Receipt]:
        drafts = [Draft(topic, body.encode(), **options) for body in bodies]  # type: ignore[arg-type]
        return self.engine.put(drafts, now_us=self.now)

    def batch(self, n: int = 100, **options: object) -> Batch:
        return self.engine.lease(n, now_us=self.now, **options)  # type: ignore[arg-type]

    def lease(self, n: int = 100, **options: object) -> list[Lease]:
        return self.batch(n, **options).leases

    def bodies(self, n: int = 100, **options: object) -> list[str]:
        """Lease and tell the bodies."""
        return [lease.body.decode() for lease in self.lease(n, **options)]

    def settle(self, leases: list[Lease], action: str = "ack", **options: object) -> list[str]:
        settlements = [Settlement(lease.handle, lease.fence, action, **options) for lease in leases]  # type: ignore[arg-type]
        return self.engine.settle(settlements, now_us=self.now)

    def run(self, n: int = 100, **options: object) -> list[str]:
        """Lease, ack, and tell the bodies."""
        leases = self.lease(n, **options)
        self.settle(leases)
        return [lease.body.decode() for lease in leases]

    def waiting(self, topic: str) -> int:
        return self.engine.topic_stats(topic, now_us=self.now).waiting


@pytest.fixture(params=list(ENGINES))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    number = iter(range(100))

    def make(settings: Settings) -> FullEngine:
        folder = tmp_path / str(next(number))
        folder.mkdir()
        return ENGINES[request.param](folder, settings)

    made = Bench(make)
    yield made
    assert [check for check in made.engine.doctor() if not check.ok] == []
    made.engine.close()


TIERS = {"high": Tier(6), "mid": Tier(3), "low": Tier(1)}
