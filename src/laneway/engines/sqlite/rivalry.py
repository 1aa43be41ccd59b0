"""Whether the workers of several processes wait for each other on one file."""

from __future__ import annotations

import time

WAITING_SHARE = 0.04
"""
A worker that waits for a larger share of its time than this, while another one leases from the same
file too, takes larger turns. Two workers whose handlers do nothing wait for a third of it; those
whose handlers take 0.1 ms of CPU for a hundredth.
"""

SMOOTHING = 0.25
"""The weight of the time since the last lease in the average of that share."""


class Rivalry:
    """What one engine object's leases have seen of other workers that lease from the same file."""

    def __init__(self) -> None:
        self._delivered: int | None = None
        self._waited = 0.0
        self._at = time.monotonic()
        self._share = 0.0

    def measure(self, found: int, delivered: int, waited: float) -> bool:
        """
        Whether this worker and another one wait for each other.

        `found`, `delivered`: how many messages the file has ever delivered, before and after the
        lease that was just made; `waited`: the seconds that this object has ever waited for others.
        """
        now = time.monotonic()
        share = 0.0
        if self._delivered is not None and found > self._delivered:
            share = min(1.0, (waited - self._waited) / max(now - self._at, 1e-6))
        self._share += (share - self._share) * SMOOTHING
        self._delivered, self._waited, self._at = delivered, waited, now
        return self._share > WAITING_SHARE
