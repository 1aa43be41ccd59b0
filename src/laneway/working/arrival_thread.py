"""
The thread of a busy worker that listens for new messages.

A message of a quiet topic should not wait until the worker has used up its prefetched messages.
"""

from __future__ import annotations

import logging
import threading
import time

from laneway.engines.base import ArrivalListener, FullEngine
from laneway.errors import EngineUnavailable
from laneway.working.work_signal import WorkSignal

log = logging.getLogger("laneway.worker")

THREAD_END_SECONDS = 5.0
"""
How long the thread may take to end; after that the worker ends without it.
A call of an engine that is away takes that long.
"""

BUSY_SECONDS = 5.0
"""How long a worker counts as busy after its last full lease; that long it listens for arrivals."""

FREQUENT_SECONDS = 0.05
"""How long after an arrival the next one is expected; meanwhile leases are short."""


class ArrivalThread(threading.Thread):
    """
    Polls an `ArrivalListener` while the worker is busy; sets `has_work` at each arrival.

    It starts with the first `listen`, and a worker that is never busy has no such thread.
    """

    def __init__(self, engine: FullEngine, pool: str, has_work: WorkSignal) -> None:
        super().__init__(name="laneway-arrivals", daemon=True)
        self._engine = engine
        self._pool = pool
        self._has_work = has_work
        self._is_busy = threading.Event()
        self._busy_until = 0.0
        self.was_notified = False
        """Whether a message has arrived since the last `take`."""
        self._notified_at = -FREQUENT_SECONDS
        self._is_ending = False
        self._listener: ArrivalListener | None = None

    def listen(self) -> None:
        """The worker is busy: listen for the next `BUSY_SECONDS`."""
        self._busy_until = time.monotonic() + BUSY_SECONDS
        if not self._is_busy.is_set():
            self._is_busy.set()
            if self.ident is None and not self._is_ending:
                self.start()

    @property
    def are_frequent(self) -> bool:
        """Whether a message has arrived in the last `FREQUENT_SECONDS`, so that more will soon."""
        return time.monotonic() < self._notified_at + FREQUENT_SECONDS

    def take(self) -> bool:
        """Whether a message has arrived since the last call."""
        was_notified, self.was_notified = self.was_notified, False
        return was_notified

    def end(self) -> None:
        """Stop listening permanently; returns immediately."""
        self._is_ending = True
        self._is_busy.set()
        if (listener := self._listener) is not None:
            listener.wake()

    def finish(self) -> None:
        """Stop listening and join the thread: the worker's owner may close the engine next."""
        self.end()
        if self.ident is not None:
            self.join(THREAD_END_SECONDS)

    def run(self) -> None:
        while not self._is_ending:
            self._is_busy.wait()
            if self._is_ending:
                return
            try:
                self._listener = self._engine.arrival_listener(self._pool)
                self._poll(self._listener)
            except EngineUnavailable:
                log.debug("store unavailable while the worker listened for arrivals")
                self._is_busy.clear()
            except Exception:  # the worker continues without it
                log.exception(
                    "arrival listener failed; new messages are picked up at the next lease"
                )
                return
            finally:
                if (listener := self._listener) is not None:
                    self._listener = None
                    listener.close()

    def _poll(self, listener: ArrivalListener) -> None:
        while not self._is_ending:
            seconds = self._busy_until - time.monotonic()
            if seconds <= 0:
                self._is_busy.clear()
                return
            if listener.poll(seconds):
                self.was_notified = True
                self._notified_at = time.monotonic()
                self._has_work.set()
