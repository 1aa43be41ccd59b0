"""Combines what several shards report into one view. Independent of the kind of server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


def gates(views: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The view of each gate, from its views on all shards: leases and waiting lanes add up."""
    merged: dict[str, dict[str, Any]] = {}
    for view in views:
        gate = merged.setdefault(view["name"], view)
        if gate is not view:
            for field in ("leased", "waiting"):
                gate[field] += view[field]
    return [merged[name] for name in sorted(merged)]


def first(items: Iterable[T], limit: int, order: Callable[[T], Any]) -> list[T]:
    """The first of what all shards have, from the first ones of each."""
    return sorted(items, key=order)[:limit]
