"""No topic starves, whatever limits it shares: random combinations of rules on each engine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.fairness.cases import UNEVEN
from tests.fairness.judging import MAY_MISS, MAY_MISS_SHARDED
from tests.fairness.running import ENGINES, run_case, simulated
from tests.seeds import seed_for

pytestmark = pytest.mark.timeout(1800)
"""On a machine with a load of 20, ten cases take longer than a test may by default."""

LONGER = "LANEWAY_FAIRNESS"
"""The variable by which `make fairness` asks for more cases."""

CASES = {"model": 100, "sqlite": 30, "valkey": 30}
"""
The same cases in each run of the tests: a few find what breaks the rules, and `make fairness` draws
thousands. Cases on several shards depend on when grants move, so only `make fairness` runs them.
"""

MORE_CASES = {"model": 10_000} | dict.fromkeys(
    ("sqlite", "valkey", "sqlite-4", "valkey-4", "valkey-64"), 1_000
)

AT_ONCE = 10
"""Cases of one test."""


def _parts() -> Iterator[tuple[str, int, int]]:
    """The tests: engine, and its cases from the first number up to the last one."""
    for engine, count in (MORE_CASES if LONGER in os.environ else CASES).items():
        for first in range(0, count, AT_ONCE):
            yield engine, first, min(first + AT_ONCE, count)


@pytest.mark.parametrize(("engine", "first", "last"), list(_parts()))
def test_each_topic_gets_its_part(engine: str, first: int, last: int) -> None:
    """
    No topic starves, few get less than 0.8 of their fair rate, and no limit is exceeded.

    `python -m tests.fairness SEED --engine ENGINE` repeats a case.
    """
    start = seed_for(LONGER)
    print(f"LANEWAY_SEED={start}")
    judgments = [run_case(start + number, engine) for number in range(first, last)]
    tables = "\n\n".join(judgment.table() for judgment in judgments if judgment.is_failed)
    verdicts = [verdict for judgment in judgments for verdict in judgment.verdicts]
    assert not any(judgment.exceeded for judgment in judgments), tables
    assert not any(verdict.is_starved for verdict in verdicts), tables
    missed = sum(verdict.is_failed for verdict in verdicts)
    part = MAY_MISS if ENGINES[engine] == 1 else MAY_MISS_SHARDED
    assert missed <= max(2, part * len(verdicts)), tables


@pytest.mark.parametrize("engine", ["sqlite", "valkey"])
def test_a_lease_ends_if_a_lane_goes_from_gate_to_gate(engine: str) -> None:
    """Two gates that each wait for the other, at 19.3 s, once let a lease look again forever."""
    assert not run_case(20261189, engine).exceeded


@pytest.mark.parametrize("engine", ["model", "sqlite", "valkey"])
def test_what_a_tier_got_at_a_gate_is_no_debt(engine: str) -> None:
    """While gates limit the other tiers, `low` gets more than its share, and owes them nothing."""
    assert not any(verdict.is_starved for verdict in run_case(704, engine).verdicts)


@pytest.mark.parametrize("seed", [92, 97])
@pytest.mark.parametrize("engine", ["sqlite", "valkey"])
def test_a_gate_where_a_hold_has_changed_is_looked_at_again(engine: str, seed: int) -> None:
    """
    A call serves what the model serves: in 92 it passed over a gate that kept fewer permits after
    another lane took the hold over, in 97 a gate whose first lane had gone to another one.
    """
    assert simulated(seed, engine).deliveries == simulated(seed, "model").deliveries


@pytest.mark.parametrize("engine", ["model", "sqlite", "valkey"])
def test_uneven_weights(engine: str) -> None:
    """A topic got 0.17: one of a small weight was first at its gate long before its turn."""
    assert not any(verdict.is_starved for verdict in run_case(UNEVEN + 1_000_053, engine).verdicts)


@pytest.mark.parametrize("engine", ["sqlite", "valkey"])
def test_a_lane_that_waits_for_permits_earns_no_credit(engine: str) -> None:
    """It comes to its gate again, behind what others reached meanwhile, on each engine."""
    seed = UNEVEN + 1_000_008
    assert simulated(seed, engine).deliveries == simulated(seed, "model").deliveries
