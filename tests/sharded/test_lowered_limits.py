"""A lowered concurrency of partitions over four shards holds immediately, over all shards."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import pytest

from laneway.engines.base import FullEngine
from laneway.engines.sharded.grants import Grants
from laneway.message import Draft, Lease, Settlement
from tests.seeds import seed_for
from tests.sharded.conftest import Opened

NOW = 2_000_000_000_000_000
"""Later than the servers' clocks."""

TOPIC = "hot.x"
KEYS = ["k5", "k1", "k4", "k0"]
"""One for each of four partitions, which are on four shards."""


class Topic:
    """A topic with partitions, its clock and its leases; `name`: the topic, or its pattern."""

    def __init__(self, engines: list[FullEngine], name: str, draw: random.Random) -> None:
        self.engines, self.name, self.draw = engines, name, draw
        self.now = NOW
        self.held: list[Lease] = []
        for engine in engines:
            engine._grants._random = draw  # type: ignore[attr-defined]

    def any(self) -> Any:
        return self.draw.choice(self.engines)

    def limit(self, concurrency: int) -> None:
        policy = {"partitions": 4, "concurrency": concurrency}
        self.any().policy_set("code", self.name, policy, now_us=self.now)

    def put(self, keys: Collection[str], each: int = 1) -> None:
        drafts = [Draft(TOPIC, b"x", key=key) for key in keys for _ in range(each)]
        self.any().put(drafts, now_us=self.now)

    def lease(self, n: int = 100) -> int:
        leases = self.any().lease(n, now_us=self.now).leases
        self.held += leases
        return len(leases)

    def settle(self, leases: Collection[Lease]) -> None:
        self.held = [lease for lease in self.held if lease not in leases]
        ended = [Settlement(lease.handle, lease.fence) for lease in leases]
        self.any().settle(ended, now_us=self.now)


@pytest.fixture(params=[TOPIC, "hot.*"], ids=["topic", "pattern"])
def topic(request: pytest.FixtureRequest, opened: Opened) -> Topic:
    seed = seed_for("LANEWAY_HISTORIES")
    print(f"LANEWAY_SEED={seed}")
    return Topic([opened(), opened()], request.param, random.Random(seed))


def test_a_shard_with_free_slots_leases_nothing_beyond_a_lowered_limit(topic: Topic) -> None:
    """Its grant was half of the limit; the leases of another shard use up the new one."""
    topic.limit(16)
    topic.put(KEYS[:2], 20)
    for _ in range(40):
        topic.lease()
        topic.now += 50_000
    first = [lease for lease in topic.held if lease.key == KEYS[0]]
    assert (len(first), len(topic.held)) == (8, 16)
    topic.settle([lease for lease in topic.held if lease not in first])
    topic.limit(8)
    assert sum(topic.lease() for _ in range(8)) == 0
    topic.settle(first[:1])
    topic.now += 1_000_000
    assert sum(topic.lease() for _ in range(8)) == 1


def test_a_shard_without_leases_leases_nothing_beyond_a_lowered_limit(topic: Topic) -> None:
    """Nothing waits and no grant was made: the leases are by the parts of the partitions."""
    topic.limit(16)
    for engine in topic.engines:  # from now on no grants for a second
        engine.lease(1, now_us=topic.now)
    topic.put(KEYS[:2], 4)
    assert topic.lease() == 8
    topic.limit(8)
    topic.put(KEYS[2:], 4)
    assert sum(topic.lease() for _ in range(8)) == 0


def test_a_change_that_is_interrupted(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process ends once the shards know the new limit: it holds after at most a second."""
    monkeypatch.setattr(Grants, "lower", lambda *_: None)
    topic.limit(16)
    topic.put(KEYS[:2], 40)
    for _ in range(40):
        topic.lease()
        topic.now += 50_000
    topic.settle([lease for lease in topic.held if lease.key == KEYS[1]])
    topic.limit(8)
    assert topic.lease() == 4
    topic.settle(topic.held[-4:])
    topic.now += 1_000_000
    assert sum(topic.lease() for _ in range(8)) == 0


def test_limits_that_change_at_random(topic: Topic) -> None:
    """No lease of any process makes more than the concurrency held, whatever it was before."""
    draw = topic.draw
    topic.limit(limit := 9)
    until: dict[int, int] = {}
    for step in range(60):
        if draw.random() < 0.15:
            topic.limit(limit := draw.choice([1, 2, 3, 4, 6, 8, 12, 16]))
        if draw.random() < 0.4:
            topic.put(draw.sample(KEYS, draw.randint(1, 4)), draw.randint(1, 4))
        if topic.lease(draw.choice([1, 3, 100])):
            assert len(topic.held) <= limit
        for lease in topic.held:
            until.setdefault(lease.handle, step + draw.choice([0, 3, 10, 40]))
        topic.settle([lease for lease in topic.held if until[lease.handle] <= step])
        topic.now += draw.choice([5_000, 50_000, 300_000])
