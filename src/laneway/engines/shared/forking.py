"""
What a fork waits for: what a child would inherit half done, and could never finish.

Nothing uses the objects in `Locked` during a fork. Short operations of other kinds run inside
`undivided`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

FORK_SECONDS = 5.0
"""How long a fork waits for one thing at most."""

LOCKED: list[Locked[Any]] = []
"""All of them, in the order in which their modules were imported."""


class HasLock(Protocol):
    """An object whose lock is held while something uses it."""

    lock: Any


T = TypeVar("T", bound=HasLock)


class Locked(Generic[T]):
    """
    Objects whose locks are held during a fork. In the child, `in_child` is called with each, and
    with whether its lock was held: otherwise something was using it, which never ends there.
    """

    def __init__(self, in_child: Callable[[T, bool], None]) -> None:
        self._all: WeakSet[T] = WeakSet()
        self._held: set[T] = set()
        self._in_child = in_child
        LOCKED.append(self)

    def add(self, each: T) -> None:
        """Add a new object."""
        self._all.add(each)

    def acquire(self, seconds: float) -> bool:
        """Acquire the locks that are not held yet, `seconds` for each; whether all are held."""
        others = set(self._all) - self._held
        acquired = {each for each in others if each.lock.acquire(timeout=seconds)}
        self._held |= acquired
        return acquired == others

    def release(self) -> None:
        """Release the locks in the parent."""
        for each in self._held:
            each.lock.release()
        self._held.clear()

    def begin_in_child(self) -> None:
        """Forget the objects, which are the parent's."""
        for each in list(self._all):
            self._in_child(each, each in self._held)
        self._held.clear()
        self._all.clear()


class _Operations:
    """The operations that run now, of all threads."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.running = 0
        self.is_paused = False
        self.of_thread = threading.local()


_operations = _Operations()


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """
    A fork happens before or after this block. Use it while

    - a program is started: a child would inherit the pipe that reports the start, and
      `subprocess.Popen` would not return before that child ends;
    - a SQLite file is opened, or used by a connection that has no lock in `Locked`: a child
      would inherit a mutex of SQLite that no thread of the child holds.

    Take no lock inside that is in `Locked`.
    """
    operations = _operations
    depth = getattr(operations.of_thread, "depth", 0)
    with operations.changed:
        if not depth:
            operations.changed.wait_for(lambda: not operations.is_paused, FORK_SECONDS)
        operations.running += 1
    operations.of_thread.depth = depth + 1
    try:
        yield
    finally:
        operations.of_thread.depth = depth
        with operations.changed:
            operations.running -= 1
            operations.changed.notify_all()


def pause() -> None:
    """Before a fork: let the operations end, and begin no others."""
    until = time.monotonic() + FORK_SECONDS
    while True:
        for locked in LOCKED:
            locked.acquire(FORK_SECONDS)
        with _operations.changed:
            _operations.is_paused = True
            _operations.changed.wait_for(lambda: not _operations.running, FORK_SECONDS)
        # What was opened meanwhile may be locked by a thread that waits for an operation.
        if all(locked.acquire(0) for locked in LOCKED) or time.monotonic() > until:
            return
        _resume()


def _resume() -> None:
    with _operations.changed:
        _operations.is_paused = False
        _operations.changed.notify_all()


def resume_in_parent() -> None:
    """After a fork, in the parent."""
    for locked in LOCKED:
        locked.release()
    _resume()


def begin_in_child() -> None:
    """After a fork, in the child: no operation of the parent runs here."""
    global _operations  # noqa: PLW0603  # another thread of the parent may hold its lock
    _operations = _Operations()
    for locked in LOCKED:
        locked.begin_in_child()
