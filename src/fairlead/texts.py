"""
Text of unknown origin on its way into a store, a log or an answer: made encodable, and cut to a bound.

Error texts, reasons and reprs come from code that other people wrote. They may hold lone surrogates (any file name that is
not UTF-8 gives some), be of any length, or raise when they are asked for. Nothing here raises.
"""

from __future__ import annotations

from typing import Any, cast

MAX_REASON = 1_000
"""Characters of the reason of a dead letter."""

MAX_ERROR = 4_000
"""Characters of an error's text as it is kept with a message."""

ESCAPED = " [escaped: it was not valid Unicode]"

_name = type.__dict__["__name__"].__get__  # a metaclass of the user's own cannot change these two
_namespace = type.__dict__["__dict__"].__get__


def clean(text: object, most: int = MAX_ERROR) -> str:
    """The text, of at most `most` characters and with lone surrogates escaped; its end says what was changed."""
    if not issubclass(type(text), str):
        return of(text, most)
    own = cast("str", text)
    length = str.__len__(own)  # not `len`: a subclass may say anything
    found = str.__getitem__(own, slice(0, most + 1))
    try:
        found.encode()
        note = ""
    except UnicodeEncodeError:
        found = found.encode(errors="backslashreplace").decode()
        note = ESCAPED
    if length > most:
        note += f" [cut: {length:,} characters]"
    if len(found) + len(note) <= most:
        return found + note
    return found[: max(0, most - len(note) - 1)] + "…" + note


def of(thing: object, most: int = MAX_ERROR) -> str:
    """What `str` says of something, cleaned; where that raises, its type."""
    try:
        text = str(thing)
    except BaseException:  # noqa: BLE001  # code of the user's own, also one that raises SystemExit
        text = f"<{type_name(type(thing))}, whose text cannot be read>"
    return clean(text, most)


def type_name(kind: type) -> str:
    """A class's name."""
    return clean(_name(kind), 200)


def qualified_name(kind: type) -> str:
    """`module:Class` of a class, as it says itself."""
    known: Any = _namespace(kind)
    module, name = known.get("__module__", "builtins"), type.__dict__["__qualname__"].__get__(kind)
    return f"{clean(module, 200)}:{clean(name, 200)}"
