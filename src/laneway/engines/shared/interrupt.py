"""Interrupt: ends one `wait` of an engine from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupt:
    """Ends the wait that it was passed to, and all later ones immediately."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None
        self.is_set = False

    def set(self) -> None:
        """End the wait. It cannot be undone."""
        with self._lock:
            self.is_set = True
            if self._wake is not None:
                self._wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """
        For engines: inside the block, `set` calls `wake`, which must return immediately and not
        raise.
        """
        with self._lock:
            self._wake = wake
        try:
            yield
        finally:
            with self._lock:
                self._wake = None
