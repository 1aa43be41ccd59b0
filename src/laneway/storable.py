"""
Make texts from users' code storable: valid Unicode without NUL, of limited length.

Error texts, reasons and reprs come from code that other people wrote. They may contain lone
surrogates (from any file name that is not UTF-8), have any length, or raise when they are read.
Nothing in this module raises.
"""

from __future__ import annotations

from typing import cast

MAX_REASON = 1_000
"""Most characters of a dead letter's reason."""

MAX_ERROR = 4_000
"""Most characters of an error's text that is stored with a message."""

ESCAPED = " [escaped: it was not valid Unicode]"
NUL_ESCAPED = " [escaped: it contained NUL]"

_name = type.__dict__["__name__"].__get__  # a metaclass of the user's cannot change these
_qualified_name = type.__dict__["__qualname__"].__get__
_module = type.__dict__["__module__"].__get__


def clean(text: object, most: int = MAX_ERROR) -> str:
    """
    Return the text with at most `most` characters; lone surrogates and NUL, which not every
    database can keep, are escaped.

    If it was changed, a note at its end says so.
    """
    if not issubclass(type(text), str):
        return of(text, most)
    own = cast("str", text)
    length = str.__len__(own)  # not `len`: a subclass may return anything
    found = str.__getitem__(own, slice(0, most + 1))
    note = ""
    if "\0" in found:
        found, note = found.replace("\0", r"\x00"), NUL_ESCAPED
    try:
        found.encode()
    except UnicodeEncodeError:
        found = found.encode(errors="backslashreplace").decode()
        note = ESCAPED
    if length > most:
        note += f" [cut: {length:,} characters]"
    if len(found) + len(note) <= most:
        return found + note
    return found[: max(0, most - len(note) - 1)] + "…" + note


def of(thing: object, most: int = MAX_ERROR) -> str:
    """Return `str(thing)`, cleaned; if that raises, a text with its type."""
    try:
        text = str(thing)
    except BaseException:  # noqa: BLE001  # the user's code, which may raise SystemExit
        text = f"<{type_name(type(thing))}, whose text cannot be read>"
    return clean(text, most)


def shown(thing: object, most: int = 200) -> str:
    """Return `repr(thing)`, cleaned; if that raises, a text with its type."""
    try:
        text = repr(thing)
    except BaseException:  # noqa: BLE001  # as in `of`
        text = f"<{type_name(type(thing))}, which cannot be shown>"
    return clean(text, most)


def type_name(kind: type) -> str:
    """Return a class's name, cleaned."""
    return clean(_name(kind), 200)


def qualified_name(kind: type) -> str:
    """Return `module:Class` of a class, cleaned."""
    try:
        module = _module(kind)
    except AttributeError:  # the attribute was deleted
        module = "builtins"
    return f"{clean(module, 200)}:{clean(_qualified_name(kind), 200)}"
