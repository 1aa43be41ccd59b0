"""Opens an engine for a case, and runs and judges it."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.tiers import Tier
from tests.conformance.valkey_setups import server
from tests.fairness.cases import Case, draw_case
from tests.fairness.judging import Judgment, judge
from tests.fairness.simulation import Simulation
from tests.model import Model

ENGINES = {"model": 1, "sqlite": 1, "valkey": 1, "sqlite-4": 4, "valkey-4": 4, "valkey-64": 64}
"""The engines, and on how many shards."""


@contextmanager
def opened(engine: str, case: Case) -> Iterator[Any]:
    """Open an empty engine with the tiers of the case."""
    tiers = {name: Tier(tier.share, tier.fair_by) for name, tier in case.system.tiers.items()}
    if engine == "model":
        yield Model(tiers, random=lambda: 0.5)
        return
    settings = Settings(
        namespace=uuid.uuid4().hex, tiers=tiers, random=lambda: 0.5, durability="memory"
    )
    with tempfile.TemporaryDirectory() as folder:
        one = open_engine(_url(engine, folder), settings)
        yield one
        one.close()


def _url(engine: str, folder: str) -> str:
    kind, _, shards = engine.partition("-")
    if kind == "sqlite":
        return f"sqlite:///{folder}/q?shards={shards}" if shards else "sqlite://"
    return f"{server().url}?shards={shards or 1}&timeout=60"


def simulated(seed: int, engine: str) -> Simulation:
    """Run the case with this seed."""
    case = draw_case(seed)
    with opened(engine, case) as one:
        simulation = Simulation(case, one, ENGINES[engine])
        simulation.run()
    return simulation


def run_case(seed: int, engine: str) -> Judgment:
    """Run and judge the case with this seed."""
    return judge(simulated(seed, engine))
