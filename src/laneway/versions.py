"""
Versions of programs, and which of two is the older one.

A version is numbers with separators between them, with a mark of a release that comes before or
after: `7`, `"1.10.2"`, `"v2.0rc1"`, `"2026-11-21"`, `"2026.11.21+3"`, `"1.0.post1"`, and what `git
describe` says. Numbers are compared as numbers, a missing one is 0; `dev`, `a`, `b`, `rc` come
before the release and `post` after it. Other words and hashes have no order, so they are refused.
"""

from __future__ import annotations

import re

from laneway.errors import UsageError

MARKS = {
    "dev": -4,
    "a": -3,
    "alpha": -3,
    "b": -2,
    "beta": -2,
    "rc": -1,
    "c": -1,
    "pre": -1,
    "preview": -1,
    "": 0,
    "post": 1,
    "rev": 1,
    "r": 1,
    "t": 0,
    "z": 0,
}
"""What stands before a number; `t` and `z` are of times, as in 2026-11-21T10:00Z."""

MOST = 100
"""Characters."""

_PART = re.compile(r"([a-z]*)[.\-_+:]?(\d*)[.\-_+:]?", re.ASCII)
_COMMIT = re.compile(r"-g[0-9a-f]{4,40}(-dirty)?$", re.ASCII)
"""The end of what `git describe` says."""

Key = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]


def check(version: str | int | None) -> str | None:
    """The version as it is kept; None: the program says none. Raises UsageError."""
    if version is None:
        return None
    text = str(version) if isinstance(version, int) and not isinstance(version, bool) else version
    if not isinstance(text, str) or not text or len(text) > MOST or _key(text) is None:
        raise UsageError(
            'version: expected numbers like "1.4.2", a date like "2026-11-21" or an integer, got'
            f" {version!r:.60}; leave it out where versions have no order"
        )
    return text


def is_older(version: str | None, than: str | None) -> bool:
    """Whether the first is older; a missing one is neither older nor newer than any."""
    mine, theirs = (_key(text) if text else None for text in (version, than))
    return mine is not None and theirs is not None and mine < theirs


def _key(text: str) -> Key | None:
    """The release's numbers, and the marks behind them: 1.0rc1 < 1.0 = 1 < 1.0.post1 < 1.0.1."""
    lowered = _COMMIT.sub("", text.strip().lower())
    lowered = lowered[1:] if re.match(r"v\d", lowered) else lowered
    if not lowered[:1].isdigit():
        return None
    release: list[int] = []
    marks: list[tuple[int, int]] = []
    at = 0
    while at < len(lowered):
        match = _PART.match(lowered, at)
        if match is None or match.end() == at or match[1] not in MARKS:
            return None
        mark, number = MARKS[match[1]], int(match[2] or 0)
        if mark or marks:
            marks.append((mark, number))
        else:
            release.append(number)
        at = match.end()
    while len(release) > 1 and not release[-1]:
        release.pop()
    return tuple(release), (*marks, (0, 0))
