"""
Which handlers have run longer than they may: the shorter one of their own time limit and that of
their topic's policy.

The event loop ends a handler at its own limit to the millisecond. The engine thread looks here
once a second, at handlers that have run that long, so the policy costs short handlers nothing; and
it sees a handler that blocks the event loop, whose lease it then no longer extends.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic, perf_counter
from typing import NamedTuple

from laneway.engines.base import FullEngine
from laneway.policy import Resolved
from laneway.working.worker_delivery import WorkerDelivery

LOOK_SECONDS = 1.0
"""How often running handlers are looked at, and how long they have run by then at least."""

POLICY_SECONDS = 5.0
"""How old a policy may be by which a handler is stopped: how soon a change acts on it."""

MAX_READS = 20
"""
How many policies are read in one look; each costs a server's engine two round trips in the engine
thread. With more topics of long handlers, the looks after it read the rest.
"""


class _Known(NamedTuple):
    policy: Resolved
    read_at: float


class OverdueHandlers:
    """Finds units that are over their limit. Remembers the policies of topics with long ones."""

    def __init__(self, engine: FullEngine) -> None:
        self._engine = engine
        self._known: dict[str, _Known] = {}

    def find(self, held: Iterable[WorkerDelivery]) -> dict[WorkerDelivery, float]:
        """
        The units of these deliveries that are over their limit, each with it in seconds; the oldest
        leases are looked at first.
        """
        now = perf_counter()
        running: dict[WorkerDelivery, None] = {}
        topics: dict[str, None] = {}
        for delivery in held:
            unit = delivery.whole or delivery
            began = unit.began
            if began and now - began >= LOOK_SECONDS and not unit.is_starting and not unit.over:
                running[unit] = None
                topics[delivery.lease.topic] = None
        if running or self._known:
            self._read(topics)
        return {
            unit: limit
            for unit in running
            if (limit := self._limit_of(unit)) is not None and now - unit.began >= limit
        }

    def _limit_of(self, unit: WorkerDelivery) -> float | None:
        own = unit.limits[0]
        limits = [
            known.policy.seconds_allowed(own)
            for part in unit.open_parts()
            if (known := self._known.get(part.lease.topic)) is not None
        ]
        return min((limit for limit in limits if limit is not None), default=own)

    def _read(self, topics: Iterable[str]) -> None:
        """Read the policies of these topics that are not known or too old; forget the others."""
        now = monotonic()
        before, self._known = self._known, {}
        reads = 0
        for topic in topics:
            known = before.get(topic)
            if (known is None or now - known.read_at >= POLICY_SECONDS) and reads < MAX_READS:
                reads += 1
                known = _Known(self._engine.policy_of(topic), now)
            if known is not None:
                self._known[topic] = known
