"""
Publishers, forwarders and workers of an outbox, killed by SIGKILL at random moments: each committed
order has its effect exactly once, and no order that was rolled back has one.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from laneway import Laneway
from laneway.producing.outbox_source import OutboxSource
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import Server
from tests.seeds import seed_for

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = int(os.environ.get("LANEWAY_KILLS", "12"))

COMMON = """
import itertools, random, sqlite3, sys, time
from contextlib import closing
import psycopg
from laneway import Laneway, Message, once
from laneway.producing import outbox_source
outbox_source.LEAD_SECONDS = 0.5
store, database, seed = sys.argv[1:]
draw = random.Random(int(seed))
def connect():
    if database.startswith("postgresql:"):
        return psycopg.connect(database)
    return sqlite3.connect(database.removeprefix("sqlite:///"), timeout=30)
"""

PROGRAMS = {
    "publisher": COMMON
    + """
app = Laneway(store)
with closing(connect()) as connection:
    for number in itertools.count():
        order = f"{seed}-{number}"
        connection.execute(f"INSERT INTO orders VALUES ('{order}')")
        app.publish(f"order.{draw.randrange(5)}", order, connection=connection)
        if draw.random() < 0.2:
            connection.rollback()
        else:
            connection.commit()
        time.sleep(draw.choice([0, 0.002, 0.01]))
""",
    "forwarder": COMMON
    + """
from laneway.producing.forwarder import Forwarder
from laneway.producing.outbox_source import OutboxSource
from laneway.producing.reports import UnsentReports
app = Laneway(store)
thread = Forwarder(OutboxSource(database, "default"), app.runtime.holder, UnsentReports())
thread.start()
thread.join()
""",
    "worker": COMMON
    + """
app = Laneway(store)
with closing(connect()) as connection:
    while True:
        for delivery in app.lease(20, wait=1):
            if once(connection, delivery):
                connection.execute(f"INSERT INTO effects VALUES ('{delivery.body}')")
            connection.commit()
            time.sleep(draw.choice([0, 0, 0.01]))  # most kills come before the ack
            try:
                delivery.ack()
            except Exception:
                pass  # its lease ran out, or the store was just started
""",
}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_each_effect_once(tmp_path: Path, kind: str) -> None:
    """
    The orders and effects are in the user's database, SQLite beside a Valkey store and PostgreSQL
    beside an SQLite store. In each round one of the processes is killed.
    """
    seed = seed_for("LANEWAY_KILLS")
    print(f"LANEWAY_SEED={seed}")
    draw = random.Random(seed)
    with ExitStack() as stack:
        if kind == "postgres":
            database = stack.enter_context(PostgresServer()).url
            store = f"sqlite:///{tmp_path}/queue.db"
        else:
            database = f"sqlite:///{tmp_path}/user.db"
            server = Server(appendonly="yes", appendfsync="always")
            store = stack.enter_context(server).url
        prepare(database)
        app = stack.enter_context(Laneway(store))
        app.policy("*", lease=2, retries=1_000_000)
        assert app.engine.overview().waiting == 0  # opens the store, which then has the policy
        source = OutboxSource(database, "default")
        stack.callback(source.close)
        alive: list[tuple[str, subprocess.Popen[bytes]]] = []

        def start(name: str) -> None:
            arguments = [store, database, str(draw.randrange(1 << 30))]
            command = [sys.executable, "-c", PROGRAMS[name], *arguments]
            alive.append((name, subprocess.Popen(command)))

        try:
            for _ in range(ROUNDS):
                for name in (*PROGRAMS, "worker"):
                    if [each for each, _ in alive].count(name) < 1 + (name == "worker"):
                        start(name)
                wait_for_orders(database)
                time.sleep(draw.uniform(0, 0.3))  # the moment of the kill is what is random
                _, process = alive.pop(draw.randrange(len(alive)))
                process.kill()
                process.wait()
            for each in [each for each in alive if each[0] == "publisher"]:
                alive.remove(each)
                each[1].kill()
                each[1].wait()
            for name in ("forwarder", "worker"):
                if name not in [each for each, _ in alive]:
                    start(name)
            deadline = time.monotonic() + 60
            while source.status().waiting or app.engine.overview().waiting + leased(app):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            for _, process in alive:
                process.kill()
                process.wait()
        with closing(connect(database)) as connection:
            orders = [each for (each,) in connection.execute("SELECT id FROM orders")]
            effects = [each for (each,) in connection.execute("SELECT id FROM effects")]
    print(f"{len(orders):,} orders, {len(effects):,} effects")
    assert sorted(effects) == sorted(orders)
    assert len(orders) > ROUNDS


def leased(app: Laneway) -> int:
    return app.engine.overview().leased


def connect(database: str) -> Any:
    if database.startswith("postgresql:"):
        return psycopg.connect(database)
    return sqlite3.connect(database.removeprefix("sqlite:///"), timeout=30)


def prepare(database: str) -> None:
    with closing(connect(database)) as connection:
        connection.execute("CREATE TABLE orders (id text)")
        connection.execute("CREATE TABLE effects (id text)")
        connection.commit()
        if not database.startswith("postgresql:"):
            connection.execute("PRAGMA journal_mode = WAL")
    source = OutboxSource(database, "default")
    source.create()
    source.close()


def wait_for_orders(database: str) -> None:
    """Wait until another order is committed."""
    with closing(connect(database)) as connection:

        def count() -> int:
            row = connection.execute("SELECT count(*) FROM orders").fetchone()
            connection.rollback()
            found: int = row[0]
            return found

        before, deadline = count(), time.monotonic() + 60
        while count() <= before:
            assert time.monotonic() < deadline, "the publisher does not publish"
            time.sleep(0.01)
