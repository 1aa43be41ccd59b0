"""One PostgreSQL server for each process of the tests; every test uses new schemas in it."""

from __future__ import annotations

import atexit
import hashlib
from functools import cache
from pathlib import Path

import msgspec

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.testing.postgres_server import PostgresServer
from tests.postgres import pgbouncer
from tests.postgres.pgbouncer import Pgbouncer


@cache
def server() -> PostgresServer:
    """A single server, whose disk is not synced: the tests of kills have servers of their own."""
    started = PostgresServer(fsync="off", full_page_writes="off")
    started.start()
    atexit.register(started.close)
    return started


@cache
def pooler() -> Pgbouncer:
    """A pgbouncer in front of it; skips the test if that is not installed."""
    pgbouncer.require()
    started = Pgbouncer(server())
    started.start()
    atexit.register(started.close)
    return started


def open_pooled(folder: Path, settings: Settings) -> FullEngine:
    """The same through a pgbouncer in transaction mode."""
    return open_postgres(folder, settings, url=pooler().url)


def open_postgres(
    folder: Path, settings: Settings, options: str = "", url: str | None = None
) -> FullEngine:
    """Open an engine whose namespace is derived from the folder. `options`: of the URL."""
    namespace = hashlib.sha256(str(folder).encode()).hexdigest()[:20]
    settings = msgspec.structs.replace(settings, namespace=namespace)
    return open_engine((url or server().url) + options, settings)
