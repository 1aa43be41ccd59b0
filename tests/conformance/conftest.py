"""The engines that the suite runs on."""

from __future__ import annotations

import atexit
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import pytest

from fairlead.engines import open_engine
from fairlead.engines.base import FullEngine, Settings
from fairlead.testing.conformance.conftest import bench
from fairlead.testing.servers import Server

__all__ = ["bench"]

ENGINES: dict[str, Callable[[Path, Settings], FullEngine]] = {
    "sqlite file": lambda folder, settings: open_engine(f"sqlite:///{folder}/q.db", settings),
    "sqlite memory": lambda folder, settings: open_engine("sqlite://", settings),
    "valkey": lambda folder, settings: _valkey(folder, settings),  # noqa: PLW0108  # which stands below,
}
"""The next engine joins with one line."""


@cache
def valkey_server() -> Server:
    """One for all tests of this process; each has a namespace of its own."""
    server = Server()
    server.start()
    atexit.register(server.close)
    return server


def _valkey(folder: Path, settings: Settings) -> FullEngine:
    namespace = hashlib.sha256(str(folder).encode()).hexdigest()[:20]
    return open_engine(valkey_server().url, msgspec.structs.replace(settings, namespace=namespace))


@pytest.fixture(params=list(ENGINES))
def make_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Settings], FullEngine]:
    number = iter(range(100))

    def make(settings: Settings) -> FullEngine:
        folder = tmp_path / str(next(number))
        folder.mkdir()
        return ENGINES[request.param](folder, settings)

    return make
