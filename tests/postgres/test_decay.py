"""A call costs the same however many dead rows are kept for a transaction that stays open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.base.presence import WorkerFacts
from laneway.engines.postgres.statements import FREE_TURNS, SWEEP_TURNS
from laneway.message import Draft, ProgressReport, Settlement
from laneway.policy import Gate
from laneway.testing.postgres_server import PostgresServer

CALLS = 12
"""
Calls of a round, and four times as many with one message each. Rows get a new epoch with every 16th
change, which decides how many old versions a call reads.
"""

ROUNDS = 6

COUNTS_ON_REQUEST = 150_000
"""The first version of the server with `pg_stat_force_next_flush`."""

FLOWS: dict[str, tuple[int, int, dict[str, Any], Callable[[int], dict[str, Any]]]] = {
    "one topic": (1, 100, {}, lambda _: {}),
    "many topics": (20, 100, {}, lambda _: {}),
    "single messages": (1, 1, {}, lambda _: {}),
    "limits": (20, 100, {"rate": 1e6, "burst": 10_000, "concurrency": 1_000}, lambda _: {}),
    "groups": (20, 100, {"group": "{1}"}, lambda _: {}),
    "one group": (20, 100, {"group": "all"}, lambda _: {}),
    "a gate": (20, 100, {"gate": "g"}, lambda _: {}),
    "two gates": (20, 100, {"gate": ["g", "h"]}, lambda _: {}),
    "priorities": (20, 100, {}, lambda n: {"priority": n % 3}),
    "ids": (20, 100, {}, lambda n: {"id": f"id-{n}"}),
    "known ids": (20, 100, {"dedupe": 0.01}, lambda n: {"id": f"id-{n}"}),
    "serial keys": (1, 100, {"serial": True}, lambda n: {"key": f"k{n % 40}"}),
    "limits of keys": (1, 100, {"key_rate": 1e6}, lambda n: {"key": f"k{n % 40}"}),
    "merges": (20, 100, {"merge": "last"}, lambda n: {"key": f"k{n % 40}"}),
}
"""By name: topics, messages of a call, policy, and what each message has."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(fsync="off", autovacuum="off") as started:
        yield started


@pytest.mark.parametrize("flow", FLOWS)
def test_buffers_of_a_message(server: PostgresServer, flow: str) -> None:
    """
    The pages that a message touches do not grow while dead rows are kept, which no vacuum removes.
    The number is exact: it does not depend on the machine. docs/engines.md has the exceptions.
    """
    topics, size, policy, fields = FLOWS[flow]
    number = 0

    def run(engine: FullEngine) -> int:
        nonlocal number
        first = number
        for _ in range(CALLS if size > 1 else 4 * CALLS):
            engine.put(
                [
                    Draft(f"t.{each % topics}", b"body", **fields(each))
                    for each in range(number, number + size)
                ]
            )
            number += size
            left = size
            while left and (leases := engine.lease(size).leases):
                engine.settle([Settlement(each.handle, each.fence) for each in leases])
                left -= len(leases)
        return number - first

    costs = buffers(server, flow, policy, run)
    assert costs[-1] <= 1.2 * max(costs[1:3]), costs


def test_buffers_over_a_backlog_of_topics(server: PostgresServer) -> None:
    """Topics of one message have the same virtual time; those that were served leave dead rows."""
    now = 1 << 50  # always the same, so that no topic is forgotten meanwhile
    topics = 0

    def run(engine: FullEngine) -> int:
        nonlocal topics
        if not topics:
            topics = 2 * ROUNDS * CALLS * 20
            engine.put([Draft(f"t.{n}", b"body") for n in range(topics)], now_us=now)
        for _ in range(CALLS):
            leases = engine.lease(20, now_us=now).leases
            assert len(leases) == 20
            engine.settle([Settlement(each.handle, each.fence) for each in leases], now_us=now)
        return CALLS * 20

    costs = buffers(server, "a backlog", {}, run)
    assert costs[-1] <= 1.05 * max(costs[1:3]), costs


@pytest.mark.parametrize("topics", [1, 20])
def test_buffers_of_a_full_backlog(server: PostgresServer, topics: int) -> None:
    """Each message drops the oldest one of its topic, which leaves a dead row before the others."""
    number = 0

    def run(engine: FullEngine) -> int:
        nonlocal number
        for _ in range(CALLS):
            engine.put([Draft(f"t.{n % topics}", b"body") for n in range(number, number + 100)])
            number += 100
        return CALLS * 100

    policy = {"max_backlog": 100, "on_full": "drop_oldest"}
    costs = buffers(server, f"full_{topics}", policy, run)
    assert costs[-1] <= 1.01 * costs[2], costs


