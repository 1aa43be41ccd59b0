"""
Read durations, rates and sizes as people write them.

Engines count time in integer microseconds. All functions raise ValueError with the form that was
expected.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta

SECOND = 1_000_000
"""Microseconds in a second."""

FOREVER = 1 << 62
"""A time in microseconds that never comes."""

MAX_SECONDS = 100 * 365 * 86_400
"""
The longest duration: 100 years, in seconds. A longer one is a mistake and would overflow in stores.
"""

MAX_MOMENT = 253_402_300_799
"""The largest Unix time in seconds: the end of the year 9999."""

MAX_BYTES = 1 << 60
"""The largest size."""

MAX_TEXT = 100
"""Most characters of a duration, rate or size that is written as text; all of them are ASCII."""

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_WORDS = {
    "ms": "ms|milliseconds?",
    "s": "s|secs?|seconds?",
    "m": "m|mins?|minutes?",
    "h": "h|hours?",
    "d": "d|days?",
    "w": "w|weeks?",
}
_SIZES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_DURATION = re.compile(
    r"(\d+(?:\.\d+)?)\s*(?:"
    + "|".join(f"(?P<{unit}>{words})" for unit, words in _WORDS.items())
    + r")(?![a-z])",
    re.ASCII,
)
_RATE = re.compile(
    r"^(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)?\s*(s|sec|second|m|min|minute|h|hour|d|day)$",
    re.ASCII,
)
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*([kmgt]?i?b)$", re.ASCII | re.IGNORECASE)

Duration = float | int | str | timedelta
"""Seconds, a `timedelta`, or text such as `"10m"` or `"1h30m"`."""


def seconds(value: Duration) -> float:
    """Read a duration of at most 100 years, which may be negative; returns seconds."""
    if isinstance(value, timedelta):
        number: float = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and len(value) <= MAX_TEXT:
        number = _read_duration(value)
    else:
        raise _bad_duration(value)
    if isinstance(number, float) and not math.isfinite(number):
        raise _bad_duration(value)
    if not -MAX_SECONDS <= number <= MAX_SECONDS:
        raise ValueError(f"expected a duration of at most 100 years, got {value!r:.80}")
    return float(number)


def _read_duration(value: str) -> float:
    text = value.strip().lower()
    try:
        return _number(text)
    except ValueError:
        parts = list(_DURATION.finditer(text))
        if parts and _DURATION.sub("", text).strip() == "":
            return sum(float(part[1]) * _UNITS[part.lastgroup or "s"] for part in parts)
    raise _bad_duration(value)


def _number(text: str) -> float:
    """A number in ASCII digits, the only ones that logs, stores and other programs read."""
    if not text.isascii():
        raise ValueError(text)
    return float(text)


def _bad_duration(value: object) -> ValueError:
    return ValueError(
        f'expected seconds, a timedelta or text like "10m" or "1h30m", got {value!r:.80}'
    )


def in_words(seconds: float) -> str:
    """A duration, rounded: 250 ms, 1.5 s, 90.0 min."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(seconds, 0.0) * 1000:.0f} ms"


def microseconds(value: Duration) -> int:
    """Read a duration; returns microseconds."""
    return round(seconds(value) * SECOND)


def moment(value: datetime | float | int) -> int:
    """
    Read a time: an aware `datetime` or a Unix time in seconds. Returns microseconds since 1970.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"expected a datetime with a time zone, got {value!r}")
        return round(value.timestamp() * SECOND)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not -MAX_MOMENT <= value <= MAX_MOMENT:  # nor NaN
            raise ValueError(
                f"expected a Unix time in seconds before the year 10000, got {value!r:.80}"
            )
        return round(value * SECOND)
    raise ValueError(f"expected an aware datetime or a Unix time in seconds, got {value!r:.80}")


UNIX_FROM = 1e8
"""A number above this is a Unix time, one below a duration: three years ago, or of 1973."""


def past_us(text: str, now_us: int) -> int:
    """
    Read a past time, in microseconds since 1970: RFC 3339, Unix seconds, or how long ago ("10m").
    """
    if "T" in text or text.count("-") >= 2:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise ValueError("it has no time zone; end it with Z")
        return round(at.timestamp() * SECOND)
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    return round(number * SECOND) if number >= UNIX_FROM else now_us - microseconds(text)


LEAST_RATE = 1 / (14 * 86_400)
"""
The lowest rate, per second. Engines add the time until the next delivery to the clock. For a
message of the highest cost, too, it fits into their integers: else each lease would be an error.
"""


def rate(value: float | int | str) -> float:
    """Read a rate: a number, or text like `"50/s"`, `"600/m"`, `"100/10s"`. Returns it per s."""
    number = value
    if isinstance(value, str):
        number = _read_rate(value.strip().lower()) if len(value) <= MAX_TEXT else -1.0
    if (
        isinstance(number, bool)
        or not isinstance(number, (int, float))
        or not LEAST_RATE <= number <= 1_000_000
    ):
        raise ValueError(
            "expected a number above 0 (at most 1,000,000, at least once in 14 days) or text like"
            f' "50/s" or "600/m", got {value!r:.80}'
        )
    return float(number)


def _read_rate(text: str) -> float:
    match = _RATE.match(text)
    try:
        if match is None:
            return _number(text)
        count, span, unit = match.groups()
        short = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d"}
        return float(count) / (float(span or 1) * _UNITS[short.get(unit, unit)])
    except (ValueError, ZeroDivisionError):
        return -1.0


def rate_text(per_second: float | None) -> str:
    """A rate as people write it: 50/s, 1/min, 2/h; None: "no limit"."""
    if per_second is None:
        return "no limit"
    if per_second >= 1 or per_second == 0:
        return f"{per_second:g}/s"
    per_minute = per_second * 60
    return f"{per_minute:g}/min" if per_minute >= 1 else f"{per_minute * 60:g}/h"


def size(value: int | str) -> int:
    """Read a size: a number of bytes, or text like `"10GB"` or `"1MiB"`; returns bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_BYTES:
        return value
    match = (
        _SIZE.match(value.strip()) if isinstance(value, str) and len(value) <= MAX_TEXT else None
    )
    number = float(match[1]) * _SIZES[match[2].lower()] if match is not None else 0.0
    if not 1 <= number <= MAX_BYTES:
        raise ValueError(
            f'expected a number of bytes above 0 or text like "10GB", got {value!r:.80}'
        )
    return int(number)


def is_size(value: object) -> bool:
    """Return whether the value is text with a unit of size; `"10GB"` is a size, `10` a count."""
    return isinstance(value, str) and _SIZE.match(value.strip()) is not None


def counted(count: int, one: str, many: str | None = None) -> str:
    """How many: "1 message", "2,000 messages". `many`: the plural, where it is not `one` + "s"."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
