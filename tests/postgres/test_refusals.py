"""
What is wrong with a server, a URL or a user's rights: one line that says what to do, nothing is
lost, and programs continue when it is right.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader

from laneway.engines.base import FullEngine, LogEntry
from laneway.engines.postgres.address import schema_of
from laneway.engines.postgres.pipeline import Pipeline, Ticket
from laneway.engines.postgres.statements import LAYOUT
from laneway.errors import EngineUnavailable, SchemaMismatch, UsageError
from laneway.message import Draft, Settlement
from laneway.producing.outbox_source import OutboxSource
from laneway.testing.postgres_server import PostgresServer
from tests.postgres.conftest import drain, some, store_of

Opened = Callable[..., FullEngine]
DOCS = Path(__file__).parents[2] / "docs" / "engines.md"


def as_user(server: PostgresServer, user: str, database: str = "postgres") -> str:
    """The URL for another user."""
    return server.url_of(database).replace("postgres@", f"{user}@")


def refusal(opened: Opened, url: str, **settings: object) -> str:
    """What opening an engine fails with: one line that names the server and not the password."""
    with pytest.raises(EngineUnavailable) as caught:
        opened(url, **settings)
    text = str(caught.value)
    assert "\n" not in text
    assert "127.0.0.1" in text
    assert "secret" not in text
    return text


def test_a_wrong_password(server: PostgresServer, opened: Opened) -> None:
    server.execute("CREATE ROLE careful LOGIN PASSWORD 'right-secret'")
    file = server.folder / "data" / "pg_hba.conf"
    before = file.read_text()
    file.write_text(f"host all careful 127.0.0.1/32 scram-sha-256\n{before}")
    try:
        server.execute("SELECT pg_reload_conf()")
        assert "password is wrong" in refusal(opened, as_user(server, "careful:wrong-secret"))
        assert "password is missing" in refusal(opened, as_user(server, "careful"))
    finally:
        file.write_text(before)
        server.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("password", ["a@secret", "a/secret", "a?secret", "a#secret", "a%secret"])
def test_a_password_that_is_not_escaped(opened: Opened, password: str) -> None:
    """Libpq would take a part of it for the host, and repeat that in its errors."""
    with pytest.raises(UsageError, match=r"write / \? # @ % of a password as %2F") as caught:
        opened(f"postgresql://me:{password}@127.0.0.1:9/postgres")
    assert "secret" not in str(caught.value)


def test_a_missing_database_or_user(server: PostgresServer, opened: Opened) -> None:
    assert "database does not exist" in refusal(opened, server.url_of("absent"))
    assert "user does not exist" in refusal(opened, as_user(server, "absent"))


def test_a_server_that_is_away(opened: Opened) -> None:
    assert "check the server" in refusal(opened, "postgresql://postgres@127.0.0.1:9/postgres")


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("9/postgres?shard=4", '"shard".*; did you mean "shards"\\?$'),
        ("9/postgres?sslmod=require", '"sslmod".*; did you mean "sslmode"\\?$'),
        ("9/postgres?zzz=1", '"zzz".*; correct it$'),
        ("9/postgres?connect_timeout=soon", "connect_timeout: 'soon'.*; correct it$"),
        ("99999/postgres", 'invalid port number: "99999".*; correct it$'),
    ],
)
def test_a_url_that_libpq_refuses(opened: Opened, part: str, expected: str) -> None:
    """It is a usage error: no later try can succeed."""
    with pytest.raises(UsageError, match=expected) as caught:
        opened(f"postgresql://me:secret@127.0.0.1:{part}")
    assert "secret" not in str(caught.value)


def test_an_old_server(
    server: PostgresServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laneway.engines.postgres.store.LEAST_SERVER", 990_000)
    assert "needs 99 or newer" in refusal(opened, server.url)


def test_another_encoding(server: PostgresServer, opened: Opened) -> None:
    server.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    assert "ENCODING 'UTF8'" in refusal(opened, server.url_of("latin"))


def test_replication_without_a_standby(server: PostgresServer, opened: Opened) -> None:
    assert "synchronous_standby_names" in refusal(opened, server.url, durability="replicated")


@pytest.mark.parametrize(
    ("layout", "advice"), [(99, "upgrade Laneway"), (LAYOUT - 1, "handle their messages with that")]
)
def test_another_layout(server: PostgresServer, opened: Opened, layout: int, advice: str) -> None:
    """A program of another version does not touch the tables."""
    engine = opened(server.url)
    namespace = engine.namespace  # type: ignore[attr-defined]
    server.execute(f'UPDATE "{schema_of(namespace)}".layout SET version = {layout}')
    with pytest.raises(SchemaMismatch, match=f"layout {layout}, .*{advice}"):
        opened(server.url, namespace=namespace)


def test_program_of_an_older_version_beside_a_newer_one(
    server: PostgresServer, opened: Opened
) -> None:
    """It changes nothing in a schema that was upgraded while it had it open."""
    old = opened(server.url)
    old.put(some(2))
    (lease,) = old.lease(1).leases
    schema = schema_of(old.namespace)  # type: ignore[attr-defined]
    server.execute(f'UPDATE "{schema}".layout SET version = {LAYOUT + 1}')
    calls: list[Callable[[], object]] = [
        lambda: old.put(some(1)),
        lambda: old.put([Draft("t.1", b"x")]),
        lambda: old.put(some(3)),
        lambda: old.lease(1),
        lambda: old.settle([Settlement(lease.handle, lease.fence)]),
        lambda: old.policy_set("code", "a", {"rate": 1}),
        lambda: old.delivery_log_append([LogEntry("t", 1, b"x")], keep_us=1, max_bytes=1),
    ]
    for call in calls:
        with pytest.raises(SchemaMismatch, match="nothing was changed: upgrade Laneway"):
            call()
    counts = f'SELECT waiting, leased FROM "{schema}".shard ORDER BY epoch DESC LIMIT 1'
    assert server.execute(counts) == [(1, 1)]
    assert server.execute(f'SELECT count(*) FROM "{schema}".inbox') == [(0,)]


def test_a_user_with_the_rights_that_the_docs_list(server: PostgresServer, opened: Opened) -> None:
    """One who creates the schema, and one who uses what another user has created."""
    url = server.database("least")
    server.execute("REVOKE ALL ON DATABASE least FROM PUBLIC")
    server.execute("CREATE ROLE app_owner LOGIN; CREATE ROLE app LOGIN")
    blocks = re.findall(r"```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)
    create, use = (block for block in blocks if "GRANT" in block)
    server.execute(create.replace("DATABASE_NAME", "least"), "least")
    owner = opened(url.replace("postgres@", "app_owner@"), namespace="orders")
    owner.put(some(2))
    text = refusal(opened, url.replace("postgres@", "app@"), namespace="orders")
    assert "connect" in text.lower()
    server.execute(use.replace("DATABASE_NAME", "least"), "least")
    engine = opened(url.replace("postgres@", "app@"), namespace="orders")
    engine.put(some(2, start=2))
    engine.policy_set("operator", "t.*", {"rate": "100000/s"})
    engine.delivery_log_append([LogEntry("t", 1, b"x")], keep_us=1, max_bytes=1)
    assert engine.wait(0.1)
    assert sorted(drain(engine)) == ["m0", "m1", "m2", "m3"]
    assert [check for check in engine.doctor() if not check.ok] == []
    text = refusal(opened, url.replace("postgres@", "app@"), namespace="new")
    assert "lacks a right" in text


def test_a_schema_of_an_administrator(server: PostgresServer, opened: Opened) -> None:
    """A user without the right to create schemas uses one that it owns."""
    url = server.database("given")
    server.execute("CREATE ROLE guest LOGIN")
    server.execute('CREATE SCHEMA "laneway_shop" AUTHORIZATION guest', "given")
    guest = url.replace("postgres@", "guest@")
    engine = opened(guest, namespace="shop")
    engine.put(some(1))
    assert drain(engine) == ["m0"]
    assert "lacks a right" in refusal(opened, guest, namespace="other")
    server.execute('CREATE SCHEMA "laneway_foreign"', "given")
    assert "GRANT USAGE" in refusal(opened, guest, namespace="foreign")


def test_adapters_of_the_program_change_nothing(
    server: PostgresServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have registered its own for all connections."""

    class Text(Loader):
        def load(self, data: Buffer) -> str:
            return bytes(data).hex()

    registered = AdaptersMap(psycopg.adapters)
    for each in ("bool", "int8", "float8", "text", "bytea", "numeric"):
        registered.register_loader(each, Text)
    monkeypatch.setattr("psycopg.postgres.adapters", registered)
    engine = opened(server.url)
    engine.put(some(3))
    assert sorted(drain(engine)) == ["m0", "m1", "m2"]
    source = OutboxSource(server.url, "default")
    source.create()
    assert source.status().waiting == 0
    source.close()


