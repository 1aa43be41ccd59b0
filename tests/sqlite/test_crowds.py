"""
What a call costs while others have many messages and leases, in steps of SQLite, which no other
program changes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.message import Draft

FEW, MANY = 20, 1_000
"""Leases of another topic."""


def steps(engine: FullEngine, call: Callable[[], object]) -> int:
    """The steps that SQLite makes for a call."""
    counted: list[None] = []
    connection = engine._store.connection  # type: ignore[attr-defined]
    connection.set_progress_handler(lambda: counted.append(None), 1)
    call()
    connection.set_progress_handler(None, 0)
    return len(counted)


def with_leases(leases: int, prepare: Callable[[FullEngine], object]) -> FullEngine:
    """An engine in which this number of messages of another topic are leased."""
    engine = open_engine("sqlite://", Settings(durability="memory"))
    engine.put([Draft("other", b"x")] * leases)
    assert len(engine.lease(leases or 1).leases) == leases
    prepare(engine)
    engine.tick()
    return engine


def fold(engine: FullEngine) -> None:
    engine.policy_set("code", "fold.*", {"buckets": 1})
    engine.put([Draft("fold.a", b"x", id=f"i{n}") for n in range(100)])
    engine.policy_set("code", "fold.*", {"max_backlog": 100, "on_full": "drop_oldest"})


def fill(engine: FullEngine, waiting: int) -> None:
    engine.policy_set("code", "fold.*", {"buckets": 1, "max_backlog": 10 * MANY})
    engine.put([Draft("fold.a", b"x")] * waiting)


CALLS: dict[str, Callable[[FullEngine], object]] = {
    "put above the limit": lambda engine: engine.put([Draft("fold.a", b"x")]),
    "peek": lambda engine: engine.topic_peek("fold.a"),
    "cancel": lambda engine: engine.cancel("i50", "fold.a"),
    "move": lambda engine: engine.message_move("i50", "fold.a", to="dead"),
    "purge": lambda engine: engine.topic_purge("fold.a"),
    "doctor": lambda engine: engine.doctor(),
}


PER_LEASE = {"peek": 20, "doctor": 150}
"""Steps for each lease: a view reads all leases once."""


@pytest.mark.parametrize("name", CALLS)
def test_a_call_costs_the_same_whatever_others_lease(name: str) -> None:
    """Messages in a bucket look at no leases of other topics."""
    few, many = (
        steps(engine, lambda: CALLS[name](engine))  # noqa: B023  # called immediately
        for leases in (FEW, MANY)
        for engine in [with_leases(leases, fold)]
    )
    assert many <= 1.2 * few + PER_LEASE.get(name, 0) * (MANY - FEW)


def test_a_publish_below_the_limit_counts_no_messages() -> None:
    """While all topics of a bucket together are below the limit of one."""
    few, many = (
        steps(engine, lambda: engine.put([Draft("fold.a", b"x")]))  # noqa: B023  # called immediately
        for waiting in (FEW, MANY)
        for engine in [with_leases(0, lambda engine: fill(engine, waiting))]  # noqa: B023  # as above
    )
    assert many <= 1.2 * few
