"""Costs that no test of behavior sees: round trips, and plans that read whole tables."""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest

from laneway.engines.base import Settings
from laneway.engines.postgres import connection
from laneway.engines.postgres.connection import MOST_FORMS, _shared
from laneway.engines.postgres.engine import PostgresEngine
from laneway.engines.postgres.pipeline import Pipeline
from laneway.engines.postgres.statements import single
from laneway.engines.sql.store import Outdated
from laneway.message import Batch, Draft, Lease, Settlement
from laneway.testing.servers import until
from tests.conformance.postgres_setups import server

TYPES = {
    20: "int8",
    25: "text",
    701: "float8",
    17: "bytea",
    1016: "int8[]",
    1009: "text[]",
    1001: "bytea[]",
    1022: "float8[]",
}
STATEMENTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
SMALL = {"shard", "turn", "tier_queue", "setting", "policy", "sweep", "inbox", "layout"}
"""Tables of few rows, which may be read as a whole."""

COMPARES_ALL = ("Hash Join", "Memoize", "Join Filter")
"""
Joins that read more rows than they find: a join filter compares each row of one side, such as all
known ids of a topic, with each of the other.
"""


@pytest.fixture
def engine() -> Iterator[PostgresEngine]:
    opened = PostgresEngine(server().url, Settings(namespace=f"plans-{uuid.uuid4().hex}"))
    opened.policy_set("code", "limited.*", {"rate": 1_000, "concurrency": 100, "group": "g"})
    opened.policy_set("code", "merged.*", {"merge": "first"})
    opened.policy_set("code", "serial.*", {"serial": True})
    yield opened
    opened.close()


def pipeline(engine: PostgresEngine) -> Pipeline:
    connection = engine._store._connection
    assert connection is not None
    return connection.pipeline


def settle(engine: PostgresEngine, leases: list[Lease], action: str = "ack") -> None:
    engine.settle([Settlement(each.handle, each.fence, action) for each in leases])  # type: ignore[arg-type]


def work(engine: PostgresEngine) -> None:
    """Calls that use most statements of the hot path."""
    drafts = [Draft(f"plain.{n % 10}", b"x") for n in range(50)]
    drafts += [Draft("serial.a", b"x", key=f"k{n % 3}") for n in range(6)]
    drafts += [Draft(f"limited.{n}", b"x", id=f"id{n}") for n in range(5)]
    drafts += [Draft("merged.a", b"x", key="k") for _ in range(3)]
    drafts += [Draft("late", b"x", delay_us=1_000), Draft("ttl", b"x", ttl_us=10_000_000)]
    engine.put(drafts)
    engine.put([Draft("one", b"x")])
    engine.put([Draft(f"many.{n}", b"x") for n in range(100)])
    settle(engine, engine.lease(100).leases)
    for action in ("retry", "dead", "release", "ack", "ack", "ack"):
        settle(engine, engine.lease(30).leases, action)
    engine.topic_list(order="backlog")
    engine.tick()


def work_on_one_topic(engine: PostgresEngine) -> None:
    """Calls with many messages that have their topic, times or keys in common."""
    engine.policy_set("code", "fold.*", {"buckets": 2, "max_backlog": 10, "on_full": "drop_oldest"})
    engine.policy_set("code", "keys", {"key_concurrency": 1})
    at_us = engine.time_us() + 10_000_000
    for topic in ("plain", "fold.a", "serial.b", "merged.b", "keys"):
        for due in (None, at_us):
            drafts = [
                Draft(topic, b"x", id=f"{due}{n}", key=f"k{n}", at_us=due, ttl_us=90_000_000)
                for n in range(12)
            ]
            engine.put(drafts)
        settle(engine, engine.lease(8, topics=[topic]).leases, "dead")
        engine.dead_redrive(topic, limit=6)
        engine.topic_purge(topic)


def test_no_plan_of_the_hot_path_reads_a_whole_table(engine: PostgresEngine) -> None:
    """A plan is made once, for tables that are empty then and have a million rows later."""
    work(engine)
    work_on_one_topic(engine)
    wrong = []
    for text, plan in _plans(engine):
        if text == single("lane_tallies").text:
            continue  # tallies are counted once more in a new store
        for line in plan:
            scanned = re.search(r"Seq Scan on (\w+)", line)
            if (scanned and scanned[1] not in SMALL) or any(each in line for each in COMPARES_ALL):
                wrong.append(f"{text}: {line}")
    assert wrong == []


