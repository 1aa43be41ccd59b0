"""Copying what a store has outside the queue: records, the history, and the delivery log."""

from __future__ import annotations

from laneway.engines.base import FullEngine, LogEntry, RecordKind, Records
from laneway.history.records import RINGS, Row, decode
from laneway.push.delivery_log import KEEP_US, LATE_US, MOST_SEARCHED, max_bytes_of

PAGE = 500

COPIED = "copied"
"""The record that `copy_rows` writes, so that two of them do not write concurrently."""


def copy_records(old: Records, new: Records, kind: RecordKind) -> int:
    """Copy the records of a kind, except existing ones. Returns the number of records."""
    count, after = 0, ""
    while page := old.records(kind, after=after):
        new.record_swap_many(kind, [(name, None, record) for name, record in page])
        count += len(page)
        after = page[-1][0]
    return count


def copy_rows(old: FullEngine, new: FullEngine) -> int:
    """
    Copy the rows for which the other store has none of the same time or a later one. Can be
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


def copy_delivery_log(old: FullEngine, new: FullEngine) -> int:
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