def test_a_publication_of_all_tables(server: PostgresServer, opened: Opened) -> None:
    """The server refuses changes of a published table whose rows it cannot identify."""
    url = server.database("published")
    server.execute("CREATE PUBLICATION everything FOR ALL TABLES", "published")
    engine = opened(url)
    engine.put(some(3))
    assert sorted(drain(engine)) == ["m0", "m1", "m2"]
    without = """
        SELECT relname FROM pg_class c WHERE relkind = 'r' AND relpersistence = 'p'
           AND relnamespace = %s::regnamespace AND relreplident <> 'f'
           AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)"""
    schema = f"'\"{store_of(engine).schema}\"'"
    assert server.execute(without % schema, "published") == []


def test_settings_of_the_role_change_nothing(server: PostgresServer, opened: Opened) -> None:
    server.execute("CREATE ROLE odd LOGIN SUPERUSER")
    for setting, value in {
        "default_transaction_isolation": "serializable",
        "default_transaction_read_only": "on",
        "statement_timeout": "50",
        "lock_timeout": "50",
        "idle_session_timeout": "500",  # also between the connection and its first statement
        "search_path": "pg_catalog",
        "client_encoding": "LATIN1",
        "client_min_messages": "debug5",
        "DateStyle": "German",
        "bytea_output": "escape",
    }.items():
        server.execute(f"ALTER ROLE odd SET {setting} = '{value}'")
    first = opened(as_user(server, "odd"))
    second = opened(as_user(server, "odd"), namespace=first.namespace)  # type: ignore[attr-defined]
    with store_of(second).writing(durable=False) as connection:
        thread = threading.Thread(target=first.put, args=(some(3),))
        thread.start()  # waits for the lock longer than the role's settings allow
        connection.pipeline.send("SELECT pg_sleep(0.6)")
        connection.pipeline.sync()
    thread.join()
    second.put([Draft("ü", "ü€".encode(), id="ü")])
    assert sorted(drain(first)) == ["m0", "m1", "m2", "ü"]


