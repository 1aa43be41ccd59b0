"""
Groups in a transaction: the lanes of one group in a tier queue compete as one entry of it.

A group's row is read when a lane of it is, changed in memory, and written at the end. It lives as
long as it has lanes. What it counts follows the places of its lanes, see `Transaction.place`.

For example, the group `acme` has the topics a1 and a2, the group `globex` has g1, all of weight 1
and with a backlog. Visits take 2 messages, which cost 201,600 of virtual time (vt). The inner
virtual time of a group is that of its lane served last, from before that visit.

    visit   delivers   acme: vt, inner    globex: vt, inner   a1, a2, g1
    1       a1 a1      201,600       0          0         0   201,600         0         0
    2       g1 g1      201,600       0    201,600         0   201,600         0   201,600
    3       a2 a2      403,200       0    201,600         0   201,600   201,600   201,600
    4       g1 g1      403,200       0    403,200   201,600   201,600   201,600   403,200
    5       a1 a1      604,800 201,600    403,200   201,600   403,200   201,600   403,200

Each customer gets half, however many topics it has. A topic a3 that begins now gets 201,600, the
inner virtual time of `acme`.

Why this is correct. A group's virtual time advances by what its lanes deliver, divided by the
group's weight, as a lane's does, so the proof of `shared.fairness` holds between entries, and again
between the lanes inside an entry. A group that gets its first runnable lane begins at the tier's
virtual time, so being idle earns nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from laneway.engines.shared.states import RUNNABLE
from laneway.engines.sql.lane_cache import LaneCache
from laneway.engines.sql.rows import (
    GROUP_COLUMNS,
    GateState,
    GroupQueue,
    GroupTurn,
    Lane,
    TierQueue,
)
from laneway.engines.sql.store import Session
from laneway.policy import Gate
from laneway.topic_groups import GROUP

if TYPE_CHECKING:

    class Transaction(Session, Protocol):
        """What groups need of a transaction, which has them."""

        lane_cache: LaneCache
        tier_queues: dict[int, TierQueue]

        @property
        def gate(self) -> Callable[[str], GateState | None]: ...
        @property
        def next_lane(self) -> Callable[[], int]: ...


MOST_TURNS = 20_000
"""Virtual times of a group at gates that are cached."""

_columns = attrgetter(*GROUP_COLUMNS)


class GroupQueues:
    """The groups that a transaction has read or changed."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._cache = tx.lane_cache
        self.dirty: dict[int, GroupQueue] = {}
        self._dirty_turns: dict[tuple[int, str], GroupQueue] = {}
        """By number of the group and gate."""

    def exist(self) -> bool:
        """Whether the store has any group."""
        cache = self._cache
        if cache.has_groups is None:
            cache.has_groups = bool(self._tx.one("group_any")[0])
        return cache.has_groups

    def load(self, numbers: Iterable[int]) -> None:
        """Read groups by number, all in one statement."""
        known = self._cache.groups
        wanted = [number for number in numbers if number not in known]
        if wanted:
            for row in self._tx.all("groups_read", self._tx.array(wanted)):
                self._add(GroupQueue(*row))

    def load_of(self, lanes: Iterable[Lane]) -> None:
        """Read the groups of lanes, all in one statement."""
        self.load({-lane.tier_queue for lane in lanes if lane.tier_queue < 0})

    def get(self, number: int) -> GroupQueue:
        """The group of a number, which exists."""
        group = self._cache.groups.get(number)
        if group is None:
            self.load([number])
            group = self._cache.groups[number]
        return group

    def of(self, tier_queue: TierQueue, name: str) -> GroupQueue:
        """The group of a name in a tier queue, made if it does not exist."""
        cache = self._cache
        number = cache.group_numbers.get((tier_queue.number, name))
        if number is not None:
            return cache.groups[number]
        row = self._tx.one("group_find", name, tier_queue.number) if self.exist() else None
        if row is not None and row[0] not in self.dirty:
            return cache.groups.get(row[0]) or self._add(GroupQueue(*row))
        group = self._add(
            GroupQueue(
                self._tx.next_lane(),
                tier_queue.number,
                name,
                vt=tier_queue.vt,
                inner_vt=0,
                is_stored=False,
            )
        )
        cache.has_groups = True
        settings = self._tx.gate(GROUP + name)
        if settings is not None:
            _apply(group, settings.whole)
        self.dirty[group.number] = group
        return group

    def find(self, tier_queue: int, name: str) -> GroupQueue | None:
        number = self._cache.group_numbers.get((tier_queue, name))
        if number is not None:
            return self._cache.groups[number]
        row = self._tx.one("group_find", name, tier_queue)
        if row is None:
            return None
        return self._cache.groups.get(row[0]) or self._add(GroupQueue(*row))

    def turn(self, group: GroupQueue, gate: str) -> GroupTurn:
        """The virtual times of a group at a gate."""
        found = group.turns.get(gate)
        if found is None:
            row = self._tx.one("group_turn_read", group.number, gate) if group.is_stored else None
            found = group.turns[gate] = GroupTurn(*row or ())
        return found

    def touch_turn(self, group: GroupQueue, gate: str) -> GroupTurn:
        """Its virtual times at a gate, which are changed and written at the end."""
        self._dirty_turns[group.number, gate] = group
        return self.turn(group, gate)

    def end_turn(self, number: int, gate: str) -> None:
        """The gate ended: forget the virtual times of the group of this number there."""
        self._tx.run("group_turn_delete", number, gate)
        self._dirty_turns.pop((number, gate), None)
        group = self._cache.groups.get(number)
        if group is not None:
            group.turns.pop(gate, None)

    def set_up(self, name: str, settings: Gate) -> None:
        """The settings of the groups of this name were changed."""
        for row in self._tx.all("groups_of_name", name):
            group = self._cache.groups.get(row[0]) or self._add(GroupQueue(*row))
            _apply(group, settings)
            self.dirty[group.number] = group

    def _add(self, group: GroupQueue) -> GroupQueue:
        self._cache.groups[group.number] = group
        self._cache.group_numbers[group.tier_queue, group.name] = group.number
        return group

    def join(self, lane: Lane, group: GroupQueue) -> None:
        """The lane is in the group from now on, idle."""
        lane.tier_queue, lane.vt, lane.placed_by = -group.number, group.inner_vt, None
        group.lanes += 1
        self.dirty[group.number] = group

    def leave(self, lane: Lane) -> None:
        """The lane leaves its group. A group without lanes is forgotten."""
        group = self.get(-lane.tier_queue)
        if lane.place == RUNNABLE:
            group.runnable -= 1
        self.lose(group, 1)

    def lose(self, group: GroupQueue, lanes: int) -> None:
        """So many idle lanes of the group are gone."""
        group.lanes -= lanes
        self.dirty[group.number] = group
        if group.lanes <= 0:
            del self._cache.groups[group.number]
            del self._cache.group_numbers[group.tier_queue, group.name]

    def recount(self, group: GroupQueue, lanes: int, runnable: int) -> None:
        """The group's lanes were counted again."""
        group.runnable = runnable
        self.lose(group, group.lanes - lanes)

    def touch(self, group: GroupQueue) -> None:
        """The group was changed: write it at the end."""
        self.dirty[group.number] = group

    def write(self) -> None:
        """Write what changed: of a group its row, and its virtual times at gates that it used."""
        if not (self.dirty or self._dirty_turns):
            return
        tx = self._tx
        written: list[tuple[Any, ...]] = []
        for number, group in self.dirty.items():
            if group.lanes <= 0:
                if group.is_stored:
                    tx.run("group_delete", number)
                    tx.run("group_turns_delete", number)
                continue
            group.is_stored = True
            if group.runnable:
                tier_queue = tx.tier_queues[group.tier_queue]
                tier_queue.first_group_vt = min(tier_queue.first_group_vt, group.vt)
            written.append(_columns(group))
        turns = [
            (number, gate, group.tier_queue, *msgspec.structs.astuple(group.turns[gate]))
            for (number, gate), group in self._dirty_turns.items()
            if group.lanes > 0
        ]
        for group in self._dirty_turns.values():
            if len(group.turns) > MOST_TURNS:
                group.turns = {}
        self.dirty.clear()
        self._dirty_turns.clear()
        tx.run_rows("group_write", written)
        tx.run_rows("group_turn_write", turns)


def _apply(group: GroupQueue, settings: Gate) -> None:
    group.weight = settings.weight if settings.weight is not None else 1.0
    group.limited = int(settings.is_limited)
