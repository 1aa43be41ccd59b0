"""The lock of a store in PostgreSQL, which its threads take in turn."""

from __future__ import annotations

import threading
import time
from contextlib import suppress


class StoreLock:
    """
    The lock of a store's threads. A server that is away costs each attempt to connect the whole
    time limit, so calls that have waited during one that failed do not try, too.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        """The thread that has this one takes it once."""
        self._owner = self._depth = 0
        self._waiting: set[int] = set()
        """The threads that wait for it."""
        self.waited_since = 0.0
        """When the thread that has the lock came to take it."""

    @property
    def is_passed_on(self) -> bool:
        """Whether another thread gets it when the caller leaves the present `with` and another."""
        return bool(self._waiting) and self._depth == 2

    @property
    def is_held_here(self) -> bool:
        """Whether this thread has it."""
        return self._owner == threading.get_ident()

    def acquire(self, *, blocking: bool = True, timeout: float = -1) -> bool:
        if self.is_held_here:
            self._depth += 1
            return True
        thread, came_at = threading.get_ident(), time.monotonic()
        try:
            if not self._lock.acquire(blocking=False):
                if not blocking:
                    return False
                try:
                    self._waiting.add(thread)
                    if not self._lock.acquire(timeout=timeout):
                        return False
                finally:
                    self._waiting.discard(thread)
            self.waited_since, self._depth, self._owner = came_at, 1, thread
        except BaseException:  # a KeyboardInterrupt may come when it is acquired already
            with suppress(RuntimeError):  # it is not
                self._lock.release()
            raise
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
