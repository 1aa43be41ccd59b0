"""
What people may see: URLs without their passwords, and text of strangers without control characters.

Everything that prints, logs or raises goes through these functions: `redacted` for a URL,
`without_passwords` for text in which a URL may stand, `escaped` for text that a stranger may have
written (names, bodies, errors, headers).
"""

from __future__ import annotations

import re

HIDDEN = "***"
"""Stands where a user and a password were."""

_OPTION = r"([?&;][\w.%+-]*(?:pass|pwd|secret|token|credential)[\w.%+-]*=)"
_OPTION_OF_URL = re.compile(_OPTION + r"[^&]*", re.IGNORECASE)
_OPTION_IN_TEXT = re.compile(_OPTION + r"""[^&;#\s"'<>]*""", re.IGNORECASE)
_USER_IN_TEXT = re.compile(
    r"""([A-Za-z][A-Za-z0-9+.-]*://)(?!:PASSWORD@HOST(?![^\s,;]))[^\s"'<>]*@"""
)
"""A user and a password, but in the advice how to write them."""
_PORT = re.compile(r"\[[^\]]*\]|:(?!\d{1,5}(?:,|$))[^,\[\]]+")
_PORT_OR_OPTIONS = re.compile(r"\[[^\]]*\]|:(?!\d{1,5}(?:,|$|\?[a-z_]+=))[^,\[\]]+")
"""
An address in brackets, or what stands where a port belongs and is none; where a user was named,
options may follow the port.
"""

_LINE_BREAKS = "\u2028\u2029"
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_SURROGATES = "\ud800-\udfff"
_CONTROLS = re.compile(rf"[\x00-\x1f\x7f-\x9f{_BIDI}{_LINE_BREAKS}{_SURROGATES}]")
_CONTROLS_IN_JSON = re.compile(rf"[\x7f-\x9f{_BIDI}{_LINE_BREAKS}{_SURROGATES}]")


def redacted(url: str) -> str:
    """
    A URL as it may be shown: without user and password, and without the passwords among its
    options.

    All that stands before the last `@` is hidden, so that a password with `/`, `?` or `@` in it,
    one host after the other, and a URL without a scheme are safe too.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    if scheme == "sqlite" and rest.startswith("/"):
        return url  # a path, which may have an @ in it
    # An `@` behind the `?` may be a part of a password there: options are hidden first.
    rest = _OPTION_OF_URL.sub(rf"\1{HIDDEN}", rest)
    _, at, behind = rest.rpartition("@")
    hosts, slash, path = behind.partition("/")
    if separator:  # `valkey://:PASSWORD`, where the host was forgotten
        hosts = (_PORT_OR_OPTIONS if at else _PORT).sub(
            lambda found: found[0] if found[0][0] == "[" else f":{HIDDEN}", hosts
        )
    return f"{scheme}{separator}{HIDDEN if at else ''}{at}{hosts}{slash}{path}"


def without_passwords(text: str) -> str:
    """Text whose URLs are as `redacted` shows them, as far as they can be found in it."""
    if "://" not in text:
        return text
    return _USER_IN_TEXT.sub(rf"\1{HIDDEN}@", _OPTION_IN_TEXT.sub(rf"\1{HIDDEN}", text))


def escaped(text: str, *, lines: bool = False) -> str:
    r"""
    Text that a terminal shows and does not obey: control characters as `\x1b` or `\u202e`.

    Those are C0, DEL, C1 (U+009B begins a control sequence as ESC [ does), what turns the
    direction of writing, Unicode's line breaks, and lone surrogates. `lines`: the text has several
    lines, and tabs.
    """
    if not lines:
        return _CONTROLS.sub(_escape, text)
    return "\n".join(
        _CONTROLS.sub(_escape, line.replace("\t", "    ")) for line in text.split("\n")
    )


def escaped_json(document: str) -> str:
    """A JSON document whose strings hold no control character; it means the same."""
    return _CONTROLS_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
