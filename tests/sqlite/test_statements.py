"""How many SQL statements a call of 500 messages runs, whatever features they have."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from bench import features
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.engines.sql import statements
from laneway.engines.sql.statements import load
from laneway.engines.sqlite.connection import SQL, repeated
from laneway.message import Draft, Settlement
from laneway.policy import Gate

SHARED = Path(statements.__file__).with_name("sql")

MOST = 37
MOST_OF_ALL_TOGETHER = 48

AFTER_THE_LEASES_US = 3_600_000_000

OF_SQLITE = re.compile(
    r"json_|CROSS JOIN|INSERT OR|INDEXED BY|GLOB|->>|rowid|[xX]'|\b(?:char|ifnull|iif|total)\("
    r"|\b(?:min|max)\([^()]*,|\bNOT (?:\w\.)?(?:gone|held|serial|open)\b|& 1 THEN"
)
"""Text that other databases do not take, or take differently."""


@pytest.mark.parametrize("feature", features.FEATURES, ids=lambda feature: feature.name)
def test_a_call_of_500_messages_runs_few_statements(feature: features.Feature) -> None:
    most = MOST_OF_ALL_TOGETHER if feature is features.ALL else MOST
    assert max(features.statements(feature)) <= most


def test_statements_for_many_rows_search_by_keys() -> None:
    """A call's cost must not grow with the table, e.g. with all messages that have a ttl."""
    of_other_files = {name for name in SQL if name.startswith("delivery_log_")}
    names = [name for name, text in SQL.items() if "VALUES (" in text]
    scans = []
    with closing(open_engine("sqlite://", Settings(durability="memory"))) as engine:
        connection = engine._store.connection  # type: ignore[attr-defined]
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        for name in sorted(set(names) - of_other_files):
            text = repeated(name, 4)
            numbers = [int(number) for number in re.findall(r"\?(\d+)", text)]
            bound = [0] * max(numbers, default=text.count("?"))
            for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {text}", bound):
                scanned = re.match(r"SCAN (\w+)", step)
                if scanned is not None and scanned[1] in tables:
                    scans.append((name, step))
    assert len(names) > 20
    assert scans == []


def test_a_lease_after_many_small_acked_leases_runs_few_statements() -> None:
    now = 1_700_000_000_000_000
    with closing(open_engine("sqlite://", Settings(durability="memory"))) as engine:
        for _ in range(100):
            engine.put([Draft("t.1", b"x")], now_us=now)
            leases = engine.lease(1, now_us=now).leases
            engine.settle([Settlement(each.handle, each.fence) for each in leases], now_us=now)
            now += 1_000
        engine.put([Draft("t.1", b"x")], now_us=now)
        texts: list[str] = []
        engine._store.connection.set_trace_callback(texts.append)  # type: ignore[attr-defined]
        assert len(engine.lease(10, now_us=now + AFTER_THE_LEASES_US).leases) == 1
    assert len(texts) <= MOST


PAGES = {
    "lanes_runnable": (1, 0),
    "lanes_runnable_read": (1, 0),
    "lanes_at_gate": ("api", 1, 0),
    "groups_runnable": (1, 0),
    "group_gates_open": (1, 0),
}
"""Statements that read a page of an order, and what they are bound to before the position."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_costs_the_same_wherever_it_begins(name: str) -> None:
    """Many topics have the same virtual time: those that come together."""
    with closing(open_engine("sqlite://", Settings(durability="memory"))) as engine:
        connection = engine._store.connection  # type: ignore[attr-defined]
        engine.gate_set("api", Gate(1_000.0))
        engine.policy_set("code", "at.*", {"gate": "api"})
        for number in range(500):
            group = {"group": f"g{number}"}
            engine.policy_set("code", f"of.{number}.*", group)
            engine.gate_set(f"gate{number}", Gate(1_000.0))
            engine.policy_set("code", f"of.{number}.at", group | {"gate": f"gate{number}"})
        engine.put(
            [
                Draft(topic, b"x")
                for n in range(500)
                for topic in (f"plain.{n}", f"at.{n}", f"of.{n}.one", f"of.{n}.at")
            ]
        )

        def steps(number: int) -> int:
            counted: list[None] = []
            connection.set_progress_handler(lambda: counted.append(None), 1)
            rows = connection.execute(SQL[name], (*PAGES[name], number, 4)).fetchall()
            connection.set_progress_handler(None, 0)
            assert len(rows) == 4
            return len(counted)

        numbers = [row[0] for row in connection.execute(SQL[name], (*PAGES[name], 0, 1_000))]
        assert len(numbers) >= 400
        assert steps(numbers[-5]) <= 2 * steps(0)


@pytest.mark.parametrize("path", sorted(SHARED.glob("*.sql")), ids=lambda path: path.name)
def test_shared_statements_are_no_text_of_sqlite(path: Path) -> None:
    """What no word of `engines.sql.statements` expresses is in the database's own folder."""
    text = re.sub(r"--.*", "", path.read_text())
    assert OF_SQLITE.findall(text) == []


def test_a_statement_of_a_database_replaces_the_shared_one(tmp_path: Path) -> None:
    (tmp_path / "own.sql").write_text("-- name: lanes_by_name\nSELECT {lane}, {array ?1} {join};\n")
    words = dict.fromkeys(("join", "least", "greatest", "char", "row"), "x") | {"array": "list({})"}
    own, shared = load(tmp_path, words), load(tmp_path / "none", words)
    assert own.keys() == shared.keys()
    assert [name for name in own if own[name] != shared[name]] == ["lanes_by_name"]
    assert own["lanes_by_name"].endswith(", list(?1) x")
    assert "{" not in "".join(own.values())
