"""
Handlers wait while an embedded engine works.

SQLite releases the interpreter's lock (GIL) at every row.
With busy threads around, the engine's thread would wait for the lock at each row, and an engine
call of milliseconds would take seconds.
The event loop and the handlers' threads wait while the engine works, but no longer than the call
may need: an engine that itself waits (for another process, for the disk) delays no handler.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CALL_SECONDS = 0.001
"""How long others wait for any engine call; a longer call gets no further priority."""

MESSAGE_SECONDS = 0.00003
"""How much longer others wait for each message of the call."""


class EnginePriority:
    """
    Gives one engine thread precedence over any number of threads that call `yield_to_engine`.

    `embedded`: whether the engine runs in this process; priority has no effect otherwise.
    """

    def __init__(self, *, embedded: bool) -> None:
        self._embedded = embedded
        self._gate = threading.Lock()
        self._allowance = 0.0

    @contextmanager
    def during(
        self, messages: int, call_soon: Callable[[Callable[[], None]], object]
    ) -> Iterator[None]:
        """
        Have the others wait while the engine handles `messages` messages inside this block.

        `call_soon` schedules `yield_to_engine` on the event loop.
        """
        if not self._embedded:
            yield
            return
        self._allowance = CALL_SECONDS + MESSAGE_SECONDS * messages
        with self._gate:
            call_soon(self.yield_to_engine)
            yield

    def yield_to_engine(self) -> None:
        """Wait if the engine is at work, but no longer than its call may need."""
        if self._gate.locked() and self._gate.acquire(timeout=self._allowance):
            self._gate.release()
