"""Limits per key of topics with very many keys."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from laneway.engines.base import FullEngine
from laneway.message import Draft
from tests.conformance.valkey_setups import server

Opened = Callable[..., FullEngine]

KEYS = 1_500


def test_a_changed_limit_looks_at_a_bounded_number_of_keys(opened: Opened) -> None:
    """A call makes at most 200 messages ready; the next calls go on, until none is parked."""
    engine = opened(server().url)
    engine.policy_set("code", "a", {"key_concurrency": 1})
    for _ in range(2):
        engine.put([Draft("a", b"", key=f"{n}") for n in range(KEYS)])
    while engine.lease(1000).leases or engine.topic_stats("a").parked < KEYS:
        pass
    parked = [KEYS]
    engine.policy_set("code", "a", {"key_concurrency": 2})
    while parked[-1]:
        parked.append(engine.topic_stats("a").parked)
        engine._space.run("tick", 0, None, 1000)  # type: ignore[attr-defined]
        assert len(parked) < 30
    steps = [before - after for before, after in pairwise(parked)]
    assert max(steps) <= 200
    assert sum(steps) == KEYS
    assert len(engine.lease(KEYS).leases) == KEYS
    assert [check for check in engine.doctor() if not check.ok] == []
