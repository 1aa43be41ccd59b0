"""
Round trips of calls over many topics, by rule: none makes one for each topic or message.

Each answer that is waited for costs a round trip to the server, and the schema's lock is held
meanwhile.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest

from laneway.engines.base import RESULT_TTL_HEADER, Settings
from laneway.engines.postgres.engine import PostgresEngine
from laneway.engines.sql.touched_rows import MessageTable
from laneway.headers import COST
from laneway.message import Draft, Settlement
from laneway.policy import Gate
from tests.conformance.postgres_setups import server

TOPICS = 100

SPARE = 2
"""Round trips that depend on the time, such as those for what is read again after a second."""

_NONE: dict[str, Any] = {}
_ACK: dict[str, Any] = {"action": "ack"}


class Rule(NamedTuple):
    """
    A rule of all topics, and the maximum round trips of a put, a lease and a settlement under it,
    once the statements are prepared.
    """

    trips: tuple[int, int, int]
    policy: dict[str, Any] = _NONE
    draft: Callable[[int], dict[str, Any]] = lambda _: {}
    lease: dict[str, Any] = _NONE
    settlement: dict[str, Any] = _ACK
    owns: dict[str, str] = _NONE
    """Fields of each topic's own policy: templates of its number."""


def _key(n: int) -> dict[str, Any]:
    return {"key": f"k{n}"}


def _cost(n: int) -> dict[str, Any]:
    return {"headers": {COST: str(1 + n % 3)}, **_key(n)}


def _priority(n: int) -> dict[str, Any]:
    return {"priority": n % 5, **_key(n)}


_RATE = {"rate": 100_000, "burst": 10_000}
_KEYS = {"key_concurrency": 2}
_RANKS = {"priorities": (0, 9)}
_NAMES = {"topics": [f"t.{n}" for n in range(TOPICS)]}

RULES = {
    "none": Rule((2, 3, 2)),
    "serial keys": Rule((3, 3, 2), {"serial": True}, _key),
    "limits per key": Rule((2, 3, 3), _KEYS, _key),
    "a rate per key": Rule((2, 3, 3), {"key_rate": 1_000}, _key),
    "keys at their limits": Rule((3, 8, 7), {"key_concurrency": 1}, lambda _: {"key": "k"}),
    "limits per key and a merge": Rule((3, 6, 3), _KEYS | {"merge": "all"}, _key),
    "limits per key in buckets": Rule((3, 8, 3), _KEYS | {"buckets": 16}, _key),
    "limits per key at a gate": Rule((3, 5, 4), _KEYS | {"gate": "gate0"}, _key),
    "limits per key in a group": Rule((4, 16, 5), _KEYS | {"group": "g"}, _key),
    "merge": Rule((3, 5, 2), {"merge": "all"}, _key),
    "costs": Rule((2, 4, 2), _RATE, _cost),
    "costs at a gate": Rule((3, 5, 3), {"gate": "rated"}, _cost),
    "costs and limits per key": Rule((2, 4, 3), _RATE | _KEYS, _cost),
    "a gate for each topic": Rule((3, 5, 3), owns={"gate": "gate{}"}),
    "two gates": Rule((3, 5, 3), {"gate": ["gate0", "gate1"]}),
    "a group for each topic": Rule((3, 8, 4), owns={"group": "g{}"}),
    "partitions": Rule((3, 7, 2), {"partitions": 4}, _key),
    "buckets": Rule((3, 5, 2), {"buckets": 16}),
    "own ids": Rule((3, 3, 2), draft=lambda _: {"id": uuid.uuid4().hex}),
    "one priority": Rule((2, 5, 2), draft=_priority, lease=_RANKS),
    "one priority and limits per key": Rule((2, 6, 3), _KEYS, _priority, _RANKS),
    "named topics": Rule((2, 5, 2), lease=_NAMES),
    "named topics with partitions": Rule((3, 7, 2), {"partitions": 4}, _key, _NAMES),
    "named topics with limits per key": Rule((2, 6, 3), _KEYS, _key, _NAMES),
    "named topics in buckets": Rule((3, 9, 2), {"buckets": 16}, lease=_NAMES),
    "a full gate for each topic": Rule((3, 8, 4), owns={"gate": "full{}"}),
    "a full gate and a limit per key": Rule((3, 8, 5), _KEYS, _key, owns={"gate": "full{}"}),
    "partitions with a limit": Rule((4, 8, 4), {"partitions": 4, "concurrency": 2}, _key),
    "a retry": Rule((2, 5, 6), settlement={"action": "retry", "delay_us": 0}),
    "a death": Rule((2, 3, 7), settlement={"action": "dead"}),
}