def test_statistics_do_not_change_what_is_read_to_find_the_next_event(
    engine: PostgresEngine,
) -> None:
    """When no topic was idle or asleep, the server expects no rows, so it may plan to read all."""
    engine.put([Draft(f"t.{n}", b"x") for n in range(1_000)])
    engine.tick()
    with engine._store.connect() as connection:
        connection.execute("ANALYZE")
    plans = {text: "\n".join(plan) for text, plan in _plans(engine)}
    for name in ("housekeeping_due", "next_wake"):
        searched = plans[single(name).text].count("Index Only Scan")
        assert plans[single(name).text].count("Limit") == searched


def _plans(engine: PostgresEngine) -> Iterator[tuple[str, list[str]]]:
    """The statements that an engine has prepared, and the lines of their plans."""
    with engine._store.connect() as connection:
        for text, types in list(pipeline(engine)._prepared):
            if text.startswith(STATEMENTS):
                typed = re.sub(r"\$(\d+)(?!\d|::)", partial(_typed, types), text)
                connection.execute(f"PREPARE explained AS {typed}".encode())
                values = f"({', '.join(['NULL'] * len(types))})" if types else ""
                plan = connection.execute(f"EXPLAIN EXECUTE explained{values}".encode()).fetchall()
                connection.execute("DEALLOCATE explained")
                yield text, [line for (line,) in plan]


def _typed(types: tuple[int, ...], parameter: re.Match[str]) -> str:
    name = TYPES.get(types[int(parameter[1]) - 1])
    return f"{parameter[0]}::{name}" if name else parameter[0]


def test_a_statement_is_prepared_in_few_forms(engine: PostgresEngine) -> None:
    """
    The types of its values decide the form, not how large or how many they are: the server keeps
    each form for as long as the connection exists.
    """
    work(engine)
    forms = pipeline(engine)._prepared
    before = {text for text, _ in forms}
    for n in range(20):
        engine.put([Draft(f"plain.{k}", b"%0*d" % (n, k)) for k in range(n + 2)])
        settle(engine, engine.lease(100).leases)
    new = Counter(re.sub(r"\d+", "", text) for text, _ in forms if text not in before)
    assert max(new.values(), default=0) <= 3, new.most_common(1)


@pytest.mark.parametrize("topics", [1, 100, 200])
@pytest.mark.parametrize("is_cold", [False, True])
def test_a_call_waits_for_few_answers(
    engine: PostgresEngine, topics: int, *, is_cold: bool
) -> None:
    """
    Each answer that is waited for costs a round trip to the server. `is_cold`: another process has
    written since the last call, so what this one has cached is outdated.
    """
    drafts = [Draft(f"t.{n % topics}", b"x") for n in range(200)]
    other = PostgresEngine(engine.url, Settings(namespace=engine.namespace))
    trips: list[int] = []

    def change() -> None:
        trips.append(pipeline(engine).trips)
        if is_cold:
            other.put([Draft("other", b"x", delay_us=10**9) for _ in range(2)])

    for _ in range(2):  # the first round prepares
        trips = []
        change()
        engine.put(drafts)
        change()
        leases = engine.lease(200).leases
        change()
        settle(engine, leases)
        change()
    other.close()
    put, lease, settled = (after - before for before, after in pairwise(trips))
    changes_size_class = is_cold and topics == 1  # then its recent count is read
    is_foreseen = topics == 1 and not is_cold  # the lane that has filled the lease before
    assert (put, lease, settled) == (3 if changes_size_class else 2, 2 if is_foreseen else 3, 2)


@pytest.mark.parametrize("topic", ["plain", "serial.a", "keys"])
@pytest.mark.parametrize("key", [None, "k"])
def test_many_messages_are_removed_together(
    engine: PostgresEngine, topic: str, key: str | None
) -> None:
    """The lock of the schema is not held for a round trip for each of them."""
    engine.policy_set("code", "keys", {"key_concurrency": 1})
    drafts = [Draft(topic, b"x", key=key and f"k{n}", id=f"i{n}") for n in range(100)]
    engine.put(drafts)
    settle(engine, engine.lease(100).leases, "dead")
    trips = [pipeline(engine).trips]
    assert engine.dead_redrive(limit=50) == 50
    trips.append(pipeline(engine).trips)
    assert engine.dead_drop(limit=50) == 50
    trips.append(pipeline(engine).trips)
    assert engine.topic_purge(topic) == 50
    trips.append(pipeline(engine).trips)
    engine.put(drafts)
    assert len(engine.lease(100).leases) == 100
    trips.append(pipeline(engine).trips)
    assert engine.topic_delete(topic) == 100
    trips.append(pipeline(engine).trips)
    redriven, dropped, purged, _, deleted = (after - before for before, after in pairwise(trips))
    assert max(redriven, dropped, purged) <= 12
    assert deleted <= 24


