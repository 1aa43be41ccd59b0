"""A server that still loads its data is away, and is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.valkey import connection
from laneway.errors import EngineUnavailable
from laneway.testing.servers import Server, until
from tests.valkey.conftest import drain, some

COUNT, OTHERS = 100, 15_000
DELAY_US = "1000"
"""For each entry, so that loading outlasts a pause of the machine."""


def begin_to_load(server: Server) -> None:
    """Start it on its append-only file, of which each entry takes it a while."""
    server.begin()
    until(lambda: server.info("loading") == "1", "the server to load")


@pytest.fixture
def server() -> Iterator[Server]:
    """With messages in its file, and killed."""
    more = {"aof-use-rdb-preamble": "no", "key-load-delay": DELAY_US}
    with Server(appendonly="yes", appendfsync="always", **more) as own:
        engine = open_engine(own.url, Settings(durability="fsync"))
        engine.put(some(COUNT))
        engine.close()
        # It answers between a thousand commands and the next.
        own.run("EVAL", f"for n = 1, {OTHERS} do redis.call('SET', KEYS[1], n) end", 1, "other")
        own.kill()
        yield own


def test_calls_wait_for_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, opened: Callable[..., FullEngine]
) -> None:
    """Of an engine that was open before, and of one that is opened now."""
    monkeypatch.setattr(connection, "PATIENCE", 60.0)
    begin_to_load(server)
    server.run("CONFIG", "SET", "key-load-delay", "20")
    engine = opened(server.url, durability="fsync", namespace="default")
    assert len(drain(engine)) == COUNT
    server.kill()
    begin_to_load(server)
    server.run("CONFIG", "SET", "key-load-delay", "20")
    assert engine.overview().waiting == 0


def test_it_is_no_server_without_a_file(
    server: Server, monkeypatch: pytest.MonkeyPatch, opened: Callable[..., FullEngine]
) -> None:
    """
    After a while the error says what it is, and not that the append-only file is to be switched on.
    """
    monkeypatch.setattr(connection, "PATIENCE", 0.1)
    begin_to_load(server)
    with pytest.raises(
        EngineUnavailable, match=r"the server is still loading its data(, about \d+ s more)?; wait"
    ):
        opened(server.url, durability="fsync", namespace="default")
