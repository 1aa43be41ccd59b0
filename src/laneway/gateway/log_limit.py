"""A bound on log lines about failed requests: while a store is away, each request fails."""

from __future__ import annotations

import time

LINES, SECONDS = 10, 10.0
"""At most so many lines in so many seconds."""


class LogLimit:
    """Says whether a line is logged, and how many were not since the last one."""

    def __init__(self) -> None:
        self._began = 0.0
        self._lines = 0
        self._left_out = 0

    def take(self) -> int | None:
        """How many lines were left out before this one; None: this one is left out, too."""
        now = time.monotonic()
        if now - self._began >= SECONDS:
            self._began, self._lines = now, 0
        self._lines += 1
        if self._lines > LINES:
            self._left_out += 1
            return None
        left_out, self._left_out = self._left_out, 0
        return left_out
