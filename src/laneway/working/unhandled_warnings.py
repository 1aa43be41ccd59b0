"""
Warnings about messages without a handler: one a minute for each kind of message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from laneway.message import Lease
from laneway.working.handler import kind_of

log = logging.getLogger("laneway.worker")

WARN_SECONDS = 60.0
"""How long between two warnings about one kind of message; those between are counted."""

MAX_KINDS = 100
"""
How many kinds get a warning of their own; the others share one. Each topic without a dot is a kind,
and there may be a million.
"""


class UnhandledWarnings:
    """
    Warns of messages that are released because no handler takes them.

    A kind is the task that a message names, else the pattern one level above its topic.
    """

    def __init__(self) -> None:
        self._warned_at: dict[str, float] = {}
        self._unreported: dict[str, int] = {}

    def warn(self, leases: Iterable[Lease]) -> None:
        """Warn of these messages."""
        now = time.monotonic()
        for lease in leases:
            kind = kind_of(lease)
            if kind not in self._warned_at and len(self._warned_at) >= MAX_KINDS:
                kind = "further topics"
            if now - self._warned_at.get(kind, -WARN_SECONDS) < WARN_SECONDS:
                self._unreported[kind] = self._unreported.get(kind, 0) + 1
                continue
            self._warned_at[kind] = now
            more = self._unreported.pop(kind, 0)
            log.warning(
                "no handler for message %s in topic %s (%s); returned (a dead letter only after the"
                " policy's on_unhandled, if that is set)%s; register a handler, or give this"
                " program its own pool",
                lease.id,
                lease.topic,
                kind,
                f"; {more:,} more since the last warning" if more else "",
            )
