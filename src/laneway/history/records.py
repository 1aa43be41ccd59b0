"""The records of the history: rows of intervals, in rings of a fixed size."""

from __future__ import annotations

import bisect
import zlib
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from laneway.engines.base import WAIT_BOUNDS_US, Tally, WaitCounts
from laneway.units import SECOND

S = TypeVar("S", bound=msgspec.Struct)

RINGS = {10: 720, 60: 4320, 900: 5760}
"""
Seconds of an interval, and how many are kept: 2 h by 10 s, 3 days by minute, 60 days by quarter of
an hour. A ring's record is replaced when this number of intervals has passed.
"""

SAMPLE_US = min(RINGS) * SECOND
"""The shortest interval, in microseconds."""

HEAD, TIME = "head", "time"
"""The record of the counts at the last sample, and the record of its time in microseconds."""

AGE_BUCKETS = 64
"""
Buckets of topics by the checksum of their names. A row has the age of each bucket's oldest message.
"""

FLOWS = ("published", "delivered", "done", "retried", "died", "merged", "throttled_us")
"""The counters of a tally, which add up over intervals."""


class Cell(Tally, array_like=True, gc=False):
    """
    What happened in an interval in the topics of a tier and pattern.

    - `waiting`: at the end of the interval.
    - `oldest_us`: the age of the oldest waiting message, or None if it is unknown or nothing
      waited.
    """

    oldest_us: int | None = None

    def add(self, later: Cell) -> None:
        """Add the next interval."""
        for name in FLOWS:
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.waiting = later.waiting
        self.oldest_us = oldest(self.oldest_us, later.oldest_us)


class HandlerCounts(msgspec.Struct, array_like=True, gc=False):
    """
    How often a handler or task ran in an interval: the number of failed attempts, and all attempts
    by duration, in the classes of `WAIT_BOUNDS_US`.
    """

    failed: int
    counts: list[int]

    @property
    def count(self) -> int:
        """All attempts."""
        return sum(self.counts)

    def add(self, later: HandlerCounts) -> None:
        """Add the counts of the next interval."""
        self.failed += later.failed
        self.counts = added(self.counts, later.counts)


class Row(msgspec.Struct, array_like=True, gc=False):
    """
    An interval: from `begin_us` to `end_us`, microseconds of the store's clock.

    It is longer than its ring's interval if no process took samples meanwhile; it then belongs
    where it ends. `at_us`: a time in the ring's interval that it belongs to. `waiting`: the
    namespace's, at the end. `cells`: the cells in which something happened or waited.

    `ages`: for each of the `AGE_BUCKETS` buckets of topics a byte: 0 if nothing waited, else one
    more than the class of `WAIT_BOUNDS_US` of the age of its oldest message. `gates`: for how long
    lanes waited at a gate, in microseconds, as far as samples observed it. `handlers`: counts by
    name. The row since the last sample has only ages.
    """

    at_us: int
    begin_us: int
    end_us: int
    waiting: int
    cells: list[Cell]
    waits: list[WaitCounts]
    ages: bytes = b""
    gates: dict[str, int] = {}
    handlers: dict[str, HandlerCounts] = {}

    def add(self, later: Row) -> None:
        """Add the next interval."""
        self.ages = oldest_ages(self.ages, later.ages)
        self.gates = {
            name: self.gates.get(name, 0) + later.gates.get(name, 0)
            for name in (self.gates | later.gates)
        }
        for name, counts in later.handlers.items():
            if name in self.handlers:
                self.handlers[name].add(counts)
            else:
                self.handlers[name] = msgspec.structs.replace(counts)
        self.at_us = later.at_us
        self.begin_us = min(self.begin_us, later.begin_us)
        self.end_us = max(self.end_us, later.end_us)
        self.waiting = later.waiting
        cells = {(cell.tier, cell.pattern): cell for cell in self.cells}
        now = {(cell.tier, cell.pattern) for cell in later.cells}
        for key, cell in cells.items():
            if key not in now:
                cell.waiting = 0
        for cell in later.cells:
            known = cells.get((cell.tier, cell.pattern))
            if known is None:
                self.cells.append(msgspec.structs.replace(cell))
            else:
                known.add(cell)
        add_waits(self.waits, later.waits)


class Head(msgspec.Struct, array_like=True):
    """The counts at the time of the last sample."""

    at_us: int
    tallies: list[Tally]
    waits: list[WaitCounts]
    handlers: dict[str, dict[str, list[int]]] = {}
    """By worker: the counts of its handlers, see `WorkerFacts.durations`."""


def bucket_of(topic: str) -> int:
    """The bucket of a topic, one of `AGE_BUCKETS`."""
    return zlib.crc32(topic.encode()) % AGE_BUCKETS


def age_class(age_us: int) -> int:
    """The class of an age in `Row.ages`."""
    return 1 + bisect.bisect_right(WAIT_BOUNDS_US, age_us)


def oldest_ages(one: bytes, other: bytes) -> bytes:
    """The larger class of each bucket."""
    if not one or not other:
        return one or other
    return bytes(map(max, one, other))


def add_waits(waits: list[WaitCounts], more: Sequence[WaitCounts]) -> None:
    """Add counts of waiting times to those of the same tiers."""
    known = {each.tier: each for each in waits}
    for each in more:
        mine = known.get(each.tier)
        if mine is None:
            waits.append(msgspec.structs.replace(each))
        else:
            mine.noisy = added(mine.noisy, each.noisy)
            mine.others = added(mine.others, each.others)


def added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The sums of two lists of numbers."""
    return [a + b for a, b in zip(one, other, strict=False)]


def oldest(one: int | None, other: int | None) -> int | None:
    """The larger of two ages; either may be unknown."""
    return other if one is None else one if other is None else max(one, other)


def name_of(seconds: int, at_us: int) -> str:
    """The name of the record for the interval of this length that contains a time."""
    return f"{seconds}:{at_us // (seconds * SECOND) % RINGS[seconds]}"


def is_in(row: Row, seconds: int, at_us: int) -> bool:
    """Whether a row belongs to the interval that contains a time, not to an earlier round."""
    return row.at_us // (seconds * SECOND) == at_us // (seconds * SECOND)


def encode(record: Row | Head) -> bytes:
    """Encode a record."""
    return msgspec.msgpack.encode(record)


def decode(stored: bytes | None, kind: type[S]) -> S | None:
    """Decode a stored record, or return None if none exists or another program wrote it."""
    if stored is None:
        return None
    try:
        return msgspec.msgpack.decode(stored, type=kind)
    except msgspec.DecodeError:
        return None
