"""Functions that engines register for a fork: the application calls them before and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BEFORE: list[Callable[[], None]] = []
AFTER_IN_PARENT: list[Callable[[], None]] = []
AFTER_IN_CHILD: list[Callable[[], None]] = []


def around(
    before: Callable[[], None], in_parent: Callable[[], None], in_child: Callable[[], None]
) -> None:
    """Register the functions of an engine; call it when its module is imported."""
    BEFORE.append(before)
    AFTER_IN_PARENT.append(in_parent)
    AFTER_IN_CHILD.append(in_child)
