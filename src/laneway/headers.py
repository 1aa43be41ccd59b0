"""
The control headers of messages: their names, and the functions that read them.

Any program that may publish can write them, so `check` refuses invalid values at publish,
and every reader uses the functions of this module: an invalid value counts as absent, and numbers
stay within their bounds. The Valkey engine's scripts read `RESULT_TTL`, `SIGNALS`, `FLOW` and
`COST` too (`scripts/parts/`: `results.lua`, `flow_signals.lua`, `messages.lua`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

from laneway.errors import BadMessage
from laneway.units import MAX_SECONDS

OWN_PREFIX = "laneway-"
"""Headers with this prefix belong to Laneway."""

RESULT_TTL, SIGNALS, FLOW, TASK = (
    "laneway-result-ttl",
    "laneway-signals",
    "laneway-flow",
    "laneway-task",
)
TIME_LIMIT, SOFT_TIME_LIMIT, RETRIES = (
    "laneway-time-limit",
    "laneway-soft-time-limit",
    "laneway-retries",
)
SCHEDULE = "laneway-schedule"
"""The name of the schedule that published the message."""

COST = "laneway-cost"
"""How many rate permits a delivery uses; the option `cost` writes it."""

RETRY_DELAY = "retry-delay"
"""Seconds before each retry of a task that is called by name, separated by commas."""

MAX_SIGNALS = 100_000
"""Most signals that one message can wait for."""

MAX_RETRIES = 1_000_000_000
"""A larger number of retries counts as this one."""

MAX_COST = 1_000_000
"""The largest cost of a message."""

MAX_TEXT = 100
"""Most characters of the value of a header that is checked."""

MAX_DIGITS = 19
"""
Most digits of a number in a header. Longer numbers are not converted, because that takes quadratic
time.
"""


def whole(text: str | None) -> int | None:
    """Read a whole number of at least 0 in ASCII digits; None if it is absent or not valid."""
    if (
        text is None
        or not 0 < len(text) <= MAX_DIGITS
        or not text.isascii()
        or not text.isdecimal()
    ):
        return None
    return int(text)


def seconds(text: str | None) -> float | None:
    """
    Read a duration in seconds, above 0 and at most 100 years; None if it is absent or not valid.
    """
    if text is None or len(text) > 40 or not text.isascii():
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 < number <= MAX_SECONDS else None


def result_ttls(headers: Mapping[str, str] | None) -> tuple[int, int] | None:
    """
    Return for how many seconds a message's outcome is stored after an ack and after any other end,
    or None if it is not stored.
    """
    text = headers.get(RESULT_TTL) if headers is not None else None
    return None if text is None or len(text) > MAX_TEXT else _read_result_ttls(text)


@functools.lru_cache(maxsize=1024)
def _read_result_ttls(text: str) -> tuple[int, int] | None:
    """Cached, because all messages of a task have the same text."""
    done, _, otherwise = text.partition(",")
    after_ack = whole(done)
    after_failure = whole(otherwise) if otherwise else after_ack
    if after_ack is None or after_failure is None:
        return None
    return min(after_ack, MAX_SECONDS), min(after_failure, MAX_SECONDS)


def signals_needed(headers: Mapping[str, str] | None) -> int:
    """Return how many signals a message waits for; 0 if the header is absent or not valid."""
    count = whole(headers.get(SIGNALS)) if headers is not None else None
    return count if count is not None and count <= MAX_SIGNALS else 0


def cost(headers: Mapping[str, str] | None) -> int:
    """Return how many rate permits a delivery uses; 1 if the header is absent or not valid."""
    number = whole(headers.get(COST)) if headers is not None else None
    return number if number is not None and 1 <= number <= MAX_COST else 1


def retries(headers: Mapping[str, str] | None) -> int | None:
    """Return how often a call may be retried, or None if its policy decides."""
    count = whole(headers.get(RETRIES)) if headers is not None else None
    return min(count, MAX_RETRIES) if count is not None else None


def retry_delays(headers: Mapping[str, str]) -> list[float] | None:
    """Return the seconds before each retry, or None if the policy decides."""
    delays = headers.get(RETRY_DELAY)
    if delays is None:
        return None
    read = [0.0 if text == "0" else seconds(text) for text in delays.split(",")]
    valid = [each for each in read if each is not None]
    return valid if len(valid) == len(read) else None


def _is_result_ttl(text: str) -> bool:
    return all(
        number is not None and number <= MAX_SECONDS for number in map(whole, text.split(",", 1))
    )


def _is_seconds(text: str) -> bool:
    return seconds(text) is not None


CHECKED: dict[str, tuple[Callable[[str], bool], str]] = {
    COST: (
        lambda text: 1 <= (whole(text) or 0) <= MAX_COST,
        f"a whole number from 1 to {MAX_COST:,}",
    ),
    RESULT_TTL: (_is_result_ttl, 'seconds, of at most 100 years, like "600,86400"'),
    SIGNALS: (
        lambda text: signals_needed({SIGNALS: text}) > 0,
        f"a number from 1 to {MAX_SIGNALS:,}",
    ),
    TIME_LIMIT: (_is_seconds, "seconds above 0, of at most 100 years"),
    SOFT_TIME_LIMIT: (_is_seconds, "seconds above 0, of at most 100 years"),
    RETRIES: (lambda text: whole(text) is not None, "a whole number of at least 0"),
}
"""The control headers that are checked at publish: a function, and the format that it expects."""


@functools.lru_cache(maxsize=1024)
def is_valid(name: str, text: str) -> bool:
    """
    Return whether the value of a checked header is valid.

    Cached, because a program publishes the same few values again and again.
    """
    return CHECKED[name][0](text)


def check(topic: str, name: str, text: str) -> None:
    """
    Raise BadMessage if the value of a checked header is not valid.
    """
    if len(text) > MAX_TEXT or not is_valid(name, text):  # long texts stay out of the cache
        raise BadMessage(
            f"message to {topic}: expected the header {name} to be {CHECKED[name][1]}, got"
            f" {text!r:.40}"
        )
