"""Leases where many gates are open: each topic with partitions and a limit has one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.sql.leasing import FIRST_PAGE
from laneway.message import Draft, Settlement
from laneway.policy import Gate
from laneway.topic_groups import TOPIC

NOW = 1_700_000_000_000_000
MINUTE = 60_000_000
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


def serve(engine: FullEngine, *only: str) -> list[str]:
    """The topics of up to ten messages, which are acked."""
    leases = engine.lease(10, only=only or None).leases
    engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
    return [lease.topic for lease in leases]


def test_topics_of_a_group_are_served_alike(engine: FullEngine) -> None:
    """Each of them is first at a gate of its own, and more gates are open than a page has."""
    engine.policy_set("code", "p.*", {"partitions": 2, "concurrency": 1, "group": "{0}"})
    engine.put([Draft(topic, b"x") for topic in TOPICS for _ in range(40)])
    served = Counter(topic for _ in range(64) for topic in serve(engine))
    assert sum(served.values()) == 640
    assert min(served[topic] for topic in TOPICS) >= 8


def test_a_groups_position_is_stored_once(engine: FullEngine) -> None:
    """A visit writes the group and the gate that it uses, not all gates of the group."""
    engine.policy_set("code", "p.*", {"partitions": 2, "concurrency": 1, "group": "{0}"})
    connection = engine._store.connection  # type: ignore[attr-defined]
    written = []
    for topics in (TOPICS, [f"p.more.{n}" for n in range(8 * len(TOPICS))]):
        engine.put([Draft(topic, b"x") for topic in topics for _ in range(4)])
        serve(engine)
        before = connection.total_changes
        assert len(serve(engine)) == 10
        written.append(connection.total_changes - before)
    assert written[1] <= written[0] + 10


def test_a_group_forgets_its_turn_at_the_gate_of_a_topic_that_is_gone(engine: FullEngine) -> None:
    policy = {"partitions": 2, "concurrency": 1, "group": "{0}"}
    engine.policy_set("code", "p.*", policy, now_us=NOW)
    engine.put([Draft("p.1", b"x"), Draft("p.2", b"x"), Draft("p.2", b"x")], now_us=NOW)
    (first, *_) = engine.lease(1, now_us=NOW).leases
    engine.settle([Settlement(first.handle, first.fence)], now_us=NOW)
    engine.tick(now_us=NOW + MINUTE)
    connection = engine._store.connection  # type: ignore[attr-defined]
    gates = connection.execute("SELECT gate FROM group_turn").fetchall()
    assert gates == [(f"{TOPIC}p.{3 - int(first.topic[-1])}",)]


def test_a_lease_with_a_filter_reaches_the_last_lane_of_a_limited_group(engine: FullEngine) -> None:
    engine.policy_set("code", "p.*", {"group": "{0}"})
    engine.topic_group_set("p", Gate(concurrency=2))
    engine.put([Draft(topic, b"x") for topic in TOPICS])
    assert serve(engine, TOPICS[-1]) == TOPICS[-1:]


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
