"""Which leases have to be extended, and when to look again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from laneway import units
from laneway.units import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from laneway.working.work import Work

PARTS = 3
"""A lease is extended when a third of it is over: two more attempts fit before it ends."""


class LeaseRenewal:
    """
    Extends running and buffered deliveries at a third of their lease, all that are due in one batch
    per length of lease.
    """

    def __init__(self) -> None:
        self.next_look = float(FOREVER)

    def took(self, works: Iterable[Work]) -> None:
        """New leases: look in time for the shortest."""
        shortest = min(work.length_us for work in works) / units.SECOND
        self.next_look = min(self.next_look, time.monotonic() + shortest / PARTS)

    def is_due(self, held: Mapping[int, Work | None]) -> bool:
        return bool(held) and time.monotonic() >= self.next_look

    def due(self, held: Mapping[int, Work | None]) -> dict[int, list[Work]]:
        """What has to be extended now, by length of lease."""
        now = time.monotonic()
        found: dict[int, list[Work]] = {}
        self.next_look = float(FOREVER)
        for work in held.values():
            if work is None or work.over:
                continue
            length = work.length_us / units.SECOND
            fresh_until = work.expires - length * (PARTS - 1) / PARTS
            if now >= fresh_until:
                found.setdefault(work.length_us, []).append(work)
                fresh_until = now + length / PARTS
            self.next_look = min(self.next_look, fresh_until)
        return found
