"""
Hears of leases that were ended from outside, so that their handlers are stopped at once and not
when the lease is next prolonged.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from laneway.engines.base import ABORT

if TYPE_CHECKING:
    from collections.abc import Callable

    from laneway.engines.base import FullEngine

log = logging.getLogger("laneway.worker")

BEGIN = 0.5
"""
Seconds that it may take until the engine listens; a lease that is taken before could not be told
of.
"""

LISTEN = 60.0
"""Seconds of one listening."""


class AbortListener(threading.Thread):
    """`aborted` is called, from this thread, with the ids of messages whose leases were ended."""

    def __init__(self, engine: FullEngine, aborted: Callable[[set[str]], None]) -> None:
        super().__init__(name="laneway-aborts", daemon=True)
        self._listener = engine.result_listener()
        self._aborted = aborted
        self._ended = False
        self._listener.subscribe(ABORT)
        deadline = time.monotonic() + BEGIN
        while not self._listener.poll(deadline - time.monotonic()) and time.monotonic() < deadline:
            pass

    def run(self) -> None:
        try:
            while not self._ended:
                notified = self._listener.poll(
                    LISTEN
                )  # what is missed is seen when the lease is prolonged
                ids = {
                    each.removeprefix(ABORT) for each in notified or () if len(each) > len(ABORT)
                }
                if ids:
                    self._aborted(ids)
        except Exception:  # as above
            if not self._ended:
                log.exception("aborts are no longer heard of; they take until a lease is prolonged")
        finally:
            self._listener.close()

    def close(self) -> None:
        """Hear no more."""
        self._ended = True
        self._listener.wake()
