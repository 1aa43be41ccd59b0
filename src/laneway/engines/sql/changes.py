"""
The lanes that a transaction changed, and writing them: all lanes with the same changed columns
in one statement.

A database works on every index of a column that an UPDATE names, even if its value stays the same;
and binding a column costs as much as reading one. So the usual small changes have their own
statements.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from laneway.engines.base import CHANGED
from laneway.engines.shared.size_classes import AGE_SHIFT, SMALLEST, size_class
from laneway.engines.shared.states import ASLEEP, AT_GATE, IDLE, RUNNABLE
from laneway.engines.sql.lane_cache import LaneCache
from laneway.engines.sql.rows import LANE_COLUMNS, Lane, Shard
from laneway.engines.sql.statements import CLASSES, COUNTS, PLACING
from laneway.engines.sql.store import Session
from laneway.units import SECOND

if TYPE_CHECKING:

    class Transaction(Session, Protocol):
        """What writing lanes needs of a transaction."""

        shard: Shard
        lane_cache: LaneCache
        now: int
        first_asleep: int

        def first_place(self, number: int) -> tuple[int, int]:
            """All runnable lanes of a tier queue, or of a group, are behind it."""

        def begins_at(self, number: int, vt: int, first: int) -> None:
            """The first of them has this virtual time and number."""

        def has_turn(self, lane: Lane) -> None:
            """It has a position at a gate."""


if LANE_COLUMNS[4:] != PLACING + CLASSES + COUNTS:
    raise AssertionError("the columns of a lane are not in the order in which they are written")


class LaneChanges:
    """The changed lanes by number; one lane may be in several of these."""

    def __init__(self) -> None:
        self.dirty: dict[int, Lane] = {}
        self.grown: dict[int, Lane] = {}
        """Only `ready`, `bytes` and `published` changed."""
        self.shrunk: dict[int, Lane] = {}
        """Only `leased` and `done`."""
        self.ended: dict[int, Lane] = {}
        """Only `leased`, `done` and `wake`."""

    def write(self, tx: Transaction) -> list[str]:
        """Write all of them and forget them; returns what watchers of topics are notified of."""
        watched = self._watched(tx.now)
        self._merge()
        grown: list[tuple[Any, ...]] = []
        for lane in self.grown.values():
            ready = lane.ready
            waiting = ready + lane.delayed + lane.parked
            big = size_class(waiting) if waiting >= SMALLEST else None
            if big == lane.big and lane.old is not None and ready:  # no other class can change
                grown.append((ready, lane.bytes, lane.published, lane.lane))
            else:
                self.dirty[lane.lane] = lane
        if self.dirty:
            self._write_dirty(tx)
        if self.dirty or self.ended:
            _expect(tx, chain(self.dirty.values(), self.ended.values()))
        ended = []
        for lane in self.ended.values():
            lane.stored_placing = lane.placing()
            ended.append((lane.leased, lane.done, lane.wake or 0, lane.lane))
        shrunk = [(lane.leased, lane.done, lane.lane) for lane in self.shrunk.values()]
        for name, rows in ("lane_grow", grown), ("lane_end", ended), ("lane_shrink", shrunk):
            if rows:
                tx.run_many(name, rows)
        for each in (self.dirty, self.grown, self.shrunk, self.ended):
            each.clear()
        return watched

    def _write_dirty(self, tx: Transaction) -> None:
        """Write the lanes that changed otherwise: only the kinds of columns that did."""
        now, cache = tx.now, tx.lane_cache
        inserted: list[tuple[Any, ...]] = []
        written: list[tuple[Any, ...]] = []
        placed: list[tuple[Any, ...]] = []
        counted: list[tuple[Any, ...]] = []
        deleted: list[tuple[int]] = []
        for lane in self.dirty.values():
            if lane.forgotten:
                tx.shard.lanes -= 1
                cache.drop(lane)
                if not lane.is_new:
                    deleted.append((lane.lane,))
                continue
            _classify(lane, now)
            lane.pack()
            placing, classes, counts = lane.placing(), lane.classes(), lane.counts()
            if lane.is_new:
                lane.is_new = False
                name, rule = lane.name, 0 if lane.rule == lane.name else lane.rule
                inserted.append((name, rule, lane.own, *placing, *classes, *counts))
            elif classes != lane.stored_classes:
                written.append(placing + classes + counts)
            elif placing != lane.stored_placing:
                placed.append(placing + counts)
            else:
                counted.append(counts)
            lane.stored_placing, lane.stored_classes = placing, classes
        tx.run_rows("lane_insert", inserted)
        for name, rows in (
            ("lane_delete", deleted),
            ("lane_write", written),
            ("lane_place", placed),
            ("lane_count", counted),
        ):
            if rows:
                tx.run_many(name, rows)

    def _watched(self, now: int) -> list[str]:
        """The lanes that changed and are watched, see `Wakeup.watch_topic`."""
        ids = []
        for lane in chain(self.dirty.values(), self.shrunk.values(), self.ended.values()):
            if lane.watched_until:
                ids.append(CHANGED + lane.name)
                if now > lane.watched_until:
                    lane.watched_until = 0
        return ids

    def _merge(self) -> None:
        """Write a lane that changed in more than one way as a whole."""
        if sum(map(bool, (self.dirty, self.grown, self.shrunk, self.ended))) < 2:
            return
        several = self.grown.keys() & self.shrunk.keys()
        for each in (self.grown, self.shrunk):
            several |= self.ended.keys() & each.keys()
        for number in several:
            self.dirty[number] = (
                self.grown.get(number) or self.shrunk.get(number) or self.ended[number]
            )
        for each in (self.grown, self.shrunk, self.ended):
            for number in each.keys() & self.dirty.keys():
                del each[number]


def _expect(tx: Transaction, lanes: Iterable[Lane]) -> None:
    """These lanes have positions in indexes, maybe before all others."""
    shard, firsts = tx.shard, dict[int, tuple[int, int]]()
    for lane in lanes:
        if lane.forgotten:
            continue
        place, wake = lane.place, lane.wake
        if place == RUNNABLE:
            position = lane.vt, lane.lane
            firsts[lane.tier_queue] = min(position, firsts.get(lane.tier_queue, position))
        elif place == AT_GATE:
            tx.has_turn(lane)
        elif place == ASLEEP and wake is not None:
            shard.first_asleep = min(shard.first_asleep, wake)
            tx.first_asleep = min(tx.first_asleep, wake)
        elif place == IDLE and wake is not None and wake < shard.first_idle:
            shard.first_idle = wake
    for number, first in firsts.items():
        if first <= tx.first_place(number):
            tx.begins_at(number, *first)


def _classify(lane: Lane, now: int) -> None:
    """Set the lane's size classes, see `shared.size_classes`."""
    ready = lane.ready
    waiting = ready + lane.delayed + lane.parked
    lane.big = size_class(waiting) if waiting >= SMALLEST else None
    if not ready:
        lane.old = None
    elif lane.old is None:
        lane.old = now >> AGE_SHIFT
    if lane.lately >= SMALLEST or lane.before >= SMALLEST:
        lane.busy = size_class(max(lane.before, lane.lately))
    else:
        lane.busy = None
    throttled = lane.throttled + lane.held_until - lane.held_since
    if throttled >= SECOND:
        lane.slow = size_class(throttled // 10_000)