def test_the_server_begins_while_the_rest_is_prepared(engine: PostgresEngine) -> None:
    """With statements of many rows, before anything is waited for."""
    sender = pipeline(engine)
    sender.send("SELECT pg_advisory_lock(5)")
    sender.send("SELECT length($1)", (25,), [b"x" * 10_000])
    until(
        lambda: server().execute(
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 5 AND granted"
        ),
        "the lock of a statement that nobody waits for",
    )
    sender.send("SELECT pg_advisory_unlock(5)")
    sender.sync()


def test_nothing_happens_behind_an_error_that_is_read_late(engine: PostgresEngine) -> None:

    def write() -> None:
        with engine._store.writing(durable=False) as connection:
            pipeline(engine).send("SELECT 1 / (length($1) - 10000)", (25,), [b"x" * 10_000])
            connection.run("setting_write", "late", "1")

    with pytest.raises(Outdated):
        write()
    assert engine.setting("late") is None
    engine.put([Draft("t", b"x")])
    assert len(engine.lease(1).leases) == 1


def test_a_message_waits_for_one_answer(engine: PostgresEngine) -> None:
    """A message that is published alone; the answer that it is on disk is the other one."""
    engine.put([Draft("t.1", b"x")])  # prepares
    before = pipeline(engine).trips
    engine.put([Draft("t.1", b"x")])
    assert pipeline(engine).trips - before == 1


def test_a_message_of_a_forgotten_topic_waits_for_few_answers(engine: PostgresEngine) -> None:
    """Nothing of it is cached, and its lane is created by the lease, or by the settlement."""
    other = PostgresEngine(engine.url, Settings(namespace=engine.namespace))
    other.tick()
    trips: list[int] = []
    for n in range(3):
        other.put([Draft(f"t.{n}", b"x")])
        engine._lane_cache.noise_us = 0  # as after a second
        trips = [pipeline(engine).trips]
        leases = engine.lease(10).leases
        trips.append(pipeline(engine).trips)
        settle(engine, leases)
        trips.append(pipeline(engine).trips)
    assert [after - before for before, after in pairwise(trips)] == [4, 2]
    listener = engine.work_listener()
    for n in range(3):
        assert listener.poll(0.0, 16) is False
        time.sleep(0.002)
        other.put([Draft(f"u.{n}", b"x")])
        batch = listener.poll(30.0, 16)
        assert isinstance(batch, Batch)
        before = pipeline(engine).trips
        settle(engine, batch.leases)
        assert n == 0 or pipeline(engine).trips - before == 2
    listener.close()
    other.close()


def test_a_worker_leases_many_messages_per_call(engine: PostgresEngine) -> None:
    """A lease of this engine has a cost of its own, so few large ones are cheaper."""
    engine.put([Draft("t", b"x") for _ in range(2)])
    assert engine.lease(1).prefers_large_leases


def test_what_many_rows_share_is_sent_once(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_forms", {})  # those of other tests would be enough for it
    bodies = {f"t.{n}": b"%d" % n for n in range(100)}
    for priority in (0, 7):  # the same statements with other values
        engine.put([Draft(topic, body, priority=priority) for topic, body in bodies.items()])
        leases = engine.lease(100).leases
        assert {each.topic: each.body for each in leases} == bodies
        assert {each.priority for each in leases} == {priority}
        settle(engine, leases)
    prepared = pipeline(engine)._prepared
    (types,) = {types for text, types in prepared if text.startswith("INSERT INTO message")}
    arrays = [each for each in types if TYPES[each].endswith("[]")]
    assert len(arrays) < len(types) / 3


def test_no_message_adds_statements_without_end() -> None:
    """What differs between the rows is up to those who publish."""
    used = set()
    for number in range(1_000):
        varies = [number >> n & 1 for n in range(10)]
        columns = [range(64) if each else [7] * 64 for each in (*varies, 1)]
        shared = _shared("some statement", columns)
        assert all(columns[n][0] == columns[n][-1] for n in shared)
        used.add(shared)
    assert len(used) <= MOST_FORMS
