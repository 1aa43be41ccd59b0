"""
Standing aside while an embedded engine works.

SQLite gives up the interpreter's lock (GIL) at every row; with busy threads around, the engine's
thread would wait for it at each, and an engine call of milliseconds would take seconds. So whoever
runs handlers stands aside while the engine works, but no longer than the call may need: an engine
that waits (for another process, for the disk) holds nobody up.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALL_SECONDS, MESSAGE_SECONDS = 0.001, 0.00003
"""How long an engine call may need: at all, and for each message."""


class EnginePriority:
    """One engine thread, any number of others that `respect` it."""

    def __init__(self, *, embedded: bool) -> None:
        self._embedded = embedded
        self._gate = threading.Lock()
        self._allowance = 0.0

    @contextmanager
    def during(
        self, messages: int, call_soon: Callable[[Callable[[], None]], object]
    ) -> Iterator[None]:
        """
        Hold the others off while the engine handles so many messages; `call_soon` brings `respect`
        to the event loop.
        """
        if not self._embedded:
            yield
            return
        self._allowance = CALL_SECONDS + MESSAGE_SECONDS * messages
        with self._gate:
            call_soon(self.respect)
            yield

    def respect(self) -> None:
        """Stand aside if the engine is at work."""
        if self._gate.locked() and self._gate.acquire(timeout=self._allowance):
            self._gate.release()
