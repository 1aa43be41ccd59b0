"""The lock of a store in PostgreSQL, which its threads take in turn."""

from __future__ import annotations

import threading
import time


class StoreLock:
    """
    The lock of a store's threads. A server that is away costs each attempt to connect the whole
    time limit, so calls that have waited during one that failed do not try, too.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._waiting: set[int] = set()
        """The threads that wait for it."""
        self.waited_since = 0.0
        """When the thread that has the lock came to take it."""

    @property
    def is_passed_on(self) -> bool:
        """Whether another thread gets it when the caller leaves the present `with` and another."""
        return bool(self._waiting) and self._depth == 2

    def acquire(self, *, blocking: bool = True, timeout: float = -1) -> bool:
        came_at = time.monotonic()
        if not self._lock.acquire(blocking=False):
            if not blocking:
                return False
            thread = threading.get_ident()
            try:
                self._waiting.add(thread)
                if not self._lock.acquire(timeout=timeout):
                    return False
            finally:
                self._waiting.discard(thread)
        if not self._depth:
            self.waited_since = came_at
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
