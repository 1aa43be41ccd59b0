"""How large the bodies of the next lease may be, by those of the last ones."""

from __future__ import annotations

from collections.abc import Sequence

from laneway.message import Lease

LEASE_BYTES = 8_000_000
"""
The bodies of one call of a store that leases messages have about this size together at most, unless
one is larger: others wait meanwhile.
"""


PART_BYTES = 300
"""What each body of a message with several costs besides its bytes, because it is stored apart."""


class BodySizes:
    """
    The mean size of the bodies that were leased last. It grows with one lease and falls by at most
    half with each, so one lease of small bodies among large ones changes little. What waits does
    not count: large messages that are delayed or paused would make all leases small.
    """

    def __init__(self) -> None:
        self._mean = 1

    def note(self, leases: Sequence[Lease]) -> None:
        """These messages were leased."""
        if leases:
            mean = sum(map(_size, leases)) // len(leases)
            self._mean = max(mean, self._mean // 2, 1)

    def within(self, size: int) -> int:
        """How many such bodies have this size together, in bytes; at least 1."""
        return max(1, size // self._mean)


def _size(lease: Lease) -> int:
    if lease.bodies is None:
        return len(lease.body)
    return sum(map(len, lease.bodies)) + PART_BYTES * len(lease.bodies)