@pytest.mark.parametrize("messages", [100, 500])
@pytest.mark.parametrize("is_cold", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_no_rule_makes_a_round_trip_for_each_topic(
    name: str, messages: int, *, is_cold: bool
) -> None:
    """`is_cold`: another process has written, so what this one has cached is outdated."""
    rule = RULES[name]
    with _engines() as (engine, other):
        engine.gate_set("rated", Gate(rate=100_000, burst=10_000))
        for n in range(TOPICS):
            engine.gate_set(f"gate{n}", Gate(concurrency=1_000))
            engine.gate_set(f"full{n}", Gate(concurrency=messages // TOPICS))
            own = {field: template.format(n) for field, template in rule.owns.items()}
            if own:
                engine.policy_set("code", f"t.{n}", own)
        engine.policy_set("code", "t.*", rule.policy)
        trips: dict[str, int] = {}

        def count(call: str, run: Callable[[], Any]) -> Any:
            if is_cold:
                other.put([Draft("other", b"x", delay_us=10**9) for _ in range(2)])
            connection = engine._store._connection
            assert connection is not None
            before = connection.pipeline.trips
            answer = run()
            trips[call] = connection.pipeline.trips - before
            return answer

        for _ in range(2):  # the first round prepares
            drafts = [Draft(f"t.{n % TOPICS}", b"x", **rule.draft(n)) for n in range(messages)]
            count("put", partial(engine.put, drafts))
            leases = count("lease", partial(engine.lease, messages, **rule.lease)).leases
            assert len(leases) >= TOPICS
            settlements = [
                Settlement(each.handle, each.fence, **rule.settlement) for each in leases
            ]
            count("settle", partial(engine.settle, settlements))
    for (call, waited), most in zip(trips.items(), rule.trips, strict=True):
        assert waited <= most + SPARE, f"{call}: {waited} round trips"


FULL: dict[str, tuple[dict[str, Any], Callable[[int], dict[str, Any]]]] = {
    "plain": ({}, lambda _: {}),
    "bytes": ({"max_backlog": "10B"}, lambda _: {}),
    "priorities": ({}, _priority),
    "delays": ({}, lambda n: {"delay_us": n}),
    "serial keys": ({"serial": True}, _key),
    "one serial key a topic": ({"serial": True}, lambda _: {"key": "k"}),
    "priorities of serial keys": ({"serial": True}, lambda n: _priority(n) | {"key": f"k{n % 7}"}),
    "limits per key": (_KEYS, _key),
    "merge": ({"merge": "last"}, _key),
    "partitions": ({"partitions": 4}, _key),
    "buckets": ({"buckets": 16}, lambda _: {}),
    "a gate": ({"gate": "gate0"}, lambda _: {}),
    "results": ({}, lambda _: {"headers": {RESULT_TTL_HEADER: "60"}}),
}


@pytest.mark.parametrize("name", FULL)
def test_messages_that_are_dropped_make_no_round_trip_each(name: str) -> None:
    """Each of 500 messages for 100 full topics drops one."""
    policy, options = FULL[name]
    with _engines() as (engine, _):
        engine.gate_set("gate0", Gate(concurrency=1_000))
        engine.policy_set("code", "t.*", {"max_backlog": 10, "on_full": "drop_oldest"} | policy)
        connection = engine._store._connection
        assert connection is not None
        before = 0
        for first in range(0, 2_500, 500):
            before = connection.pipeline.trips
            engine.put(
                [Draft(f"t.{n % TOPICS}", b"x", **options(n)) for n in range(first, first + 500)]
            )
        assert engine.overview().dead == 1_500
        assert connection.pipeline.trips - before <= 16


@pytest.mark.parametrize("drafts", [[Draft("t", b"x", id=f"i{n}") for n in range(50)], None])
def test_what_is_not_dropped_is_not_read(drafts: list[Draft] | None) -> None:
    """Duplicates drop nothing, and of large bodies few are read together."""
    with _engines() as (engine, _):
        engine.policy_set("code", "t", {"max_backlog": 1_000, "on_full": "drop_oldest"})
        engine.put([Draft("t", b"x" * 500_000, id=f"i{n}") for n in range(50)])
        engine.put([Draft("t", b"x") for _ in range(950)])
        loaded: list[int] = []
        load = MessageTable.load

        def watched(table: MessageTable, mids: Iterable[int]) -> None:
            loaded.append(len(mids := list(mids)))
            load(table, mids)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MessageTable, "load", watched)
            receipts = engine.put(drafts or [Draft("t", b"x") for _ in range(50)])
        assert max(loaded, default=0) <= (0 if drafts else 33)
        assert {each.outcome for each in receipts} == {"duplicate" if drafts else "accepted"}


def test_lists_of_messages_make_no_round_trip_for_each() -> None:
    """Merged messages with a history, dead and waiting."""
    with _engines() as (engine, _):
        engine.policy_set("code", "t", {"merge": "all", "history": True})

        def trips(run: Callable[[], Any]) -> int:
            connection = engine._store._connection
            assert connection is not None
            before = connection.pipeline.trips
            assert len(run()) == 200
            return connection.pipeline.trips - before

        def put() -> None:
            engine.put([Draft("t", b"x", key=f"k{n}") for n in range(200) for _ in range(2)])

        put()
        leases = engine.lease(500).leases
        engine.settle([Settlement(each.handle, each.fence, "dead") for each in leases])
        put()
        for run in (
            partial(engine.dead_list, limit=200),
            partial(engine.topic_peek, "t", limit=200),
        ):
            run()  # prepares
            assert trips(run) <= 16


@contextmanager
def _engines() -> Iterator[tuple[PostgresEngine, PostgresEngine]]:
    """An engine, and another process's on the same namespace."""
    settings = Settings(namespace=f"trips-{uuid.uuid4().hex}")
    engine = PostgresEngine(server().url, settings)
    other = PostgresEngine(server().url, settings)
    try:
        yield engine, other
    finally:
        other.close()
        engine.close()
