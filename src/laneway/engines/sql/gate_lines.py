"""
The orders of lanes at gates that one lease call reads: by turn, page by page.

A call changes turns and moves lanes from one gate to another before anything is written. So each
order is a heap over the index: it begins with a page of it, reads the next one when it comes to its
end, and gets the lanes that this transaction moved. An entry that has another turn by now, or has
left, is passed over.

For example, the lanes 1 to 9 wait at a gate, all with the turn 0, and a page has four. The heap
begins with the lanes 1 to 4 and a marker at (0, 4). Lane 1 delivers 2 messages: its turn is
201,600, and it is pushed again. The lanes 2, 3 and 4 follow. Now the marker is the smallest entry,
so the next page is read: 5 to 9. They precede lane 1, as they would in the index.

Why this is correct. Turns only grow, so a lane that this call has not changed is in the index where
it was, behind all that was read, and the marker is there too. A lane that it has changed is in the
heap at its new turn; its old entry has another turn than the lane, which shows that it is stale.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

from laneway.engines.shared import gates
from laneway.engines.shared.states import AT_GATE
from laneway.engines.sql import gate_order
from laneway.engines.sql.rows import GateState, GroupQueue, GroupTurn, Lane
from laneway.engines.sql.store import Read
from laneway.engines.sql.transaction import Transaction
from laneway.engines.sql.wanted import Only
from laneway.policy import gate_names
from laneway.topic_groups import GROUP

FEW = 4
"""How many lanes are read at first where only the first one is asked for."""

Order = tuple[bool, int, int, int, int]
"""
The position of a lane at a gate: not its holder, turn and number of the entry, turn and number of
the lane.
"""


class GateLines:
    """The orders at all gates, as far as a call has read them."""

    def __init__(
        self, tx: Transaction, only: Only | None, upcoming: deque[tuple[Lane, str | None]]
    ) -> None:
        """`upcoming`: lanes that are read are added to it."""
        self.tx, self.only, self.upcoming = tx, only, upcoming
        self.tiers = None if only is None else only.wanted.tiers
        self.left_out: set[int] = set()
        """Lanes that deliver nothing more in this call."""
        self.moved: list[Lane] = []
        """Lanes that this call has moved to other gates."""
        self._lines: dict[tuple[str, int], GateLine] = {}
        self._tier_queues: dict[str, list[int]] = {}
        """By gate: those with lanes there, those too that came there in this call."""
        self._has_pools = len({queue.pool for queue in tx.tier_queues.values()}) > 1

    def line(self, gate: GateState, tier_queue: int) -> GateLine:
        """The order of a tier queue at a gate."""
        if (gate.name, tier_queue) not in self._lines:
            self.read([gate], tier_queue, FEW)
        return self._lines[gate.name, tier_queue]

    def read(self, gates: Iterable[GateState], tier_queue: int, page: int) -> None:
        """Read the beginnings of the orders of a tier queue at these gates together."""
        lines = {
            (gate.name, tier_queue): GateLine(self, gate, tier_queue, page)
            for gate in gates
            if (gate.name, tier_queue) not in self._lines
        }
        pages = self.tx.pages([line.first_page for line in lines.values()])
        self.load_lanes([number for rows in pages for number, _ in rows])
        self._lines |= lines
        for line, rows in zip(lines.values(), pages, strict=True):
            line.begin(rows)

    def load_lanes(self, numbers: Sequence[int]) -> None:
        """Read these lanes, and what `expect` reads of them."""
        tx = self.tx
        tx.load_numbers(numbers)
        lanes = list(map(tx.lane_cache.lanes.__getitem__, numbers))
        self.upcoming += zip(lanes, repeat(None))
        self.expect({lane.gates or lane.gate or "" for lane in lanes} - {""})

    def expect(self, keys: Collection[str]) -> None:
        """Read the gates of these keys, and which tier queues have lanes there, each together."""
        self.tx.load_gates(keys)
        names = {name for key in keys for name in gate_names(key)} - self._tier_queues.keys()
        if len(names) > 1:
            self._read_tier_queues(sorted(names))

    def _read_tier_queues(self, names: Sequence[str]) -> None:
        """Read which tier queues have lanes at these gates."""
        self._tier_queues.update((name, []) for name in names)
        for name, number in self.tx.all("gate_entries_of", self.tx.array(names)):
            self._tier_queues[name].append(number)
        for lane in (*self.tx.came_up, *self.moved):
            self._note(lane)

    def at(self, gate: GateState) -> list[GateLine]:
        """The orders of all tier queues with lanes at a gate."""
        if gate.name not in self._tier_queues:
            self._read_tier_queues([gate.name])
        return [self.line(gate, number) for number in self._tier_queues[gate.name]]

    def _note(self, lane: Lane) -> None:
        number, known = self.tx.tier_queue_of(lane).number, self._tier_queues.get(lane.gate or "")
        if known is not None and number not in known:
            known.append(number)

    def lane_moved(self, lane: Lane, gate: GateState) -> None:
        """The lane waits at this gate now."""
        self.moved.append(lane)
        self._note(lane)
        line = self._lines.get((gate.name, self.tx.tier_queue_of(lane).number))
        if line is not None:
            line.add(lane)

    def is_turn(self, lane: Lane, gate: GateState) -> bool:
        """Whether nothing that waits at the gate is before the lane, which waits at another one."""
        tx = self.tx
        group = gate_order.group_at(tx, lane, gate.name)
        inner = gate_order.lane_turn(tx, lane, group, gate)
        if group is None:
            turn, number = inner, lane.lane
        else:
            turn, number = gate_order.group_turn(tx, lane, group, gate), group.number
        for line in self.at(gate):
            if self._is_passed_over(line.tier_queue, lane):
                continue
            if line.has_before(turn, number):
                return False
            if group is not None and line.tier_queue == group.tier_queue:
                first = line.first_in(group)
                if first is not None and (first.turn, first.lane) < (inner, lane.lane):
                    return False
        return True

    def _is_passed_over(self, number: int, lane: Lane) -> bool:
        """
        Whether this tier queue may get nothing while that of the lane has work, or the call leases
        nothing of its tier: perhaps nobody does.
        """
        one, other = self.tx.tier_queues[number], self.tx.tier_queue_of(lane)
        return one.pool == other.pool and (
            (self.tiers is not None and one.tier not in self.tiers)
            or gates.is_served_later(self.tx.rules.tiers, one.tier, other.tier)
        )

    def waits_for_others(self, line: GateLine, lane: Lane, room: int) -> bool:
        """
        Whether a lane that this call does not serve, of another pool or for other workers, precedes
        the first one that it serves at a gate: for a part of the time of one delivery the gate is
        held for it, or for long if others can use the rate meanwhile. If no worker takes it then,
        it misses its turn. Nothing is held where the gate admits more than `room`, what this call
        takes at most.
        """
        tx, gate = self.tx, line.gate
        if not (self._has_pools or self.only) or gate.room(tx.now, lane.lane) > room:
            return False
        best = min(self._unserved(line, lane), default=None, key=itemgetter(0))
        if best is None or best[0] >= line.order(lane) or gate.is_held(tx.now):
            return False
        _, other, first = best
        tx.touch_gate(gate)
        if gate.end_hold(first.lane):
            other.miss_turn(first, lane)
            return False
        keeps_up = gates.keeps_up(gate.limits, 1, gate.owes)
        most = max(gate.interval(), gate.mean)  # of several slots others use the rest meanwhile
        for_us = gates.HOLD_US if keeps_up else most // gates.HOLD_PART
        if for_us:
            gate.hold(tx.now, first.lane, gate_order.entry_turn(tx, first, gate), 1, for_us)
            tx.pools_to_notify.add(tx.tier_queues[other.tier_queue].pool)
        return not gate.room(tx.now, lane.lane)

    def _unserved(self, line: GateLine, lane: Lane) -> Iterator[tuple[Order, GateLine, Lane]]:
        """The first lane in each order at the gate of a line that this call does not serve."""
        queues = self.tx.tier_queues
        for other in self.at(line.gate):
            first = other.first()
            if first is not None and queues[other.tier_queue].pool != queues[line.tier_queue].pool:
                yield other.order(first), other, first
            if not self._is_passed_over(other.tier_queue, lane):
                yield from ((other.order(each), other, each) for each in other.passed_over())


def index_of(tx: Transaction, gate: GateState, tier_queue: int) -> int:
    """Whose lanes are a gate's entries: the tier queue, or the group whose gate it is."""
    own = tx.groups.find(tier_queue, gate.name[1:]) if gate.name.startswith(GROUP) else None
    return tier_queue if own is None else -own.number


