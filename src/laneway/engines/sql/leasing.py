"""
`Queue.lease`: choose lanes, then deliver their messages.

First the visits are decided in memory: which lanes deliver how many messages. Only lanes are read
for that, each once, and only lanes that can deliver. Then the messages of all visits are read, and
their leases are written.

For example, a namespace has the tiers `urgent` (strict), `high` (share 2) and `low` (share 1), and
these lanes, in the order of their numbers:

    lane   tier     ready   limit             what the first lease takes
    u      urgent   2                         2
    r      high     10      rate 10/s         1   the permits that it has
    h      high     10                        3   visits of 2 and 1
    two    high     10      concurrency 2     2
    l      low      10                        3   one visit, as the only lane of its tier

A lease of 11 gives `urgent` its 2 messages and divides the other 9 by the shares, 6 and 3. In
`high` all virtual times are equal at first, so the numbers decide; with three lanes a visit takes 2
messages. After the first three visits `r` sleeps until its permit and `two` is full, so `h` gets
the last message. The messages of the two tiers are mixed: u u r l h h l two two l h. A lease of 6
then delivers h l h h l h: 4 for `high`, 2 for `low`.

Why this is correct. All limits of a lane are known before its visit is decided, and one transaction
decides and delivers, so what was decided is possible. A lane that cannot deliver is in neither
index, so the number of blocked lanes does not matter. What an expired message leaves free is used
by the next call. `shared.fairness` shows why the order is fair.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from laneway.engines.shared import adaptive, fairness
from laneway.engines.shared.gates import UNLIMITED
from laneway.engines.shared.naming import lane_names
from laneway.engines.shared.refusals import DEFAULT_MEAN_US, STEP
from laneway.engines.shared.size_classes import AGE_SHIFT
from laneway.engines.shared.states import AT_GATE, EXPIRES, RUNNABLE
from laneway.engines.sql import gate_order, key_limits, message_ends, messages
from laneway.engines.sql.gate_lines import GateLine, GateLines
from laneway.engines.sql.lane_cache import LaneCache
from laneway.engines.sql.reading_ahead import FEW_HEADS, Heads, ReadingAhead, head_of, read_heads
from laneway.engines.sql.rows import (
    LANE_COLUMNS,
    NONE,
    Ended,
    GateState,
    GroupQueue,
    Lane,
    Row,
    TierQueue,
    read_headers,
)
from laneway.engines.sql.store import Read
from laneway.engines.sql.tallies import noise_of, prefetch_noise
from laneway.engines.sql.transaction import Transaction, rebased
from laneway.engines.sql.wanted import START, Only, Position
from laneway.message import Lease
from laneway.policy import Resolved

FIRST_PAGE = 4
"""Fewest lanes that are read at once."""

MAX_PAGE = 256
"""Most lanes that are read at once by a call that passes lanes over."""

Place = tuple[int, int, int, int]
"""
A position in a tier queue: virtual time and number of a lane or group, and those of a lane in the
group.
"""

ANYWHERE: Place = (-1, -1, -1, -1)
"""Before all positions: that of a gate that has still to be seen."""

GATES = "gates"
"""
The name of the index of open gates where lanes of a tier queue or group are first, beside those of
the lanes at each gate.
"""

GROUPS_AT_GATES = "groups at gates"
"""The name of the index of groups that are first at open gates."""

MOST_REFUSING = 100
"""
Lanes of a group that a visit passes over because they can deliver nothing. After a group got a
limit, its lanes come to its gate as they are visited.
"""

MOST_REFUSED = 500
"""
Such lanes in all: the next call continues after that. When a gate is used up, its lanes come to it
as they are visited.
"""

LANES_OF_GROUP = fairness.CHUNK
"""Lanes of a group that are looked up with it: a visit of weight 1 takes as many messages."""

FOREVER_US = 1 << 62

MANY_GATES = 4
"""
Above this number of open gates in a tier queue only a few lanes of each are read at first, instead
of as many as there is room for.
"""

_loads = msgspec.json.Decoder(tuple[int | None, list[int]]).decode


def reads(lane_cache: LaneCache, pool: str, room: int) -> Iterator[Read]:
    """
    What a lease from a pool surely reads: the beginnings of its tiers. And what it probably reads:
    the first messages of the lane that has filled the last one alone.
    """
    lane = lane_cache.alone
    if lane is not None and lane_cache.lanes.get(lane.lane) is lane and not lane.ranks:
        yield head_of(lane, min(room, lane.ready))
    page = _page(room, lane_cache.spread)
    lanes = _UNREAD if lane_cache.reads_lanes else _RUNNABLE[_LANES]
    for tier_queue in lane_cache.tier_queues.values():
        if tier_queue.pool == pool:
            number = tier_queue.number
            yield lanes, number, tier_queue.first_vt, tier_queue.first_lane - 1, page
            yield "gate_entries_open", number, tier_queue.first_gate_vt, -1, page


def lease(
    tx: Transaction,
    room: int,
    pool: str,
    topics: Sequence[str] | None,
    startable: int,
    *,
    record_start: bool,
    only: Only | None = None,
    max_lease_us: int | None = None,
    holder: str | None = None,
) -> tuple[list[Lease], bool, bool]:
    """
    Choose and lease up to `room` messages. Also answers whether messages are left that could be
    delivered, but not to this caller: they need room among the `startable`, or match no pattern;
    and whether the next call has to go on, because keys at their limits have parked much.
    """
    plan = _Plan(tx, startable, only)
    if topics is None:
        plan.serve_pool(pool, room)
    else:
        plan.serve_topics(topics, pool, room)
    deliveries = _Deliveries(
        plan, record_start=record_start, max_lease_us=max_lease_us, holder=holder
    )
    delivered = deliveries.run(plan.visits if topics is not None else _interleaved(tx, plan.visits))
    for lane in plan.visited.values():
        tx.place(lane, was_visited=True, was_refused=lane.lane in plan.refused)
    tx.lane_cache.spread = len(plan.visited) / (len(delivered) or 1)
    is_alone = len(plan.visited) == 1 and FEW_HEADS < len(delivered) == room
    tx.lane_cache.alone = next(iter(plan.visited.values())) if is_alone else None
    withheld = plan.withheld or (only is not None and only.leaves_some)
    if only is not None:
        only.end(is_full=len(delivered) >= room)
    # Without deliveries a lane that went from gate to gate would do so again.
    return delivered, withheld, plan.cut or (plan.has_circled and bool(delivered))


def decode_headers(leases: Sequence[Lease]) -> None:
    """
    Decode the headers of these leases, which are JSON until then: after the transaction, because
    headers may be large and others wait meanwhile.
    """
    for lease in leases:
        if lease.headers is not None:
            lease.headers = read_headers(cast("str", lease.headers))


def lease_one(tx: Transaction, lane: Lane, mid: int, fence: int, max_lease_us: int) -> None:
    """Lease this message, which is ready in the lane and has no limits, with this new fence."""
    plan = _Plan(tx, 0)
    if plan.visit_alone(lane, 1):
        tx.shard.fence = max(tx.shard.fence, fence - 1)
        plan.picked[lane.lane] = [mid]
        _Deliveries(plan, record_start=False, max_lease_us=max_lease_us).run(plan.visits)
    tx.place(lane)


def can_deliver(tx: Transaction, lane: Lane) -> bool:
    """Whether the lane is runnable, or all of its gates admit it."""
    if lane.forgotten:
        return False
    if lane.place == AT_GATE:
        return all(gate_order.room(tx, lane, state) for state in tx.gates_in(lane.gates_key))
    return lane.place == RUNNABLE


_LANES, _GROUPS = "", "groups "
_RUNNABLE = {_LANES: "lanes_runnable", _GROUPS: "groups_runnable"}
"""Names of the indexes of runnable lanes and groups."""
_UNREAD = "lanes_runnable_read"
_VT = LANE_COLUMNS.index("vt")

Found = Lane | GroupQueue | GateLine

Visit: TypeAlias = "tuple[Lane, int, Resolved, bool, str | None]"
"""
A lane, how many messages it delivers, and its policy; whether it has limits, and its gates' key.
"""


def _page(room: int, spread: float) -> int:
    """
    How many lanes are read at once for this many messages, if the last lease visited `spread` for
    each message.
    """
    return max(room // fairness.CHUNK, min(room, math.ceil(room * spread)), FIRST_PAGE - 1) + 1


class _Candidates:
    """
    The lanes and groups of a tier queue, or the lanes of a group, that can deliver now, in the
    order of (virtual time, number); of each open gate the first lane.

    Those without gates are read from their indexes page by page. In the heap each index has a
    marker behind its last member; when the marker is the smallest entry, the next page is read. Of
    open gates, by their first lanes, only a page is read as long as the lanes there are enough.

    `number`: the tier queue's; below 0, the group's. `first`: lanes of a group that were read.
    """

    def __init__(
        self,
        plan: _Plan,
        number: int,
        room: int,
        first: Sequence[int] | None = None,
    ) -> None:
        self.number = number
        self.in_groups: dict[int, _Candidates] = {}
        """By number of a group: its lanes, as far as they can deliver more in this call."""
        self.has_yielded = False
        """Whether a lane let one of another tier go before it at a gate."""
        self._plan, self._tx, self._only = plan, plan.tx, plan.only
        self._heap: list[tuple[int, int, int, Any]] = []
        self._page = self._next_page = (
            _page(room, self._tx.lane_cache.spread) if number > 0 else 4 * LANES_OF_GROUP
        )
        self._seen: set[int] = set()
        self._entries = 0
        self._first_in: dict[int, list[int]] = {}
        """By number of a group: its first lanes, if they were read with the group."""
        self._lines: dict[str, GateLine] = {}
        """By gate: the order of the lanes there, if it may admit one."""
        self._heads: list[tuple[Place, str]] = []
        """A heap of the gates by the positions of their first lanes."""
        self._shut: set[str] = set()
        """Gates that are not in the heap, because they admitted nothing."""
        self._more_gates: list[tuple[Place, str, int]] = []
        """
        A heap of the indexes of open gates that have more: behind this position, the name, and
        whose it is.
        """
        if first is None:
            self._read_more(_LANES, self._begins(_LANES))
        else:
            self._begin_with(first)
        for lane in self._tx.came_up:
            self._offer(lane)
        if number > 0:
            if self._tx.groups.exist():
                self._begin_groups()
                self._read_more(_GROUPS, self._begins(_GROUPS))
                self._read_gates_of_groups(self._begins(GROUPS_AT_GATES))
            self._read_gates(number, self._begins(GATES))
            for lane in self._tx.came_up:
                if lane.place == AT_GATE and self._tx.tier_queue_of(lane).number == number:
                    self.add_line(self._tx.gates_in(lane.gate)[0])

    def _begins(self, index: str) -> Position:
        return START if self._only is None else self._only.begin(self.number, index)

    # Gates

    def _read_gates(self, number: int, after: Position) -> None:
        """Begin with the next open gates where lanes of this tier queue, or group, are first."""
        first = self._tx.tier_queues[number].first_gate_vt if number > 0 else -1
        rows = self._tx.all("gate_entries_open", number, *max(after, (first, -1)), self._page)
        if number > 0 and after <= (first, -1):
            self._tx.tier_queues[number].first_gate_vt = rows[0][1] if rows else NONE
        if rows:
            self._add_gates([name for name, _, _ in rows])
        if len(rows) == self._page:
            self._mark_gates(number, rows[-1][1:])
        elif self._only is not None:
            self._only.ended(number, GATES)

    def _read_gates_of_groups(self, after: Position) -> None:
        """Begin with the next open gates where groups are first, in the order of the groups."""
        tx = self._tx
        rows = tx.all("group_gates_open", self.number, *after, self._page)
        tx.groups.load({row[0] for row in rows})
        begins = {number: self._begins_in_group(number, vt) for number, vt, *_ in rows}
        self._add_gates([row[4] for row in rows if begins[row[0]] == START])
        for number, begin in begins.items():
            if begin != START:
                self._read_gates(-number, begin)
        if len(rows) == self._page:
            number, vt, *head, _ = rows[-1]
            if begins[number] == START:
                self._mark_gates(-number, head)
            heapq.heappush(self._more_gates, ((vt, number, FOREVER_US, 0), GROUPS_AT_GATES, 0))
        elif self._only is not None:
            self._only.ended(self.number, GROUPS_AT_GATES)

    def _begins_in_group(self, number: int, vt: int) -> Position:
        """Where this call begins to read the open gates of a group."""
        if self._only is None:
            return START
        listed = self.number, GROUPS_AT_GATES
        self._only.enter_group((-number, GATES), listed, (vt, number - 1))
        return self._only.begin(-number, GATES)

    def _add_gates(self, names: Sequence[str]) -> None:
        page = self._page
        if len(names) > MANY_GATES:
            page = max(8, page // len(names))
        tx = self._tx
        tx.load_gates(names)
        gates = [gate for name in names if (gate := tx.gate(name)) and gate.is_open(tx.now)]
        self._plan.lines.read(gates, self.number, page)
        for gate in gates:
            self.add_line(gate)

    def _mark_gates(self, number: int, head: Sequence[int]) -> None:
        """More gates of a tier queue, or of a group, are behind the one with this first lane."""
        vt, lane = head
        place = vt, lane, 0, 0
        if number < 0:
            place = self._tx.groups.get(-number).vt, -number, vt, lane
        heapq.heappush(self._more_gates, (place, GATES, number))

    def _read_more_gates(self, before: Lane | GroupQueue | None = None) -> bool:
        """Read the next page of open gates, unless all that are left are behind this entry."""
        if not self._more_gates:
            return False
        place, index, number = self._more_gates[0]
        if before is not None and not self._is_before(place, before):
            return False
        heapq.heappop(self._more_gates)
        after = place[:2] if number >= 0 else place[2:]
        if number < 0 and self._tx.groups.get(-number).vt != place[0]:
            self._mark_gates(number, after)
        elif self._only is None or self._only.may_go_on(number or self.number, index, after):
            if index == GATES:
                self._read_gates(number, after)
            else:
                self._read_gates_of_groups(after)
        return True

    def add_line(self, gate: GateState) -> None:
        """Add the order of the lanes at a gate."""
        if gate.name not in self._lines and gate.is_open(self._tx.now):
            self._lines[gate.name] = self._plan.lines.line(gate, self.number)
        if gate.name in self._lines:
            heapq.heappush(self._heads, (ANYWHERE, gate.name))

    def look_at(self, gates: Iterable[GateState]) -> None:
        """These gates may admit what they did not admit before, because less is held there."""
        for gate in gates:
            if gate.name in self._shut:
                self._shut.discard(gate.name)
                heapq.heappush(self._heads, (ANYWHERE, gate.name))
            elif not gate.open and gate.name not in self._lines:
                self.add_line(gate)

    def look_at_all(self) -> None:
        self._heads = [(ANYWHERE, name) for name in self._lines]
        self._shut.clear()

    def _first_line(self, before: Lane | GroupQueue | None) -> tuple[Place, GateLine] | None:
        """
        Take the gate whose first lane is served next out of the heap, and return its position;
        None: it is behind this entry. In the heap a gate has the position at which it was seen
        last. That only grows, unless it is visited or a lane comes there, so the first one that is
        still right is the first of all.
        """
        heads, now, aside = self._heads, self._tx.now, []
        found = None
        while found is None:
            if not heads or (self._more_gates and self._more_gates[0] < heads[0]):
                if self._read_more_gates(before):
                    continue
                break
            place, name = heads[0]
            line = self._lines[name]
            lane = line.head = line.first()
            if lane is None or not line.gate.room(now, lane.lane):
                heapq.heappop(heads)
                self._shut.add(name)
                continue
            if (position := self.position(lane)) != place:
                heapq.heapreplace(heads, (position, name))
                if heads[0][1] != name or self._more_gates:
                    continue
                place = position
            if self._plan.lets_others_go_first(line, lane):
                self.has_yielded = True
                aside.append(heapq.heappop(heads))
            else:
                heapq.heappop(heads)
                found = place, line
        for each in aside:
            heapq.heappush(heads, each)
        return found

    def position(self, lane: Lane) -> Place:
        """The lane's position in the tier queue."""
        if lane.tier_queue > 0:
            return lane.vt, lane.lane, 0, 0
        group = self._tx.groups.get(-lane.tier_queue)
        return group.vt, group.number, lane.vt, lane.lane

    # Lanes and groups

    def _begin_with(self, first: Sequence[int]) -> None:
        """Begin with these lanes, the first runnable ones, as far as a visit needs them."""
        tx = self._tx
        if not first:
            return
        last = tx.lane(first[0])
        self._offer(last)
        is_enough = last.ready >= fairness.CHUNK
        for number in () if is_enough else first[1:]:
            last = tx.lane(number)
            self._offer(last)
        if (is_enough and len(first) > 1) or len(first) >= LANES_OF_GROUP:
            heapq.heappush(self._heap, (last.vt, last.lane, 1, _LANES))

    def _read_more(self, index: str, after: Position) -> None:
        tx, page = self._tx, self._next_page
        self._next_page = max(page, min(2 * page, MAX_PAGE))  # lanes may have few messages
        first = tx.first_place(self.number, of_groups=index == _GROUPS)
        is_unread = index == _LANES and tx.lane_cache.reads_lanes
        name = _UNREAD if is_unread else _RUNNABLE[index]
        rows = tx.all(name, self.number, *max(after, first), page)
        tx.lane_cache.has_been_cold |= index == _LANES and len(rows) < 2 * sum(
            row[0] not in tx.lane_cache.lanes for row in rows
        )
        if is_unread:
            tx.cache_lanes(rows)
            rows = [(row[0], row[_VT]) for row in rows]
        if after <= first:
            number, vt = rows[0] if rows else (0, NONE)
            tx.begins_at(self.number, vt, number, of_groups=index == _GROUPS)
        numbers = [number for number, _ in rows]
        if index == _GROUPS:
            self._read_groups(numbers)
        else:
            tx.load_numbers(numbers)
            lanes = tx.lane_cache.lanes
            if self._only is not None:
                self._only.load_ranks(lanes[number] for number in numbers)
            for number in numbers:
                self._offer(lanes[number])
        if len(rows) == page:
            number, vt = rows[-1]
            heapq.heappush(self._heap, (vt, number, 1, index))
        elif self._only is not None:
            self._only.ended(self.number, index)

    def _read_to_the_second(self) -> None:
        """
        Read the next page of each index until there are two entries, or no more pages: the last
        lane takes the whole room, others a chunk.
        """
        while self._entries <= 1 and (markers := [marker for marker in self._heap if marker[2]]):
            self._heap = [entry for entry in self._heap if not entry[2]]
            heapq.heapify(self._heap)
            for vt, number, _, index in markers:
                self._read_more(index, (vt, number))

    def _read_groups(self, numbers: list[int]) -> None:
        """Read groups, and the lanes that a visit of each needs at least."""
        tx = self._tx
        numbers = [number for number in numbers if -number not in self._seen]
        tx.groups.load(numbers)
        for number in numbers:
            self._seen.add(-number)
            self.push(tx.groups.get(number))
        if self._only is None and numbers:
            firsts = tx.array([tx.groups.get(number).first_vt for number in numbers])
            found = tx.all("group_heads", tx.array(numbers), firsts, LANES_OF_GROUP)
            for number, first in found:
                vt, self._first_in[number] = _loads(first)
                tx.begins_at(-number, NONE if vt is None else vt, 0)
            heads = [lanes for number in numbers if (lanes := self._first_in[number])]
            tx.load_numbers(lanes[0] for lanes in heads)
            few = [lanes for lanes in heads if tx.lane(lanes[0]).ready < fairness.CHUNK]
            tx.load_numbers(number for lanes in few for number in lanes[1:])

    def _begin_groups(self) -> None:
        """Begin with the groups of lanes that came up: a call with a filter may skip others."""
        came_up = self._tx.came_up if self._only is not None else ()
        for number in {-lane.tier_queue for lane in came_up if lane.tier_queue < 0}:
            group = self._tx.groups.get(number)
            if group.tier_queue == self.number:
                self._read_groups([number])
                self.of_group(group)

    def _offer(self, lane: Lane) -> None:
        """Add a lane once, if it still can deliver: this call may have changed it."""
        number = lane.lane
        if (
            number not in self._seen
            and lane.place == RUNNABLE
            and lane.tier_queue == self.number
            and not lane.forgotten
        ):
            self._seen.add(number)
            if self._only is None or self._only.takes(lane):
                self._plan.ahead.upcoming.append((lane, None))
                heapq.heappush(self._heap, (lane.vt, number, 0, lane))
                self._entries += 1

    def push(self, entry: Lane | GroupQueue) -> None:
        """Add a lane or group at its present virtual time."""
        number = entry.lane if isinstance(entry, Lane) else entry.number
        heapq.heappush(self._heap, (entry.vt, number, 0, entry))
        self._entries += 1

    def peek(self) -> Lane | GroupQueue | None:
        """The next lane or group without gates, or None; it stays."""
        while self._heap:
            vt, number, is_marker, entry = self._heap[0]
            if not is_marker and entry.vt == vt:
                return entry  # type: ignore[no-any-return]
            heapq.heappop(self._heap)
            if not is_marker:  # a group of which a lane at a gate was served
                heapq.heappush(self._heap, (entry.vt, number, 0, entry))
                continue
            after = vt, number
            if self._only is None or self._only.may_go_on(self.number, entry, after):
                self._read_more(entry, after)
        return None

    def runnable_position(self) -> Place | None:
        """The position of the next lane or group without gates."""
        entry = self.peek()
        if entry is None:
            return None
        if isinstance(entry, Lane):
            return entry.vt, entry.lane, 0, 0
        lane = self.of_group(entry).peek()
        if lane is None:
            return entry.vt, entry.number, 0, 0
        assert isinstance(lane, Lane)
        return entry.vt, entry.number, lane.vt, lane.lane

    def pop(self) -> Found | None:
        """What is served next, or None: a lane or group, or a gate, which stays."""
        entry = self.peek()
        line = self._first_line(entry) if self._heads or self._more_gates else None
        if line is not None:
            position, at_gate = line
            is_next = entry is None or self._is_before(position, entry)
            place = ANYWHERE if is_next else position
            heapq.heappush(self._heads, (place, at_gate.gate.name))
            if is_next:
                return at_gate
        if entry is not None:
            heapq.heappop(self._heap)
            self._entries -= 1
        return entry

    def _is_before(self, position: Place, entry: Lane | GroupQueue) -> bool:
        """Whether a position is before a lane or group without gates."""
        number = entry.lane if isinstance(entry, Lane) else entry.number
        if position[:2] != (entry.vt, number):
            return position[:2] < (entry.vt, number)
        return position < (self.runnable_position() or position)

    def count(self, most: int) -> int:
        """How many lanes and groups it has, as far as they were read; 1 only if it is the last."""
        if self._only is None:
            self._read_to_the_second()
        while True:
            found = self._entries
            for line in self._lines.values():
                lane = line.first()
                if lane is not None and line.gate.room(self._tx.now, lane.lane):
                    found += line.count
            if found or not self._read_more_gates():
                return min(most, found)

    def skips(self, group: GroupQueue) -> bool:
        """Whether the group is left to a later call: this one has passed over enough lanes."""
        return (
            self._only is not None
            and group.number not in self.in_groups
            and self._only.skips(self.number, _GROUPS, (group.vt, group.number - 1))
        )

    def of_group(self, group: GroupQueue) -> _Candidates:
        found = self.in_groups.get(group.number)
        if found is None:
            first = self._first_in.get(group.number)
            if self._only is not None:
                listed = self.number, _GROUPS
                index = -group.number, _LANES
                self._only.enter_group(index, listed, (group.vt, group.number - 1))
            found = _Candidates(self._plan, -group.number, 0, first)
            self.in_groups[group.number] = found
        return found

    @property
    def has_more(self) -> bool:
        """Whether there may be more of them."""
        return bool(self._heap)

    def left(self) -> None:
        """
        The tier queue was served: it begins with what is left, and with lanes that came up
        meanwhile. Lanes that were served and stay are counted in when they are written.
        """
        if self._only is None:
            came_up = (
                (lane.vt, lane.lane)
                for lane in self._tx.came_up
                if lane.tier_queue == self.number and lane.place == RUNNABLE
            )
            left = (entry[:2] for entry in self._heap[:1])
            self._tx.begins_at(self.number, *min([*came_up, *left], default=(NONE, 0)))


