"""The thread that blocks in `engine.wait` while a worker is idle."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from laneway.errors import EngineUnavailable

if TYPE_CHECKING:
    from laneway.engines.base import FullEngine
    from laneway.working.options import Options

log = logging.getLogger("laneway.worker")

THREAD_END_SECONDS = 5.0
"""
How long a listening thread may take to end; after that the worker ends without it.
A call of an engine that is away takes that long.
"""

INTERRUPT_SECONDS = 0.02
"""How long to wait between two interrupts of `engine.wait`; the first may come before the wait."""


class WakeupThread(threading.Thread):
    """
    Waits for messages on the engine thread's behalf: a settlement never waits for a new message.

    `has_work` is set when something could be leased, or when the requested time is over.
    """

    def __init__(self, engine: FullEngine, options: Options, has_work: threading.Event) -> None:
        super().__init__(name="laneway-wakeup", daemon=True)
        self._engine = engine
        self._options = options
        self._has_work = has_work
        self._requests = threading.Semaphore(0)
        self._is_waiting = False
        self._seconds = 0.0
        self._was_notified = False
        self._is_ending = False

    def start_wait(self, seconds: float) -> None:
        """Wait until something could be leased, or for `seconds`; returns at once."""
        if not self._is_waiting:
            self._is_waiting = True
            self._seconds = seconds
            self._requests.release()

    def take(self) -> bool:
        """Whether a wait has ended since the last call."""
        was_notified, self._was_notified = self._was_notified, False
        return was_notified

    def end(self) -> None:
        """Stop waiting permanently; returns at once."""
        self._is_ending = True
        self._requests.release()
        with contextlib.suppress(EngineUnavailable):
            self._engine.interrupt()

    def finish(self) -> None:
        """
        Stop waiting and join the thread: the worker's owner may close the engine next.

        Interrupts repeatedly, because the thread may be just about to call `engine.wait`.
        """
        deadline = time.monotonic() + THREAD_END_SECONDS
        while self.is_alive() and time.monotonic() < deadline:
            self.end()
            self.join(INTERRUPT_SECONDS)

    def run(self) -> None:
        while True:
            self._requests.acquire()
            if self._is_ending:
                return
            try:
                self._engine.wait(
                    self._seconds, pool=self._options.pool, topics=self._options.topics
                )
            except EngineUnavailable:
                log.debug("store unavailable while the worker waited for messages")
            self._is_waiting = False
            self._was_notified = True
            self._has_work.set()
