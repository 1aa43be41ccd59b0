"""Servers for the tests of the Valkey engine, and what they all do with one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.valkey.scripts import SOURCE
from laneway.message import Draft, Settlement
from laneway.testing.servers import Server


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


@pytest.fixture
def few_copies_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server on which a call puts few copies, and leaves the others to later calls."""
    usual = b"RICH, PLAIN, MOST = 6, 1, 400\n"
    assert SOURCE.count(usual) == 1
    code = SOURCE.replace(usual, b"RICH, PLAIN, MOST = 6, 1, 13\n")
    monkeypatch.setattr("laneway.engines.valkey.connection.SOURCE", code)
    with Server() as server:
        yield server.url


def drain(engine: FullEngine) -> list[str]:
    """Lease and ack until nothing comes; the ids, in the order of delivery."""
    ids: list[str] = []
    while leases := engine.lease(500).leases:
        engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
        ids += [lease.id for lease in leases]
    return ids


def some(count: int, topics: int = 20, start: int = 0) -> list[Draft]:
    """So many messages with ids of their own."""
    return [Draft(f"t.{n % topics}", b"%d" % n, id=f"m{n}") for n in range(start, start + count)]
