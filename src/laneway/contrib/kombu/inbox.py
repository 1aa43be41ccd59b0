"""What pumps have leased for a connection, until its consumer takes it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """
    A queue between threads. An event loop may watch its file, which is readable while the
    inbox is not empty. Urgent entries go first.
    """

    def __init__(self) -> None:
        self._urgent: deque[T] = deque()
        self._others: deque[T] = deque()
        self._changed = threading.Condition()
        self._inner: socket.socket | None = None
        self._waker: socket.socket | None = None

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def put(self, entries: Iterable[T], *, is_urgent: bool) -> None:
        """Add entries."""
        with self._changed:
            was_empty = self._is_empty
            (self._urgent if is_urgent else self._others).extend(entries)
            if was_empty:
                self._signal()
            self._changed.notify()

    def take(self, timeout: float | None = 0.0) -> T | None:
        """Remove the first entry; wait for it at most `timeout` seconds. None if none came."""
        with self._changed:
            if self._is_empty and not self._changed.wait_for(lambda: not self._is_empty, timeout):
                return None
            entry = self._urgent.popleft() if self._urgent else self._others.popleft()
            if self._is_empty:
                self._clear()
            return entry

    def remove(self, is_wanted: Callable[[T], bool]) -> list[T]:
        """Remove some entries, and return them."""
        with self._changed:
            removed = [
                entry for each in (self._urgent, self._others) for entry in each if is_wanted(entry)
            ]
            self._urgent = deque(entry for entry in self._urgent if not is_wanted(entry))
            self._others = deque(entry for entry in self._others if not is_wanted(entry))
            if self._is_empty:
                self._clear()
        return removed

    def open_file(self) -> int:
        """The file that an event loop may watch; it is closed by `close`."""
        with self._changed:
            if self._inner is None:
                self._inner, self._waker = socket.socketpair()
                self._inner.setblocking(False)
                self._waker.setblocking(False)
                if not self._is_empty:
                    self._signal()
            return self._inner.fileno()

    def close(self) -> None:
        """Close the file."""
        with self._changed:
            for each in (self._inner, self._waker):
                if each is not None:
                    each.close()
            self._inner = self._waker = None

    @property
    def _is_empty(self) -> bool:
        return not self._urgent and not self._others

    def _signal(self) -> None:
        if self._waker is not None:
            with contextlib.suppress(OSError):
                self._waker.send(b"!")

    def _clear(self) -> None:
        if self._inner is not None:
            with contextlib.suppress(OSError):
                self._inner.recv(4096)
