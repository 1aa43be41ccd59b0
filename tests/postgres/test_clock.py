"""Times are the server's: the clocks of its clients may differ."""

from __future__ import annotations

import time
import uuid
from contextlib import closing

import pytest

from laneway.engines.base import Settings
from laneway.engines.postgres.engine import PostgresEngine
from laneway.message import Draft
from tests.conformance.postgres_setups import server

HOUR_NS = 3_600_000_000_000


def test_a_machine_whose_clock_is_ahead_does_not_move_the_stores_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it would end the leases of workers on other machines."""
    right = time.time_ns
    namespace = f"clock-{uuid.uuid4().hex}"
    with closing(PostgresEngine(server().url, Settings(namespace=namespace))) as engine:
        engine.put([Draft("t", b"x")])
        (lease,) = engine.lease(1).leases
        monkeypatch.setattr(time, "time_ns", lambda: right() + HOUR_NS)
        other = PostgresEngine(server().url, Settings(namespace=namespace))
        with closing(other):
            other.tick()
            assert other.topic_stats("t").leased == 1
            other.put([Draft("t", b"y")])
            (later,) = other.lease(1).leases
    assert abs(later.published_us - right() // 1000) < HOUR_NS // 10_000
    assert later.deadline_us >= lease.deadline_us
