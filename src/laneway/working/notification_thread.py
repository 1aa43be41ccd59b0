"""
The thread that is notified by other programs: of leases which they ended, such as cancelled jobs,
and of pings.

The handlers of ended leases are stopped immediately, not when the lease is next extended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from laneway.engines.base import ABORT, PING, FullEngine

log = logging.getLogger("laneway.worker")

SUBSCRIBE_SECONDS = 0.5
"""
How long a worker waits for the subscription before its first lease; the end of a lease that is
taken before is noticed when that lease is extended.
"""

POLL_SECONDS = 60.0
"""How long one poll lasts; a notification ends it."""


class NotificationThread(threading.Thread):
    """
    Calls `aborted` with the names (`result_name`) of messages whose leases were ended, and `pinged`
    with the ids of workers that are to send a heartbeat; both in this thread.
    """

    def __init__(
        self,
        engine: FullEngine,
        aborted: Callable[[set[str]], None],
        pinged: Callable[[set[str]], None],
    ) -> None:
        super().__init__(name="laneway-notifications", daemon=True)
        self._listener = engine.result_listener()
        self._aborted = aborted
        self._pinged = pinged
        self._is_ending = False
        self._listener.subscribe(ABORT, PING)
        deadline = time.monotonic() + SUBSCRIBE_SECONDS
        while not self._listener.poll(deadline - time.monotonic()) and time.monotonic() < deadline:
            pass

    def run(self) -> None:
        try:
            while not self._is_ending:
                # An end without notification is noticed when the lease is extended.
                channels = self._listener.poll(POLL_SECONDS)
                for prefix, call in ((ABORT, self._aborted), (PING, self._pinged)):
                    ids = {
                        channel.removeprefix(prefix)
                        for channel in channels or ()
                        if channel.startswith(prefix) and channel != prefix
                    }
                    if ids:
                        call(ids)
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
