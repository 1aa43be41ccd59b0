"""How one `wait` of an engine is ended from another thread, and no other."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Interrupt:
    """Ends the waits that it was given to: the one that lasts, and all later ones at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None
        self.is_set = False

    def set(self) -> None:
        """End the wait; once and for all."""
        with self._lock:
            self.is_set = True
            if self._wake is not None:
                self._wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """
        For an engine: call `wake` when it is set, as long as the block lasts. It has to return at
        once, and not raise.
        """
        with self._lock:
            self._wake = wake
        try:
            yield
        finally:
            with self._lock:
                self._wake = None
