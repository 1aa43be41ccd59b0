"""The doctor's findings about a store whose parts disagree, in the same words for every engine."""

from __future__ import annotations

from laneway.engines.base import Check
from laneway.units import counted

HANDLERS = "handlers"
"""The check of `unhandled`."""

REPAIR = "run `laneway doctor --repair`"

DISAGREEMENTS = {
    "order": "entries without their message",
    "messages": "that waited nowhere and would never have been delivered",
    "leases": "that would never have ended",
    "counts": "topics whose counts were wrong",
    "keys": "keys whose limits count other leases or parked messages than there are",
    "totals": "totals that were wrong",
    "groups": "topic groups whose counts were wrong",
    "positions": "orders that are read from behind their first entry",
    "history": "messages too many or too few in the history's count of waiting ones",
}
"""The finding of each check, by the check's name; its count stands before it."""


def disagreement(name: str, count: int, *, repair: bool) -> Check:
    """A check of `DISAGREEMENTS` and its count of findings."""
    return finding(name, count, DISAGREEMENTS[name], repair=repair)


def unhandled(count: int) -> Check:
    """The messages for which no worker had a handler. Nothing is wrong with the store."""
    how_many = counted(count, "message waits", "messages wait") if count else "no message waits"
    detail = f"{how_many} for a handler" + (
        " that no worker had; see `laneway explain ID`" if count else ""
    )
    return Check(HANDLERS, ok=True, detail=detail)


def finding(name: str, count: int, what: str, *, repair: bool) -> Check:
    """A check and its count of findings; with `repair` they have been repaired."""
    if not count:
        return Check(name, ok=True, detail="fine")
    return Check(
        name,
        repair,
        f"{count:,} {what}" + (", repaired" if repair else ""),
        "" if repair else REPAIR,
    )
