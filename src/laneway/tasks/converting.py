"""Converting JSON values to the types of a function's annotations."""

from __future__ import annotations

import functools
from typing import Any

import msgspec


def convert(value: Any, kind: Any) -> Any:
    """
    Convert a JSON value to a type. Raises ValueError (ValidationError) or TypeError; a type that
    cannot be checked accepts every value.
    """
    if not is_known(kind):
        return value
    return msgspec.convert(value, kind, dec_hook=convert_own)


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


@functools.lru_cache(maxsize=4096)
def _checkable(kind: Any) -> bool:
    try:
        msgspec.json.Decoder(kind, dec_hook=convert_own)
    except Exception:  # noqa: BLE001  # a ParamSpec, a string, a union of two structs …
        return False
    return True


def is_known(kind: Any) -> bool:
    """Whether values can be converted to this type."""
    try:
        return _checkable(kind)
    except TypeError:  # not hashable
        return False
