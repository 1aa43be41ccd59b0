"""
Functions that engines register for a fork: the application calls them before and after it. A lock
that delays a fork while a program is started.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BEFORE: list[Callable[[], None]] = []
AFTER_IN_PARENT: list[Callable[[], None]] = []
AFTER_IN_CHILD: list[Callable[[], None]] = []

starting = threading.RLock()
"""
Held while a program is started. A child forked meanwhile would inherit the pipe that reports the
program's start, and `subprocess.Popen` would not return before that child ends.
"""


def around(
    before: Callable[[], None], in_parent: Callable[[], None], in_child: Callable[[], None]
) -> None:
    """Register the functions of an engine; call it when its module is imported."""
    BEFORE.append(before)
    AFTER_IN_PARENT.append(in_parent)
    AFTER_IN_CHILD.append(in_child)
