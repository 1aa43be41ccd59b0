"""Connections of kombu to stores of all engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection

import laneway.contrib.kombu
from laneway.contrib.kombu import apps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["laneway"]

Connect = "Callable[..., Connection]"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a broker: a file."""
    return f"laneway+sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def connect(url: str) -> Iterator[Callable[..., Connection]]:
    """Make connections, which are closed after the test."""
    connections: list[Connection] = []

    def connect(**options: Any) -> Connection:
        connection = Connection(url, transport_options={"durability": "memory", **options})
        connections.append(connection)
        return connection

    yield connect
    for connection in connections:
        connection.release()
    apps.close_all()


def drain(connection: Connection, got: list[Any], count: int) -> None:
    """Wait until there are so many messages."""
    while len(got) < count:
        connection.drain_events(timeout=30)


def is_drained(connection: Connection) -> bool:
    """Whether nothing comes for a moment."""
    try:
        connection.drain_events(timeout=0.2)
    except TimeoutError:
        return True
    return False
