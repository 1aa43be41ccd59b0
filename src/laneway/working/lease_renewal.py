"""Which leases have to be extended, and when to look again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from laneway import units
from laneway.units import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from laneway.working.delivery import WorkerDelivery

PARTS = 3
"""A lease is extended when a third of it is over: two more attempts fit before it ends."""


class LeaseRenewal:
    """
    Extends running and buffered deliveries at a third of their lease, all that are due in one batch
    per length of lease.
    """

    def __init__(self) -> None:
        self.next_look = float(FOREVER)

    def took(self, deliveries: Iterable[WorkerDelivery]) -> None:
        """New leases: look in time for the shortest."""
        shortest = min(delivery.length_us for delivery in deliveries) / units.SECOND
        self.next_look = min(self.next_look, time.monotonic() + shortest / PARTS)

    def is_due(self, held: Mapping[int, WorkerDelivery | None]) -> bool:
        return bool(held) and time.monotonic() >= self.next_look

    def due(self, held: Mapping[int, WorkerDelivery | None]) -> dict[int, list[WorkerDelivery]]:
        """What has to be extended now, by length of lease."""
        now = time.monotonic()
        found: dict[int, list[WorkerDelivery]] = {}
        self.next_look = float(FOREVER)
        for delivery in held.values():
            if delivery is None or delivery.over:
                continue
            length = delivery.length_us / units.SECOND
            fresh_until = delivery.expires - length * (PARTS - 1) / PARTS
            if now >= fresh_until:
                found.setdefault(delivery.length_us, []).append(delivery)
                fresh_until = now + length / PARTS
            self.next_look = min(self.next_look, fresh_until)
        return found
