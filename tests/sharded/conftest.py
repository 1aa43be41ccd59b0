"""Namespaces of four shards on each engine."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from tests.conformance import postgres_setups, valkey_setups

Opened = Callable[[], FullEngine]


@pytest.fixture(params=["files", "schemas", "valkey"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens one namespace of four shards, several times if need be, and closes it."""
    url = f"sqlite:///{tmp_path}/q"
    if request.param != "files":
        url = (postgres_setups if request.param == "schemas" else valkey_setups).server().url
    name, engines = uuid.uuid4().hex, list[FullEngine]()

    def open_() -> FullEngine:
        engines.append(open_engine(f"{url}?shards=4", Settings(namespace=name)))
        return engines[-1]

    yield open_
    for engine in engines:
        engine.close()
