"""
Leasing only what this worker can handle, once other programs' messages are in its pool.

While a worker has a handler for each message that it gets, it leases messages of all topics.
After the first message whose topic no handler's pattern covers, it leases by its own patterns
(`lease(only=…)`); the engine passes over the other topics, a bounded number in a call.

- A worker that finds only other workers' messages searches again when it is notified that a lane
  has become runnable, and once a second in case it was not notified. If that lane is not for it, it
  ignores notifications for a while; after a long search for `SEARCH_DIVISOR` times as long.
- Every few seconds a *probe* leases a few messages of any topic.
  Tasks may be called in any topic, and messages that no program handles have to be found by a
  worker so that they become dead letters.
- A probe immediately releases what no worker has had before: another program may handle it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from laneway.message import Batch, Lease
from laneway.policy import handling_patterns

log = logging.getLogger("laneway.worker")

ALONE_SECONDS = 60.0
"""How long without other workers' messages before the worker leases everything again."""

PROBE_SECONDS = 5.0
"""How long between two probes; a message that no program handles waits that long to be met."""

PROBE_SIZE = 20
"""How many messages a probe leases at most."""

SEARCH_DIVISOR = 10
"""How many times longer the pause is than a search; searches take 1/10 of the time at most."""

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.03, 1.0
"""How long the pause between two searches is at least and at most."""

MAX_LEARNED = 1_000
"""How many topics outside the patterns are remembered as handled; others are met by probes only."""

MAX_PATTERNS_SHOWN = 20
"""How many patterns a log line names."""


class LeaseFilter:
    """
    Chooses the patterns to lease by. For the engine thread alone.

    `patterns`: what the handlers cover, or None if this worker may handle any topic, but no
    subscription.
    """

    def __init__(self, patterns: Sequence[str] | None) -> None:
        self._patterns = ["*"] if patterns is None else list(patterns)
        self._covered = frozenset(self._patterns)
        self.only: list[str] | None = None
        """The patterns to lease by, or None to lease everything."""
        self._search_seconds = 0.0
        """How long the searches took that have found nothing since the last pause."""
        self._was_notified = False
        """Whether a notification began one of them."""
        self._met_at = 0.0
        self._probe_at = 0.0

    def covers(self, topic: str) -> bool:
        """Whether this worker may handle messages of a topic."""
        return any(pattern in self._covered for pattern in handling_patterns(topic))

    def add_unhandled(self, leases: Iterable[Lease]) -> None:
        """No handler was found for these messages: lease by patterns if a topic is not covered."""
        if self.only is not None or all(self.covers(lease.topic) for lease in leases):
            return
        self.only = self._patterns
        self._met_at = time.monotonic()
        # Not when the messages that were just released are due again.
        self._probe_at = self._met_at + 1.5 * PROBE_SECONDS
        log.info(
            "pool has messages of other programs; leasing only topics that match: %s",
            ", ".join(self.only[:MAX_PATTERNS_SHOWN]),
        )

    def add_handled(self, topics: Iterable[str]) -> None:
        """A handler was found for a message of each of these topics: lease them too."""
        if self.only is None:
            return
        for topic in topics:
            if not self.covers(topic) and len(self._patterns) < MAX_LEARNED:
                self._patterns.append(topic)
                self._covered |= {topic}

    def take_due_probe(self) -> bool:
        """Whether the next lease should be a probe; True once per `PROBE_SECONDS`."""
        now = time.monotonic()
        if now < self._probe_at:
            return False
        self._probe_at = now + PROBE_SECONDS
        if now - self._met_at > ALONE_SECONDS:
            self.only = None
        return True

    def record_search(self, batch: Batch, seconds: float, *, was_notified: bool) -> None:
        """
        Record the answer of a lease by patterns, how long the call took, and whether a notification
        was its reason.
        """
        if batch.passed_over:
            self._met_at = time.monotonic()
        if batch.passed_over and not batch.leases:
            self._search_seconds += seconds
            self._was_notified |= was_notified
        else:
            self._search_seconds, self._was_notified = 0.0, False

    def take_pause(self) -> float:
        """
        The whole pool was searched, and nothing is left for this worker: for how many seconds it
        ignores notifications.
        """
        pause = self._search_seconds * SEARCH_DIVISOR
        was_notified, self._was_notified, self._search_seconds = self._was_notified, False, 0.0
        if pause <= MIN_PAUSE_SECONDS:
            return MIN_PAUSE_SECONDS if was_notified else 0.0
        return min(pause, MAX_PAUSE_SECONDS)
