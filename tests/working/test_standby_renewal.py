"""Leases that another process keeps while a handler holds the interpreter."""

from __future__ import annotations

import pickle
from array import array
from typing import TYPE_CHECKING

import pytest

from laneway.engines.base import Settings
from laneway.message import Lease
from laneway.units import SECOND
from laneway.working import lease_standby, standby_renewal
from laneway.working.lease_standby import PASS_NS, Standby, Store
from laneway.working.standby_renewal import StandbyRenewal
from laneway.working.worker_delivery import WorkerDelivery

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTH = 9 * SECOND


class Extended(Store):
    """Notes what is extended; `ended` leases are held no more."""

    def __init__(self) -> None:
        super().__init__(pickle.dumps(()))
        self.calls: list[tuple[list[int], int]] = []
        self.ended: set[int] = set()

    def extend(self, leases: Sequence[tuple[int, int]], length_us: int) -> list[bool]:
        self.calls.append(([fence for _, fence in leases], length_us))
        return [fence not in self.ended for _, fence in leases]

    def take(self) -> list[tuple[list[int], int]]:
        taken, self.calls = self.calls, []
        return taken


class Pair:
    """A worker's side and the other process's, in one process, with a clock that is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.is_stopped = False
        for module in (standby_renewal, lease_standby):
            monkeypatch.setattr(module.time, "monotonic_ns", lambda: round(self.now * 1e9))
        monkeypatch.setattr(lease_standby, "is_stopped", lambda _: self.is_stopped)
        self.held: dict[int, WorkerDelivery | None] = {}
        self.renewal = StandbyRenewal("sqlite://", Settings(), LENGTH / SECOND, room=10)
        size = lease_standby.HEAD_FIELDS + self.renewal._capacity * lease_standby.FIELDS
        self.fields = memoryview(array("q", [0] * size))
        self.renewal._use(self.fields)
        self.store = Extended()
        self.standby = Standby(self.fields, 0, LENGTH, standby_renewal.MAX_STALL, self.store)

    def lease(self, *fences: int, length_us: int = LENGTH) -> None:
        added = [
            WorkerDelivery(Lease(fence + 1000, fence, "", "t", b"", 0), None, 0.0, length_us)  # type: ignore[arg-type]
            for fence in fences
        ]
        self.held |= {each.lease.fence: each for each in added}
        self.renewal.add(added, self.held)

    def later(self, seconds: float) -> list[tuple[list[int], int]]:
        """What is extended when so much time has passed without a pass of the worker."""
        self.now += seconds
        self.standby.look()
        return self.store.take()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(monkeypatch)


def test_worker_that_runs_extends_its_leases_itself(pair: Pair) -> None:
    pair.lease(1, 2)
    for _ in range(20):
        pair.renewal.passed(pair.held)
        assert pair.later(2.9) == []
    assert pair.renewal.renewed() == 0.0


def test_worker_that_does_not_run(pair: Pair) -> None:
    """Its leases are extended each third of their length, and it learns until when they last."""
    pair.lease(1, 2)
    pair.renewal.passed(pair.held)
    assert pair.later(3.0) == [([1, 2], LENGTH)]
    assert pair.later(2.9) == []
    assert pair.later(0.1) == [([1, 2], LENGTH)]
    assert pair.renewal.renewed() == pair.now + 9.0
    assert pair.renewal.renewed() == 0.0
    pair.renewal.passed(pair.held)
    assert pair.later(2.9) == []


def test_leases_that_ended_are_tried_once(pair: Pair) -> None:
    """Those that ended are in the memory until it is full; then those that are held are copied."""
    pair.lease(1, 2, 3)
    pair.store.ended = {1, 3}
    assert pair.later(3.0) == [([1, 2, 3], LENGTH)]
    assert pair.later(3.0) == [([2], LENGTH)]
    del pair.held[1], pair.held[3]
    pair.renewal.passed(pair.held)
    last = pair.renewal._capacity
    pair.lease(*range(4, last + 1))
    for fence in range(4, last):
        del pair.held[fence]
    pair.lease(last + 1)
    assert pair.later(3.0) == [([2, last, last + 1], LENGTH)]


def test_worker_without_leases(pair: Pair) -> None:
    pair.lease(1)
    del pair.held[1]
    pair.renewal.passed(pair.held)
    assert pair.later(30.0) == []


def test_short_leases_are_extended_sooner(pair: Pair) -> None:
    pair.lease(1)
    pair.lease(2, length_us=3 * SECOND)
    assert pair.later(1.0) == [([1], LENGTH), ([2], 3 * SECOND)]


def test_worker_that_was_stopped_by_a_signal(pair: Pair) -> None:
    pair.lease(1)
    pair.is_stopped = True
    assert pair.later(6.0) == []


def test_handler_that_never_ends(pair: Pair) -> None:
    """The leases are left to end after ten heartbeat timeouts."""
    pair.lease(1)
    assert pair.later(89.0) == [([1], LENGTH)]
    assert pair.later(1.0) == []


def test_leases_that_may_have_ended_are_not_called_renewed(pair: Pair) -> None:
    """This process got no turn for two thirds of a lease: some may have ended before."""
    pair.lease(1)
    pair.later(6.0)
    assert pair.fields[PASS_NS]
    assert pair.renewal.renewed() == 0.0
