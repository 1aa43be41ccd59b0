"""The signal that starts a pass of the engine thread, wherever that thread waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class WorkSignal(threading.Event):
    """An event for one waiting thread, which may also wait elsewhere, inside `waking`."""

    def __init__(self) -> None:
        super().__init__()
        self._wake: Callable[[], None] | None = None

    def set(self) -> None:
        """Wake the thread, or let its next wait return immediately."""
        if not self.is_set():
            super().set()
            wake = self._wake
            if wake is not None:
                wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[bool]:
        """
        Inside the block `set` also calls `wake`. Gives whether the signal was set before.
        """
        self._wake = wake
        try:
            yield self.is_set()
        finally:
            self._wake = None
