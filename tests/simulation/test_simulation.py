"""Random fleets keep Laneway's promises; the simulation itself repeats, and notices what breaks."""

from __future__ import annotations

import os

import pytest

from tests.seeds import seed_for
from tests.simulation.fair_fleets import run_fair
from tests.simulation.fleets import run

LONGER = "LANEWAY_SIMULATE"
"""The variable by which `make simulate` asks for more and longer fleets."""

FLEETS = {"sqlite": 8, "sqlite-4": 3, "valkey": 4, "valkey-4": 2, "valkey-moves": 1, "model": 5}
MORE_FLEETS = {
    "sqlite": 400,
    "sqlite-4": 200,
    "valkey": 200,
    "valkey-4": 80,
    "valkey-moves": 20,
    "model": 100,
}
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
    run(seed_for(LONGER) + number, engine, seconds)


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


@pytest.mark.parametrize("engine", ["sqlite", "sqlite-4", "valkey", "valkey-4"])
def test_one_seed_gives_one_history(engine: str) -> None:
    """The same seed gives the same calls at the same times, with each fault."""
    reports = [run(7, engine, 5.0) for _ in range(2)]
    assert reports[0].store.calls == reports[1].store.calls
    assert reports[0].clock.now == reports[1].clock.now
    assert reports[0].messages.waits == reports[1].messages.waits
