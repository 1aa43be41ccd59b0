"""
What a fork waits for: what a child would inherit half done, and could never finish.

Engines register functions that the application calls before and after a fork. Short operations of
other kinds run inside `undivided`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

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
