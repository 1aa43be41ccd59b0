"""Converting JSON values to the types of a function's annotations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec


def converter_to(kind: Any) -> Callable[[Any], Any] | None:
    """
    A function that converts a JSON value to a type, or None if the type cannot be checked. The
    function raises ValueError (ValidationError) or TypeError.
    """
    try:
        return _converter_to(kind)
    except TypeError:  # not hashable
        return None


@functools.lru_cache(maxsize=4096)
def _converter_to(kind: Any) -> Callable[[Any], Any] | None:
    try:
        msgspec.json.Decoder(kind, dec_hook=convert_own)
    except Exception:  # noqa: BLE001  # a ParamSpec, a string, a union of two structs …
        return None
    try:
        msgspec.json.schema(kind)
    except Exception:  # noqa: BLE001  # it has a part that only `convert_own` knows
        return functools.partial(msgspec.convert, type=kind, dec_hook=convert_own)
    return functools.partial(msgspec.convert, type=kind)  # a hook would triple the time


def convert_own(kind: type, value: Any) -> Any:
    """
    Convert to types that msgspec does not know, such as pydantic models; a value that already has
    the type is returned.
    """
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    try:
        if isinstance(value, kind):
            return value
    except TypeError:  # the type does not support isinstance
        return value
    raise ValueError(
        f"JSON gives {type(value).__name__}, not {kind.__name__}; take a dataclass, a msgspec or"
        " pydantic model instead"
    )
