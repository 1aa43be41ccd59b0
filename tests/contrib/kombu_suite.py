"""
Kombu's own integration tests with this transport.

`python -m tests.contrib.compare kombu` runs them; BROKER is the URL.
"""

from __future__ import annotations

import os
import tempfile

import kombu
import pytest
from t.integration.common import (  # type: ignore[import-not-found]  # of the archive
    BaseEventLoop,
    BaseExchangeTypes,
    BaseMessage,
    BasePriority,
    BaseTimeToLive,
    BasicFunctionality,
)

import laneway.contrib.kombu

__all__ = ["laneway"]


@pytest.fixture
def connection() -> kombu.Connection:
    url = os.environ.get("BROKER") or f"laneway+sqlite:///{tempfile.mkdtemp()}/jobs.db"
    return kombu.Connection(url)


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection("laneway+valkey://127.0.0.1:12345")


class TestBasicFunctionality(BasicFunctionality):
    pass


class TestExchangeTypes(BaseExchangeTypes):
    pass


class TestTimeToLive(BaseTimeToLive):
    pass


class TestPriority(BasePriority):
    pass


class TestMessage(BaseMessage):
    pass


class TestEventLoop(BaseEventLoop):
    pass
