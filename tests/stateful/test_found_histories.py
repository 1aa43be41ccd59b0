"""Histories that once found a difference, as short as they can be: engines and the model agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from laneway.engines.base import SIGNALS_HEADER
from laneway.message import Draft, Settlement
from laneway.policy import Gate
from laneway.units import SECOND
from tests.stateful.lockstep import START, Lockstep


@pytest.fixture(params=["sqlite file", "valkey", "postgres"])
def lockstep(request: pytest.FixtureRequest) -> Iterator[Lockstep]:
    lockstep = Lockstep(request.param)
    yield lockstep
    lockstep.close()


def do(lockstep: Lockstep, operation: str, *arguments: Any, **options: Any) -> tuple[Any, Any]:
    return lockstep.call(operation, arguments, now_us=lockstep.now, **options)


def test_group_in_two_indexes_counts_once_after_its_visit(lockstep: Lockstep) -> None:
    """
    The group's lanes wait in two indexes, so it counts twice. It is drained in the first round of
    a call; in the second one the other lane is alone.
    """
    lockstep.now = START
    do(lockstep, "gate_set", "g", Gate(concurrency=5))
    do(lockstep, "policy_set", "code", "group.*", {"group": "one", "tier": "mid"})
    do(lockstep, "policy_set", "code", "group.gate", {"gate": "g"})
    do(lockstep, "policy_set", "code", "high", {"tier": "high"})
    do(lockstep, "policy_set", "code", "low", {"tier": "mid"})
    first = ["high", "group.plain", "group.gate"]
    do(lockstep, "put", [Draft(topic, b"1") for topic in [*first, *["low"] * 40]])
    do(lockstep, "lease", 30)
    do(lockstep, "put", [Draft("late", b"1") for _ in range(20)])
    for _ in range(10):
        lockstep.now += SECOND // 100
        do(lockstep, "lease", 1)
    lockstep.compare_everything()


@pytest.mark.parametrize("between", [False, True])
def test_gate_whose_rate_is_removed_and_set_again(lockstep: Lockstep, between: bool) -> None:
    """What a high cost left is kept without a rate, even if others are delivered then."""
    lockstep.now = START
    do(lockstep, "gate_set", "g", Gate(10.0, 10, max_cost=1_000_000))
    do(lockstep, "policy_set", "code", "*", {"gate": "g", "lease": 10_000})
    do(lockstep, "put", [Draft("a", b"1", headers={"laneway-cost": "1000000"})])
    do(lockstep, "lease", 1)
    do(lockstep, "gate_set", "g", Gate(concurrency=100))
    if between:
        do(lockstep, "put", [Draft("b", b"1")])
        do(lockstep, "lease", 1)
    do(lockstep, "gate_set", "g", Gate(1000.0, 10))
    do(lockstep, "put", [Draft("b", b"1")])
    for seconds in (999, 1):
        lockstep.now += seconds * SECOND
        do(lockstep, "lease", 1)
        lockstep.compare_everything()


def test_outcome_comes_before_what_is_published_with_its_settlement(lockstep: Lockstep) -> None:
    """A published message that is dropped has the id of the one that was settled."""
    lockstep.now = START
    full = {"max_backlog": 1, "on_full": "drop_oldest"}
    do(lockstep, "policy_set", "code", "full", full)
    kept = {"laneway-result-ttl": "90000,90000"}
    do(lockstep, "put", [Draft("full", b"1", id="i")])
    found = do(lockstep, "lease", 1)
    settlements = [
        [
            Settlement(
                side.leases[0].handle,
                side.leases[0].fence,
                "ack",
                id="i",
                topic="full",
                outcome=b"so",
                outcome_ttl_us=90 * SECOND,
            )
        ]
        for side in found
    ]
    publish = {0: [Draft("full", b"1", id="i", headers=kept), Draft("full", b"2")]}
    options = {"now_us": lockstep.now, "publish": publish}
    lockstep.call("settle", (settlements[0],), (settlements[1],), **options)
    kept_of = lockstep.engine.results([("i", "full")], now_us=lockstep.now)[0].outcome
    lockstep.compare("outcome", kept_of, lockstep.model.outcomes["full", "i"])


def test_signals_count_for_a_limit_in_the_same_put(lockstep: Lockstep) -> None:
    """The topic is in a bucket, whose lane counts other topics, too."""
    lockstep.now = START
    policy = {"buckets": 1, "max_backlog": "30B", "on_full": "refuse"}
    do(lockstep, "policy_set", "code", "a.*", policy)
    do(lockstep, "put", [Draft("a.1", b"1", id="w", headers={SIGNALS_HEADER: "3"})])
    do(lockstep, "put", [Draft("a.1", b"s" * 25, id="w", signal=1), Draft("a.1", b"x" * 20)])
    lockstep.compare_everything()
