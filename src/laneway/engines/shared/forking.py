"""
What a fork waits for: what a child would inherit half done, and could never finish.

Engines register functions that the application calls before and after a fork. Short operations of
other kinds run inside `undivided`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FORK_SECONDS = 5.0
"""How long a fork waits for one thing at most."""

BEFORE: list[Callable[[float], bool]] = []
AFTER_IN_PARENT: list[Callable[[], None]] = []
AFTER_IN_CHILD: list[Callable[[], None]] = []


def around(
    before: Callable[[float], bool], in_parent: Callable[[], None], in_child: Callable[[], None]
) -> None:
    """
    Register the functions of an engine; call it when its module is imported. `before` pauses what
    is not paused yet, with a timeout in seconds for each; it returns whether everything is.
    """
    BEFORE.append(before)
    AFTER_IN_PARENT.append(in_parent)
    AFTER_IN_CHILD.append(in_child)


class Lock(Protocol):
    """A `threading.RLock`, or one like it."""

    def acquire(self, *, timeout: float) -> bool:
        """Take it; False: it was not free in time."""

    def release(self) -> None:
        """Give it back."""


class Locked(Protocol):
    """What has a lock that no thread holds during a fork."""

    @property
    def lock(self) -> Lock:
        """The lock."""

    def forget(self, *, is_quiet: bool) -> None:
        """
        In a forked child: the files and connections are the parent's. `is_quiet`: False if a thread
        of the parent held the lock.
        """


class Pauses:
    """A fork waits for the locks of these, and its child forgets them."""

    def __init__(self) -> None:
        self._all: WeakSet[Locked] = WeakSet()
        self._paused: list[Locked] = []
        around(self._before, self._in_parent, self._in_child)

    def add(self, locked: Locked) -> None:
        """Pause it at each fork from now on."""
        self._all.add(locked)

    def _before(self, seconds: float) -> bool:
        others = set(self._all).difference(self._paused)
        paused = [each for each in others if each.lock.acquire(timeout=seconds)]
        self._paused += paused
        return len(paused) == len(others)

    def _in_parent(self) -> None:
        for each in self._paused:
            each.lock.release()
        self._paused.clear()

    def _in_child(self) -> None:
        quiet = set(self._paused)
        self._paused.clear()
        for each in list(self._all):
            each.forget(is_quiet=each in quiet)
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
    - a SQLite file is opened, or used by a connection that no registered function pauses: a child
      would inherit a mutex of SQLite that no thread of the child holds.

    Take no lock inside that a registered function takes before a fork.
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
        for before in BEFORE:
            before(FORK_SECONDS)
        with _operations.changed:
            _operations.is_paused = True
            _operations.changed.wait_for(lambda: not _operations.running, FORK_SECONDS)
        # What was opened meanwhile may be locked by a thread that waits for an operation.
        if all(before(0) for before in BEFORE) or time.monotonic() > until:
            return
        _resume()


def _resume() -> None:
    with _operations.changed:
        _operations.is_paused = False
        _operations.changed.notify_all()


def resume_in_parent() -> None:
    """After a fork, in the parent."""
    for after in AFTER_IN_PARENT:
        after()
    _resume()


def begin_in_child() -> None:
    """After a fork, in the child: no operation of the parent runs here."""
    global _operations  # noqa: PLW0603  # another thread of the parent may hold its lock
    _operations = _Operations()
    for after in AFTER_IN_CHILD:
        after()
