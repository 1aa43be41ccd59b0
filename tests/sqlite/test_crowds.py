"""
What a call costs while others have many messages and leases, in steps of SQLite, which no other
program changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.shared.body_sizes import LEASE_BYTES
from laneway.engines.sql import leasing, message_ends, messages, purging
from laneway.engines.sql.rows import read_headers
from laneway.message import Draft, Lease, Settlement

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
    engine.put([Draft("leased", b"x", id=f"i{n}") for n in range(100)])
    engine.lease(100)
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
    "find": lambda engine: engine.find("i50", "fold.a"),
    "explain": lambda engine: engine.explain("i50", "fold.a"),
    "lookup": lambda engine: engine.lookup("fold.a", [f"i{n}" for n in range(100)]),
    "find a leased one": lambda engine: engine.find("i50", "leased"),
    "abort": lambda engine: engine.cancel("i50", "leased"),
    "purge": lambda engine: engine.topic_purge("fold.a"),
    "doctor": lambda engine: engine.doctor(),
}


PER_LEASE = {"doctor": 150, "find a leased one": 8, "abort": 8}
"""Steps for each lease: leases are searched for one message, and read once by the doctor."""


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


@pytest.mark.parametrize("on_full", ["drop_oldest", "refuse"])
def test_a_publish_above_the_limit_counts_a_large_topic_once(on_full: str) -> None:
    def fill_up(engine: FullEngine, waiting: int) -> None:
        limits = {"buckets": 1, "max_backlog": waiting, "on_full": on_full}
        engine.policy_set("code", "fold.*", limits)
        engine.put([Draft("fold.a", b"x")] * waiting)
        engine.put([Draft("fold.a", b"x")])

    few, many = (
        steps(engine, lambda: engine.put([Draft("fold.a", b"x")]))  # noqa: B023  # called immediately
        for waiting in (MANY, 5 * MANY)
        for engine in [with_leases(0, lambda engine: fill_up(engine, waiting))]  # noqa: B023  # as above
    )
    assert many <= 1.2 * few


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many messages each transaction of a purge or delete removes, by its number."""
    counted: Counter[int] = Counter()

    def count(module: Any, name: str) -> None:
        remove = getattr(module, name)

        def counting(tx: Any, *rest: Any) -> Any:
            counted[id(tx)] += 1
            transactions.append(tx)  # so that no id is used again
            return remove(tx, *rest)

        monkeypatch.setattr(module, name, counting)

    transactions: list[Any] = []
    count(purging, "_end_lease")
    count(messages, "remove_waiting")
    return counted


def test_leases_of_a_deleted_topic_end_in_pages(removed: Counter[int]) -> None:
    engine = with_leases(2_500, lambda _: None)
    assert engine.topic_delete("other") == 2_500
    assert list(removed.values()) == [1_000, 1_000, 500]
    assert [check for check in engine.doctor() if not check.ok] == []


def lease_all(engine: FullEngine, topic: str) -> list[Lease]:
    """Lease all messages of a topic, in as many calls as that needs."""
    found: list[Lease] = []
    while leases := engine.lease(1_000, topics=[topic]).leases:
        found += leases
    return found


def test_a_lease_of_large_bodies_is_small() -> None:
    """Its caller leases again; one body that is larger than a lease is delivered alone."""
    engine = with_leases(0, lambda engine: engine.policy_set("code", "*", {"max_body": 1 << 24}))
    engine.put([Draft("large", bytes(1 << 20))] * 21)
    assert len(engine.lease(1).leases) == 1
    sizes = []
    while (batch := engine.lease(1_000)).leases:
        sizes.append(len(batch.leases))
        assert (batch.next_wake_us == batch.now_us) == (sum(sizes) < 20)
    assert sizes == [7, 7, 6]
    engine.put([Draft("huge", bytes(LEASE_BYTES + 1))] * 3)
    assert [len(engine.lease(n).leases) for n in (1, 5, 5, 5)] == [1, 1, 1, 0]
    engine.put([Draft("small", b"x")] * 5_000)
    sizes = []
    while leases := engine.lease(1_000).leases:
        sizes.append(len(leases))
    assert sizes[:8] == [1 << n for n in range(8)], "the size that is expected is halved"
    assert 1_000 in sizes


