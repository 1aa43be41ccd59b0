"""An application with an SQLite file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from laneway import Laneway
from laneway.engines.sqlite.store import Store
from laneway.working import heartbeat, lease_renewal
from tests.working.support import StoppedClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as application:
        # Retries at once, so that no test waits for a backoff.
        application.policy("*", backoff=0)
        yield application


@pytest.fixture
def quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """With heartbeat_timeout=600, five heartbeats a second, and a late one has no effect."""
    monkeypatch.setattr(heartbeat, "BEATS", 3_000)


@pytest.fixture
def quick_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a lease of 30 s, ten extensions a second, and a late one has no effect."""
    monkeypatch.setattr(lease_renewal, "PARTS", 300)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    """The time of SQLite stores, which only the test moves."""
    clock = StoppedClock()
    monkeypatch.setattr(Store, "clock", lambda _: clock.now_us)
    return clock
