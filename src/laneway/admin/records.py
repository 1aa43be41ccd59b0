"""Records beside the queue: copying those of one store to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laneway.engines.base import RecordKind, Records


def copy(old: Records, new: Records, kind: RecordKind) -> int:
    """Copy the records of a kind, without those that are there. Returns how many there are."""
    count, after = 0, ""
    while page := old.records(kind, after=after):
        new.record_swap_many(kind, [(name, None, record) for name, record in page])
        count += len(page)
        after = page[-1][0]
    return count
