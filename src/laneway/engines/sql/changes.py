"""
The lanes that a transaction changed, and writing them: all lanes with the same changed columns
in one statement.

A database works on every index of a column that an UPDATE names, even if its value stays the same;
and binding a column costs as much as reading one. So the usual small changes have their own
statements.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from laneway.engines.base import CHANGED
from laneway.engines.shared.size_classes import AGE_SHIFT, SMALLEST, size_class
from laneway.engines.shared.states import ASLEEP, AT_GATE, IDLE, RUNNABLE
from laneway.engines.sql.rows import LANE_COLUMNS, Lane, Shard
from laneway.engines.sql.statements import CLASSES, COUNTS, MARKS, PLACING
from laneway.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.engines.sql.lane_cache import LaneCache
    from laneway.engines.sql.store import Session

    class Transaction(Session, Protocol):
        """What writing lanes needs of a transaction."""

        shard: Shard
        lane_cache: LaneCache
        now: int
        first_asleep: int

        def first_vt(self, number: int) -> int:
            """Before it no lane of a tier queue, or of a group, is runnable."""

        def begins_at(self, number: int, vt: int) -> None:
            """The first of them has this virtual time."""

        def has_turn(self, lane: Lane) -> None:
            """It has a position at a gate."""


_PLACED = len(PLACING)
_CLASSES = range(len(CLASSES))
if LANE_COLUMNS[4:] != PLACING + COUNTS + CLASSES:
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
        shard, lane_cache, now = tx.shard, tx.lane_cache, tx.now
        watched = self._watched(now)
        written: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        inserted: list[tuple[Any, ...]] = []
        self._merge()
        for lane in self.dirty.values():
            if lane.forgotten:
                shard.lanes -= 1
                lane_cache.drop(lane)
                if not lane.is_new:
                    written["lane_delete"].append((lane.lane,))
            elif lane.is_new:
                inserted.append(_inserted(lane, now))
                _expect(tx, lane)
            else:
                _whole(lane, now, written)
                _expect(tx, lane)
        usual = written["lane_grow"]
        for lane in self.grown.values():
            ready = lane.ready
            waiting = ready + lane.delayed + lane.parked
            big = size_class(waiting) if waiting >= SMALLEST else None
            if big == lane.big and lane.old is not None and ready:  # no other class can change
                usual.append((ready, lane.bytes, lane.published, lane.lane))
                continue
            _classify(lane, now)
            before, lane.stored_index = lane.stored_index, lane.index_columns()
            mark, changed = _changed_classes(before, lane.stored_index)
            written[f"lane_grow{mark}"].append(
                (ready, lane.bytes, lane.published, *changed, lane.lane)
            )
        for lane in self.ended.values():
            lane.stored_index = lane.index_columns()
            written["lane_end"].append((lane.leased, lane.done, lane.wake or 0, lane.lane))
            _expect(tx, lane)
        written["lane_shrink"] = [
            (lane.leased, lane.done, lane.lane) for lane in self.shrunk.values()
        ]
        tx.run_rows("lane_insert", inserted)
        for name, rows in written.items():
            tx.run_many(name, rows)
        for each in (self.dirty, self.grown, self.shrunk, self.ended):
            each.clear()
        return watched

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


def _expect(tx: Transaction, lane: Lane) -> None:
    """The lane has a position in an index, maybe before all others."""
    shard = tx.shard
    if lane.place == RUNNABLE:
        if lane.vt < tx.first_vt(lane.tier_queue):
            tx.begins_at(lane.tier_queue, lane.vt)
    elif lane.place == AT_GATE:
        tx.has_turn(lane)
    elif lane.wake is not None:
        if lane.place == ASLEEP:
            shard.first_asleep = min(shard.first_asleep, lane.wake)
            tx.first_asleep = min(tx.first_asleep, lane.wake)
        elif lane.place == IDLE:
            shard.first_idle = min(shard.first_idle, lane.wake)


def _inserted(lane: Lane, now: int) -> tuple[Any, ...]:
    _classify(lane, now)
    lane.pack()
    lane.is_new = False
    lane.stored_index = lane.index_columns()
    indexed = [value or 0 for value in lane.stored_index]
    rule = 0 if lane.rule == lane.name else lane.rule
    return (
        lane.lane,
        lane.name,
        rule,
        lane.own,
        *indexed[:_PLACED],
        *lane.counts(),
        *indexed[_PLACED:],
    )


def _whole(lane: Lane, now: int, written: defaultdict[str, list[tuple[Any, ...]]]) -> None:
    _classify(lane, now)
    lane.pack()
    before, lane.stored_index = lane.stored_index, lane.index_columns()
    mark, changed = _changed_classes(before, lane.stored_index)
    if before[:_PLACED] == lane.stored_index[:_PLACED]:
        written[f"lane_count{mark}"].append((*lane.counts(), *changed, lane.lane))
    else:
        placing = [value or 0 for value in lane.stored_index[:_PLACED]]
        written[f"lane_place{mark}"].append((*placing, *lane.counts(), *changed, lane.lane))


def _classify(lane: Lane, now: int) -> None:
    """Set the lane's size classes, see `shared.size_classes`."""
    waiting = lane.waiting
    lane.big = size_class(waiting) if waiting >= SMALLEST else None
    if not lane.ready:
        lane.old = None
    elif lane.old is None:
        lane.old = now >> AGE_SHIFT
    counted = max(lane.before, lane.lately)
    lane.busy = size_class(counted) if counted >= SMALLEST else None
    throttled = lane.throttled + lane.held_until - lane.held_since
    if throttled >= SECOND:
        lane.slow = size_class(throttled // 10_000)


def _changed_classes(before: tuple[Any, ...], after: tuple[Any, ...]) -> tuple[str, Sequence[int]]:
    """The size classes that changed: as the end of a statement's name, and their values."""
    if before[_PLACED:] == after[_PLACED:]:
        return "", ()
    mark, values = "", []
    for n in _CLASSES:
        if before[_PLACED + n] != after[_PLACED + n]:
            mark += MARKS[n]
            values.append(after[_PLACED + n] or 0)
    return mark, values
