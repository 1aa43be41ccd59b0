"""
What happened to endpoints last: the breaker opened, it recovered, it was disabled.

The gateway shows it as it happens. If many happen together, some are left out: the
endpoints themselves show their states.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from laneway.engines.base import Records
from laneway.errors import LanewayError
from laneway.push import table

log = logging.getLogger("laneway.push")

KEPT = 256
"""Events that are kept."""

PER_SECOND = 10
"""Most events a second that one sender stores."""

KIND: Final = "gateway"
HEAD = "endpoint event head"
MAX_TEXT = 300


class Event(msgspec.Struct, array_like=True):
    """`number`: larger than those before. `kind`: `opened`, `recovered`, `disabled` and others."""

    number: int
    at_us: int
    kind: str
    topic: str
    detail: str


_read = msgspec.json.Decoder(Event).decode
_write = msgspec.json.Encoder().encode


def _slot(number: int) -> str:
    return f"endpoint event {number % KEPT:03d}"


def newest_number(engine: Records) -> int:
    """The number of the last event, or 0 if there was none."""
    (stored,) = engine.record_read(KIND, [HEAD])
    return 0 if stored is None else int(stored)


def since(engine: Records, number: int) -> list[Event]:
    """The events after a number, as far as they are kept, the oldest first."""
    head = newest_number(engine)
    numbers = range(max(number, head - KEPT) + 1, head + 1)
    if not numbers:
        return []
    return list(_found(engine, numbers))


def _found(engine: Records, numbers: range) -> Iterator[Event]:
    stored = engine.record_read(KIND, [_slot(number) for number in numbers])
    for number, record in zip(numbers, stored, strict=True):
        if record is not None and (event := _read(record)).number == number:
            yield event


def open_endpoints(engine: Records) -> list[tuple[str, table.Condition]]:
    """
    The endpoints whose breaker is open, as far as the last `KEPT` events name them, with their
    condition; the longest open ones first. Two or three reads, however many endpoints there are.
    """
    topics = list({event.topic for event in since(engine, 0) if event.kind == "opened"})
    found = [
        (topic, endpoint.condition)
        for topic, record in zip(topics, engine.record_read("endpoint", topics), strict=True)
        if record is not None and is_open(endpoint := table.read(record))
    ]
    return sorted(found, key=lambda each: each[1].opened_us)


def is_open(record: table.Record) -> bool:
    """Whether an endpoint's breaker is open."""
    return record.disabled is None and record.condition.opened_us > 0


class EndpointEvents:
    """Stores the events of one sender. For one thread."""

    def __init__(self, engine: Records) -> None:
        self._engine = engine
        self._began = 0.0
        self._count = 0

    def add(self, kind: str, topic: str, detail: str) -> None:
        """Store an event. An error is logged: an event must not fail what it is about."""
        now = time.monotonic()
        if now - self._began >= 1.0:
            self._began, self._count = now, 0
        self._count += 1
        if self._count > PER_SECOND:
            return
        try:
            self._append(kind, topic, detail[:MAX_TEXT])
        except (LanewayError, msgspec.DecodeError) as error:
            log.debug("endpoint %s: the event %s is not stored: %s", topic, kind, error)

    def _append(self, kind: str, topic: str, detail: str) -> None:
        engine = self._engine
        number = newest_number(engine)
        is_stored = False
        while not is_stored:
            number += 1
            name = _slot(number)
            (before,) = engine.record_read(KIND, [name])
            if before is not None and _read(before).number >= number:
                continue  # another sender's
            event = Event(number, time.time_ns() // 1000, kind, topic, detail)
            is_stored = engine.record_swap(KIND, name, before, _write(event))
        while (head := newest_number(engine)) < number:
            engine.record_swap(KIND, HEAD, b"%d" % head if head else None, b"%d" % number)