def buffers(
    server: PostgresServer, name: str, policy: dict[str, Any], run: Callable[[FullEngine], int]
) -> list[float]:
    """
    By round: the pages that are touched while a transaction is open elsewhere, divided by what
    `run` returns.
    """
    namespace = name.replace(" ", "_")
    engine = open_engine(server.url, Settings(namespace=namespace))
    engine.gate_set("g", Gate(concurrency=30))
    engine.gate_set("h", Gate(rate=1e6, burst=10_000))
    engine.policy_set("code", "t.*", policy)

    def touched() -> float:
        pipeline = engine._store._connection.pipeline  # type: ignore[attr-defined]
        pipeline.rows(pipeline.send("SELECT pg_stat_force_next_flush()"))
        pipeline.sync()
        row = watching.execute(
            "SELECT sum(coalesce(heap_blks_hit + heap_blks_read, 0)"
            " + coalesce(idx_blks_hit + idx_blks_read, 0)) FROM pg_statio_user_tables"
            # The listening thread has a connection of its own, which reports once a second.
            " WHERE schemaname = %s AND relname <> 'sleeper'",
            (f"laneway_{namespace}",),
        ).fetchone()
        return float(row[0])  # type: ignore[index]

    with (
        closing(engine),
        psycopg.connect(server.url, autocommit=True) as watching,
        psycopg.connect(server.url) as open_elsewhere,
    ):
        if watching.info.server_version < COUNTS_ON_REQUEST:
            pytest.skip("before version 15 a server counts pages only twice a second")
        open_elsewhere.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        open_elsewhere.execute("SELECT 1")
        counts = [touched()]
        numbers = []
        for _ in range(ROUNDS):
            numbers.append(run(engine))
            counts.append(touched())
        open_elsewhere.rollback()
    return [
        (after - before) / number
        for (before, after), number in zip(pairwise(counts), numbers, strict=True)
    ]


def _report_progress(engine: FullEngine, number: int) -> None:
    assert all(engine.report_progress([ProgressReport("id", "t.1", b"%d" % number, 1 << 40)]))
    assert engine.results([("id", "t.1")])[0].progress == b"%d" % number


def _beat(engine: FullEngine, number: int) -> None:
    facts = WorkerFacts(id=f"w{number % 4}")
    engine.beat(facts, dead_after_us=1_000, listed_us=1_000_000, now_us=START_US + number)
    assert engine.workers(now_us=START_US + number)


def _elect(engine: FullEngine, number: int) -> None:
    before, _ = engine.election_read("e")
    assert engine.election_swap("e", before, b"%d" % number)


def _write_history(engine: FullEngine, number: int) -> None:
    (before,) = engine.history_read(["minute"])
    assert engine.history_write("minute", before, {"minute": b"%d" % number})


def _change_gate(engine: FullEngine, number: int) -> None:
    engine.gate_set("g", Gate(rate=1.0 + number))
    assert len(engine.gate_list()) == 2


def _bury(engine: FullEngine, _number: int) -> None:
    engine.put([Draft("t.1", b"")])
    leases = engine.lease(1).leases
    engine.settle([Settlement(each.handle, each.fence, "dead") for each in leases])


START_US = 2_500_000_000_000_000

STEPS: dict[str, Callable[[FullEngine, int], object]] = {
    "progress": _report_progress,
    "heartbeats": _beat,
    "elections": _elect,
    "history": _write_history,
    "changes of a gate": _change_gate,
    "dead letters": _bury,
    "changes of a pattern": lambda engine, number: engine.policy_set(
        "code", "t.*", {"rate": 1.0 + number}
    ),
}
"""What changes the same rows each time."""


@pytest.mark.parametrize("step", STEPS)
def test_buffers_of_a_change(server: PostgresServer, step: str) -> None:
    """The pages that a change touches do not grow, except with the levels of an index."""
    number = 0

    def run(engine: FullEngine) -> int:
        nonlocal number
        for _ in range(200):
            STEPS[step](engine, number)
            number += 1
        return 200

    costs = buffers(server, step, {}, run)
    assert costs[-1] <= 1.5 * costs[1], costs


def test_rows_of_keys_do_not_stay(server: PostgresServer) -> None:
    """
    The row of a key that is no longer used stays for the next message of the key. It is deleted
    after a number of turns, or together with the row of its topic.
    """
    engine = open_engine(server.url, Settings(namespace="keys"))
    engine.policy_set("code", "t.*", {"serial": True})
    keys = 0
    with closing(engine), psycopg.connect(server.url, autocommit=True) as reading:

        def count() -> int:
            row = reading.execute("SELECT count(*) FROM laneway_keys.serial_key").fetchone()
            return int(row[0])  # type: ignore[index]

        for _ in range(2 * FREE_TURNS // 3):  # a call of each kind takes a turn
            engine.put([Draft("t.1", b"", key=f"k{keys + n}") for n in range(10)])
            keys += 10
            leases = engine.lease(10).leases
            engine.settle([Settlement(each.handle, each.fence) for each in leases])
        assert 0 < count() < keys
        assert not [check for check in engine.doctor() if not check.ok]
        engine.tick(now_us=2_500_000_000_000_000)
        assert count() == 0


def test_turns_of_centuries(server: PostgresServer) -> None:
    """No turn is too large for the choice of pages."""
    engine = open_engine(server.url, Settings(namespace="centuries"))
    with closing(engine):
        engine.put([Draft("t.1", b"")])
        server.execute(f"SELECT setval('laneway_centuries.turn', {(1 << 62) - 8})")
        for _ in range(2 * SWEEP_TURNS):
            engine.put([Draft("t.1", b"")] * 2)
        assert len(engine.lease(100).leases) == 4 * SWEEP_TURNS + 1
