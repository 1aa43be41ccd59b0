"""A worker notices that it and another one wait for each other on a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway import Laneway, Message
from laneway.engines.sql.rivalry import Rivalry

if TYPE_CHECKING:
    from pathlib import Path

LONG = 1_000.0
"""Seconds of waiting, more than such a test takes."""


def test_who_waits_while_another_worker_leases_has_a_rival() -> None:
    rivalry = Rivalry()
    assert not rivalry.measure(0, 10, 0.0)
    assert rivalry.measure(20, 30, LONG)  # the other one leased 10


def test_who_waits_for_publishers_only_has_none() -> None:
    rivalry = Rivalry()
    assert not any(rivalry.measure(n, n + 1, n * LONG) for n in range(20))


def test_workers_that_seldom_wait_are_no_rivals() -> None:
    rivalry = Rivalry()
    assert not any(rivalry.measure(2 * n, 2 * n + 1, 0.0) for n in range(20))


def test_a_rival_that_has_ended_is_forgotten() -> None:
    rivalry = Rivalry()
    rivalry.measure(0, 10, 0.0)
    assert rivalry.measure(20, 30, LONG)
    assert [rivalry.measure(30, 30, LONG) for _ in range(20)][-1] is False


def test_a_lease_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    with Laneway(url) as app, Laneway(url) as other:
        app.publish_many([Message("a", n) for n in range(10)], progress=False)
        assert not app.engine.lease(1).prefers_large_leases
        assert other.engine.lease(1).leases
        app.engine._store.waited += LONG  # type: ignore[attr-defined]
        assert app.engine.lease(1).prefers_large_leases
