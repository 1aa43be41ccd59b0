"""
What the senders of this process have counted, and what all of a namespace have, kept in the store.

The gateway shows it in its metrics. A sender adds what it has counted every few seconds; one that
is killed loses the last of it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from laneway.engines.base import Records

KIND: Final = "gateway"
COUNTS_NAME = "push counts"


class Counts(msgspec.Struct):
    """
    Counts since the process began. `attempts`: by class of the answer, such as `"2xx"` or
    `"timeout"`. `skipped`: messages whose event their endpoint does not want. `opened`: how often a
    breaker opened. `dropped`: entries that the delivery log lost.
    """

    attempts: Counter[str] = msgspec.field(default_factory=Counter)
    skipped: int = 0
    opened: int = 0
    dropped: int = 0


_read = msgspec.json.Decoder(Counts, dec_hook=lambda kind, value: kind(value)).decode
_write = msgspec.json.Encoder(order="deterministic").encode

COUNTS = Counts()

CLASSES = {status: f"{status}xx" for status in range(1, 10)}


def add(engine: Records, counts: Counts) -> None:
    """Add what a sender has counted since it last did."""

    def added(stored: bytes | None) -> bytes:
        total = _counts_of(stored)
        total.attempts.update(counts.attempts)
        total.skipped += counts.skipped
        total.opened += counts.opened
        total.dropped += counts.dropped
        return _write(total)

    is_stored = False
    while not is_stored:
        (before,) = engine.record_read(KIND, [COUNTS_NAME])
        is_stored = engine.record_swap(KIND, COUNTS_NAME, before, added(before))


def read(engine: Records) -> Counts:
    """What all senders have counted."""
    return _counts_of(engine.record_read(KIND, [COUNTS_NAME])[0])


def _counts_of(stored: bytes | None) -> Counts:
    return Counts() if stored is None else _read(stored)
