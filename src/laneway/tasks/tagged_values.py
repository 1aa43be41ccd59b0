"""
Values that JSON does not have, with their types: `{"__type__": "datetime", "__value__": …}`.

For programs of Celery (whose JSON does the same) and RQ (which pickles), whose functions have no
annotations.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from laneway.errors import BadMessage

TYPE, VALUE = "__type__", "__value__"

_AS_TEXT: dict[type, tuple[str, Callable[[Any], Any]]] = {
    datetime: ("datetime", datetime.isoformat),
    date: ("date", date.isoformat),
    time: ("time", time.isoformat),
    timedelta: ("timedelta", timedelta.total_seconds),
    UUID: ("uuid", str),
    Decimal: ("decimal", str),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
}
_FROM: dict[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda value: timedelta(seconds=value),
    "uuid": UUID,
    "decimal": Decimal,
    "bytes": base64.b64decode,
    "tuple": lambda value: tuple(map(untag, value)),
    "set": lambda value: set(map(untag, value)),
    "frozenset": lambda value: frozenset(map(untag, value)),
    "dict": lambda value: {untag(key): untag(each) for key, each in value},
}
_PLAIN = (str, int, float, bool, type(None))


def tag(value: Any, *, strict: bool = False) -> Any:
    """
    The value with its types. `strict`: includes tuples, sets and keys. Raises BadMessage for a set,
    and with `strict` for any value that could not be restored.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in _AS_TEXT:
        name, write = _AS_TEXT[kind]
        return {TYPE: name, VALUE: write(value)}
    if kind is list:
        return [tag(each, strict=strict) for each in value]
    if kind is dict:
        if TYPE in value or (strict and not all(type(key) is str for key in value)):
            return {
                TYPE: "dict",
                VALUE: [
                    [tag(key, strict=strict), tag(each, strict=strict)]
                    for key, each in value.items()
                ],
            }
        return {key: tag(each, strict=strict) for key, each in value.items()}
    if kind is tuple:
        members = [tag(each, strict=strict) for each in value]
        return {TYPE: "tuple", VALUE: members} if strict else members
    if strict and kind in (set, frozenset):
        return {TYPE: kind.__name__, VALUE: [tag(each, strict=True) for each in value]}
    if strict or kind in (set, frozenset):
        raise BadMessage(
            f"a value of type {kind.__qualname__} would change when it is stored; annotate the"
            " function with its type"
        )
    return value


def untag(value: Any) -> Any:
    """The value that `tag` was called with."""
    if type(value) is list:
        return [untag(each) for each in value]
    if type(value) is not dict:
        return value
    if value.keys() == {TYPE, VALUE}:
        make = _FROM.get(value[TYPE]) if isinstance(value[TYPE], str) else None
        if make is not None:
            try:
                return make(value[VALUE])
            except (ValueError, TypeError, ArithmeticError):
                return value
    return {key: untag(each) for key, each in value.items()}
