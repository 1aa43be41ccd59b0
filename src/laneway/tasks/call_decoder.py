"""
`call_decoder`: reads the body of a call straight into the types of the function's annotations.

The general way (`serializers.decode`, then `Binding.decode`) reads every body and says what is
wrong with it. Most calls need neither: they are JSON with the arguments and nothing else. Their
decoder is compiled once for each task; it answers None for every other body.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET
from msgspec import inspect as msgspec_inspect
from msgspec.structs import astuple

from laneway.tasks.converting import convert_own, is_known

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    CallDecoder = Callable[[bytes], "tuple[Any, ...] | None"]
    """The positional arguments in a body; None: read it in the general way."""

NO_KWARGS = b'"kwargs":{}}'
"""How the body of a call without arguments by name ends."""

_DIFFERENT = (msgspec_inspect.DecimalType, msgspec_inspect.RawType, msgspec_inspect.ExtType)
"""Types that are not the same when read from JSON and when converted from decoded JSON."""


def call_decoder(signature: inspect.Signature, hints: Mapping[str, Any]) -> CallDecoder | None:
    """
    Compile a decoder for the calls of a function with this signature and these annotations.

    None: all its calls are read in the general way, because of the kinds or types of its
    parameters.
    """
    parameters = list(signature.parameters.values())
    if any(each.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for each in parameters):
        return None
    required = sum(each.default is inspect.Parameter.empty for each in parameters)
    try:
        decode = _json_decoder({each.name: hints.get(each.name, Any) for each in parameters})
    except Exception:  # noqa: BLE001  # a name or a type that no struct can have
        return None
    if decode is None:
        return None

    def read(body: bytes) -> tuple[Any, ...] | None:
        try:
            call = decode(body)
        except Exception:  # noqa: BLE001  # the general way raises the right error
            return None
        if call.each is not None or call.errback is not None:
            return None
        positional = astuple(call.args)
        if body.endswith(NO_KWARGS) and not (positional and positional[-1] is UNSET):
            return positional
        values = _merged(positional, astuple(call.kwargs))
        return values if values is not None and len(values) >= required else None

    return read


def _json_decoder(hints: Mapping[str, Any]) -> Callable[[bytes], Any] | None:
    """A decoder for bodies with arguments of these types; None: it would read some differently."""
    types = {name: hint if is_known(hint) else Any for name, hint in hints.items()}
    if not all(_is_alike(msgspec_inspect.type_info(hint), set()) for hint in types.values()):
        return None
    # UNSET is the default of each field, but not of its type: no body can contain it.
    fields = [(name, hint, UNSET) for name, hint in types.items()]
    args = msgspec.defstruct("Args", fields, array_like=True, forbid_unknown_fields=True, gc=False)
    kwargs = msgspec.defstruct("Kwargs", fields, forbid_unknown_fields=True, gc=False)
    call = msgspec.defstruct(
        "Call",
        [("args", args), ("kwargs", kwargs), ("each", Any, None), ("errback", Any, None)],
        gc=False,
    )
    return msgspec.json.Decoder(call, dec_hook=convert_own).decode


def _is_alike(part: Any, seen: set[int]) -> bool:
    """Whether a type, with all types inside it, reads JSON as `convert` does decoded JSON."""
    if isinstance(part, tuple):
        return all(_is_alike(each, seen) for each in part)
    if not isinstance(part, (msgspec_inspect.Type, msgspec_inspect.Field)) or id(part) in seen:
        return True
    seen.add(id(part))
    if isinstance(part, _DIFFERENT) or (
        isinstance(part, msgspec_inspect.DictType)
        and not isinstance(part.key_type, (msgspec_inspect.StrType, msgspec_inspect.AnyType))
    ):
        return False
    return all(_is_alike(getattr(part, name), seen) for name in part.__struct_fields__)


def _merged(values: tuple[Any, ...], named: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """
    The arguments, of which some are given by name and the last may be left out. None: one is given
    twice, or left out before another.
    """
    merged: list[Any] = []
    for value, by_name in zip(values, named, strict=True):
        if value is not UNSET and by_name is not UNSET:
            return None
        merged.append(by_name if value is UNSET else value)
    while merged and merged[-1] is UNSET:
        merged.pop()
    return None if any(value is UNSET for value in merged) else tuple(merged)
