"""
Leasing only what this worker can handle, once it has met another program's messages in its pool.

As long as a worker handles all that it gets, it leases all. When a message comes whose topic no
handler's pattern covers, it leases by its own patterns from then on (`lease(only=…)`): the engine
passes over the others, a bounded number in a call. While others stand there, a worker that found
nothing of its own looks again after ten times as long as looking took. A few messages are leased
without regard to patterns every few seconds: tasks may be called in any topic, and what no program
handles has to be met by somebody to be told of. What such a probe gets first goes back at once:
another program may handle it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from laneway.policy import prefixes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from laneway.message import Batch, Lease

log = logging.getLogger("laneway.worker")

ALONE_SECONDS = 60.0
"""After so long without others' messages everything is leased again."""

PROBE_SECONDS, PROBE = 5.0, 20
"""How often, and how many, messages are leased whatever their topic."""

PART = 10
"""Looking through others' lanes takes one part in so many of the time, at most."""

PAUSE_LEAST, PAUSE_MOST = 0.02, 1.0

MOST_LEARNED = 1_000
"""Topics outside of the patterns for which a handler was found."""


class LeaseFilter:
    """For the engine thread alone. `patterns` None: every topic may be one of this worker's."""

    def __init__(self, patterns: Sequence[str] | None) -> None:
        self._patterns = None if patterns is None else list(patterns)
        self._covering = frozenset(patterns or ())
        self.only: list[str] | None = None
        """The patterns to lease by; None: everything."""
        self.look_at = 0.0
        """
        When to look again (monotonic seconds), where others' messages stand before this worker's.
        """
        self._seconds = 0.0
        self._met_at = 0.0
        self._probe_at = 0.0

    def covers(self, topic: str) -> bool:
        """Whether a topic is one of this worker's."""
        return self._patterns is None or any(
            pattern in self._covering for pattern in prefixes(topic)
        )

    def met(self, leases: Iterable[Lease]) -> None:
        """There is no handler for these."""
        if (
            self._patterns is None
            or self.only is not None
            or all(self.covers(lease.topic) for lease in leases)
        ):
            return
        self.only = self._patterns
        self._met_at = time.monotonic()
        self._probe_at = self._met_at + 1.5 * PROBE_SECONDS  # not when these are due again
        log.info(
            "other programs' messages are in this pool: only topics of these patterns are leased"
            " from now on: %s",
            ", ".join(self.only[:20]),
        )

    def learn(self, topics: Iterable[str]) -> None:
        """There are handlers for messages of these topics."""
        if self.only is None or self._patterns is None:
            return
        for topic in topics:
            if not self.covers(topic) and len(self._patterns) < MOST_LEARNED:
                self._patterns.append(topic)
                self._covering |= {topic}

    def is_time_to_probe(self) -> bool:
        """Whether the next lease is to take whatever there is."""
        now = time.monotonic()
        if now < self._probe_at:
            return False
        self._probe_at = now + PROBE_SECONDS
        if now - self._met_at > ALONE_SECONDS:
            self.only = None
        return True

    def looked(self, batch: Batch, seconds: float) -> None:
        """What a lease by the patterns has brought, and how long it took."""
        if batch.passed_over:
            self._met_at = time.monotonic()
        self._seconds = 0.0 if batch.leases or not batch.passed_over else self._seconds + seconds

    def pause(self) -> None:
        """All was looked at, and nothing is left for this worker."""
        self.look_at = time.monotonic() + min(max(self._seconds * PART, PAUSE_LEAST), PAUSE_MOST)
        self._seconds = 0.0

    def take_due(self) -> bool:
        """Whether it is time to look again; once."""
        if not self.look_at or time.monotonic() < self.look_at:
            return False
        self.look_at = 0.0
        return True
