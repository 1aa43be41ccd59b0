"""Limits per key of topics with very many keys."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from laneway.engines.base import FullEngine
from laneway.message import Draft, Settlement
from tests.conformance.valkey_setups import server

Opened = Callable[..., FullEngine]

KEYS = 1_500


def test_a_changed_limit_looks_at_a_bounded_number_of_keys(opened: Opened) -> None:
    """A call makes at most 100 messages ready; the next calls go on, until none is parked."""
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
    assert max(steps) <= 100
    assert sum(steps) == KEYS
    assert len(engine.lease(KEYS).leases) == KEYS
    assert [check for check in engine.doctor() if not check.ok] == []


def test_a_call_parks_a_bounded_number_of_messages(opened: Opened) -> None:
    engine = opened(server().url)
    engine.policy_set("code", "a", {"key_concurrency": 1})
    engine.put([Draft("a", b"", key="k") for _ in range(500)])
    assert len(engine.lease(10).leases) == 1  # by one call, which ends early
    assert engine.topic_stats("a").parked == 200
    assert not engine.lease(10).leases
    assert engine.topic_stats("a").parked == 499


def test_hashes_of_keys_are_tables(opened: Opened) -> None:
    """A small hash of short values would be a list, which the server searches one by one."""
    engine = opened(server().url)
    engine.policy_set("code", "serial", {"serial": "hold"})
    engine.policy_set("code", "limited", {"key_concurrency": 2})
    engine.policy_set("code", "merging", {"merge": "all"})
    topics = ("serial", "limited", "merging")
    receipts = engine.put([Draft(t, b"", key=f"{n}") for t in topics for n in [*range(20)] * 2])
    ids = {
        t: [r.id for r in receipts[at : at + 40]] for t, at in zip(topics, (0, 40, 80), strict=True)
    }
    prefix = engine._space.key(0, "")  # type: ignore[attr-defined]
    leases = engine.lease(200).leases
    assert len(leases) == 20 + 40 + 20
    again = [Draft("merging", b"", key=f"{n}") for n in range(20)]
    assert {receipt.outcome for receipt in engine.put(again)} == {"accepted"}
    assert {receipt.outcome for receipt in engine.put(again)} == {"merged"}
    for name in ("keys", "key_states", "merge"):
        assert server().run("OBJECT", "ENCODING", prefix + name) == "hashtable"
    for n, parked in enumerate(ids["serial"][20:]):
        assert engine.explain(parked, "serial").busy_with == ids["serial"][n]
    for leased in ids["limited"]:
        assert engine.explain(leased, "limited").state == "leased"
    waiting = [Draft("limited", b"", key=f"{n}") for n in range(20)]
    for receipt in engine.put(waiting):
        assert "key" in engine.explain(receipt.id, "limited").reasons[0]
    engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
    assert [check for check in engine.doctor() if not check.ok] == []
