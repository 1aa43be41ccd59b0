"""`concurrency="auto"` with simulated destinations, in virtual time."""

from __future__ import annotations

import pytest

from bench import adaptive
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings

SEED = 7


@pytest.fixture
def engine() -> FullEngine:
    return open_engine("sqlite://", Settings(random=lambda: 0.5))


@pytest.mark.parametrize("kind", ["times out", "refuses"])
def test_changing_capacity(engine: FullEngine, kind: str) -> None:
    """
    A destination whose capacity goes from 40 to 10 and back is used to 80 % in each phase of 40 s,
    though nobody knows its capacity; no fixed limit gets more out of it than 100 %.
    """
    seconds = 40
    found = adaptive.phases(engine, kind, seed=SEED, seconds=seconds)
    service = adaptive.SERVICE_US / adaptive.SECOND
    used = [
        counts["done"] * service / seconds / capacity
        for counts, capacity in zip(found, adaptive.CAPACITIES, strict=True)
    ]
    print(f"seed {SEED}: {kind}: used {used}, {found}")
    assert min(used) >= 0.8


def test_partitions_reach_what_one_lane_reaches(engine: FullEngine) -> None:
    """They share one limit: the same calls succeed and fail, number for number."""
    seconds = 20
    whole = adaptive.phases(engine, "refuses", seed=SEED, seconds=seconds)
    divided = open_engine("sqlite://", Settings(random=lambda: 0.5))
    parts = adaptive.phases(divided, "refuses", seed=SEED, seconds=seconds, partitions=4)
    print(f"seed {SEED}: {whole}, with partitions {parts}")
    assert parts == whole
