"""Times and durations in the parameters of a URL."""

from __future__ import annotations

from datetime import datetime

from laneway import units
from laneway.gateway.problems import Problem

UNIX_FROM = 1e8
"""A number above this is a Unix time, one below a duration: three years ago, or of 1973."""


def past_us(name: str, text: str, now_us: int) -> int:
    """
    Read a past time, in microseconds since 1970: RFC 3339, Unix seconds, or how long ago ("10m").

    Raises Problem.
    """
    try:
        if (number := _number(text)) is not None and number >= UNIX_FROM:
            return round(number * units.SECOND)
        if "T" in text or text.count("-") >= 2:
            moment = datetime.fromisoformat(text.replace(" ", "+"))
            if moment.tzinfo is None:
                raise ValueError("it has no time zone; end it with Z")
            return round(moment.timestamp() * units.SECOND)
        return now_us - units.microseconds(text if number is None else number)
    except (ValueError, OverflowError) as error:
        raise Problem(
            "bad-request",
            f'query: {name}: expected a time such as 2026-11-22T12:00:00Z, Unix seconds, or "10m"'
            f' ago, got "{text:.80}" ({error})',
            pointer=f"#/{name}",
        ) from None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
