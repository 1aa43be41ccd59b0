"""Which leases have to be extended now, and when to look again at what is held."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from laneway import units
from laneway.working import overdue
from laneway.working.worker_delivery import WorkerDelivery

PARTS = 3
"""A lease is extended when 1/PARTS of it is over; two more attempts fit before it ends."""


class LeaseRenewal:
    """
    Finds running and prefetched deliveries whose lease is due for an extension.

    The engine thread extends them with one call for each length of lease.
    """

    def __init__(self) -> None:
        self.next_look = float(units.FOREVER)
        """
        When the first lease is due, or handlers are looked at next (monotonic seconds); see
        `overdue`.
        """

    def add(self, deliveries: Iterable[WorkerDelivery]) -> None:
        """New leases: look in time for the shortest of them."""
        now = time.monotonic()
        shortest = min(delivery.expires for delivery in deliveries) - now
        self.next_look = min(self.next_look, now + shortest / PARTS, now + overdue.LOOK_SECONDS)

    def is_due(self, held: Mapping[int, WorkerDelivery | None]) -> bool:
        """Whether a lease may be due now."""
        return bool(held) and time.monotonic() >= self.next_look

    def take_due(self, held: Iterable[WorkerDelivery]) -> dict[int, list[WorkerDelivery]]:
        """The deliveries whose lease has to be extended now, by the lease's length (µs)."""
        now = time.monotonic()
        due: dict[int, list[WorkerDelivery]] = {}
        self.next_look = float(units.FOREVER)
        for delivery in held:
            length = delivery.length_us / units.SECOND
            extend_at = delivery.expires - length * (PARTS - 1) / PARTS
            if now >= extend_at:
                due.setdefault(delivery.length_us, []).append(delivery)
                extend_at = now + length / PARTS
            self.next_look = min(self.next_look, extend_at, now + overdue.LOOK_SECONDS)
        return due
