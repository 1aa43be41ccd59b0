"""What JSON gives, as the types that a function asks for."""

from __future__ import annotations

import functools
from typing import Any

import msgspec


def convert(value: Any, kind: Any) -> Any:
    """
    A value as JSON gives it, as the type that is asked for. Raises ValueError (ValidationError) or
    TypeError; what nobody can check passes.
    """
    if not is_known(kind):
        return value
    return msgspec.convert(value, kind, dec_hook=_convert_own)


def _convert_own(kind: type, value: Any) -> Any:
    """Types that msgspec does not know: pydantic's models, and whatever is that already."""
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    try:
        if isinstance(value, kind):
            return value
    except TypeError:  # nobody can check it
        return value
    raise ValueError(
        f"JSON gives {type(value).__name__}, not {kind.__name__}; take a dataclass, a msgspec or"
        " pydantic model instead"
    )


@functools.lru_cache(maxsize=4096)
def _checkable(kind: Any) -> bool:
    try:
        msgspec.json.Decoder(kind, dec_hook=_convert_own)
    except Exception:  # noqa: BLE001  # a type that it cannot even look at (a ParamSpec, a string, a union of two structs)
        return False
    return True


def is_known(kind: Any) -> bool:
    """Whether anything can be made that type."""
    try:
        return _checkable(kind)
    except TypeError:  # not hashable
        return False
