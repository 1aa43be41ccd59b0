"""The store's audit log: each change by an operator, with its author and origin."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from laneway.engines.base import Records
from laneway.units import SECOND

log = logging.getLogger("laneway.audit")

MAX_DIGITS = 12
"""Most digits of a change's number."""

HEAD = "audit head"
"""The name of the record, of the kind "gateway", with the number of the newest change."""

SEARCHED = 100
"""How many of the newest changes are searched for a policy's last change."""

KEPT = 10_000
"""Changes that are kept."""

KEPT_US = 90 * 86_400 * 1_000_000
"""How long a change is shown, in microseconds."""

MAX_REQUEST = 4_000
"""Most bytes of a request's body that are kept."""


class Change(msgspec.Struct, omit_defaults=True, kw_only=True):
    """
    One change. `address`: the client's address, or "command line". `token`: the token's id.
    `method`, `path`: the request's; for a command, "laneway" and its name. `request`: the JSON that
    was sent, or the command's options. `pattern`, `undo`: the policy's pattern, and its previous
    fields.
    """

    at_us: int
    who: str
    token: str | None = None
    address: str = ""
    method: str
    path: str
    request: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    pattern: str | None = None
    undo: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(Change).decode
_write = msgspec.json.Encoder().encode


def _read(record: bytes) -> Change:
    """The change. An unreadable change is shown as such: it must not hide the others."""
    try:
        return _decode(record)
    except msgspec.DecodeError as error:
        shown = f"the record cannot be read ({error}): {record[:MAX_REQUEST]!r}"
        return Change(
            at_us=time.time_ns() // 1000,
            who="?",
            method="?",
            path="?",
            request=msgspec.Raw(_write(shown)),
        )


def name_of(number: int) -> str:
    """The name of a change's record, of the kind "audit"."""
    return f"{number:0{MAX_DIGITS}d}"


def newest_number(engine: Records) -> int:
    """The number of the newest change, or 0 without changes."""
    (stored,) = engine.record_read("gateway", [HEAD])
    return 0 if stored is None else int(stored)


def append(engine: Records, change: Change) -> None:
    """Store a change. An error is only logged: the change itself has already been made."""
    try:
        number = _append(engine, _write(change))
        (old,) = engine.record_read("audit", [name_of(number - KEPT)])
        if old is not None:
            engine.record_swap("audit", name_of(number - KEPT), old, None)
    except Exception:
        log.exception(
            "audit: %s %s by %s could not be stored", change.method, change.path, change.who
        )


def _append(engine: Records, record: bytes) -> int:
    number = newest_number(engine) + 1
    while not engine.record_swap("audit", name_of(number), None, record):
        number += 1
    while (head := newest_number(engine)) < number:
        before = None if head == 0 else b"%d" % head
        engine.record_swap("gateway", HEAD, before, b"%d" % number)
    return number


def newest(
    engine: Records, limit: int, before: int | None, after: int = 0
) -> list[tuple[int, Change]]:
    """The (number, change) pairs between the two numbers, the newest first."""
    last = newest_number(engine) if before is None else before - 1
    numbers = range(last, max(after, last - limit), -1)
    oldest_us = time.time_ns() // 1000 - KEPT_US
    return [
        (number, change)
        for number, record in zip(
            numbers, engine.record_read("audit", [name_of(each) for each in numbers]), strict=True
        )
        if record is not None and (change := _read(record)).at_us >= oldest_us
    ]


def find(engine: Records, number: int) -> Change | None:
    """The change with a number."""
    (record,) = engine.record_read("audit", [name_of(number)])
    return None if record is None else _read(record)


def last_change(engine: Records, pattern: str) -> str:
    """Who changed the policy of a pattern or topic last, and when; "" if that is not known."""
    last = newest_number(engine)
    names = [name_of(number) for number in range(last, max(0, last - SEARCHED), -1)]
    for record in engine.record_read("audit", names) if names else ():
        change = None if record is None else _read(record)
        if change is not None and change.pattern == pattern:
            at = datetime.fromtimestamp(change.at_us / SECOND, UTC)
            return f"{change.who} at {at:%Y-%m-%d %H:%M:%S}Z"
    return ""
