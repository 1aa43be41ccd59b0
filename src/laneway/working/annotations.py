"""The annotations of a function as types, for what is given to it by type."""

from __future__ import annotations

import inspect
import logging
import types
import typing
from collections.abc import Callable
from typing import Any

log = logging.getLogger("laneway.worker")


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """
    The annotations as types, without those that cannot be evaluated (imported for type checkers
    only).
    """
    function = inspect.unwrap(function)
    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001  # any expression can stand there
        hints: dict[str, Any] = {}
        for name, written in getattr(function, "__annotations__", {}).items():
            holder = types.SimpleNamespace(__annotations__={name: written})
            try:
                hints |= typing.get_type_hints(
                    holder, globalns=getattr(function, "__globals__", {})
                )
            except Exception as error:  # noqa: BLE001
                log.debug("the type of argument %s of %s is unknown: %s", name, function, error)
        return hints


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows: itself, or the parts of a union."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)
