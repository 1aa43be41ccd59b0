"""
How long handlers took, and how many of their attempts failed: counters for the heartbeat.

Of each settle call one message is looked at and counts for all of the call, so a message of a busy
worker costs nothing. Each message has the same chance, so the counts are right on average; while a
worker settles one message at a time, as it does with slow handlers, they are exact. Failures are
all counted.
"""

from __future__ import annotations

import bisect
import random
from typing import TYPE_CHECKING

from laneway.engines.base import MAX_HANDLERS, OTHER_HANDLERS, WAIT_BOUNDS_US

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from laneway.message import Settlement
    from laneway.working.worker_delivery import WorkerDelivery

ATTEMPTS = frozenset(("ack", "retry", "dead"))
"""The ends of messages whose handlers have run to an end."""


class Durations:
    """Counters by handler since the worker began. One thread at a time adds to them."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        """By handler: the failed attempts, then the attempts by class of `WAIT_BOUNDS_US`."""

    def add(
        self,
        settlements: Sequence[Settlement],
        held: Mapping[int, WorkerDelivery | None],
    ) -> None:
        """Count the messages of a settle call by one of them."""
        count = len(settlements)
        settlement = settlements[random.randrange(count) if count > 1 else 0]
        delivery = held.get(settlement.fence)
        if delivery is not None and settlement.action in ATTEMPTS:
            place = bisect.bisect_right(WAIT_BOUNDS_US, settlement.cost_us)
            self._of(delivery)[1 + place] += count

    def add_failure(self, delivery: WorkerDelivery) -> None:
        """Count an attempt that failed."""
        self._of(delivery)[0] += 1

    def _of(self, delivery: WorkerDelivery) -> list[int]:
        name = delivery.handler.name
        found = self._counts.get(name)
        if found is None:
            if len(self._counts) >= MAX_HANDLERS:
                name = OTHER_HANDLERS
            found = self._counts.setdefault(name, [0] * (len(WAIT_BOUNDS_US) + 2))
        return found

    def counts(self) -> dict[str, list[int]]:
        """The counters, each without the zeros at its end. From any thread."""
        return {name: _short(list(counts)) for name, counts in list(self._counts.items())}


def _short(counts: list[int]) -> list[int]:
    while counts and not counts[-1]:
        counts.pop()
    return counts
