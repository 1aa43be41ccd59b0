"""Servers for the tests of the PostgreSQL engine, and what they all do with one."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.message import Draft, Settlement
from laneway.testing.postgres_server import PostgresServer
from tests.postgres.standby import NAME, Standby

if TYPE_CHECKING:
    from laneway.engines.postgres.store import Store


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """
    A server for the tests of one module, which leave it running. A kill loses what its processes
    have not written yet, but not what the kernel has not synced, so `fsync` may be off.
    """
    with PostgresServer(fsync="off") as server:
        yield server


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, Standby]]:
    """A primary and its synchronous standby."""
    with (
        PostgresServer(fsync="off", synchronous_standby_names=NAME) as primary,
        Standby(primary) as standby,
    ):
        standby.wait_until_it_follows()
        yield primary, standby


@pytest.fixture
def opened() -> Iterator[Callable[..., FullEngine]]:
    """Opens engines, each in a namespace of its own unless one is named, and closes them."""
    engines: list[FullEngine] = []

    def open_(url: str, **settings: object) -> FullEngine:
        engine = open_engine(url, Settings(**{"namespace": uuid.uuid4().hex, **settings}))  # type: ignore[arg-type]
        engines.append(engine)
        return engine

    yield open_
    for engine in engines:
        engine.close()


def store_of(engine: FullEngine) -> Store:
    """The store of an engine on one schema."""
    store: Store = engine._store  # type: ignore[attr-defined]
    return store


def some(count: int, start: int = 0, topics: int = 20) -> list[Draft]:
    """Messages with their own ids."""
    return [Draft(f"t.{n % topics}", b"%d" % n, id=f"m{n}") for n in range(start, start + count)]


def drain(engine: FullEngine) -> list[str]:
    """Lease and ack until nothing comes; the ids, in the order of delivery."""
    ids: list[str] = []
    while leases := engine.lease(500).leases:
        engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
        ids += [lease.id for lease in leases]
    return ids


@pytest.fixture
def forked() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Runs functions in processes of their own; returns the process id."""
    pids: list[int] = []

    def fork(function: Callable[[], object]) -> int:
        pid = os.fork()
        if pid:
            pids.append(pid)
            return pid
        try:
            function()
        finally:
            os._exit(1)

    yield fork
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
