"""Durations, rates and sizes as people write them; inside, time is integer microseconds."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta

SECOND = 1_000_000
"""Microseconds in a second: engines count time in integer microseconds."""

FOREVER = 1 << 62
"""A time that never comes."""

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
          "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_RATE = re.compile(r"^(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)?\s*(s|sec|second|m|min|minute|h|hour|d|day)$")
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*([kmgt]?i?b)$", re.IGNORECASE)

Duration = float | int | str | timedelta
"""Seconds, a `timedelta`, or text such as `"10m"` or `"1h30m"`."""


def seconds(value: Duration) -> float:
    """Read a duration; raises ValueError with what was expected."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ValueError(f'expected seconds, a timedelta or text like "10m", got {value!r}')
        return float(value)
    if isinstance(value, str):
        text = value.strip().lower()
        try:
            return float(text) if text not in {"nan", "inf", "-inf", "infinity"} else _bad_duration(value)
        except ValueError:
            parts = _DURATION.findall(text)
            if parts and _DURATION.sub("", text).strip() == "":
                return sum(float(number) * _UNITS[unit] for number, unit in parts)
    return _bad_duration(value)


def _bad_duration(value: object) -> float:
    raise ValueError(f'expected seconds, a timedelta or text like "10m" or "1h30m", got {value!r}')


def microseconds(value: Duration) -> int:
    """A duration in the engines' unit."""
    return round(seconds(value) * SECOND)


def moment(value: datetime | float | int) -> int:
    """A point in time, from an aware `datetime` or a Unix time in seconds, in microseconds since 1970."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"expected a datetime with a time zone, got {value!r}")
        return round(value.timestamp() * SECOND)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return round(value * SECOND)
    raise ValueError(f"expected an aware datetime or a Unix time in seconds, got {value!r}")


def rate(value: float | int | str) -> float:
    """Deliveries per second, from a number or text like `"50/s"`, `"600/m"`, `"100/10s"`."""
    number = value
    if isinstance(value, str):
        match = _RATE.match(value.strip().lower())
        if match:
            count, span, unit = match.groups()
            short = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "day": "d"}
            number = float(count) / (float(span or 1) * _UNITS[short.get(unit, unit)])
        else:
            try:
                number = float(value)
            except ValueError:
                number = -1.0
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number <= 1_000_000:
        raise ValueError(f'expected a number above 0 (at most 1,000,000) or text like "50/s" or "600/m", got {value!r}')
    return float(number)


def size(value: int | str) -> int:
    """Bytes, from an integer or text like `"10GB"` or `"1MiB"`."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.match(value.strip()) if isinstance(value, str) else None
    if match is None or float(match[1]) <= 0:
        raise ValueError(f'expected a number of bytes above 0 or text like "10GB", got {value!r}')
    return int(float(match[1]) * _SIZES[match[2].lower()])


def is_size(value: object) -> bool:
    """Whether the text has a unit of size, so that `"10GB"` is told from a count."""
    return isinstance(value, str) and _SIZE.match(value.strip()) is not None
