"""
The shared statements in PostgreSQL's text: numbered parameters, and arrays for many rows.

A statement with VALUES, or an UPDATE or DELETE by key, runs for many rows at once with one array
for each parameter, so its text is the same for any number of rows. What all of very many rows have
in common is one value.

An UPDATE leaves a dead version of its row behind, and PostgreSQL removes none of them while a
transaction is open that began before. A row that changes often has an *epoch* for this reason: the
last part of its key, which begins with the turn divided by 16 and grows with each 16th change. The
newest version has the greatest epoch, so a statement that begins there passes at most 16 dead ones,
however many there are.

A row that comes and goes, such as that of a serial key, always has the turn divided by 16 as its
epoch. If it were deleted when it goes, finding nothing would read all of its dead versions. It
stays as a *free* row instead, which readers do not see. It is deleted after `FREE_TURNS` without a
change, or with its lane.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec

from laneway.engines.postgres.listing_statements import STATEMENTS
from laneway.engines.sql.rows import ROW_COLUMNS, Held
from laneway.engines.sql.statements import load, schema, tables_of

LAYOUT = 8
"""The layout of the tables; 2 is that of 0.1.0, the first version whose tables are kept."""

LISTEN_CLASS = 0x4C_41_4E_4C
"""
The first half of the numbers of advisory locks of connections that listen: "LANL". The second half
is the end of the name of its channel.
"""

EPOCHS = {
    "lane": "lane",
    "tier_queue": "tier_queue",
    "shard": "one",
    "group_queue": "number",
    "gate": "name",
    "recent": "kind, topic",
    "dead_count": "topic",
    "kept": "id, slot, topic",
    "policy": "layer, pattern",
    "own_policy": "topic",
    "workers": "id",
    "elections": "name",
    "history": "name",
    "forwarded": "spool",
}
"""Tables whose rows have epochs, and their keys without these."""

KEYED = {
    "serial_key": "lane, key",
    "merge_key": "lane, mkey",
    "key_state": "lane, key",
    "gate_entry": "gate, tier_queue",
}
"""The same of tables whose rows come and go."""

_FREE = {
    "serial_key": ("head = 0, held = 0", "head <> 0"),
    "merge_key": ("mid = 0", "mid <> 0"),
    "key_state": ("leased = -1, parked = 0, tat = 0, wake = NULL", "leased <> -1"),
    "gate_entry": ("head = 0, open = 0", "head <> 0"),
}
"""By table: what makes a row free, and how readers tell that it is not."""

WRITES_OF_EPOCH = 16

FREE_TURNS = 1024
"""A free row is deleted after this number of turns without a change."""

SWEEP_TURNS, SWEEP_PAGES = 16, 256
"""Every 16th turn deletes old free rows from 256 pages of each table."""


def _page(table: str, end: int) -> str:
    """
    The first page, or the `end`, of those that the sweep of the turn `?1` reads: a run anywhere in
    the table that a multiplicative hash of the turn chooses (Knuth, vol. 3, 6.4).
    """
    pages = f"pg_relation_size('{table}') / 8192 + {SWEEP_PAGES}"
    start = f"?1 / {SWEEP_TURNS} % 4294967296 * 1640531527 % ({pages}) - {SWEEP_PAGES}"
    return f"SELECT ('(' || greatest(0, {start} + {end}) || ',0)')::tid"


SQL = (
    load(
        Path(__file__).with_name("sql"),
        {
            "array": "(SELECT u.value, u.key - 1 AS key FROM"
            " unnest({}) WITH ORDINALITY AS u (value, key))",
            "join": "JOIN",
            "least": "least",
            "greatest": "greatest",
            "char": "chr",
            "row": "ctid",
            "layout": str(LAYOUT),
            "listening": str(LISTEN_CLASS),
        },
    )
    | STATEMENTS
    | {
        f"{table}_sweep": f"DELETE FROM {table} WHERE NOT {_FREE[table][1]}"
        f" AND epoch < (?1 - {FREE_TURNS}) / {WRITES_OF_EPOCH}"
        f" AND ctid >= ({_page(table, 0)}) AND ctid < ({_page(table, SWEEP_PAGES)})"
        for table in KEYED
    }
    | {
        # A table that was never used is not searched for each lane.
        f"{table}s_of_lanes": f"DELETE FROM {table} WHERE lane = ANY(?1)"
        f" AND (SELECT pg_relation_size('{table}')) > 0"
        for table, key in KEYED.items()
        if key.startswith("lane,")
    }
    | {
        f"{table}_add": f"INSERT INTO {table} ({', '.join(columns)}) VALUES"
        f" ({', '.join('?' for _ in columns)})"
        for table, columns in (("message", ROW_COLUMNS), ("lease", Held.__struct_fields__))
    }
)
"""Every statement by name. `…_add`: with all columns of a table."""

INT8, TEXT, BYTEA, FLOAT8 = 20, 25, 17, 701
"""OIDs of types."""

_NAMES = {INT8: "int8", TEXT: "text", BYTEA: "bytea", FLOAT8: "float8"}
_PARAMETER = re.compile(r"nullif\(\?(\d*), 0\)|\?(\d*)")
_EQUAL = r"(?:\w\.)?\w+ = (?:\?\d*|1)(?: AND (?:\w\.)?\w+ = \?\d*)*"
_READ = re.compile(
    rf"SELECT .*? FROM (?P<table>\w+)(?: \w)?\s+WHERE (?P<condition>{_EQUAL})", re.DOTALL
)
_ONE_ROW = re.compile(r"FROM \(VALUES (\([^()]*\))\)(?! v)")


class Statement(msgspec.Struct, frozen=True):
    """
    A text for PostgreSQL. `nullable`: the parameters for which 0 stands for NULL, from 0.
    """

    text: str
    nullable: frozenset[int]


@cache
def single(name: str) -> Statement:
    """The statement for one row. `name@table`: with another table of those who wait."""
    nullable: set[int] = set()
    last = 0

    def numbered(found: re.Match[str]) -> str:
        nonlocal last
        own = found[1] if found[1] is not None else found[2]
        last = int(own) if own else last + 1
        if found[1] is not None:
            nullable.add(last - 1)
        return f"${last}"

    name, _, sleepers = name.partition("@")
    text = _of_epoch(_without_comments(SQL[name]))
    if sleepers:
        text = text.replace("sleeper", sleepers)
    return Statement(_PARAMETER.sub(numbered, _named_subquery(text)), frozenset(nullable))


@cache
def bulk(name: str, types: tuple[int, ...], shared: frozenset[int]) -> Statement:
    """
    The statement for many rows. `types`: the OIDs of its parameters. `shared`: those that have one
    value for all rows, from 0; the others are arrays.
    """
    text = _without_comments(SQL[name])
    for shape, write in _SHAPES:
        found = shape.fullmatch(text)
        if found is not None:
            each = [(n, f"${n}::{_NAMES[oid]}") for n, oid in enumerate(types, 1)]
            values = "".join(f", {value} AS column{n}" for n, value in each if n - 1 in shared)
            arrays = ", ".join(f"{value}[]" for n, value in each if n - 1 not in shared)
            columns = ", ".join(f"column{n}" for n, _ in each if n - 1 not in shared)
            # OFFSET: else a planner sees that a value is shared, reads all rows with it, and
            # compares each of them with each of `v`.
            rows = f"(SELECT u.*{values} FROM unnest({arrays}) AS u ({columns}) OFFSET 0) AS v"
            nullable: set[int] = set()
            return Statement(write(found, rows, nullable), frozenset(nullable))
    raise AssertionError(f"statement {name} does not run for many rows: {text}")


def exactly(text: str, number: int) -> str:
    """
    A statement that fails with a division by zero if it changes another number of rows than its
    parameter with this number, so that nobody has to wait for its result.
    """
    return (
        f"WITH changed AS ({text} RETURNING 1) SELECT 1 / (count(*) = ${number})::int FROM changed"
    )


def _without_comments(text: str) -> str:
    return re.sub(r"--.*", "", text).strip()


def _of_epoch(text: str) -> str:
    """A statement that reads or changes one row of a table with epochs, by its whole key."""
    read = _READ.fullmatch(text)
    if read is not None and _is_key(read["table"], read["condition"]):
        return f"{text} ORDER BY epoch DESC LIMIT 1"
    changed = re.fullmatch(
        rf"UPDATE (?P<table>\w+)\s+SET (?P<values>.*?)\s+WHERE\s+(?P<condition>{_EQUAL})",
        text,
        re.DOTALL,
    )
    if changed is None or changed["table"] not in EPOCHS:
        return text
    table = changed["table"]
    return (
        f"UPDATE {table} SET {changed['values']}, {_next_epoch(table)}"
        f" WHERE ctid = ({_newest(table, changed['condition'])})"
    )


def _is_key(table: str, condition: str) -> bool:
    """Whether a condition names one row of a table with epochs."""
    compared = set(re.findall(r"(\w+) =", condition))
    return table in EPOCHS and compared == set(EPOCHS[table].split(", "))


def _named_subquery(text: str) -> str:
    """PostgreSQL before 16 wants a name for each subquery."""
    return _ONE_ROW.sub(r"FROM (VALUES \1) AS v", text)


def _by_column(text: str, nullable: set[int], first: int = 0) -> str:
    """The text with columns of `v` for its parameters."""
    last = first

    def column(found: re.Match[str]) -> str:
        nonlocal last
        last += 1
        if found[1] is not None:
            nullable.add(last - 1)
        return f"v.column{last}"

    return _PARAMETER.sub(column, text)


def _insert(found: re.Match[str], rows: str, nullable: set[int]) -> str:
    values = _by_column(found["row"], nullable)
    upsert = _UPSERT.fullmatch(f"{found['head']} {found['rest']}")
    if upsert is not None and upsert["table"] in EPOCHS | KEYED:
        return _upsert(upsert, values, rows)
    return (  # a table with epochs has no unique key, so nothing is in conflict with anything
        f"{found['head']} SELECT {values} FROM {rows} "
        f"{'' if found['head'].split()[2] in EPOCHS else found['rest']}"
    )


def _read(found: re.Match[str], rows: str, nullable: set[int]) -> str:
    _by_column(found["row"], nullable)
    rest = _JOIN.sub(_join_newest, found["rest"])
    return f"{found['head']} FROM {rows} {rest}"


def _join_newest(found: re.Match[str]) -> str:
    """A join with the newest version of each row, without free ones."""
    table, name = found["table"], found["name"]
    if table not in KEYED:
        return found[0]
    condition = found["condition"].replace(f"{name}.", "n.")
    return (
        f"JOIN LATERAL (SELECT * FROM {table} n WHERE {condition} ORDER BY n.epoch DESC LIMIT 1)"
        f" {name} ON {name}.{_FREE[table][1]}"
    )


def _delete_rows(found: re.Match[str], rows: str, _nullable: set[int]) -> str:
    table = found["table"]
    columns = [each.strip() for each in found["key"].strip("()").split(",")]
    keys = " AND ".join(f"{table}.{key} = v.column{n}" for n, key in enumerate(columns, 1))
    if table in KEYED:
        return (
            f"UPDATE {table} SET {_FREE[table][0]}, {_next_epoch(table)} FROM {rows}"
            f" CROSS JOIN LATERAL ({_newest(table, keys)}) newest WHERE {table}.ctid = newest.ctid"
        )
    return f"DELETE FROM {table} USING {rows} WHERE {keys}"


def _delete(found: re.Match[str], rows: str, nullable: set[int]) -> str:
    table, condition = found["table"], _by_column(found["condition"], nullable)
    if table in EPOCHS:
        return (
            f"DELETE FROM {table} USING {rows} CROSS JOIN LATERAL ({_newest(table, condition)})"
            f" newest WHERE {table}.ctid = newest.ctid"
        )
    return f"DELETE FROM {table} USING {rows} WHERE {condition}"


def _update(found: re.Match[str], rows: str, nullable: set[int]) -> str:
    changed = _by_column(found["changed"], nullable)
    parameters = len(_PARAMETER.findall(found["changed"]))
    condition = _by_column(found["condition"], nullable, parameters)
    table = found["table"]
    if table in EPOCHS | KEYED:
        return (
            f"UPDATE {table} SET {changed}, {_next_epoch(table)} FROM {rows} CROSS JOIN LATERAL"
            f" ({_newest(table, condition)}) newest WHERE {table}.ctid = newest.ctid"
        )
    return f"UPDATE {table} SET {changed} FROM {rows} WHERE {condition}"


_UPSERT = re.compile(
    r"INSERT INTO (?P<table>\w+) \((?P<columns>[\w, \n]+)\)\s+ON CONFLICT \((?P<key>[\w, ]+)\)"
    r"\s+DO UPDATE SET (?P<changed>.*)",
    re.DOTALL,
)


def _upsert(found: re.Match[str], values: str, rows: str) -> str:
    """Change the newest versions of rows, and insert those that are missing."""
    table, columns = found["table"], re.sub(r"\s+", " ", found["columns"])
    keys = " AND ".join(f"{table}.{key} = new.{key}" for key in found["key"].split(", "))
    changed = found["changed"].replace("excluded.", "old.")
    epoch, first = (", epoch", f", {_EPOCH_OF_TURN}") if table in KEYED else ("", "")
    return (
        f"WITH old AS (SELECT new.*, newest.ctid AS at FROM"
        f" (SELECT {values} FROM {rows}) AS new ({columns})"
        f" LEFT JOIN LATERAL ({_newest(table, keys)}) newest ON true),"
        f" changed AS (UPDATE {table} SET {changed}, {_next_epoch(table)} FROM old"
        f" WHERE {table}.ctid = old.at)"
        f" INSERT INTO {table} ({columns}{epoch}) SELECT {columns}{first} FROM old"
        " WHERE at IS NULL"
    )


@cache
def is_upsert(name: str) -> bool:
    """Whether the statement changes rows with epochs, or inserts them: also one as many."""
    found = re.match(r"INSERT INTO (\w+) .*DO UPDATE", _without_comments(SQL[name]), re.DOTALL)
    return found is not None and found[1] in EPOCHS | KEYED


_EPOCH_OF_TURN = f"(SELECT last_value FROM turn) / {WRITES_OF_EPOCH}"


def _next_epoch(table: str) -> str:
    if table in KEYED:
        return f"epoch = {_EPOCH_OF_TURN}"
    return (
        f"writes = {table}.writes + 1,"
        f" epoch = {table}.epoch + ({table}.writes % {WRITES_OF_EPOCH} / {WRITES_OF_EPOCH - 1})"
    )


def _newest(table: str, condition: str) -> str:
    """The query of the one row of this key, which begins with the newest version."""
    return f"SELECT ctid FROM {table} WHERE {condition} ORDER BY epoch DESC LIMIT 1"


_JOIN = re.compile(r"JOIN (?P<table>\w+) (?P<name>\w+) ON (?P<condition>.*)", re.DOTALL)
_BY_KEYS = (
    r"DELETE FROM (?P<table>\w+)\s+WHERE (?P<key>\(?[\w, ]+\)?)\s+IN"
    r" \((?:SELECT \* FROM \()?VALUES \([?, ]*\)\)+"
)
_SHAPES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str, set[int]], str]], ...] = tuple(
    (re.compile(shape, re.DOTALL), write)
    for shape, write in (
        (
            r"(?P<head>INSERT INTO .*?)\s+VALUES \((?P<row>(?:[^()]|\([^()]*\))*)\)(?P<rest>.*)",
            _insert,
        ),
        (r"(?P<head>.*?) FROM \(VALUES (?P<row>\([?, ]*\))\) v(?P<rest>.*)", _read),
        (_BY_KEYS, _delete_rows),
        (r"DELETE FROM (?P<table>\w+)\s+WHERE (?P<condition>.*)", _delete),
        (
            r"UPDATE (?P<table>\w+)\s+SET (?P<changed>.*?)\s+WHERE\s+(?P<condition>.*)",
            _update,
        ),
    )
)


@cache
def touched(name: str) -> tuple[tuple[str, bool], ...]:
    """See `engines.sql.store.Connection.touched`."""
    return tables_of(SQL[name])


@cache
def tables() -> str:
    """The text that creates all tables in the current schema."""
    text = schema(
        {
            "numbered": "INTEGER GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
            "numbered once": "INTEGER GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
            "code tier": "(layers::jsonb #>> '{code,tier}')",
            "operator tier": "(layers::jsonb #>> '{operator,tier}')",
        }
    )
    text = re.sub(r"--.*", "", text)
    for ours, theirs in _TYPES.items():
        text = re.sub(rf"\b{ours}\b", theirs, text)
    return text.replace(" WITHOUT ROWID", "") + _OWN_TABLES


_TYPES = {
    "INTEGER": "int8",
    "TEXT": 'text COLLATE "C"',  # names are compared by bytes
    "BLOB": "bytea",
    "REAL": "float8",
}
_OWN_TABLES = """
CREATE SEQUENCE turn;
SELECT nextval('turn');
CREATE TABLE delivery_log (number int8 PRIMARY KEY, topic text COLLATE "C" NOT NULL,
    at_us int8 NOT NULL, data bytea NOT NULL);