class _Plan:
    """Decides the visits of one call: which lanes deliver how many messages, in which order."""

    def __init__(self, tx: Transaction, startable: int, only: Only | None = None) -> None:
        self.tx = tx
        self.only = only
        self.startable = startable
        self.visits: list[Visit] = []
        self.visited: dict[int, Lane] = {}
        self.refused: set[int] = set()
        """Lanes that delivered nothing when they were visited last."""
        self.picked: dict[int, list[int]] = {}
        """
        By lane, where a call names ranks, or topics of buckets: the messages to deliver, in their
        order.
        """
        self.known: dict[int, list[int]] = {}
        """The same of lanes that deliver their first messages."""
        self.ahead = ReadingAhead(tx, None if only is None else only.wanted.ranks, self.visited)
        self.withheld = False
        self.lines = GateLines(tx, only, self.ahead.upcoming)
        self._moves: dict[int, int] = {}
        """By lane: how often it went from one gate to another."""
        self._shared: dict[int, _Candidates] = {}
        """By number of a tier queue with a share: what it can deliver."""
        self._left: dict[int, int] = {}
        """By number of a tier queue: what it may take of the part that it was given."""
        self._claims: dict[str, int] = {}
        """By tier with a share: what it is owed, as `fairness.carries`."""
        self._has_runnable = False
        """Whether lanes of a tier with a share wait only for the slots of workers."""
        self._yields = False
        """Whether a lane lets one of another tier go before it at a gate."""
        self.by_time = {
            tier_queue.number
            for tier_queue in tx.tier_queues.values()
            if tx.fair_by_time(tier_queue)
        }
        """The tier queues whose lanes share the workers' time."""
        self.cut = False
        """Whether it ends early: keys at limits have parked much, or many lanes have refused."""
        self.has_circled = False
        """Whether a lane was left out, because it went from gate to gate without end."""
        self._refused = 0
        """How many visits delivered nothing."""

    def serve_pool(self, pool: str, room: int) -> None:
        """Serve strict tiers first, then the others by shares; unused shares go to the others."""
        named = [
            (tier.share, self.tx.find_tier_queue(pool, name))
            for name, tier in self.tx.rules.tiers.items()
            if self.lines.tiers is None or name in self.lines.tiers
        ]
        tier_queues = [(share, tier_queue) for share, tier_queue in named if tier_queue is not None]
        if self.only is None:
            self._serve_tier_queues(pool, room, tier_queues)
            return
        carries = [(tier_queue, tier_queue.carry) for _, tier_queue in tier_queues]
        self._serve_tier_queues(pool, room, tier_queues)
        # A caller that takes some topics only is no measure of the tiers' shares.
        for tier_queue, carry in carries:
            tier_queue.carry = carry

    def _serve_tier_queues(
        self, pool: str, room: int, tier_queues: Sequence[tuple[float | str, TierQueue]]
    ) -> None:
        for share, tier_queue in tier_queues:
            if share == "strict":
                room -= self._serve(_Candidates(self, tier_queue.number, room), tier_queue, room)
                if self.withheld:
                    return
        shared = {queue.tier: float(share) for share, queue in tier_queues if share != "strict"}
        self._serve_shared(pool, room, shared)

    def _serve_shared(self, pool: str, room: int, shared: dict[str, float]) -> None:
        """
        Serve the tiers that have shares. A tier whose lane lets one of another tier go before it
        at a gate is served again after that; if no other takes what it left, it goes on. If it is
        not, it waits for the gate, not for the slots of workers, and keeps no larger claim to them.
        """
        queues = {name: self.tx.tier_queue(pool, name) for name in shared}
        read = {name: _Candidates(self, queue.number, room) for name, queue in queues.items()}
        self._shared = {candidates.number: candidates for candidates in read.values()}
        self._has_runnable = any(candidates.has_more for candidates in read.values())
        shares = {
            name: share
            for name, share in shared.items()
            if read[name].has_more or read[name].count(1) > 0
        }
        carry = {name: queue.carry for name, queue in queues.items()}
        taken, yielded, waits = dict.fromkeys(shared, 0), dict[str, float](), set[str]()
        self._yields = len(shared) > 1
        while room > 0 and (shares or yielded) and not self.withheld:
            if not shares:  # nobody took what they left
                shares, yielded, self._yields = yielded, {}, False
            step = (
                room
                if len(shares) == 1 or self.startable >= room
                else self.startable or min(room, STEP)
            )
            self._claims = fairness.carries(shared, carry, taken, shared)
            parts = fairness.split(step, shares, self._claims)
            took = self._serve_parts(queues, parts, shares, yielded)
            room -= sum(took.values())
            waits = {name for name in waits if not took.get(name)} | yielded.keys()
            if any(took.values()):
                back = shares.keys() | yielded.keys()
                shares = {name: share for name, share in shared.items() if name in back}
                yielded = {}
                for name, number in took.items():
                    taken[name] += number
        for name, kept in fairness.carries(shared, carry, taken, shares.keys() - waits).items():
            queues[name].carry = kept
        self._shared = {}  # they have this plan: else only the garbage collector ends its visits

    def lets_others_go_first(self, line: GateLine, lane: Lane) -> bool:
        """
        Whether a lane of another tier precedes the first one of a gate, and can be served in this
        call, or needs the last that the gate admits.
        """
        if not self._yields:
            return False
        return any(
            other.tier_queue != line.tier_queue
            and other.tier_queue in self._shared
            and self._goes_before(other, line, lane)
            for other in self.lines.at(line.gate)
        )

    def _goes_before(self, other: GateLine, line: GateLine, lane: Lane) -> bool:
        first = other.first()
        if first is None or other.order(first) >= line.order(lane):
            return False
        if self._left.get(other.tier_queue, 0) > 0:
            return True
        return line.gate.room(self.tx.now, lane.lane) == 1 and (
            line.gate.limits.concurrency is None or self._is_due(first)
        )

    def _is_due(self, lane: Lane) -> bool:
        """
        Whether the last slot of a gate is kept for its first lane: its tier is owed a part of a
        delivery, or has reached the lane in its order, or no lane competes with it for the slots of
        workers. Otherwise its tier may not serve it soon.
        """
        tier_queue = self.tx.tier_queue_of(lane)
        if self._claims[tier_queue.tier] >= fairness.OWED or not self._has_runnable:
            return True
        if lane.tier_queue > 0:
            return lane.vt < tier_queue.vt
        group = self.tx.groups.get(-lane.tier_queue)
        return group.vt < tier_queue.vt or lane.vt < group.inner_vt

    def _serve_parts(
        self,
        queues: dict[str, TierQueue],
        parts: dict[str, int],
        shares: dict[str, float],
        yielded: dict[str, float],
    ) -> dict[str, int]:
        """
        Serve each tier its part; returns what they took. Tiers that cannot use their part are
        removed from `shares`; those of them that have let others go first are added to `yielded`.
        """
        self._left = {queues[name].number: part for name, part in parts.items()}
        taken: dict[str, int] = {}
        for name, part in parts.items():
            if part == 0:
                continue
            tier_queue = queues[name]
            candidates = self._shared[tier_queue.number]
            candidates.has_yielded = False
            taken[name] = self._serve(candidates, tier_queue, part)
            self._left[tier_queue.number] -= taken[name]
            if self.withheld:
                break
            if taken[name] < part:
                share = shares.pop(name)
                if candidates.has_yielded:
                    yielded[name] = share
        return taken

    def _serve(self, candidates: _Candidates, tier_queue: TierQueue, room: int) -> int:
        """
        Visit candidates until `room` is used up, none is left, or the next one has a limit and the
        caller cannot start more messages with limits.
        """
        candidates.look_at_all()
        entries = candidates.count(room)
        taken = 0
        while taken < room and not self.withheld and self._refused < MOST_REFUSED:
            entry = candidates.pop()
            if entry is None:
                break
            if isinstance(entry, Lane):
                got, has_more = self._serve_lane(entry, tier_queue, room - taken, entries)
            elif isinstance(entry, GateLine):
                taken += self._serve_gate(entry, candidates, tier_queue, room - taken, entries)
                continue
            else:
                if candidates.skips(entry):
                    continue
                lanes = candidates.of_group(entry)
                got = self._serve_group(entry, lanes, tier_queue, room - taken, entries)
                has_more = lanes.has_more
            taken += got
            if got and has_more:
                candidates.push(entry)
        if not self.withheld:  # then its lane is no longer among the candidates
            candidates.left()
        return taken

    def _serve_gate(
        self,
        line: GateLine,
        candidates: _Candidates,
        tier_queue: TierQueue,
        room: int,
        entries: int,
    ) -> int:
        """Visit the first lane at a gate. If others do not admit it, it goes to one of them."""
        tx, lane = self.tx, line.head
        assert lane is not None
        if self.lines.waits_for_others(line, lane, room):
            return 0
        group = tx.group_of(lane)
        if group is not None:
            room = fairness.chunk(room, entries, group.weight)
        got, has_more = self._serve_lane(lane, tier_queue, room, entries)
        if self.withheld:
            return 0
        if lane.gate != line.gate.name:
            to = tx.gates_in(lane.gate)[0]
            self._moves[lane.lane] = self._moves.get(lane.lane, 0) + 1
            if self._moves[lane.lane] > 2 * len(tx.gates_in(lane.gates_key)):
                self.lines.left_out.add(lane.lane)
                self.has_circled = True
            self.lines.lane_moved(lane, to)
            candidates.add_line(to)
        elif got and has_more:
            line.add(lane)
        else:
            self.lines.left_out.add(lane.lane)
        candidates.look_at(tx.gates_in(lane.gates_key))
        if got and group is not None:
            before = tier_queue.vt
            group.vt = max(group.vt, before - self._credit(lane, tier_queue))
            work = got * self._expected_cost(lane, tier_queue)
            self._charge_group(group, tier_queue, got, work, alone=entries <= 1)
            tier_queue.vt = max(tier_queue.vt, before)
        return got

    def _serve_lane(
        self, lane: Lane, tier_queue: TierQueue, room: int, lanes: int
    ) -> tuple[int, bool]:
        """Visit a lane; returns how many messages were taken, and whether it can deliver more."""
        tx = self.tx
        if not self.startable and tx.is_limited(lane, tx.policy_of(lane)):
            # The lane is next, and the caller cannot start its messages yet. Passing it over would
            # let topics without limits fill the caller's buffer forever; so everything after it is
            # withheld until the caller can.
            self.withheld = True
            return 0, True
        got = self.visit(lane, tier_queue, room, lanes)
        if got:
            self.refused.discard(lane.lane)
        else:
            self.refused.add(lane.lane)
            self._refused += 1
            self.cut |= self._refused >= MOST_REFUSED
        return got, bool(got and lane.ready and tx.allowance(lane, tx.policy_of(lane)))

    def _serve_group(
        self,
        group: GroupQueue,
        lanes: _Candidates,
        tier_queue: TierQueue,
        room: int,
        entries: int,
    ) -> int:
        """
        Visit lanes of a group, in their order, for as many messages as a lane of the group's weight
        would get. Among many lanes and groups a visit of a lane takes as many as without groups.
        """
        room = fairness.chunk(room, entries, group.weight)
        competing = group.runnable
        count = max(competing, entries) if competing > 1 else 1
        taken = work = refusing = 0
        while taken < room and refusing < MOST_REFUSING and not self.withheld:
            lane = lanes.pop()
            if lane is None:
                break
            assert isinstance(lane, Lane)
            got, has_more = self._serve_lane(lane, tier_queue, room - taken, count)
            taken += got
            refusing += not got
            if tier_queue.number in self.by_time:
                work += got * self._expected_cost(lane, tier_queue)
            if has_more:
                lanes.push(lane)
        if taken:
            self._charge_group(group, tier_queue, taken, work, alone=entries <= 1)
        return taken

    def _charge_group(
        self, group: GroupQueue, tier_queue: TierQueue, taken: int, work: int, *, alone: bool
    ) -> None:
        """`work`: what the messages are expected to cost, in a tier that is fair by time."""
        is_by_time = tier_queue.number in self.by_time
        tier_queue.vt = group.vt
        group.vt += (
            fairness.stride_of_work(work, group.weight)
            if is_by_time
            else fairness.stride(taken, group.weight)
        )
        if alone:
            one_chunk = fairness.chunk(taken, 2, group.weight)
            chunk_stride = (
                fairness.stride_of_work(work * one_chunk // taken, group.weight)
                if is_by_time
                else fairness.stride(one_chunk, group.weight)
            )
            tier_queue.vt = fairness.reached(tier_queue.vt, group.vt, chunk_stride)
        self.tx.groups.touch(group)

    def visit_alone(
        self,
        lane: Lane,
        room: int,
        folded: str | None = None,
    ) -> int:
        """Visit a lane that was not chosen by its virtual time; its group pays, too."""
        tier_queue, group = self.tx.tier_queue_of(lane), self.tx.group_of(lane)
        taken = self.visit(lane, tier_queue, room, 1, folded, in_order=False)
        if taken and group is not None:
            work = taken * self._expected_cost(lane, tier_queue)
            self._charge_group(group, tier_queue, taken, work, alone=True)
        return taken

    def visit(
        self,
        lane: Lane,
        tier_queue: TierQueue,
        room: int,
        lanes: int,
        folded: str | None = None,
        *,
        in_order: bool = True,
    ) -> int:
        """
        Take what all limits admit from the lane, and advance its virtual time by that.

        `folded`: only messages of this topic, in a bucket. `in_order`: only if it is the lane's
        turn at its gates.
        """
        tx = self.tx
        policy = tx.policy_of(lane)
        limited, gate = tx.limits_of(lane, policy)
        self.visited[lane.lane] = lane
        take = min(fairness.chunk(room, lanes, policy.weight), tx.allowance(lane, policy))
        if limited:
            take = min(take, self.startable)
        if policy.paused or (lane.back_off_step and lane.back_off_until > tx.now):
            take = 0
        if take <= 0:  # the lane's policy changed since it was placed
            return 0
        heads = None
        if self.ahead.has_to_know(lane, folded, policy, gate):
            heads = self.ahead.of(lane, folded)
            if not heads.size:
                self.lines.expect(self.ahead.look(heads, take, room))
            if heads.is_picked:
                take = len(heads.first(take))
        gates: Sequence[GateState] = ()
        if gate is not None:
            if not tx.has_read_gates(gate):
                self.lines.expect(tx.gate_keys(each for each, _ in self.ahead.upcoming))
            gates = tx.gates_in(gate)
            if lane.place == AT_GATE and lane.gates_key != gate:
                gate_order.change(tx, lane, gate)
            take = min(take, self._room_at(lane, policy, gates, heads, in_order=in_order))
        permits, largest = take, 1
        if heads is not None and take:
            take, permits, largest = self._take_known(lane, policy, gates, take, heads)
        if take == 0:
            return 0
        if limited:
            self.startable -= take
        if gates:
            gate_order.take(tx, lane, gates, take, permits, largest, policy.weight)
        self._charge(lane, tier_queue, policy, take, permits, alone=lanes <= 1)
        if policy.lane_rate and (largest > 1 or lane.owes):
            lane.owes = largest if largest > 1 else 0
        if policy.shared is not None and lane.ready:
            shared = tx.topic_gate(lane.rule, policy)
            lane.hold(tx.now, shared.next_permit(tx.now) if shared is not None else 0)
        self.visits.append((lane, take, policy, limited, gate))
        return take

    def _room_at(
        self,
        lane: Lane,
        policy: Resolved,
        gates: Sequence[GateState],
        heads: Heads | None,
        *,
        in_order: bool,
    ) -> int:
        """
        How many deliveries of the lane its gates admit. If another one than that where it waits
        admits none, or it is not its turn there, the lane goes there.
        """
        tx = self.tx
        here = lane.gate if lane.place == AT_GATE else None
        admitted, blocked = UNLIMITED, []
        for state in gates:
            room = gate_order.room(tx, lane, state)
            admitted = min(admitted, room)
            if not room or (
                in_order
                and state.name != here
                and not state.has_spare(tx.now)
                and not self.lines.is_turn(lane, state)
            ):
                blocked.append(state)
        if not blocked:
            return admitted
        if here is not None and in_order and all(state.name != here for state in blocked):
            cost = 1
            if lane.need and heads is not None:
                cost = min(self._costs(heads, 1)[0], tx.largest_cost(policy, gates))
            gate_order.move(tx, lane, blocked, self.lines.is_turn, cost)
        return 0

    def _take_known(
        self,
        lane: Lane,
        policy: Resolved,
        gates: Sequence[GateState],
        most: int,
        heads: Heads,
    ) -> tuple[int, int, int]:
        """
        Take those of the lane's next messages that their keys and costs admit; returns how many,
        the sum of their costs and the largest.
        """
        tx, keyed = self.tx, list[key_limits.Next]()
        take = most
        if policy.key_limited:
            keyed, is_cut = key_limits.next_of(tx, lane, heads, most)
            self.cut |= is_cut
            take = len(keyed)
        permits, largest = take, 1
        if take and lane.need and (policy.lane_rate or gates):
            take, permits, largest = self._admit(lane, policy, gates, take, heads)
        if keyed and take:
            key_limits.take(tx, lane, policy, keyed[:take])
        known = self.picked if heads.is_picked else self.known
        known.setdefault(lane.lane, []).extend(heads.take(take))
        return take, permits, largest

    def _admit(
        self,
        lane: Lane,
        policy: Resolved,
        gates: Sequence[GateState],
        most: int,
        heads: Heads,
    ) -> tuple[int, int, int]:
        """
        How many of the lane's next messages the rates of lane and gates admit by their costs; the
        sum of these costs and the largest.

        What stops the first message waits for its permits: the lane, or else a gate.
        """
        tx = self.tx
        clocks = []
        if policy.lane_rate:
            tat = rebased(lane, policy, tx.now)
            clocks.append((tat, policy.lane_rate, policy.lane_burst))
        rated = [state for state in gates if state.limits.rate is not None]
        clocks += [clock for state in rated if (clock := state.clock(tx.now)) is not None]
        if not clocks:
            return most, most, 1
        costs = self._costs(heads, most)
        largest = tx.largest_cost(policy, gates)
        costs = [min(cost, largest) for cost in costs]
        count, stopped = fairness.admitted(clocks, tx.now, costs)
        lane.need = 1
        if policy.lane_rate and stopped.pop(0):
            lane.need = costs[count]
        elif count == 0:
            short = [state for state, is_short in zip(rated, stopped, strict=True) if is_short]
            gate_order.wait_for_permits(tx, lane, short, self.lines.is_turn, costs[0])
        return count, sum(costs[:count]), max(costs[:count], default=1)

    def _costs(self, heads: Heads, most: int) -> list[int]:
        """The costs of the lane's next messages."""
        found = [mid for mid, _ in heads.first(most)]
        self.tx.messages.load(found)
        return [
            messages.cost_of(row.headers if row else None)
            for row in map(self.tx.messages.get, found)
        ] or [1]

    def _charge(
        self,
        lane: Lane,
        tier_queue: TierQueue,
        policy: Resolved,
        take: int,
        permits: int,
        *,
        alone: bool,
    ) -> None:
        tx = self.tx
        least = 0
        if lane.place == AT_GATE:
            group = tx.group_of(lane)
            least = tier_queue.vt if group is None else group.inner_vt
            lane.vt = max(lane.vt, least - self._credit(lane, tier_queue))
        reached = lane.vt
        lane.vt += self._stride(lane, tier_queue, policy, take)
        if alone:
            one_chunk = self._stride(
                lane, tier_queue, policy, fairness.chunk(take, 2, policy.weight)
            )
            reached = fairness.reached(reached, lane.vt, one_chunk)
        if lane.tier_queue > 0:
            tier_queue.vt = max(reached, least)
        else:
            tx.groups.get(-lane.tier_queue).inner_vt = max(reached, least)
        if policy.lane_rate:
            tat = rebased(lane, policy, tx.now)
            lane.admitted = fairness.next_permit_us(tat, 0, policy.lane_rate, policy.lane_burst)
            lane.tat = fairness.take_permits(tat, tx.now, policy.lane_rate, permits)
        lane.ready -= take
        lane.leased += take
        if policy.lane_adapts:
            flow = lane.flow = lane.flow or adaptive.Flow(changed=tx.now)
            bounds = policy.min_concurrency, policy.lane_concurrency or 1
            adaptive.delivered(flow, lane.leased, adaptive.limit_of(flow, *bounds))
        tier_queue.delivered += take
        tx.count_deliveries(lane, take)

    def _credit(self, lane: Lane, tier_queue: TierQueue) -> int:
        """How far a lane that waited at a gate may be behind its tier: a delivery of weight 1."""
        if tier_queue.number in self.by_time:
            return fairness.stride_of_work(self._expected_cost(lane, tier_queue), 1.0)
        return fairness.stride(1, 1.0)

    def _stride(self, lane: Lane, tier_queue: TierQueue, policy: Resolved, take: int) -> int:
        """The virtual time that `take` messages cost the lane."""
        if tier_queue.number in self.by_time:
            work = take * self._expected_cost(lane, tier_queue)
            return fairness.stride_of_work(work, policy.weight)
        return fairness.stride(take, policy.weight)

    @staticmethod
    def _expected_cost(lane: Lane, tier_queue: TierQueue) -> int:
        """The expected duration of one of the lane's messages, in microseconds."""
        return lane.mean or tier_queue.mean or DEFAULT_MEAN_US

    def serve_topics(self, topics: Sequence[str], pool: str, room: int) -> None:
        """Serve these topics strictly in their order."""
        tx = self.tx
        policies = tx.policies(topics)
        named = [
            (topic, name)
            for topic, policy in zip(topics, policies, strict=True)
            for name in lane_names(policy, topic)
        ]
        tx.load_names(name for _, name in named)
        visits = [
            (lane, topic if lane.topic is None else None)
            for topic, name in named
            if (lane := tx.find_lane(name)) is not None and tx.tier_queue_of(lane).pool == pool
        ]
        tx.load_gates(tx.gate_keys(lane for lane, _ in visits))
        self.ahead.upcoming.extend(visits)
        for lane, folded in visits:
            if room <= 0 or not can_deliver(tx, lane):
                continue
            if not self.startable and tx.is_limited(lane, tx.policy_of(lane)):
                self.withheld = True
                return
            room -= self.visit_alone(lane, room, folded)


def _interleaved(tx: Transaction, visits: list[Visit]) -> list[Visit]:
    """The visits of strict tiers, then those of the other tiers, see `fairness.interleave`."""
    if (
        len({lane.tier_queue for lane, *_ in visits}) < 2
        or len({tx.tier_queue_of(lane).number for lane, *_ in visits}) < 2
    ):
        return visits
    tiers = tx.rules.tiers
    strict: list[Visit] = []
    shared: dict[str, list[Visit]] = {}
    for visit in visits:
        lane, take, policy, limited, gate = visit
        tier = tx.tier_queue_of(lane).tier
        if tiers[tier].share == "strict":
            strict.append(visit)
        else:
            shared.setdefault(tier, []).extend([(lane, 1, policy, limited, gate)] * take)
    if len(shared) < 2:  # one tier: keep its order
        return visits
    queues = [shared[tier] for tier in tiers if tier in shared]
    heads = [iter(queue) for queue in queues]
    return strict + [next(heads[n]) for n in fairness.interleave([len(queue) for queue in queues])]


class _Deliveries:
    """Reads the messages of the visits, and writes their leases."""

    def __init__(
        self,
        plan: _Plan,
        *,
        record_start: bool,
        max_lease_us: int | None,
        holder: str | None = None,
    ) -> None:
        self.tx = plan.tx
        self._max_lease_us = FOREVER_US if max_lease_us is None else max_lease_us
        self._picked, self._known = plan.picked, plan.known
        self.record_start = record_start
        self._holder = holder
        self._delivered: list[Lease] = []
        self._leases: list[tuple[Any, ...]] = []
        self._deadlines: dict[int, list[int]] = {}
        self._by_time = plan.by_time
        self._noise = 0
        self._waited: defaultdict[int, list[int]] = defaultdict(list)
        self._waited_noisy: defaultdict[int, list[int]] = defaultdict(list)
        """By tier queue: since when the messages have waited, in noisy lanes and in the others."""

    def run(self, visits: list[Visit]) -> list[Lease]:
        if not visits:
            return []
        tx = self.tx
        prefetch_noise(tx)
        rows = self._read(visits)
        self._noise = noise_of(tx)
        tx.last_fence()  # from now on it is `shard.fence`
        for visit in visits:
            lane, take, policy, *_ = visit
            waiting = rows[lane.lane]
            taken = waiting[:take]
            del waiting[:take]
            for _ in range(take - len(taken)):
                self._correct_count(visit)
            number = lane.tier_queue if lane.tier_queue > 0 else tx.tier_queue_of(lane).number
            is_noisy = (lane.big is not None and lane.big > self._noise) or (
                policy.lane_rate > 0 and bool(taken) and lane.admitted > taken[0].since
            )
            waited = (self._waited_noisy if is_noisy else self._waited)[number]
            for row in taken if lane.folded is not None else ():
                lane.count_folded(row.topic, -1, -messages.size_of(tx, row))
            if taken:
                self._lease(visit, taken, waited)
        self._write()
        return self._delivered

    def _read(self, visits: list[Visit]) -> dict[int, list[Row]]:
        """By lane: the messages to deliver, which are deleted from `ready`."""
        tx = self.tx
        named = self._picked | self._known
        wanted: dict[int, int] = {}
        for lane, take, *_ in visits:
            if lane.lane not in named:
                wanted[lane.lane] = wanted.get(lane.lane, 0) + take
        rows = read_heads(tx, {number: (take, 0) for number, take in wanted.items()})
        if named:
            tx.messages.load(mid for mids in named.values() for mid in mids)
            get = tx.messages.get
            for number, mids in named.items():
                rows[number] = [row for mid in mids if (row := get(mid)) is not None]
        every = [row for several in rows.values() for row in several]
        if mkeys := [(row.lane, row.mkey) for row in every if row.mkey is not None]:
            tx.merge_keys.load(mkeys)
        if parts := [row.mid for row in every if row.parts]:
            tx.parts.load(parts)
        self._delete_ready(rows)
        return rows

    def _delete_ready(self, rows: dict[int, list[Row]]) -> None:
        """Delete the messages from `ready`: of each lane all up to the last one."""
        tx = self.tx
        lanes = tx.lane_cache.lanes
        last = []
        for number, several in rows.items():
            if number in self._picked:
                for row in several:
                    tx.ready.delete(number, row.rank, row.pos, row.seq)
            elif several:
                row, lane = several[-1], lanes[number]
                reached = row.pos
                if lane.ranks and tx.keeps_deleted:
                    for rank, pos, end in lane.first_places():
                        of_rank = [each for each in several if rank <= each.rank <= end]
                        last += [
                            (number, rank, pos, each.rank, each.pos, each.seq)
                            for each in of_rank[-1:]
                        ]
                else:
                    last.append(
                        (number, lane.first_rank, lane.first_pos, row.rank, reached, row.seq)
                    )
                lane.begin_at(row.rank, reached)
        tx.run_many("ready_delete_head", last)

    def _correct_count(self, visit: Visit) -> None:
        """The lane counted a ready message that `ready` does not have: take back its delivery."""
        lane, *_, gate = visit
        lane.leased -= 1
        lane.delivered -= 1
        self.tx.shard.delivered -= 1
        for state in self.tx.gates_in(gate):
            state.leased -= 1
            self.tx.touch_gate(state)

    def _expire(self, visit: Visit, row: Row) -> None:
        """The message's ttl is over, and housekeeping did not come to it in time."""
        tx, lane, policy = self.tx, visit[0], visit[2]
        self._correct_count(visit)
        slot = key_limits.key_of(policy, row)
        if slot is not None:
            key_limits.free(tx, lane, slot)
        # Its row in `ready` is deleted with those of the others.
        size = messages.size_of(tx, row)
        lane.bytes -= size
        tx.shard.bytes -= size
        tx.shard.waiting -= 1
        tx.events.delete(row.expires, EXPIRES, row.mid)
        messages.free_merge_key(tx, lane, row)
        key_limits.leave(tx, lane, row)
        messages.expire(tx, lane, row)
        if row.serial:
            messages.free_key(tx, lane, row.line, row.mid)

    def _lease(self, visit: Visit, taken: list[Row], waited: list[int]) -> None:
        """
        Lease messages of a lane. Appends to `waited` since when they have waited.
        """
        tx, shard = self.tx, self.tx.shard
        lane, _, policy, limited, gate = visit
        number, topic = lane.lane, lane.topic or ""
        now, nonce = tx.now, shard.nonce
        deadline = now + min(policy.lease, self._max_lease_us)
        cached, delivered, leases = tx.lane_cache.leases, self._delivered, self._leases
        at_most_once, merges_all = policy.delivery == "at_most_once", policy.merge == "all"
        charge, holder = 0, self._holder
        if self._by_time and (tier_queue := tx.tier_queue_of(lane)).number in self._by_time:
            charge = lane.mean or tier_queue.mean or DEFAULT_MEAN_US
        fence = first = shard.fence
        size = 0
        for row in taken:
            if row.expires is not None:
                if row.expires <= now:
                    self._expire(visit, row)
                    continue
                tx.events.delete(row.expires, EXPIRES, row.mid)
            if row.mkey is not None:
                messages.free_merge_key(tx, lane, row)
            size += len(row.body) if not row.parts else messages.size_of(tx, row)
            fence += 1
            waited.append(row.since)
            mid, own_id, key = row.mid, row.id, row.key
            line = row.line if row.serial else None
            if line is not None:
                tx.serial_keys.hold(number, line, mid)
            bodies = None
            if row.parts or (merges_all and row.mkey):
                bodies = [row.body, *(tx.parts.bodies(mid) if row.parts else ())]
            delivered.append(
                Lease(
                    mid,
                    fence,
                    own_id if own_id is not None else f"{nonce}-{mid:x}",
                    row.topic or topic,
                    row.body,
                    deadline,
                    row.attempts + 1,
                    row.deliveries + 1,
                    key,
                    -(row.rank >> 1),
                    cast("dict[str, str] | None", row.headers or None),  # see `decode_headers`
                    row.published,
                    row.suspect > 0,
                    bodies,
                    limited,
                )
            )
            slot = key_limits.key_of(policy, row) if policy.key_limited else None
            started = int(row.suspect and self.record_start)
            empty = None
            if at_most_once:
                empty = line or ""
                self._finish(lane, row)
            elif not charge:
                cached[fence] = mid, number, _ended(row, gate, slot, now)
            leases.append(
                (fence, mid, number, deadline, now, charge, started, gate, empty, 0, slot, holder)
            )
        if fence > first:
            if lane.ready:
                lane.old = waited[-1] >> AGE_SHIFT
            # One end is written for each deadline.
            self._deadlines.setdefault(deadline, [first + 1, fence])[1] = fence
            shard.fence = fence
            shard.leased += fence - first
            shard.waiting -= fence - first
            shard.bytes -= size
            lane.bytes -= size

    def _finish(self, lane: Lane, row: Row) -> None:
        """At most once: the message is finished at its delivery; only its lease is left."""
        tx, topic = self.tx, messages.topic_of(row, lane)
        messages.finish_ids(tx, row, topic, remember=True)
        messages.delete(tx, row)
        message_ends.keep_finished(tx, row, topic)
        lane.done += 1
        tx.shard.done += 1

    def _write(self) -> None:
        tx = self.tx
        if self._leases:
            tx.connection.add_rows("lease", self._leases)
        if self._deadlines:
            tx.expect_lease_end(min(self._deadlines))
        tx.run_rows(
            "lease_end_insert",
            [(at, first, last) for at, (first, last) in self._deadlines.items()],
        )
        for waited, is_noisy in ((self._waited, False), (self._waited_noisy, True)):
            for number, since in waited.items():
                if since:
                    tier = tx.tier_queues[number].tier
                    tx.tallies.count_waits(tx, tier, is_noisy=is_noisy, since=since)


def _ended(row: Row, gate: str | None, slot: str | None, granted: int) -> Ended | None:
    """What settle needs to know of a message that is leased; None: nothing."""
    if (
        gate is None
        and slot is None
        and row.id is None
        and row.topic is None
        and not (row.serial or row.sticky or row.joined or row.parts or row.has_note)
    ):
        return None
    return Ended(
        row.mid,
        row.id,
        row.topic,
        row.key,
        row.serial,
        row.joined,
        row.parts,
        row.sticky,
        row.since,
        row.has_note,
        gate,
        slot,
        granted,
    )
