"""The lock of a store in PostgreSQL, which its threads take in turn."""

from __future__ import annotations

import _thread
import threading
import time
from typing import TYPE_CHECKING

_acquire = _thread.RLock.acquire


class StoreLock(_thread.RLock):  # type: ignore[misc]  # CPython allows it
    """
    The lock of a store's threads. A server that is away costs each attempt to connect the whole
    time limit, so calls that have waited during one that failed do not try, too.

    A KeyboardInterrupt may come between any two calls of a thread. If it comes when the lock was
    just acquired, the lock is released. What releases it is not Python, so nothing comes before.
    """

    def __init__(self) -> None:
        self._taken = 0
        """How often the thread that has it has taken it since it had it first."""
        self._waiting: set[int] = set()
        """The threads that wait for it."""
        self.waited_since = 0.0
        """When the thread that has the lock came to take it."""

    if TYPE_CHECKING:

        def _is_owned(self) -> bool:
            """As `threading.Condition` asks it."""

    @property
    def is_passed_on(self) -> bool:
        """Whether another thread gets it when the caller leaves the present `with` and another."""
        return bool(self._waiting) and self._taken == 2

    @property
    def is_held_here(self) -> bool:
        """Whether this thread has it."""
        return self._is_owned()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._is_owned():
            self._taken += 1
            try:
                return _acquire(self)
            except BaseException:
                self.release()
                raise
        came_at = time.monotonic()
        try:
            if not (_acquire(self, blocking=False) or (blocking and self._wait(timeout))):
                return False
            self._taken, self.waited_since = 1, came_at
        except BaseException:
            if self._is_owned():
                self.release()
            raise
        return True

    __enter__ = acquire

    def _wait(self, timeout: float) -> bool:
        thread = threading.get_ident()
        try:
            self._waiting.add(thread)
            return _acquire(self, timeout=timeout)
        finally:
            self._waiting.discard(thread)