CREATE INDEX delivery_log_topic ON delivery_log (topic, number);
CREATE UNLOGGED TABLE sleeper (channel text NOT NULL, kind text NOT NULL, pool text NOT NULL,
    beat timestamptz NOT NULL, PRIMARY KEY (channel, kind, pool));
CREATE INDEX sleeper_pool ON sleeper (pool);
CREATE TABLE layout (version int8 NOT NULL, full_us int8 NOT NULL DEFAULT 0);
ALTER TABLE layout REPLICA IDENTITY FULL;
CREATE UNLOGGED TABLE reserve (fill name) WITH (fillfactor = 10, autovacuum_enabled = off);
ALTER TABLE shard SET (fillfactor = 10);
ALTER TABLE lane SET (fillfactor = 50);
ALTER TABLE lane DROP CONSTRAINT lane_name_key;
ALTER TABLE group_queue DROP CONSTRAINT group_queue_name_tier_queue_key;
ALTER TABLE tier_queue DROP CONSTRAINT tier_queue_pool_tier_key;
DROP INDEX gate_entry_gate;
CREATE SEQUENCE lane_block;
ALTER TABLE message ALTER body SET STORAGE EXTERNAL;
""" + "".join(
    f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0,"
    " autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);\n"
    for table in (
        *("shard", "tier_queue", "lane", "message", "ready", "lease", "lease_end", "event"),
        *("timer", "gate", "parked"),
        *KEYED,
    )
)
_OWN_TABLES += "".join(
    f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, ADD writes int8 NOT NULL DEFAULT 0, ADD"
    f" epoch int8 NOT NULL DEFAULT pg_sequence_last_value('turn') / {WRITES_OF_EPOCH},"
    " REPLICA IDENTITY FULL;\n"  # a publication of all tables refuses changes without one
    f"CREATE INDEX {table}_key ON {table} ({key}, epoch DESC);\n"
    for table, key in (EPOCHS | KEYED).items()
) + "".join(f"ALTER TABLE {table} SET (fillfactor = 50);\n" for table in KEYED)
_OWN_TABLES += """
CREATE INDEX lane_name ON lane (name, lane, epoch);
CREATE INDEX group_name ON group_queue (name, tier_queue, number, epoch);
"""
_OIDS = {"int8": INT8, "text": TEXT, "bytea": BYTEA, "float8": FLOAT8}


@cache
def _columns() -> dict[str, dict[str, int]]:
    """By table and column: the OID of its type."""
    found: dict[str, dict[str, int]] = {}
    for table, body in re.findall(r"CREATE TABLE (\w+) \((.*?)\);", tables(), re.DOTALL):
        columns = re.findall(r"(?:^|[(,])\s*(\w+)\s+(int8|text|bytea|float8)\b", body)
        found[table] = {name: _OIDS[type_] for name, type_ in columns}
    return found


@cache
def parameter_types(name: str) -> tuple[int | None, ...]:
    """
    The types of a statement's parameters for many rows, where the text says which column they are
    stored in or compared with; None: it does not.
    """
    text = _without_comments(SQL[name])
    inserted = re.match(
        r"INSERT INTO (\w+) \(([\w,\s]+)\)\s+VALUES \(((?:[^()]|\([^()]*\))*)\)", text
    )
    if inserted is not None:
        types = _columns()[inserted[1]]
        columns = [each.strip() for each in inserted[2].split(",")]
        values = re.split(r",\s*(?![^()]*\))", inserted[3])
        return tuple(
            types[column] for column, value in zip(columns, values, strict=True) if "?" in value
        )
    changed = re.match(r"UPDATE (\w+)\s", text)
    if changed is None:
        return ()
    types = _columns()[changed[1]]
    return tuple(
        types.get(column)
        for column in re.findall(r"(\w+) [=<>]+ (?:\w+ \+ )?(?:nullif\()?\?", text)
    )
