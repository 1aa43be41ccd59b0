"""The delivery log: copying that of one store to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.push.delivery_log import KEEP_US, LATE_US, MOST_SEARCHED, max_bytes_of

if TYPE_CHECKING:
    from laneway.engines.base import FullEngine, LogEntry

PAGE = 500


def copy(old: FullEngine, new: FullEngine) -> int:
    """
    Copy the newest 10,000 entries, unless the new store has some already. Returns how many.
    """
    if new.delivery_log_read(limit=1):
        return 0
    found: list[LogEntry] = []
    before: int | None = None
    while len(found) < MOST_SEARCHED:
        page = old.delivery_log_read(limit=PAGE, before=before)
        if not page:
            break
        found += [entry for _, entry in page]
        before = page[-1][0]
    found.reverse()
    for start in range(0, len(found), PAGE):
        entries = found[start : start + PAGE]
        new.delivery_log_append(
            entries,
            keep_us=KEEP_US,
            max_bytes=max_bytes_of(new),
            from_us=max(entries[0].at_us - LATE_US, 0),
        )
    return len(found)
