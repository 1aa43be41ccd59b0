"""The numbers of states, places and events are the same in Python, Lua and SQL."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from laneway.engines.shared import fairness, gates, states
from laneway.headers import MAX_COST
from laneway.policy import Gate
from laneway.units import LEAST_RATE

PARTS = resources.files("laneway.engines.valkey") / "scripts" / "parts"
NOW = 1_000_000_000


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("lanes", ("IDLE", "RUNNABLE", "ASLEEP", "AT_GATE", "FULL", "PAUSED")),
        ("messages", ("READY", "DELAYED", "PARKED", "DEAD")),
        ("messages", ("EXPIRES", "RETENTION_ENDS")),
    ],
)
def test_lua_has_the_same_numbers(part: str, names: tuple[str, ...]) -> None:
    """The declaration in the Lua part assigns the numbers of `shared.states`."""
    source = (PARTS / f"{part}.lua").read_text(encoding="utf-8")
    declaration = re.search(rf"^local {', '.join(names)} = (.*)$", source, re.MULTILINE)
    assert declaration is not None
    numbers = [int(number) for number in re.findall(r"\d+", declaration[1])]
    assert numbers == [getattr(states, name) for name in names]


def test_every_state_and_place_has_a_name() -> None:
    assert list(states.STATE_NAMES) == [0, 1, 2, 3]
    assert list(states.PLACE_NAMES) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("limits", "leased", "room"),
    [
        (Gate(), 5, gates.UNLIMITED),
        (Gate(concurrency=3), 1, 2),
        (Gate(concurrency=3), 4, 0),
        (Gate(rate=10.0, burst=4), 0, 4),
        (Gate(rate=10.0, burst=4, concurrency=2), 0, 2),
    ],
)
def test_the_room_of_a_gate_is_the_smaller_of_its_limits(
    limits: Gate, leased: int, room: int
) -> None:
    assert gates.room(limits, 0, leased, NOW) == room


def test_a_gate_shut_by_its_rate_opens_by_the_clock() -> None:
    """A gate that is shut by its concurrency opens when a lease ends, at no known time."""
    limits = Gate(rate=10.0, burst=1, concurrency=2)
    tat = gates.take(limits, 0, 1, NOW)
    assert gates.room(limits, tat, 1, NOW) == 0
    opens = gates.opens_us(limits, tat, 1, NOW)
    assert opens == NOW + 100_000
    assert gates.room(limits, tat, 1, opens) == 1
    assert gates.opens_us(limits, tat, 2, NOW) is None
    assert gates.room(limits, gates.give_back(limits, tat, 1, 0), 1, NOW) == 1


def test_a_small_grant_of_a_shut_gate_has_a_clock_of_64_bits() -> None:
    """A shard's part of the lowest rate is lower still, and the clock owes as many permits."""
    limits = Gate(rate=LEAST_RATE, burst=1.0)
    tat = gates.take(limits, 0, MAX_COST, NOW)
    part = Gate(rate=LEAST_RATE / 1_000, burst=1.0)
    permits = gates.permits(limits, tat, NOW, MAX_COST)
    assert gates.with_permits(part, permits, NOW)[0] == fairness.MOST_TAT < 1 << 63
    assert gates.take(part, 0, MAX_COST, NOW) == fairness.MOST_TAT
    assert gates.give_back(limits, 0, MAX_COST, 0) == 0
