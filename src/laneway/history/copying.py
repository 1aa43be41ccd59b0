"""Copying the history to another store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.history.records import RINGS, Row, decode

if TYPE_CHECKING:
    from laneway.engines.base import FullEngine

PAGE = 500

COPIED = "copied"
"""The record that `copy_rows` writes, so that two of them do not write at once."""


def copy_rows(old: FullEngine, new: FullEngine) -> int:
    """
    Copy the rows of which the other store has none for the same time or a later one. Can be
    repeated. Returns how many were copied.
    """
    count = 0
    for seconds, number in RINGS.items():
        names = [f"{seconds}:{place}" for place in range(number)]
        for first in range(0, number, PAGE):
            page = names[first : first + PAGE]
            found: dict[str, bytes] = {}
            pairs = zip(page, old.history_read(page), new.history_read(page), strict=True)
            for name, theirs, ours in pairs:
                row, known = decode(theirs, Row), decode(ours, Row)
                is_later = known is not None and row is not None and known.at_us >= row.at_us
                if theirs is not None and row is not None and not is_later:
                    found[name] = theirs
            if found:
                (before,) = new.history_read([COPIED])
                if new.history_write(COPIED, before, {**found, COPIED: page[0].encode()}):
                    count += len(found)
    return count