class GateLine:
    """The lanes and groups of a tier queue that wait at a gate, by their turns there."""

    def __init__(self, lines: GateLines, gate: GateState, tier_queue: int, page: int) -> None:
        self.gate, self.tier_queue = gate, tier_queue
        self._lines, self._tx, self._only = lines, lines.tx, lines.only
        self._page = page
        self.head: Lane | None = None
        """The first lane, as the caller saw it last."""
        self._heap: list[tuple[int, int, int, Any]] = []
        self._inner: dict[int, list[tuple[int, int, int, Any]]] = {}
        """By number of a group: its lanes here."""
        self._passed_over: list[tuple[Order, Lane]] = []
        """A heap of the lanes that the caller does not take."""
        self._entries: set[int] = set()
        self._listed: dict[int, int] = {}
        """By number of a group: the turn at which the heap has it."""
        self._index = index_of(self._tx, gate, tier_queue)
        """Whose lanes are entries: the tier queue's, or those of the group whose gate it is."""
        self.first_page = self._next_page(self._index, self._begin(self._index, "gates"))
        """The statement that reads the first lanes."""

    def begin(self, rows: Sequence[tuple[int, int]]) -> None:
        """Begin with the rows of `first_page`."""
        tx = self._tx
        self._add_lanes(self._heap, self._index, rows)
        if self._index > 0 and tx.groups.exist():
            self._read_groups(self._begin(self.tier_queue, "groups gates"))
        for lane in (*tx.came_up, *self._lines.moved):
            if tx.tier_queue_of(lane).number == self.tier_queue:
                self.add(lane)

    @property
    def count(self) -> int:
        """How many entries it has, as far as it was read."""
        return len(self._entries)

    def first(self) -> Lane | None:
        """The first lane, or None. What the gate holds for a lane here, it holds for the first."""
        gate, tx = self.gate, self._tx
        if gate.is_held(tx.now):
            tx.load_numbers([gate.holder])
            holder = tx.lane_cache.lanes.get(gate.holder)
            if (
                holder is not None
                and self._waits(holder)
                and tx.tier_queue_of(holder).number == self.tier_queue
                and not self._passes_over(holder)
            ):
                return holder
        while (entry := self._top(self._heap, self._index)) is not None:
            if isinstance(entry, Lane):
                return entry
            if (found := self.first_in(entry)) is not None:
                return found
            self._drop_group(entry)
        return None

    def first_in(self, group: GroupQueue) -> Lane | None:
        """The first lane of a group here."""
        heap = self._inner.get(group.number)
        if heap is None:
            heap = self._inner[group.number] = []
            self._read_lanes(heap, -group.number, self._begin(-group.number, "gates"))
            for lane in (*self._tx.came_up, *self._lines.moved):
                if lane.tier_queue == -group.number:
                    self._push(heap, lane)
        first = self._top(heap, -group.number)
        assert first is None or isinstance(first, Lane)
        return first

    def order(self, lane: Lane) -> Order:
        """The position of a lane that waits here."""
        gate, tx = self.gate, self._tx
        is_holder = gate.is_held(tx.now) and gate.holder == lane.lane
        group = gate_order.group_at(tx, lane, gate.name)
        if group is None:
            return not is_holder, lane.turn, lane.lane, lane.turn, lane.lane
        turn = tx.groups.turn(group, gate.name).turn
        return not is_holder, turn, group.number, lane.turn, lane.lane

    def has_before(self, turn: int, number: int) -> bool:
        """Whether another entry than that of this number is before this turn."""
        skipped, found = [], False
        while (entry := self._top(self._heap, self._index)) is not None:
            its_turn, its_number = self._heap[0][:2]
            if not isinstance(entry, Lane) and self.first_in(entry) is None:
                self._drop_group(entry)
            elif its_number == number:
                skipped.append(heapq.heappop(self._heap))
            else:
                found = (its_turn, its_number) < (turn, number)
                break
        for each in skipped:
            heapq.heappush(self._heap, each)
        return found

    def add(self, lane: Lane) -> None:
        """Add a lane that waits here now, or that has another turn."""
        if lane.tier_queue == self._index:
            self._push(self._heap, lane)
        elif self._waits(lane):
            group = self._tx.groups.get(-lane.tier_queue)
            if (heap := self._inner.get(group.number)) is not None:
                self._push(heap, lane)
            self._push_group(group)

    def miss_turn(self, lane: Lane, other: Lane) -> None:
        """The entry of a lane here misses its turn: it goes on behind that of another one."""
        tx, gate = self._tx, self.gate.name
        group, its_group = (gate_order.group_at(tx, each, gate) for each in (lane, other))
        turn = other.turn if its_group in (None, group) else tx.groups.turn(its_group, gate).turn
        if group in (None, its_group):
            lane.turn = turn + 1
            tx.touch(lane)
        else:
            tx.groups.touch_turn(group, gate).turn = turn + 1
        tx.moves_at_gate(lane)
        self.add(lane)

    def _waits(self, lane: Lane) -> bool:
        return (
            lane.place == AT_GATE
            and not lane.forgotten
            and lane.gate == self.gate.name
            and lane.lane not in self._lines.left_out
        )

    def _push(self, heap: list[tuple[int, int, int, Any]], lane: Lane) -> None:
        if not self._waits(lane):
            return
        if self._passes_over(lane):
            return
        heapq.heappush(heap, (lane.turn, lane.lane, 0, lane))
        if heap is self._heap:
            self._entries.add(lane.lane)

    def _passes_over(self, lane: Lane) -> bool:
        """Whether the caller does not take the lane; then it delivers nothing in this call."""
        if self._only is None or self._only.takes(lane):
            return False
        self._lines.left_out.add(lane.lane)
        heapq.heappush(self._passed_over, (self.order(lane), lane))
        return True

    def passed_over(self) -> list[Lane]:
        """The first one here of the lanes that the caller does not take, if there is one."""
        heap = self._passed_over
        while heap and (order := self.order(heap[0][1])) != heap[0][0]:
            heapq.heapreplace(heap, (order, heap[0][1]))
        return [lane for _, lane in heap[:1]]

    def _push_group(self, group: GroupQueue) -> None:
        """Add a group at its present turn, once."""
        turn = self._tx.groups.turn(group, self.gate.name).turn
        if self._listed.get(group.number) != turn:
            self._listed[group.number] = turn
            heapq.heappush(self._heap, (turn, group.number, 0, group))
        self._entries.add(group.number)

    def _drop_group(self, group: GroupQueue) -> None:
        """The first entry is a group that has no lane here any more."""
        heapq.heappop(self._heap)
        self._entries.discard(group.number)
        self._listed.pop(group.number, None)

    def _top(self, heap: list[tuple[int, int, int, Any]], index: int) -> Lane | GroupQueue | None:
        """The first entry of a heap that is right, or None; it stays there."""
        while heap:
            turn, number, is_marker, entry = heap[0]
            if is_marker:
                heapq.heappop(heap)
                self._read_more(heap, index, entry, (turn, number))
                continue
            if isinstance(entry, Lane):
                if self._waits(entry) and entry.turn == turn:
                    return entry
            elif self._tx.groups.turn(entry, self.gate.name).turn == turn:
                return entry  # type: ignore[no-any-return]
            heapq.heappop(heap)
            if isinstance(entry, Lane):
                if heap is self._heap and not self._waits(entry):
                    self._entries.discard(number)
            elif self._listed.get(number) == turn:  # it got another turn through another gate
                self._push_group(entry)
        return None

    # Reading

    def _begin(self, number: int, kind: str) -> tuple[Any, ...]:
        return (-1, -1) if self._only is None else self._only.begin(number, self._name(kind))

    def _name(self, kind: str) -> str:
        return f"{kind} {self.gate.name}"

    def _read_more(
        self, heap: list[tuple[int, int, int, Any]], index: int, kind: str, after: tuple[int, int]
    ) -> None:
        number = self.tier_queue if kind == "groups gates" else index
        if self._only is not None and not self._only.may_go_on(number, self._name(kind), after):
            return
        self._page = max(self._page, 16)
        if kind == "groups gates":
            self._read_groups(after)
        else:
            self._read_lanes(heap, index, after)

    def _next_page(self, index: int, after: tuple[Any, ...]) -> Read:
        return "lanes_at_gate", self.gate.name, index, *after, self._page

    def _read_lanes(
        self, heap: list[tuple[int, int, int, Any]], index: int, after: tuple[Any, ...]
    ) -> None:
        rows = self._tx.all(*self._next_page(index, after))
        self._lines.load_lanes([number for number, _ in rows])
        self._add_lanes(heap, index, rows)

    def _add_lanes(
        self, heap: list[tuple[int, int, int, Any]], index: int, rows: Sequence[tuple[int, int]]
    ) -> None:
        lanes = self._tx.lane_cache.lanes
        if self._only is not None:
            self._only.load_ranks(lanes[number] for number, _ in rows)
        for number, _ in rows:
            self._push(heap, lanes[number])
        self._mark(heap, index, "gates", rows)

    def _read_groups(self, after: tuple[Any, ...]) -> None:
        tx = self._tx
        rows = tx.all("groups_at_gate", self.gate.name, self.tier_queue, *after, self._page)
        tx.groups.load(number for number, *_ in rows)
        for number, turn, *rest in rows:
            if self._only is not None:
                listed = self.tier_queue, self._name("groups gates")
                index = -number, self._name("gates")
                self._only.enter_group(index, listed, (turn, number - 1))
            group = tx.groups.get(number)
            group.turns.setdefault(self.gate.name, GroupTurn(turn, *rest))
            self._push_group(group)
        self._mark(self._heap, self.tier_queue, "groups gates", rows)

    def _mark(
        self,
        heap: list[tuple[int, int, int, Any]],
        number: int,
        kind: str,
        rows: Sequence[tuple[int, ...]],
    ) -> None:
        """Behind a full page: where the next one begins."""
        if len(rows) == self._page:
            last, turn = rows[-1][:2]
            heapq.heappush(heap, (turn, last, 1, kind))
        elif self._only is not None:
            self._only.ended(number, self._name(kind))
