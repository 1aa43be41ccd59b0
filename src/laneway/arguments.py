"""
Check the arguments of public calls; errors name the call: `lease: expected wait to be …, got …`.

Every function takes the call's and the argument's name for that text, returns the value, and raises
UsageError if it is not valid.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable
from typing import Any

from laneway import subscriptions, units
from laneway.errors import UsageError
from laneway.policy import check_pattern, check_topic, is_pattern
from laneway.subscriptions import SEPARATOR, is_unicode
from laneway.units import Duration


def whole(call: str, option: str, value: object, *, least: int = 1, most: int = sys.maxsize) -> int:
    """Check a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        if most < sys.maxsize:
            span = f"from {least:,} to {most:,}"
        else:
            span = "above 0" if least == 1 else f"of at least {least:,}"
        raise UsageError(
            f"{call}: expected {option} to be a whole number {span}, got {value!r:.80}"
        )
    return value


def seconds(
    call: str, option: str, value: Duration, *, least: float = 0, most: float = math.inf
) -> float:
    """Read a duration from `least` to `most` seconds; returns seconds."""
    try:
        span = units.seconds(value)
    except ValueError as error:
        raise UsageError(f"{call}: {option}: {error}") from error
    if not least <= span <= most:
        at_least = f"at least {least:g}{' s' if least else ''}"
        length = at_least if most == math.inf else f"from {least:g} s to {most:g} s"
        raise UsageError(f"{call}: expected {option} to be {length}, got {value!r:.80}")
    return span


def seconds_or_none(call: str, option: str, value: Duration | None) -> float | None:
    """Read a duration of at least 0, or None; returns seconds."""
    return None if value is None else seconds(call, option, value)


def flag(call: str, option: str, value: object) -> bool:
    """Check that a value is true or false."""
    if not isinstance(value, bool):
        raise UsageError(f"{call}: expected {option} to be true or false, got {value!r:.80}")
    return value


def choice(call: str, option: str, value: Any, choices: Collection[str]) -> Any:
    """Check that a value is one of some words."""
    if value not in choices:
        raise UsageError(
            f"{call}: expected {option} to be one of {', '.join(choices)}, got {value!r:.80}"
        )
    return value


def texts(call: str, option: str, value: object) -> list[str]:
    """
    Check a list of texts. A single text is refused, because it would be read letter by letter.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise UsageError(f"{call}: expected {option} to be a list of text, got {value!r:.80}")
    found = list(value)
    for each in found:
        if not isinstance(each, str):
            raise UsageError(
                f"{call}: expected {option} to be a list of text; it contains {each!r:.80}"
            )
        check_unicode(call, option, each)
    return found


def check_unicode(call: str, what: str, value: str) -> None:
    """Check that a text can be encoded as UTF-8."""
    if not value.isascii() and not is_unicode(value):
        raise UsageError(f"{call}: expected {what} to be valid Unicode, got {value!r:.80}")


def topics(call: str, value: object) -> list[str] | None:
    """Check a list of at least one topic, without patterns. None means all topics."""
    if value is None:
        return None
    found = texts(call, "topics", value)
    if not found:
        raise UsageError(f"{call}: expected topics to name at least one; leave it out to serve all")
    for name in found:
        if "*" in name:
            raise UsageError(
                f"{call}: expected topics to be names, got the pattern {name!r}; a pool serves many"
                " topics"
            )
        try:
            check_topic(name)
        except ValueError as error:
            raise UsageError(f"{call}: {error}") from error
    return found


def patterns(call: str, option: str, value: object) -> list[str] | None:
    """Check a list of at least one topic or pattern. None means all topics."""
    if value is None:
        return None
    found = texts(call, option, value)
    if not found:
        raise UsageError(f"{call}: expected {option} to name at least one topic or pattern")
    try:
        return [check_pattern(name) for name in found]
    except ValueError as error:
        raise UsageError(f"{call}: {error}") from error


def pool(call: str, value: object) -> str:
    """Check the name of a pool."""
    if not isinstance(value, str) or not value:
        raise UsageError(f"{call}: expected pool to be a name, got {value!r:.80}")
    if SEPARATOR in value:
        base, name = subscriptions.split(value)
        consumer = f'topic("{value:.80}").consumer()'
        if is_pattern(base):
            consumer = f'subscriptions.consumer("{base:.80}", "{name:.80}")'
        raise UsageError(
            f"{call}: pool {value!r:.80} belongs to the one consumer of a subscription; use"
            f" app.{consumer}"
        )
    check_unicode(call, "pool", value)
    return value


def name(call: str, what: str, value: object) -> str:
    """Check a text that is not empty."""
    if not isinstance(value, str) or not value:
        kind = "non-empty text" if value == "" else "text"
        raise UsageError(f"{call}: expected {what} to be {kind}, got {value!r:.80}")
    check_unicode(call, what, value)
    return value
