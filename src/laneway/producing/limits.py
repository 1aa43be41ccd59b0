"""Checked options of the producer's buffer and spool."""

from __future__ import annotations

from typing import Literal, get_args

from laneway import units
from laneway.errors import UsageError

OnProducerFull = Literal["block", "raise", "drop"]
"""
What `publish` does when the producer's buffer or spool is full.

`"block"`: it waits for room. `"raise"`: it raises ProducerFull. `"drop"`: the message is dropped
and reported, and its receipt has the outcome `"dropped"`.
"""


def on_full(call: str, value: object) -> OnProducerFull:
    """Check what to do when the buffer or spool is full. Raises UsageError."""
    for choice in get_args(OnProducerFull):
        if value == choice:
            return choice  # type: ignore[no-any-return]  # one of the literals
    raise UsageError(
        f"{call}: expected on_full to be one of {', '.join(get_args(OnProducerFull))}, got"
        f" {value!r:.80}"
    )


def size(call: str, option: str, value: int | str) -> int:
    """Read a size in bytes, or text like "64MB". Raises UsageError."""
    try:
        return units.size(value)
    except ValueError as error:
        raise UsageError(f"{call}: {option}: {error}") from error
