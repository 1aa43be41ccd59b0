"""The cost of top lists: no engine reads all topics, or calls the store once for each."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from laneway.engines import open_engine
from laneway.engines.base import Settings, TopicOrder
from laneway.engines.shared import listing
from laneway.engines.shared.recent import KINDS
from laneway.engines.sql import listing as sqlite_listing
from laneway.engines.sqlite.connection import SQL
from laneway.engines.valkey import listing as valkey_listing
from laneway.engines.valkey.connection import Connections
from laneway.message import Draft
from tests.conformance.valkey_setups import server

ALLOWED = ("SCAN first", "SCAN found", "SCAN CONSTANT ROW", "SCAN (subquery", "VIRTUAL TABLE")
"""Scans that are harmless: of rows that were limited before, and of lists in arguments."""

STATS = ("lane_fronts", "dead_counts", "lanes_by_name", "folded_counts")


@pytest.fixture(scope="module", params=["as it is", "analyzed"])
def file(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sqlite3.Connection]:
    """A store with 1,200 topics; query plans must not depend on statistics."""
    path = tmp_path_factory.mktemp("top") / "q.db"
    engine = open_engine(f"sqlite:///{path}", Settings(durability="memory"))
    engine.put([Draft(f"t.{n % 1200}", b"x") for n in range(2400)])
    engine.close()
    connection = sqlite3.connect(path)
    if request.param == "analyzed":
        connection.execute("ANALYZE")
    yield connection
    connection.close()


def statements() -> dict[str, str]:
    of_lists = [
        f"{order}_{kind}"
        for order in sqlite_listing.ORDERS
        for kind in ("listed", "named", "folded")
        if kind != "folded" or order in sqlite_listing.FOLDED
    ]
    return {name: SQL[name] for name in (*STATS, *of_lists)}


@pytest.mark.parametrize("name", statements())
def test_statements_of_top_lists_neither_scan_nor_sort(file: sqlite3.Connection, name: str) -> None:
    values = ("[]",) if name in STATS else (10, 10, "a", "b", "c")
    text = statements()[name]
    plan = [
        row[3]
        for row in file.execute(f"EXPLAIN QUERY PLAN {text}", values[: sqlite3_parameters(text)])
    ]
    assert plan
    for step in plan:
        assert not step.startswith("SCAN") or any(each in step for each in ALLOWED), plan
        assert "TEMP B-TREE FOR ORDER BY" not in step, plan


def sqlite3_parameters(text: str) -> int:
    numbered = [n for n in range(1, 6) if f"?{n}" in text]
    return max(numbered, default=text.count("?"))


def test_every_engine_has_every_order() -> None:
    of_lanes = set(sqlite_listing.ORDERS)
    assert of_lanes == set(valkey_listing.ORDERS)
    assert of_lanes | set(KINDS) | {"dead"} == set(listing.MEASURES)
    assert listing.ORDERS[1:] == tuple(listing.MEASURES)


@pytest.mark.parametrize("order", listing.MEASURES)
def test_round_trips_to_valkey_do_not_grow_with_the_number_of_topics(order: TopicOrder) -> None:
    """
    Each list takes the same few round trips with 1,200 and with 2,400 topics, also if the topics
    have policies of their own.
    """
    counted = []
    engine = open_engine(server().url, Settings(namespace=f"top-{uuid.uuid4().hex}"))
    engine.policy_set_many("code", [(f"t.{n}", {"weight": 1 + n % 7}) for n in range(1200)])
    for first in (0, 1200):
        engine.put(
            [
                Draft(f"t.{n}", b"x")
                for n in range(first, first + 1200)
                for _ in range(1 + n // 2390)
            ]
        )
        with (
            mock.patch.object(
                Connections, "read", autospec=True, side_effect=Connections.read
            ) as read,
            mock.patch.object(
                Connections, "call", autospec=True, side_effect=Connections.call
            ) as call,
        ):
            engine.topic_list(order=order, limit=20)
        counted.append(read.call_count + call.call_count)
    engine.close()
    assert counted[0] == counted[1] <= 14


@pytest.mark.parametrize("order", listing.MEASURES)
def test_statements_in_a_file_do_not_grow_with_the_number_of_topics(
    order: TopicOrder, tmp_path: Path
) -> None:
    """Each list takes the same few statements with 1,200 and with 2,400 topics."""
    counted = []
    engine = open_engine(f"sqlite:///{tmp_path}/q.db", Settings(durability="memory"))
    engine.policy_set_many("code", [(f"t.{n}", {"weight": 1 + n % 7}) for n in range(1200)])
    for first in (0, 1200):
        engine.put(
            [
                Draft(f"t.{n}", b"x")
                for n in range(first, first + 1200)
                for _ in range(1 + n // 2390)
            ]
        )
        statements: list[str] = []
        engine._store.connection.set_trace_callback(statements.append)  # type: ignore[attr-defined]
        engine.topic_list(order=order, limit=20)
        engine._store.connection.set_trace_callback(None)  # type: ignore[attr-defined]
        counted.append(len(statements))
    engine.close()
    assert max(counted) <= 20