def test_large_messages_that_wait_change_no_leases() -> None:
    engine = with_leases(0, lambda engine: engine.policy_set("code", "paused", {"paused": True}))
    engine.put([Draft("large", bytes(1 << 20), delay_us=3_600_000_000)] * 20)
    engine.put([Draft("paused", bytes(1 << 20))] * 20)
    engine.put([Draft("small", b"x")] * 100)
    assert len(engine.lease(1_000).leases) == 100


def test_a_lease_of_many_bodies_is_small() -> None:
    engine = with_leases(0, lambda engine: engine.policy_set("code", "t", {"merge": "all"}))
    for _ in range(200):
        engine.put([Draft("t", b"x", key=f"k{n}") for n in range(300)])
    assert len(engine.lease(1).leases[0].bodies or ()) == 200
    assert len(engine.lease(1_000).leases) < 150


def test_headers_are_decoded_after_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be large. Where a message ends, only those are decoded that ask for a report."""
    engine = with_leases(0, lambda _: None)
    connection = engine._store.connection  # type: ignore[attr-defined]
    decode, in_transaction = read_headers, list[bool]()

    def decoding(text: str) -> dict[str, str]:
        in_transaction.append(connection.in_transaction)
        return decode(text)

    for module in (leasing, message_ends):
        monkeypatch.setattr(module, "read_headers", decoding)
    engine.put([Draft("t", b"x", headers={"a": "b"})] * 3)
    leases = engine.lease(5).leases
    assert [lease.headers for lease in leases] == [{"a": "b"}] * 3
    engine.settle([Settlement(each.handle, each.fence, "dead") for each in leases])
    assert engine.dead_redrive("t") == 3
    assert engine.topic_purge("t") == 3
    assert in_transaction == [False] * 3


def test_freed_pages_are_not_overwritten(tmp_path: Path) -> None:
    """SQLite may be built to overwrite what is deleted, which costs most with large bodies."""
    engine = open_engine(f"sqlite:///{tmp_path}/q.db", Settings(durability="memory"))
    with closing(engine):
        (mode,) = engine._store.connection.execute("PRAGMA secure_delete").fetchone()  # type: ignore[attr-defined]
        assert mode in (0, 2)


def test_large_bodies_are_removed_in_smaller_pages(removed: Counter[int]) -> None:
    engine = with_leases(0, lambda _: None)
    for topic in ("dead", "leased", "waiting"):
        engine.put([Draft(topic, bytes(1 << 19))] * 80)
    dead, _ = (lease_all(engine, topic) for topic in ("dead", "leased"))
    engine.settle([Settlement(each.handle, each.fence, "dead") for each in dead])
    before = engine._store.commits  # type: ignore[attr-defined]
    assert engine.topic_delete("dead") == 80
    assert engine._store.commits - before > 2  # type: ignore[attr-defined]
    assert engine.topic_delete("leased") == 80
    assert max(removed.values()) <= 50
    removed.clear()
    assert engine.topic_purge("waiting") == 80
    assert max(removed.values()) <= 32


def test_known_ids_of_a_deleted_topic_are_forgotten_in_pages() -> None:
    engine = with_leases(0, lambda engine: engine.policy_set("code", "a", {"dedupe": 3600}))
    engine.put([Draft("a", b"x", id=f"i{n}") for n in range(2_500)])
    leases = engine.lease(2_500).leases
    engine.settle([Settlement(each.handle, each.fence) for each in leases])
    before = engine._store.commits  # type: ignore[attr-defined]
    engine.topic_delete("a")
    assert engine._store.commits - before == 4  # type: ignore[attr-defined]
    assert engine.lookup("a", ["i1", "i2499"]) == {"i1": "unknown", "i2499": "unknown"}


def test_leased_messages_of_a_topic_are_read_together() -> None:
    engine = with_leases(100, lambda _: None)
    texts: list[str] = []
    engine._store.connection.set_trace_callback(texts.append)  # type: ignore[attr-defined]
    assert len(engine.topic_peek("other", limit=100, state="leased")) == 100
    assert len([text for text in texts if "FROM message m" in text or "JOIN message" in text]) <= 2
