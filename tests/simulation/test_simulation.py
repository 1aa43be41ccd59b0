"""Random fleets keep Laneway's promises; the simulation itself repeats, and notices what breaks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import pytest

from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.errors import EngineUnavailable
from laneway.message import Settlement, SettlementAnswer
from laneway.testing.simulation import Fleet
from tests.seeds import seed_for
from tests.simulation import fleets, operations
from tests.simulation.fair_fleets import run_fair

LONGER = "LANEWAY_SIMULATE"
"""The variable by which `make simulate` asks for more and longer fleets."""

FLEETS = {
    "sqlite": 6,
    "sqlite-file": 3,
    "sqlite-4": 3,
    "valkey": 4,
    "valkey-4": 2,
    "valkey-moves": 1,
    "postgres": 1,
    "model": 5,
}
MORE_FLEETS = {
    "sqlite": 250,
    "sqlite-file": 120,
    "sqlite-4": 200,
    "valkey": 200,
    "valkey-4": 80,
    "valkey-moves": 20,
    "postgres": 30,
    "model": 100,
}
OPERATED = {"sqlite": 4, "sqlite-file": 2, "sqlite-4": 2, "valkey": 2, "valkey-4": 1, "postgres": 1}
MORE_OPERATED = {
    "sqlite": 250,
    "sqlite-file": 100,
    "sqlite-4": 100,
    "valkey": 150,
    "valkey-4": 80,
    "valkey-moves": 10,
    "postgres": 20,
}
"""Fleets whose operators meddle."""

FAIR, MORE_FAIR = {"sqlite": 1, "model": 1}, {"sqlite": 50, "valkey": 50, "model": 50}
SECONDS, MORE_SECONDS = 4.0, 60.0


@pytest.mark.parametrize(
    ("engine", "number"),
    [
        (engine, number)
        for engine, count in (MORE_FLEETS if LONGER in os.environ else FLEETS).items()
        for number in range(count)
    ],
)
def test_promises_hold(engine: str, number: int) -> None:
    """
    No promise is broken, whatever crashes, stops and gets lost.

    `python -m tests.simulation SEED --engine ENGINE` repeats a fleet.
    """
    seconds = MORE_SECONDS if LONGER in os.environ else SECONDS
    fleets.run(seed_for(LONGER) + number, engine, seconds)


@pytest.mark.parametrize(
    ("engine", "number"),
    [
        (engine, number)
        for engine, count in (MORE_OPERATED if LONGER in os.environ else OPERATED).items()
        for number in range(count)
    ],
)
def test_promises_hold_whatever_operators_do(engine: str, number: int) -> None:
    """`python -m tests.simulation SEED --kind operations --engine ENGINE` repeats a fleet."""
    seconds = MORE_SECONDS if LONGER in os.environ else SECONDS
    operations.run(seed_for(LONGER) + number, engine, seconds)


@pytest.mark.parametrize(
    ("engine", "number"),
    [
        (engine, number)
        for engine, count in (MORE_FAIR if LONGER in os.environ else FAIR).items()
        for number in range(count)
    ],
)
def test_no_topic_starves(engine: str, number: int) -> None:
    """Topics that share limits get their part from workers behind a network, too."""
    judgment = run_fair(seed_for(LONGER) + number, engine)
    assert not any(verdict.is_starved for verdict in judgment.verdicts), judgment.table()


@pytest.mark.parametrize("run", [fleets.run, operations.run])
@pytest.mark.parametrize(
    "engine", ["sqlite", "sqlite-file", "sqlite-4", "valkey", "valkey-4", "postgres"]
)
def test_one_seed_gives_one_history(engine: str, run: Callable[[int, str, float], Fleet]) -> None:
    """The same seed gives the same calls at the same times, with each fault."""
    reports = [run(7, engine, 5.0) for _ in range(2)]
    assert reports[0].store.calls == reports[1].store.calls
    assert reports[0].clock.now == reports[1].clock.now
    assert reports[0].messages.waits == reports[1].messages.waits


@pytest.mark.parametrize("is_applied", [False, True])
def test_a_store_that_really_fails_ends_the_simulation(*, is_applied: bool) -> None:
    """
    A server that is stopped for longer than the client's timeout is no fault of the seed.

    Its error reached the worker as a lost answer, but no check had seen the call: the worker then
    settled again, and the check took the answer for a lease that was lost with time left.
    """
    fleet = Fleet(partial(open_engine, "sqlite://"), Settings(), seed=1)
    settle = fleet.store.engine.settle

    def fails(settlements: Sequence[Settlement], **options: Any) -> list[SettlementAnswer]:
        if is_applied:
            settle(settlements, **options)
        raise EngineUnavailable("no answer within 60 s", applied=None)

    with mock.patch.object(fleet.store.engine, "settle", fails, create=True):
        fleet.publisher("t", rate=10)
        fleet.workers(1)
        with pytest.raises(RuntimeError, match="settle: the store really failed") as raised:
            fleet.run(10)
    assert isinstance(raised.value.__cause__, EngineUnavailable)
    fleet.close()


def test_a_store_that_refuses_a_call_does_not_end_the_simulation() -> None:
    """While a shard moves, a cluster refuses calls and changes nothing: the caller repeats them."""
    fleet = Fleet(partial(open_engine, "sqlite://"), Settings(), seed=1)
    settle, refusals = fleet.store.engine.settle, iter([True, True])

    def refuses(settlements: Sequence[Settlement], **options: Any) -> list[SettlementAnswer]:
        if next(refusals, False):
            raise EngineUnavailable("the cluster does not serve the shard now", applied=False)
        return settle(settlements, **options)

    with mock.patch.object(fleet.store.engine, "settle", refuses, create=True):
        fleet.publisher("t", rate=10)
        fleet.workers(1)
        fleet.run(10)
        fleet.finish()
    assert next(refusals, None) is None
    fleet.close()
