"""Shards that all have a backlog take turns."""

from __future__ import annotations

from collections import Counter

import pytest

from laneway.message import Draft, Settlement
from tests.sharded.conftest import Opened

TOPICS = [f"topic-{n}" for n in range(12)]


@pytest.mark.parametrize("at_once", [1, 7])
def test_a_busy_shard_holds_up_no_other(opened: Opened, at_once: int) -> None:
    """A worker that has no room left serves all shards, even if one is published to meanwhile."""
    engine = opened()
    engine.put([Draft(topic, b"x") for topic in TOPICS for _ in range(200)])
    seen: Counter[str] = Counter()
    while seen.total() < 240:
        engine.put([Draft(TOPICS[0], b"x")])
        leases = engine.lease(at_once).leases
        seen.update(lease.topic for lease in leases)
        engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
    assert set(seen) == set(TOPICS)
    assert min(seen.values()) >= 5, seen
