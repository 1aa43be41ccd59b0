"""
What a worker says of messages that it has no handler for: once a minute for each kind, however many
there are.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from laneway.working.handler import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from laneway.message import Lease

log = logging.getLogger("laneway.worker")

WARN_SECONDS = 60.0
"""Between warnings about one kind of message."""

MOST_KINDS = 100
"""Kinds that are told apart: topics without a dot are a kind each, and there may be a million."""


class UnhandledWarnings:
    """A kind is the task that messages name, else the pattern one above their topic."""

    def __init__(self) -> None:
        self._warned_at: dict[str, float] = {}
        self._not_told: dict[str, int] = {}

    def warn(self, leases: Iterable[Lease]) -> None:
        """These go back."""
        now = time.monotonic()
        for lease in leases:
            kind = kind_of(lease)
            if kind not in self._warned_at and len(self._warned_at) >= MOST_KINDS:
                kind = "further topics"
            if now - self._warned_at.get(kind, -WARN_SECONDS) < WARN_SECONDS:
                self._not_told[kind] = self._not_told.get(kind, 0) + 1
                continue
            self._warned_at[kind] = now
            more = self._not_told.pop(kind, 0)
            log.warning(
                "no handler here for %s: message %s in %s goes back and waits%s; register a"
                " handler, or give this program a pool of its own",
                kind,
                lease.id,
                lease.topic,
                f" ({more:,} more since the last warning)" if more else "",
            )
