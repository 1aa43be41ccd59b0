"""
Make texts safe to show: URLs without passwords, and foreign texts without control characters.

All that prints, logs or raises uses these functions: `redacted` for a URL, `without_passwords` for
text that may contain URLs, `escaped` for text that anyone may have written (names, bodies, errors,
headers).
"""

from __future__ import annotations

import difflib
import os
import re
import socket
from collections.abc import Iterable

HIDDEN = "***"
"""Replaces a user and password."""

_OPTION = r"([?&;][\w.%+-]*(?:pass|pwd|secret|token|credential)[\w.%+-]*=)"
_OPTION_OF_URL = re.compile(_OPTION + r"[^&]*", re.IGNORECASE)
_OPTION_IN_TEXT = re.compile(_OPTION + r"""[^&;#\s"'<>]*""", re.IGNORECASE)
_USER_IN_TEXT = re.compile(
    r"""([A-Za-z][A-Za-z0-9+.-]*://)(?!:PASSWORD@HOST(?![^\s,;]))[^\s"'<>]*@"""
)
"""A user and a password, except in the advice that shows how to write them."""
_PORT = re.compile(r"\[[^\]]*\]|:(?!\d{1,5}(?:,|$))[^,\[\]]+")
_PORT_OR_OPTIONS = re.compile(r"\[[^\]]*\]|:(?!\d{1,5}(?:,|$|\?[a-z_]+=))[^,\[\]]+")
"""
An address in brackets, or a text that stands in a port's place and is none. If the URL names a
user or a host, options may follow the port.
"""

_LINE_BREAKS = "\u2028\u2029"
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_SURROGATES = "\ud800-\udfff"
_CONTROLS = re.compile(rf"[\x00-\x1f\x7f-\x9f{_BIDI}{_LINE_BREAKS}{_SURROGATES}]")
_CONTROLS_IN_JSON = re.compile(rf"[\x7f-\x9f{_BIDI}{_LINE_BREAKS}{_SURROGATES}]")


def redacted(url: str) -> str:
    """
    Return a URL that may be shown: without user, password, and the passwords in its options.

    All before the last `@` is hidden, so passwords that contain `/`, `?` or `@`, lists of hosts,
    and URLs without a scheme are safe too.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    if scheme == "sqlite" and rest.startswith("/"):
        return url  # a path, which may have an @ in it
    # An `@` after the `?` may be part of a password, so options are hidden first.
    rest = _OPTION_OF_URL.sub(rf"\1{HIDDEN}", rest)
    _, at, behind = rest.rpartition("@")
    hosts, slash, path = behind.partition("/")
    if separator:  # `valkey://:PASSWORD`, a URL without its host
        hosts = (_PORT if hosts.startswith(":") and not at else _PORT_OR_OPTIONS).sub(
            lambda found: found[0] if found[0][0] == "[" else f":{HIDDEN}", hosts
        )
    return f"{scheme}{separator}{HIDDEN if at else ''}{at}{hosts}{slash}{path}"


def without_passwords(text: str) -> str:
    """Return the text with the passwords of all URLs that can be found in it hidden."""
    if "://" not in text:
        return text
    return _USER_IN_TEXT.sub(rf"\1{HIDDEN}@", _OPTION_IN_TEXT.sub(rf"\1{HIDDEN}", text))


def escaped(text: str, *, lines: bool = False) -> str:
    r"""
    Return text that a terminal shows and does not obey: control characters as `\x1b` or `\u202e`.

    These are C0, DEL, C1 (U+009B begins a control sequence as ESC [ does), characters that change
    the direction of writing, Unicode's line breaks, and lone surrogates.

    `lines`: the text has several lines and may contain tabs; they are kept.
    """
    if not lines:
        return _CONTROLS.sub(_escape, text)
    return "\n".join(
        _CONTROLS.sub(_escape, line.replace("\t", "    ")) for line in text.split("\n")
    )


def escaped_json(document: str) -> str:
    """Escape the control characters in the strings of a JSON document; its meaning stays."""
    return _CONTROLS_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def meant(name: str, known: Iterable[str]) -> str:
    """The end of a sentence with the name that was probably meant; empty if none is similar."""
    near = difflib.get_close_matches(name, known, n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def meant_or_known(name: str, known: Iterable[str]) -> str:
    """The end of a sentence with the similar name, or with all names that are known."""
    return meant(name, known) or f"; available: {', '.join(known)}"


def process_name() -> str:
    """The host and this process, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"
