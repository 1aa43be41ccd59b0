"""Checked options of the producer's buffer and spool, and the ids that both assign."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Literal, get_args

from laneway import units
from laneway.engines.shared.refusals import delay_outlasts_ttl
from laneway.errors import BadMessage, UsageError

if TYPE_CHECKING:
    from laneway.message import Draft

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


def id_prefix() -> str:
    """The beginning of the ids that a process assigns itself; a number follows."""
    return f"p{secrets.token_hex(8)}-"


def check_times(draft: Draft) -> None:
    """Raise BadMessage if a message would expire before it is due."""
    if draft.ttl_us is not None and draft.delay_us >= draft.ttl_us:
        raise BadMessage(delay_outlasts_ttl(draft, draft.delay_us, draft.ttl_us))
