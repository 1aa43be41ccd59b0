"""Redrive and drop many dead letters step by step, for an operation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from laneway import units
from laneway.admin.dead_letters import PAGE, spacing_us
from laneway.admin.fingerprints import fingerprint_of
from laneway.engines.base import FullEngine
from laneway.gateway.operations import BEAT_SECONDS

Pause = Callable[[float], object]

AHEAD_SECONDS = 10.0
"""
For how long ahead dead letters are redriven at a rate, in steps of as long. The others stay dead
until then, so an operation that is stopped leaves them.
"""

Batch = tuple["Sequence[str] | None", int]
"""Ids (None: any), and at most how many of them."""


def _batches(
    engine: FullEngine,
    topic: str | None,
    ids: Sequence[str] | None,
    fingerprint: str | None,
    size: int,
) -> Iterator[Batch | None]:
    """The parts of the work, without an end unless ids are named. Yields None at a page's end."""
    if fingerprint is not None:
        after, until_us = 0, engine.time_us(topic)
        wanted = None if ids is None else set(ids)
        while page := engine.dead_list(topic, limit=PAGE, after=after):
            after = page[-1][0]
            named = [
                view.id
                for _, view in page
                if fingerprint_of(view.reason, view.error) == fingerprint
                and (wanted is None or view.id in wanted)
                and (view.died_us or 0) <= until_us
            ]
            yield from ((named[n : n + size], size) for n in range(0, len(named), size))
            yield None
            if (page[-1][1].died_us or 0) > until_us:  # it died again meanwhile
                return
        return
    if ids is not None:
        yield from ((ids[n : n + size], size) for n in range(0, len(ids), size))
        return
    while True:
        yield None, size


def drop(
    engine: FullEngine,
    topic: str | None,
    ids: Sequence[str] | None,
    fingerprint: str | None,
    limit: int,
) -> Iterator[int]:
    """Drop dead letters, the oldest first; yields how many each step has dropped."""
    for batch in _batches(engine, topic, ids, fingerprint, PAGE):
        if batch is None:
            yield 0
            continue
        named, size = batch
        most = min(size, limit)
        count = engine.dead_drop(topic, named, limit=most)
        limit -= count
        yield count
        if limit <= 0 or (named is None and count < most):
            return


def redrive(
    engine: FullEngine,
    topic: str | None,
    ids: Sequence[str] | None,
    fingerprint: str | None,
    limit: int,
    rate: float | str | None,
    pause: Pause,
) -> Iterator[int]:
    """As `drop`: put them back, all immediately or at a rate."""
    spacing, began, done = spacing_us(rate), time.monotonic(), 0
    size = PAGE
    if spacing:
        size = max(1, min(PAGE, round(AHEAD_SECONDS * units.SECOND / spacing)))
    for batch in _batches(engine, topic, ids, fingerprint, size):
        if batch is None:
            yield 0
            continue
        while (ahead := _ahead(spacing, done, began)) > AHEAD_SECONDS:
            pause(min(BEAT_SECONDS, ahead - AHEAD_SECONDS))
            yield 0
        named, _ = batch
        first_us = round(max(0.0, _ahead(spacing, done, began)) * units.SECOND)
        most = min(size, limit - done)
        count = engine.dead_redrive(topic, named, limit=most, first_us=first_us, spacing_us=spacing)
        done += count
        yield count
        if done >= limit or (named is None and count < most):
            return


def _ahead(spacing: int, done: int, began: float) -> float:
    """In how many seconds the next message is due."""
    return done * spacing / units.SECOND - (time.monotonic() - began)
