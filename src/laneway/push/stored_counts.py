"""
What all senders of a namespace have counted, kept in the store.

The gateway shows it in its metrics. A sender adds what it has counted every few seconds; one that
is killed loses the last of it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from laneway.engines.base import Records
from laneway.push.counts import Counts

KIND: Final = "gateway"
COUNTS_NAME = "push counts"

_read_counts = msgspec.json.Decoder(dict[str, Any]).decode
_write = msgspec.json.Encoder(order="deterministic").encode


def add(engine: Records, counts: Counts) -> None:
    """Add what a sender has counted since it last did."""

    def added(stored: bytes | None) -> bytes:
        total = _counts_of(stored)
        total.attempts.update(counts.attempts)
        total.skipped += counts.skipped
        total.opened += counts.opened
        total.dropped += counts.dropped
        return _write(vars(total))

    is_stored = False
    while not is_stored:
        (before,) = engine.record_read(KIND, [COUNTS_NAME])
        is_stored = engine.record_swap(KIND, COUNTS_NAME, before, added(before))


def read(engine: Records) -> Counts:
    """What all senders have counted."""
    return _counts_of(engine.record_read(KIND, [COUNTS_NAME])[0])


def _counts_of(stored: bytes | None) -> Counts:
    counts = Counts()
    if stored is not None:
        for name, value in _read_counts(stored).items():
            if name == "attempts":
                counts.attempts.update(value)
            else:
                setattr(counts, name, value)
    return counts
