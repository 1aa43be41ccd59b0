"""The list of policies, page by page: those of patterns, then those of single topics."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.gateway import receipts
from laneway.gateway.login.shared_key import shared_key
from laneway.gateway.problems import Problem
from laneway.gateway.schema import PoliciesAnswer, PoliciesQuery, PolicyAnswer
from laneway.policy import PROGRAM, check_policy_pattern, is_pattern, matches, sources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from laneway.engines.base import FullEngine
    from laneway.gateway.call import Call

PAGE = 1000
"""Topics that are read in one call."""

SIGNATURE_BYTES = 12
SCANNED = 10_000
"""Most policies that one request compares with its pattern."""

Row = tuple[str, str, dict[str, Any]]
"""Pattern or topic, layer, fields."""


class _Place(msgspec.Struct, array_like=True, frozen=True):
    """
    A place in the list: behind a layer's policy of a name. `page`: where the page of topics begins
    that has it, for the engine, or None if it is a pattern's.
    """

    page: str | None = None
    name: str = ""
    layer: str = ""


_read = msgspec.json.Decoder(_Place).decode


def list_policies(call: Call) -> PoliciesAnswer:
    """
    List the policies that a pattern covers: those of patterns, then those of topics.

    A request compares at most 10,000; `next` continues after them.
    """
    query: PoliciesQuery = call.query
    pattern = check_policy_pattern(query.pattern)
    after = _Place() if query.after is None else _place_of(call.engine, query.after)
    found: list[PolicyAnswer] = []
    last = None
    for scanned, (row, place) in enumerate(_rows(call.engine, pattern, after)):
        if len(found) == query.limit or scanned == SCANNED:
            assert last is not None
            return PoliciesAnswer(found, _cursor(call.engine, last), truncated=True)
        last = place
        name, layer, fields = row
        if matches(pattern, name) and call.caller.covers(name):
            found.append(_answer(name, layer, fields))
    return PoliciesAnswer(found, None, truncated=False)


def _rows(engine: FullEngine, pattern: str, after: _Place) -> Iterator[tuple[Row, _Place]]:
    """The policies behind a place, each with its own."""
    if not is_pattern(pattern) and "*" not in pattern:  # of one topic
        rows = [
            (pattern, layer, fields)
            for layer, fields in sources(engine.policy_own(pattern)).items()
        ]
        yield from _behind(rows, None, after)
        return
    if after.page is None:
        rows = [(name, layer, fields) for layer, name, fields in engine.policies().source_rows()]
        yield from _behind(rows, None, after)
    page: str | None = after.page or ""
    while page is not None:
        topics, following = engine.policy_own_list(page, PAGE)
        rows = [
            (topic, layer, fields)
            for topic, layers in topics
            for layer, fields in sources(layers).items()
        ]
        yield from _behind(rows, page, after if after.page == page else _Place())
        page = following


def _behind(rows: list[Row], page: str | None, after: _Place) -> Iterator[tuple[Row, _Place]]:
    rows.sort(key=lambda row: row[:2])
    for row in rows:
        if row[:2] > (after.name, after.layer):
            yield row, _Place(page, row[0], row[1])


def _cursor(engine: FullEngine, place: _Place) -> str:
    content = msgspec.json.encode(place)
    return base64.urlsafe_b64encode(_signature(engine, content) + content).decode()


def _place_of(engine: FullEngine, cursor: str) -> _Place:
    """
    The place of a cursor. It is signed, because its content for a page is the engine's own.
    """
    try:
        signed = base64.urlsafe_b64decode(cursor)
    except (ValueError, binascii.Error):
        signed = b""
    signature, content = signed[:SIGNATURE_BYTES], signed[SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, _signature(engine, content)):
        raise Problem(
            "bad-request", f"query: after: expected `next` of another page, got {cursor[:80]!r}"
        )
    return _read(content)


def _signature(engine: FullEngine, content: bytes) -> bytes:
    key = shared_key(engine, receipts.KEY)
    return hmac.digest(key, b"policies\0" + content, "sha256")[:SIGNATURE_BYTES]


def _answer(name: str, layer: str, fields: dict[str, Any]) -> PolicyAnswer:
    if layer.startswith(PROGRAM):
        return PolicyAnswer(name, "code", fields, layer.removeprefix(PROGRAM))
    return PolicyAnswer(name, layer, fields)
