"""
What all senders of a namespace have counted, and which breakers are open, kept in the store.

The gateway shows both in its metrics. A sender adds what it has counted every few seconds; one that
is killed loses the last of it.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from laneway.push import table
from laneway.push.counts import Counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from laneway.engines.base import Records

KIND: Final = "gateway"
COUNTS_NAME = "push counts"

PARTS = 64
"""Records among which the topics with an open breaker are divided."""

MOST_OF_PART = 64
"""Topics of one record; of more open breakers, some are not counted."""

_read_topics = msgspec.json.Decoder(list[str]).decode
_read_counts = msgspec.json.Decoder(dict[str, Any]).decode
_write = msgspec.json.Encoder(order="deterministic").encode


def add(engine: Records, counts: Counts) -> None:
    """Add what a sender has counted since it last did."""

    def added(stored: bytes | None) -> bytes:
        total = _counts_of(stored)
        total.attempts.update(counts.attempts)
        total.skipped += counts.skipped
        total.opened += counts.opened
        total.dropped += counts.dropped
        return _write(vars(total))

    _update(engine, COUNTS_NAME, added)


def read(engine: Records) -> Counts:
    """What all senders have counted."""
    return _counts_of(engine.record_read(KIND, [COUNTS_NAME])[0])


def opened(engine: Records, topic: str) -> None:
    """The breaker of a topic's endpoint is open."""

    def change(topics: set[str]) -> set[str]:
        return topics | {topic} if len(topics) < MOST_OF_PART else topics

    _change_part(engine, _part_of(topic), change)


def closed(engine: Records, topics: Iterable[str]) -> None:
    """The breakers of these topics' endpoints are closed."""
    by_part: dict[str, set[str]] = {}
    for topic in topics:
        by_part.setdefault(_part_of(topic), set()).add(topic)
    for part, gone in by_part.items():
        _change_part(engine, part, partial(_without, gone))


def open_breakers(engine: Records) -> list[str]:
    """
    The topics whose endpoint has an open breaker, as far as they are known: up to 4,096.

    An endpoint that was removed, changed or disabled meanwhile is no longer one of them.
    """
    stored = engine.record_read(KIND, [f"open breakers {part:02d}" for part in range(PARTS)])
    topics = [topic for each in stored if each is not None for topic in _read_topics(each)]
    records = engine.record_read(table.KIND, topics) if topics else []
    found = {
        topic
        for topic, text in zip(topics, records, strict=True)
        if text is not None and _is_open(table.read(text))
    }
    if len(found) < len(topics):
        closed(engine, set(topics) - found)
    return sorted(found)


def _is_open(record: table.Record) -> bool:
    return record.disabled is None and record.condition.opened_us > 0


def _counts_of(stored: bytes | None) -> Counts:
    counts = Counts()
    if stored is not None:
        for name, value in _read_counts(stored).items():
            if name == "attempts":
                counts.attempts.update(value)
            else:
                setattr(counts, name, value)
    return counts


def _part_of(topic: str) -> str:
    return f"open breakers {zlib.crc32(topic.encode()) % PARTS:02d}"


def _without(gone: set[str], topics: set[str]) -> set[str]:
    return topics - gone


def _change_part(engine: Records, name: str, change: Callable[[set[str]], set[str]]) -> None:
    def changed(stored: bytes | None) -> bytes | None:
        topics = change(set() if stored is None else set(_read_topics(stored)))
        return _write(sorted(topics)) if topics else None

    _update(engine, name, changed)


def _update(engine: Records, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
    """Replace a record by what `change` makes of it, however many others change it too."""
    is_stored = False
    while not is_stored:
        (before,) = engine.record_read(KIND, [name])
        after = change(before)
        is_stored = after == before or engine.record_swap(KIND, name, before, after)
