"""Where the gateway keeps its audit log in the store, and who changed a policy last."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from laneway.units import SECOND

if TYPE_CHECKING:
    from laneway.engines.base import Records

MAX_DIGITS = 12
"""Most digits of a change's number."""

HEAD = "audit head"
"""The name of the record, of the kind "gateway", with the number of the newest change."""

SEARCHED = 100
"""The newest changes among which the one of a policy is looked for."""


class _Change(msgspec.Struct):
    """What is read of a change, see `laneway.gateway.audit.Change`."""

    at_us: int
    who: str
    pattern: str | None = None


_decode = msgspec.json.Decoder(_Change).decode


def name_of(number: int) -> str:
    """The name of a change's record, of the kind "audit"."""
    return f"{number:0{MAX_DIGITS}d}"


def newest_number(engine: Records) -> int:
    """The number of the newest change; 0: there is none."""
    (stored,) = engine.record_read("gateway", [HEAD])
    return 0 if stored is None else int(stored)


def last_change(engine: Records, pattern: str) -> str:
    """Who changed the policy of a pattern or topic last, and when; "" if that is not known."""
    last = newest_number(engine)
    names = [name_of(number) for number in range(last, max(0, last - SEARCHED), -1)]
    for record in engine.record_read("audit", names) if names else ():
        try:
            change = _decode(record) if record is not None else None
        except msgspec.DecodeError:
            continue
        if change is not None and change.pattern == pattern:
            at = datetime.fromtimestamp(change.at_us / SECOND, UTC)
            return f"{change.who} at {at:%Y-%m-%d %H:%M:%S}Z"
    return ""
