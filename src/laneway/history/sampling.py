"""
Samples: every 10 s one process writes the counts since the last sample.

Every worker and every reader of the history checks whether a sample is due. The record of the last
sample is replaced by compare and swap, so only one of them writes each sample. Nothing is lost if
no process takes samples: the next row is longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import msgspec

from laneway.engines.base import WAIT_BOUNDS_US, FullEngine, Tallies, TopicStats, WaitCounts
from laneway.history.records import (
    AGE_BUCKETS,
    FLOWS,
    HEAD,
    RINGS,
    SAMPLE_US,
    TIME,
    Cell,
    HandlerCounts,
    Head,
    Row,
    age_class,
    bucket_of,
    decode,
    encode,
    is_in,
    name_of,
    oldest,
)
from laneway.policy import is_pattern

TOPICS = 500
"""
Topics that a sample reads. If more exist, the backlogs of patterns are those that the engine
counted, and only patterns of the oldest topics have an oldest message.
"""

MOST_GATES = 20
"""Gates with waiting lanes that a row names."""

WORKERS = 200
"""Workers whose handlers a sample counts."""

MOST_HANDLERS = 100
"""Handlers that a row names."""

CLASSES = range(len(WAIT_BOUNDS_US) + 2)
"""The places of `WorkerFacts.durations`."""

TRIES = 3
"""How often a reader tries to take a sample while others take them."""


def last_sample_us(engine: FullEngine) -> int:
    """When the last sample was taken, or 0 without samples."""
    stored = engine.history_read([TIME])[0]
    return int(stored) if stored is not None and stored.isdigit() else 0


def is_due(sampled_us: int, now_us: int) -> bool:
    """Whether the interval of the last sample is over."""
    return sampled_us // SAMPLE_US < now_us // SAMPLE_US


def take(engine: FullEngine) -> int:
    """
    Take a sample if it is due. Returns the engine's time, in microseconds.

    Raises EngineUnavailable.
    """
    counted = engine.tallies()
    before = engine.history_read([HEAD])[0]
    head = decode(before, Head) or Head(counted.since_us, [], [])
    if not is_due(head.at_us, counted.now_us):
        return counted.now_us
    durations = _durations(engine)
    new = {
        HEAD: encode(Head(counted.now_us, counted.tallies, counted.waits, durations)),
        TIME: str(counted.now_us).encode(),
    }
    row = row_since(engine, head, counted)
    row.handlers = handlers_since(head.handlers, durations)
    row.gates = _gates(engine, row.end_us - row.begin_us)
    row.at_us = row.end_us - SAMPLE_US
    names = {seconds: name_of(seconds, row.at_us) for seconds in RINGS}
    stored = engine.history_read(list(names.values()))
    for (seconds, name), record in zip(names.items(), stored, strict=True):
        whole = decode(record, Row)
        if whole is None or not is_in(whole, seconds, row.at_us):
            whole = row
        else:
            whole.add(row)
        new[name] = encode(whole)
    engine.history_write(HEAD, before, new)
    return counted.now_us


def latest_row(engine: FullEngine, *, most_topics: int = TOPICS) -> Row:
    """
    Take a sample if it is due, and return what has happened since the last one.

    Arguments: `most_topics`: how many topics are read for the row; if more exist, the oldest ones.
    Samples read `TOPICS`, which is most of their cost.
    """
    tries = 0
    while True:
        take(engine)
        counted = engine.tallies()
        head = decode(engine.history_read([HEAD])[0], Head) or Head(counted.since_us, [], [])
        tries += 1
        if tries == TRIES or not is_due(head.at_us, counted.now_us):
            return row_since(engine, head, counted, most_topics)


def row_since(engine: FullEngine, head: Head, counted: Tallies, most_topics: int = TOPICS) -> Row:
    """What happened since a sample; `most_topics`: see `latest_row`."""
    overview = engine.overview()
    topics, is_exact = _topics(engine, overview.topics, most_topics)
    apart = {tally.pattern for tally in counted.tallies if not is_pattern(tally.pattern)}
    waiting, ages = _backlogs(engine, topics, counted.now_us, apart)
    before = {(tally.tier, tally.pattern): tally for tally in head.tallies}
    cells: dict[tuple[str, str], Cell] = {}
    for tally in counted.tallies:
        key = tally.tier, tally.pattern
        cell = cells[key] = Cell(*key)
        earlier = before.get(key)
        for name in FLOWS:
            counted_then = getattr(earlier, name) if earlier is not None else 0
            now = getattr(tally, name)
            # lower than before: the store was emptied
            setattr(cell, name, now - counted_then if now >= counted_then else now)
        if not is_exact:
            cell.waiting = max(0, tally.waiting)
    for key in waiting.keys() | ages.keys():
        cell = cells.setdefault(key, Cell(*key))
        if is_exact:
            cell.waiting = waiting.get(key, 0)
        cell.oldest_us = ages.get(key)
    return Row(
        at_us=counted.now_us,
        begin_us=min(head.at_us, counted.now_us),
        end_us=counted.now_us,
        waiting=overview.waiting,
        cells=[cell for cell in cells.values() if _has_any(cell)],
        waits=_waits_since(head.waits, counted.waits),
        ages=_ages(topics, counted.now_us),
    )


def _has_any(cell: Cell) -> bool:
    return bool(cell.waiting or cell.oldest_us or any(getattr(cell, name) for name in FLOWS))


def _waits_since(before: Sequence[WaitCounts], now: Sequence[WaitCounts]) -> list[WaitCounts]:
    earlier = {each.tier: each for each in before}
    found = []
    for each in now:
        then = earlier.get(each.tier)
        if then is not None:
            noisy, others = _more(then.noisy, each.noisy), _more(then.others, each.others)
            each = WaitCounts(each.tier, noisy, others)  # noqa: PLW2901
        if any(each.noisy) or any(each.others):
            found.append(msgspec.structs.replace(each))
    return found


def _more(before: Sequence[int], now: Sequence[int]) -> list[int]:
    if sum(now) < sum(before) or len(now) != len(before):
        return list(now)
    return [max(0, after - then) for then, after in zip(before, now, strict=True)]


def _topics(engine: FullEngine, lanes: int, most: int) -> tuple[list[TopicStats], bool]:
    """
    The topics, at most the `most` oldest ones, and whether these are all. `lanes`: how many lanes
    the namespace has.
    """
    if lanes <= most:
        topics = engine.topic_list(order="name", limit=most + 1)
        if len(topics) <= most:
            return topics, True
    return engine.topic_list(order="age", limit=most), False


def _backlogs(
    engine: FullEngine, topics: Sequence[TopicStats], now_us: int, apart: set[str]
) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], int]]:
    """
    By tier and pattern: the number of waiting messages, and the age of the oldest in microseconds.
    `apart`: the names of topics that were counted separately.
    """
    policies = engine.policies()
    waiting: dict[tuple[str, str], int] = {}
    ages: dict[tuple[str, str], int] = {}
    for stats in topics:
        is_apart = stats.topic in apart and engine.policy_of(stats.topic).history
        key = stats.tier, stats.topic if is_apart else policies.pattern_of(stats.topic)
        if stats.waiting:
            waiting[key] = waiting.get(key, 0) + stats.waiting
        if stats.oldest_us is not None:
            age = oldest(ages.get(key), max(0, now_us - stats.oldest_us))
            ages[key] = age if age is not None else 0
    return waiting, ages


def _ages(topics: Sequence[TopicStats], now_us: int) -> bytes:
    """
    The age of the oldest message by bucket, see `Row.ages`. The oldest topics are read in any case,
    so only the ages of buckets without an old topic are unknown.
    """
    found = bytearray(AGE_BUCKETS)
    for stats in topics:
        if stats.oldest_us is not None:
            bucket = bucket_of(stats.topic)
            found[bucket] = max(found[bucket], age_class(max(0, now_us - stats.oldest_us)))
    return bytes(found)


def _gates(engine: FullEngine, interval_us: int) -> dict[str, int]:
    """The gates at which lanes wait, each with the interval."""
    waiting = [gate["name"] for gate in engine.gate_list() if gate["waiting"]]
    return dict.fromkeys(waiting[:MOST_GATES], interval_us)


def _durations(engine: FullEngine) -> dict[str, dict[str, list[int]]]:
    """By worker: the counts of its handlers."""
    workers = engine.workers(limit=WORKERS, after="")
    return {each.facts.id: each.facts.durations for each in workers if each.facts.durations}


def handlers_since(
    before: Mapping[str, Mapping[str, Sequence[int]]],
    now: Mapping[str, Mapping[str, Sequence[int]]],
) -> dict[str, HandlerCounts]:
    """By handler: the workers' counts since a sample."""
    found: dict[str, HandlerCounts] = {}
    for worker, by_handler in now.items():
        for name, counted in by_handler.items():
            then = before.get(worker, {}).get(name, ())
            failed, *counts = [
                max(0, count - earlier)
                for count, earlier, _ in zip_longest(counted, then, CLASSES, fillvalue=0)
            ]
            if failed or any(counts):
                more = HandlerCounts(failed, counts)
                if name in found:
                    found[name].add(more)
                elif len(found) < MOST_HANDLERS:
                    found[name] = more
    return found
