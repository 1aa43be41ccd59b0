"""What a lease looks at does not grow with what waits for limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from laneway.engines.base import FullEngine
from laneway.message import Draft, Settlement
from laneway.policy import Gate
from laneway.testing.servers import Server
from laneway.units import SECOND
from tests.valkey.stored_keys import UNDIVIDED

NOW = 1_700_000_000_000_000
IN_GROUP = 110
"""More lanes than a visit of a group passes over because they can deliver nothing."""

GROUPS = 7
"""Such groups: together more lanes than a call passes over."""


@pytest.fixture(scope="module")
def place() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def engine(
    opened: Callable[..., FullEngine], place: Server, monkeypatch: pytest.MonkeyPatch
) -> FullEngine:
    monkeypatch.setattr("laneway.engines.valkey.connection.SOURCE", UNDIVIDED)
    place.run("FLUSHALL")
    return opened(place.url)


def commands(place: Server) -> int:
    return int(place.info("total_commands_processed"))


def put(engine: FullEngine, topics: list[str], now_us: int = NOW) -> None:
    for first in range(0, len(topics), 250):
        engine.put([Draft(topic, b"x") for topic in topics[first : first + 250]], now_us=now_us)


def cost(engine: FullEngine, place: Server, count: int, expected: int) -> int:
    """How many commands a lease runs, which has to deliver so many messages."""
    before = commands(place)
    leases = engine.lease(count, now_us=NOW).leases
    ran = commands(place) - before
    assert len(leases) == expected
    engine.settle([Settlement(lease.handle, lease.fence) for lease in leases], now_us=NOW)
    return ran


def test_topics_at_a_gate_that_shuts_are_not_read(engine: FullEngine, place: Server) -> None:
    """They came while nobody used it. A call reads 500 of those that come while it has spare."""
    engine.gate_set("g", Gate(concurrency=2), now_us=NOW)
    engine.policy_set("code", "push.*", {"gate": "g"}, now_us=NOW)
    put(engine, [f"push.{n}" for n in range(100)])
    few = cost(engine, place, 100, 2)
    put(engine, [f"push.{n}" for n in range(100, 1_000)], now_us=NOW + 2 * SECOND)
    assert cost(engine, place, 100, 2) <= few + 10


def test_not_every_group_that_may_deliver_is_read(engine: FullEngine, place: Server) -> None:
    """They have the same virtual time, so that the number of their first topics decides."""
    engine.policy_set("code", "push.*", {"group": "customer.{1}"}, now_us=NOW)
    for n in range(400):
        engine.topic_group_set(f"customer.{n}", Gate(concurrency=1), now_us=NOW)
    put(engine, [f"push.{n}.a" for n in range(100)])
    few = cost(engine, place, 10, 10)
    put(engine, [f"push.{n}.a" for n in range(100, 400)])
    assert cost(engine, place, 10, 10) <= few + 100


def test_a_call_ends_where_many_topics_can_deliver_nothing(engine: FullEngine) -> None:
    engine.policy_set("code", "push.*", {"group": "customer.{1}"}, now_us=NOW)
    put(engine, [f"push.{group}.{n}" for group in range(GROUPS) for n in range(IN_GROUP)])
    for group in range(
        GROUPS
    ):  # their topics come to the gates of their groups as they are visited
        engine.topic_group_set(f"customer.{group}", Gate(concurrency=1), now_us=NOW)
    found: list[str] = []
    batches = [engine.lease(100, now_us=NOW) for _ in range(4)]
    for batch in batches:
        found += [lease.topic.split(".")[1] for lease in batch.leases]
    assert sorted(found) == sorted(map(str, range(GROUPS)))
    assert batches[0].next_wake_us == NOW, "the next call goes on at once"
