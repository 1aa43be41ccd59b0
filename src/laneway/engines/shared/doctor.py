"""What the doctor says of a store whose parts should agree: the same in every engine."""

from __future__ import annotations

from laneway.engines.base import Check

MEND = "run `laneway doctor --repair`"

DISAGREEMENTS = {
    "order": "entries without their message",
    "messages": "that stood nowhere and would never have been handed out",
    "leases": "that nothing would ever have taken back",
    "counts": "topics whose counts were wrong",
    "totals": "totals that were wrong",
}
"""What every engine looks for, by the check's name."""


def disagreement(name: str, count: int, *, repair: bool) -> Check:
    """One of `DISAGREEMENTS`, found so many times."""
    return finding(name, count, DISAGREEMENTS[name], repair=repair)


def unhandled(count: int) -> Check:
    """Messages for which no worker had a handler. They are safe, so the store is sound."""
    how_many = (
        "no message waits"
        if not count
        else "1 message waits"
        if count == 1
        else f"{count:,} messages wait"
    )
    detail = f"{how_many} for a handler" + (
        " that no worker had; see `laneway explain ID`" if count else ""
    )
    return Check("handlers", ok=True, detail=detail)


def finding(name: str, count: int, what: str, *, repair: bool) -> Check:
    """What was found so many times; with `repair` it is mended by now."""
    if not count:
        return Check(name, ok=True, detail="fine")
    return Check(
        name, repair, f"{count:,} {what}" + (", mended" if repair else ""), "" if repair else MEND
    )
