"""
Whether the workers of several processes wait for each other on one store.

For example, a worker leases every 10 ms and waits 2 ms of them while another one leases too. Its
share of waiting is 0.2, and the moving average after the first such lease is 0.05: above
`WAITING_SHARE`, so it takes larger turns from now on. The other worker stops. The next lease finds
that nobody else has delivered, counts a share of 0, and the average is 0.0375: usual turns again.

Why this is correct. Waiting for publishers does not count, because only another worker's lease
moves the number of delivered messages between two leases of this one. A wrong answer costs time and
never order: turns of any size obey the same rules.
"""

from __future__ import annotations

import time

WAITING_SHARE = 0.04
"""
A worker that waits for a larger share of its time than this, while another one leases from the same
store too, takes larger turns. Two workers whose handlers do nothing wait for a third of it; those
whose handlers take 0.1 ms of CPU for a hundredth.
"""

SMOOTHING = 0.25
"""The weight of the time since the last lease in the average of that share."""


class Rivalry:
    """What one engine object's leases have seen of other workers that lease from the same store."""

    def __init__(self) -> None:
        self._delivered: int | None = None
        self._waited = 0.0
        self._at = time.monotonic()
        self._share = 0.0

    def measure(self, found: int, delivered: int, waited: float) -> bool:
        """
        Whether this worker and another one wait for each other.

        `found`, `delivered`: how many messages the store has ever delivered, before and after the
        lease that was just made; `waited`: the seconds that this object has ever waited for others.
        """
        now = time.monotonic()
        share = 0.0
        if self._delivered is not None and found > self._delivered:
            share = min(1.0, (waited - self._waited) / max(now - self._at, 1e-6))
        self._share += (share - self._share) * SMOOTHING
        self._delivered, self._waited, self._at = delivered, waited, now
        return self._share > WAITING_SHARE
