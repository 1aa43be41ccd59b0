"""Leases where many gates are open: each topic with partitions and a limit has one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.sqlite.serving import FIRST_PAGE
from laneway.message import Draft
from laneway.policy import Gate

TOPICS = [f"p.{n}" for n in range(4 * FIRST_PAGE)]


@pytest.fixture
def engine() -> Iterator[FullEngine]:
    opened = open_engine("sqlite://", Settings())
    yield opened
    opened.close()


def test_a_lease_serves_all_open_gates(engine: FullEngine) -> None:
    """Also those behind the page of gates that is read first."""
    engine.policy_set("code", "p.*", {"partitions": 2, "concurrency": 4})
    engine.put([Draft(topic, b"x") for topic in TOPICS])
    leases = engine.lease(len(TOPICS)).leases
    assert sorted(lease.topic for lease in leases) == sorted(TOPICS)
    assert not engine.lease(1).leases


def test_gates_of_groups_are_served_once(engine: FullEngine) -> None:
    """The same group is the first at many gates."""
    engine.policy_set("code", "p.*", {"partitions": 2, "concurrency": 4, "group": "{0}"})
    engine.put([Draft(topic, b"x") for topic in TOPICS for _ in range(2)])
    leases = engine.lease(3 * len(TOPICS)).leases
    assert len({lease.handle for lease in leases}) == len(leases) == 2 * len(TOPICS)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_lease_with_a_filter_reaches_the_last_gate(engine: FullEngine, *, is_named: bool) -> None:
    """What a worker without handlers for the other topics may take is behind their gates."""
    for n, topic in enumerate(TOPICS):
        engine.gate_set(f"g{n}", Gate(concurrency=1))
        engine.policy_set("code", topic, {"gate": f"g{n}"})
    engine.put([Draft(topic, b"x") for topic in TOPICS])
    if is_named:
        batch = engine.lease(5, topics=TOPICS[-1:])
    else:
        batch = engine.lease(5, only=TOPICS[-1:])
    assert [lease.topic for lease in batch.leases] == TOPICS[-1:]
