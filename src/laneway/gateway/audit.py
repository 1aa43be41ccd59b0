"""The audit log: each change through the API, with who made it and from where."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.admin.audit_log import HEAD, name_of, newest_number
from laneway.gateway.schema import NULL

if TYPE_CHECKING:
    from laneway.engines.base import Records
    from laneway.gateway.http import Request
    from laneway.gateway.login.access import Caller

log = logging.getLogger("laneway.gateway")

KEPT = 10_000
"""Changes that are kept."""

KEPT_US = 90 * 86_400 * 1_000_000
"""How long a change is shown, in microseconds."""

MAX_REQUEST = 4_000
"""Most bytes of a request's body that are kept."""


class Change(msgspec.Struct, omit_defaults=True, kw_only=True):
    """
    One change. `token`: the id of the token. `request`: the JSON that was sent. `pattern`, `undo`:
    of a policy, and its fields before.
    """

    at_us: int
    who: str
    token: str | None = None
    address: str = ""
    method: str
    path: str
    request: msgspec.Raw = NULL
    pattern: str | None = None
    undo: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(Change).decode
_write = msgspec.json.Encoder().encode


def _read(record: bytes) -> Change:
    """The change. One that cannot be read is shown as such: it must not hide the others."""
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


def change_of(
    caller: Caller,
    request: Request,
    content: bytes,
    undo: tuple[str, dict[str, Any]] | None = None,
) -> Change:
    """The change of a request, now. `content`: its JSON. `undo`: as in `Response`."""
    pattern, fields = undo or (None, None)
    return Change(
        at_us=time.time_ns() // 1000,
        who=caller.name,
        token=caller.token,
        address=request.address,
        method=request.method,
        path=request.scope["path"][:1000],
        request=msgspec.Raw(content),
        pattern=pattern,
        undo=fields,
    )


def append(engine: Records, change: Change) -> None:
    """Store a change. An error is logged: what was changed stays changed."""
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
