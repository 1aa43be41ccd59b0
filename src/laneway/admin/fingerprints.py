"""Fingerprints: recognize the same failure in different messages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import msgspec

from laneway.engines.base import MessageView

DIGITS = 12
"""Hexadecimal digits of a fingerprint."""

MAX_TITLE = 200
"""Most characters of a title."""

_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
_FOREIGN = re.compile(r"[/\\](?:site-packages|dist-packages|python3[.\d]*|laneway)[/\\]|^<")
_CLASS = re.compile(r"[A-Za-z_][\w.]*(?=:|$)")
_COUNTED = re.compile(r"^retries used up \(\d+ attempts?\): ")
_NUMBER = re.compile(r"\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F-]{4,}\b|\d{4,}")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def title_of(reason: str | None, error: str | None) -> str:
    """
    A failure's title: the error's class, and the first frame in the program's own code.

    Without frames: the first line of the error or the reason, without quoted texts and long
    numbers.
    """
    text = (error or _COUNTED.sub("", reason or "")).strip()
    first, frame = _read(text)
    kind = _CLASS.match(first)
    if frame is not None and kind is not None:
        file, _, function = frame
        return f"{kind[0]} in {function} ({file})"[:MAX_TITLE]
    plain = _NUMBER.sub("#", _QUOTED.sub("'…'", first))
    return plain[:MAX_TITLE].strip() or "unknown"


def _read(text: str) -> tuple[str, tuple[str, str, str] | None]:
    """The error, and the last frame in the program's own code: file, line and function."""
    first = text.partition("\n")[0]
    if first.startswith("Traceback "):  # as Python prints it: the error comes last
        first = text.rpartition("\n")[2].strip()
    frames = _FRAME.findall(text)
    if not frames:
        return first, None
    own = [frame for frame in frames if not _FOREIGN.search(frame[0])]
    path, line, function = (own or frames)[-1]
    return first, (re.split(r"[/\\]", path)[-1], line, function)


def line_of(reason: str | None, error: str | None) -> str:
    """A failure in one line: the error, and the program's own file and line; else the reason."""
    first, frame = _read((error or reason or "").strip())
    return first if frame is None else f"{first} ({frame[0]}:{frame[1]})"


def fingerprint_of(reason: str | None, error: str | None) -> str:
    """The fingerprint of a failure: a few digits, the same for failures with the same title."""
    return hashlib.sha256(title_of(reason, error).encode()).hexdigest()[:DIGITS]


class DeadGroup(msgspec.Struct, kw_only=True):
    """
    Dead letters with the same fingerprint. `first_us`, `last_us`: when they died. `example`: the
    last one.
    """

    fingerprint: str
    title: str
    count: int
    first_us: int
    last_us: int
    example: MessageView
    topics: dict[str, int]


def grouped(views: Iterable[MessageView]) -> list[DeadGroup]:
    """The dead letters by their fingerprints, in descending order of frequency."""
    found: dict[str, DeadGroup] = {}
    for view in views:
        fingerprint, died_us = fingerprint_of(view.reason, view.error), view.died_us or 0
        group = found.get(fingerprint)
        if group is None:
            found[fingerprint] = group = DeadGroup(
                fingerprint=fingerprint,
                title=title_of(view.reason, view.error),
                count=0,
                first_us=died_us,
                last_us=died_us,
                example=view,
                topics={},
            )
        group.count += 1
        group.first_us = min(group.first_us, died_us)
        group.topics[view.topic] = group.topics.get(view.topic, 0) + 1
        if died_us >= group.last_us:
            group.last_us, group.example = died_us, view
    return sorted(found.values(), key=lambda group: (-group.count, group.fingerprint))
