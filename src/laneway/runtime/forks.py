"""
Fork handling: an application opens no engine during a fork, and has no open engine in the child.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

from laneway.engines.shared import forking

_runtimes: WeakSet[Any] = WeakSet()
_held: list[Any] = []
_of_parents: list[object] = []


def register(runtime: Any) -> None:
    """Prepare an application's runtime for forks, for as long as it exists."""
    _runtimes.add(runtime)


def keep(*objects: object) -> None:
    """
    Keep a parent's objects alive in its forked child: finalizing them there could close the
    parent's files and connections.
    """
    _of_parents.extend(objects)


def _before_fork() -> None:
    locks = [each.holder.lock for each in list(_runtimes)]
    _held[:] = [lock for lock in locks if lock.acquire(timeout=forking.FORK_SECONDS)]
    forking.pause()


def _after_fork_in_parent() -> None:
    forking.resume_in_parent()
    for lock in _held:
        lock.release()
    _held.clear()


def _after_fork_in_child() -> None:
    _held.clear()
    forking.begin_in_child()
    for each in list(_runtimes):
        each.begin_in_child()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