def test_no_free_connection(opened: Opened) -> None:
    """An open engine works on; a new one opens as soon as there is a free connection."""
    with PostgresServer(fsync="off", max_connections=8, superuser_reserved_connections=1) as server:
        server.execute("CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app")
        engine = opened(as_user(server, "app"))
        engine.put(some(1))
        others = []
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                others.append(psycopg.connect(as_user(server, "app")))
        assert "no free connection" in refusal(opened, as_user(server, "app"))
        engine.put(some(2, start=1))
        for other in others:
            other.close()
        again = opened(as_user(server, "app"), namespace=engine.namespace)  # type: ignore[attr-defined]
        assert sorted(drain(again)) == ["m0", "m1", "m2"]


def test_a_full_disk(
    server: PostgresServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that finds no room changes nothing, and says so; later calls work."""
    engine = opened(server.url)
    engine.put(some(2))
    full = "DO $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$"
    usual = Pipeline.send

    def send(self: Pipeline, text: str, *rest: Any) -> Ticket:
        return (
            usual(self, full)
            if text.startswith("INSERT INTO message ")
            else usual(self, text, *rest)
        )

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "send", send)
        with pytest.raises(EngineUnavailable, match="disk is full") as caught:
            engine.put(some(2, start=2))
    assert caught.value.applied is False
    engine.put(some(2, start=4))
    assert sorted(drain(engine)) == ["m0", "m1", "m4", "m5"]


@pytest.mark.parametrize("namespace", ["é" * 50, "Ünder-scored_1", "x" * 100])
def test_names_of_namespaces(server: PostgresServer, opened: Opened, namespace: str) -> None:
    """Odd letters and 100 bytes; two long names with the same beginning are two namespaces."""
    engine = opened(server.url, namespace=namespace)
    engine.put(some(1))
    other = opened(server.url, namespace=namespace[:-1] + "y")
    assert drain(other) == []
    assert drain(engine) == ["m0"]


def test_a_restart_between_calls_is_not_noticed(server: PostgresServer, opened: Opened) -> None:
    """Connections that the server has closed are replaced, for changes and for reads."""
    engine = opened(server.url)
    engine.put(some(2))
    for call in (lambda: engine.put(some(2, start=2)), lambda: engine.topic_stats("t.0")):
        server.stop()
        server.start()
        call()
    assert sorted(drain(engine)) == ["m0", "m1", "m2", "m3"]
