"""
The thread that is notified of leases which were ended from outside, such as cancelled jobs.

Their handlers are stopped at once, and not only when the lease is next extended.
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

SUBSCRIBE_SECONDS = 0.5
"""
How long a worker waits for the subscription before its first lease; the end of a lease that is
taken before is noticed when that lease is extended.
"""

POLL_SECONDS = 60.0
"""How long one poll lasts; a notification ends it."""


class AbortThread(threading.Thread):
    """Calls `aborted`, in this thread, with the ids of messages whose leases were ended."""

    def __init__(self, engine: FullEngine, aborted: Callable[[set[str]], None]) -> None:
        super().__init__(name="laneway-aborts", daemon=True)
        self._listener = engine.result_listener()
        self._aborted = aborted
        self._is_ending = False
        self._listener.subscribe(ABORT)
        deadline = time.monotonic() + SUBSCRIBE_SECONDS
        while not self._listener.poll(deadline - time.monotonic()) and time.monotonic() < deadline:
            pass

    def run(self) -> None:
        try:
            while not self._is_ending:
                # An end without notification is noticed when the lease is extended.
                channels = self._listener.poll(POLL_SECONDS)
                ids = {
                    channel.removeprefix(ABORT)
                    for channel in channels or ()
                    if len(channel) > len(ABORT)
                }
                if ids:
                    self._aborted(ids)
        except Exception:
            if not self._is_ending:
                log.exception(
                    "abort listener failed; cancelled jobs are stopped when their lease is"
                    " next extended"
                )
        finally:
            self._listener.close()

    def close(self) -> None:
        """Stop listening."""
        self._is_ending = True
        self._listener.wake()
