"""The suite's fixtures."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import msgspec
import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.testing.engine_driver import EngineDriver


@pytest.fixture
def make_engine() -> Callable[[Settings], FullEngine]:
    """Opens empty engines: at the URL in LANEWAY_ENGINE, in a new namespace each time."""
    url = os.environ.get("LANEWAY_ENGINE")
    if url is None:
        pytest.fail("no engine to test: set LANEWAY_ENGINE=URL, or define a fixture make_engine")
    return lambda settings: open_engine(
        url, msgspec.structs.replace(settings, namespace=f"conformance-{uuid.uuid4().hex}")
    )


@pytest.fixture
def driver(make_engine: Callable[[Settings], FullEngine]) -> Iterator[EngineDriver]:
    """An empty engine and its clock. At the end the engine's doctor must find no fault."""
    driver = EngineDriver(make_engine)
    yield driver
    assert [check for check in driver.engine.doctor() if not check.ok] == []
    driver.engine.close()
