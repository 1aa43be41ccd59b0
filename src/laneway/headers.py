"""
The headers by which Laneway controls a message: their names, and how their values are read.

Anybody who may publish can write them, by any program. So `check` refuses at publish what cannot be
meant, and every reader goes through a function of this page: what cannot be read counts as absent,
and numbers stay within their bounds. The scripts of the Valkey engine read `RESULT_TTL`, `SIGNALS`
and `FLOW` too (`scripts/parts/keeping.lua`, `signals.lua`).
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from laneway.errors import BadMessage
from laneway.units import MAX_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN_PREFIX = "laneway-"
"""What begins so belongs to Laneway."""

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
RETRY_DELAY = "retry-delay"
"""Of a call of a function by its name: seconds, separated by commas."""

MAX_SIGNALS = 100_000
"""Signals for which one message can wait."""

MAX_RETRIES = 1_000_000_000
MAX_TEXT = 100
"""Characters of the value of a header that is checked."""

MAX_DIGITS = 19
"""
Digits of a number in a header: longer ones are not even converted, which takes time in proportion
to their square.
"""


def whole(text: str | None) -> int | None:
    """A whole number of at least 0 as ASCII digits; None: there is none, or it cannot be read."""
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
    A duration above 0 and of at most 100 years, in seconds; None: there is none, or it cannot be
    read.
    """
    if text is None or len(text) > 40:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 < number <= MAX_SECONDS else None


def result_ttls(headers: Mapping[str, str] | None) -> tuple[int, int] | None:
    """
    Seconds for which a message's outcome is kept, after an ack and after any other end; None: it is
    not kept.
    """
    said = headers.get(RESULT_TTL) if headers is not None else None
    if said is None:
        return None
    done, _, otherwise = said.partition(",")
    after_ack = whole(done)
    after_failure = whole(otherwise) if otherwise else after_ack
    if after_ack is None or after_failure is None:
        return None
    return min(after_ack, MAX_SECONDS), min(after_failure, MAX_SECONDS)


def signals_needed(headers: Mapping[str, str] | None) -> int:
    """Signals for which a message waits; 0: none, or the header cannot be read."""
    said = whole(headers.get(SIGNALS)) if headers is not None else None
    return said if said is not None and said <= MAX_SIGNALS else 0


def retries(headers: Mapping[str, str] | None) -> int | None:
    """How often a call may be tried again; None: its policy decides."""
    said = whole(headers.get(RETRIES)) if headers is not None else None
    return min(said, MAX_RETRIES) if said is not None else None


def retry_delays(headers: Mapping[str, str]) -> list[float] | None:
    """Seconds before each further attempt; None: the policy decides."""
    said = headers.get(RETRY_DELAY)
    if said is None:
        return None
    found = [0.0 if text == "0" else seconds(text) for text in said.split(",")]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _is_result_ttl(text: str) -> bool:
    return all(
        number is not None and number <= MAX_SECONDS for number in map(whole, text.split(",", 1))
    )


def _is_signals(text: str) -> bool:
    return signals_needed({SIGNALS: text}) > 0


def _is_seconds(text: str) -> bool:
    return seconds(text) is not None


def _is_whole(text: str) -> bool:
    return whole(text) is not None


CHECKED = {
    RESULT_TTL: (_is_result_ttl, 'seconds, of at most 100 years, like "600,86400"'),
    SIGNALS: (_is_signals, f"a number from 1 to {MAX_SIGNALS:,}"),
    TIME_LIMIT: (_is_seconds, "seconds above 0, of at most 100 years"),
    SOFT_TIME_LIMIT: (_is_seconds, "seconds above 0, of at most 100 years"),
    RETRIES: (_is_whole, "a whole number of at least 0"),
}
"""Control headers whose values are checked at publish: how, and what is expected."""


@functools.lru_cache(maxsize=1024)
def is_meant(name: str, text: str) -> bool:
    """
    Whether one of the headers that are checked can be meant. A program's calls say the same again
    and again.
    """
    return CHECKED[name][0](text)


def check(topic: str, name: str, text: str) -> None:
    """
    Raises BadMessage for the value of one of the headers that are checked, if it cannot be meant.
    """
    if len(text) > MAX_TEXT or not is_meant(name, text):  # nothing of any size is remembered
        raise BadMessage(
            f"message to {topic}: expected the header {name} to be {CHECKED[name][1]}, got"
            f" {text!r:.40}"
        )
