"""
Text of unknown origin on its way into a store, a log or an answer: made encodable, and cut to a
bound.

Error texts, reasons and reprs come from code that other people wrote. They may hold lone surrogates
(any file name that is not UTF-8 gives some), be of any length, or raise when they are asked for.
Nothing here raises.
"""

from __future__ import annotations

from typing import cast

MAX_REASON = 1_000
"""Characters of the reason of a dead letter."""

MAX_ERROR = 4_000
"""Characters of an error's text as it is kept with a message."""

ESCAPED = " [escaped: it was not valid Unicode]"

_name = type.__dict__["__name__"].__get__  # what no metaclass of the user's own can change
_qualified_name = type.__dict__["__qualname__"].__get__
_module = type.__dict__["__module__"].__get__


def clean(text: object, most: int = MAX_ERROR) -> str:
    """
    The text, of at most `most` characters and with lone surrogates escaped; its end says what was
    changed.
    """
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


def shown(thing: object, most: int = 200) -> str:
    """What `repr` says of something, cleaned; where that raises, its type."""
    try:
        text = repr(thing)
    except BaseException:  # noqa: BLE001  # as in `of`
        text = f"<{type_name(type(thing))}, which cannot be shown>"
    return clean(text, most)


def type_name(kind: type) -> str:
    """A class's name."""
    return clean(_name(kind), 200)


def qualified_name(kind: type) -> str:
    """`module:Class` of a class, as it says itself."""
    try:
        module = _module(kind)
    except AttributeError:  # somebody has deleted it
        module = "builtins"
    return f"{clean(module, 200)}:{clean(_qualified_name(kind), 200)}"
