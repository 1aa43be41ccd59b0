"""
Limits per key inside a topic: `key_concurrency` and `key_rate`; `shared.key_limits` has an example
and shows why they hold.

Only visits of lanes with such limits, and ends of leases that hold a slot of a key, come here:
publishing does nothing for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from laneway.engines.shared import fairness
from laneway.engines.shared.key_limits import MOST_PARKED, KeyState, recovered_us
from laneway.engines.shared.states import IDLE, PARKED, READY
from laneway.engines.sql.lane_cache import LaneCache
from laneway.engines.sql.rows import NO_RANK, Lane, Row, Shard, line_of
from laneway.engines.sql.store import Session
from laneway.engines.sql.touched_rows import MessageTable, ParkedTable, PlaceTable, Table
from laneway.policy import Resolved

if TYPE_CHECKING:

    class Heads(Protocol):
        """A lane's next messages that were read, see `reading_ahead.Heads`."""

        rows: list[Next]
        behind: int
        is_whole: bool

        def read_more(self, most: int, *, is_narrow: bool = False) -> None:
            """Read more."""

    class Transaction(Session, Protocol):
        """What limits per key need of a transaction, which uses them."""

        now: int
        shard: Shard
        lane_cache: LaneCache

        @property
        def messages(self) -> MessageTable: ...
        @property
        def ready(self) -> PlaceTable: ...
        @property
        def key_parked(self) -> ParkedTable: ...
        @property
        def key_states(self) -> Table: ...

        def policy_of(self, lane: Lane) -> Resolved:
            """The policy of a lane."""

        def load_numbers(self, numbers: Iterable[int]) -> None:
            """Read lanes by number."""

        def touch(self, lane: Lane) -> None:
            """The lane was changed."""

        def expect_ready(self, lane: Lane, row: Row) -> None:
            """The message becomes ready."""

        def place(self, lane: Lane) -> None:
            """Determine the lane's place."""


class Next(NamedTuple):
    """A message that a visit may deliver."""

    mid: int
    key: str | None
    """The key whose limits hold for it."""


def key_of(policy: Resolved, row: Row) -> str | None:
    """The key whose limits hold for a message; a serial message has none."""
    return line_of(row.topic, row.key) if policy.key_limited and not row.serial else None


class StoredKeyState(KeyState):
    """A row of `key_state`."""

    first_rank: int = NO_RANK  # with `first_pos`: no parked message has an earlier place
    first_pos: int = 0


def _state(tx: Transaction, lane: int, key: str) -> StoredKeyState | None:
    stored = tx.key_states.get(lane, key)
    return StoredKeyState(*stored) if stored is not None else None


def _save(tx: Transaction, lane: Lane, policy: Resolved, key: str, state: StoredKeyState) -> None:
    if state.rest(policy, tx.now):
        tx.key_states.delete(lane.lane, key)
    else:
        tx.key_states.put((lane.lane, key), *msgspec.structs.astuple(state))


def admitted(
    tx: Transaction, lane: Lane, listed: Sequence[Next], most: int
) -> tuple[list[Next], list[Next]]:
    """
    Return the first `most` of a lane's next messages that their keys admit, and those before the
    last of these whose keys are at a limit.
    """
    policy, number = tx.policy_of(lane), lane.lane
    at_rest = KeyState().room(policy, tx.now)
    rooms: dict[str, int] = {}
    found: list[Next] = []
    held_back: list[Next] = []
    for each in listed:
        if len(found) == most:
            break
        key = each.key
        if key is not None:
            room = rooms.get(key)
            if room is None:
                state = _state(tx, number, key)
                room = at_rest if state is None else state.room(policy, tx.now)
            rooms[key] = room - 1
            if room <= 0:
                held_back.append(each)
                continue
        found.append(each)
    return found, held_back


def next_of(tx: Transaction, lane: Lane, heads: Heads, most: int) -> tuple[list[Next], bool]:
    """
    Return the lane's next messages that their keys admit, at most `most`, and park those before
    them. Also returns whether it ended early, because many were parked.
    """
    parked = 0
    while True:
        found, held_back = admitted(tx, lane, heads.rows, most)
        if held_back:
            parked += len(held_back)
            heads.rows = found + heads.rows[len(found) + len(held_back) :]
            heads.behind -= len(held_back)
            _park(tx, lane, held_back)
        if len(found) == most or heads.is_whole:
            return found, False
        if parked >= MOST_PARKED:
            return found, True
        heads.read_more(most, is_narrow=parked > 0)


def _park(tx: Transaction, lane: Lane, held_back: Sequence[Next]) -> None:
    policy = tx.policy_of(lane)
    tx.messages.load(mid for mid, _ in held_back)
    parked: dict[str, list[tuple[int, int]]] = {}
    for mid, key in held_back:
        row = tx.messages.get(mid)
        if row is None:
            continue
        tx.ready.delete(lane.lane, row.rank, row.pos, row.seq)
        tx.key_parked.put((lane.lane, key or "", row.rank, row.pos, row.seq), mid)
        row.state = PARKED
        tx.messages.save_state(row)
        parked.setdefault(key or "", []).append((row.rank, row.pos))
    for key, places in parked.items():
        state = _state(tx, lane.lane, key) or StoredKeyState()
        first = min(places)
        if state.parked:
            first = min(first, (state.first_rank, state.first_pos))
        state.parked += len(places)
        state.first_rank, state.first_pos = first
        _save(tx, lane, policy, key, state)
    count = sum(map(len, parked.values()))
    lane.ready -= count
    lane.parked += count
    lane.key_limits = policy.key_limits
    tx.touch(lane)


def take(tx: Transaction, lane: Lane, policy: Resolved, delivered: Sequence[Next]) -> None:
    """These messages are delivered: each uses a slot and a permit of its key."""
    taken: dict[str, int] = {}
    for _, key in delivered:
        if key is not None:
            taken[key] = taken.get(key, 0) + 1
    number, rate, latest = lane.lane, policy.key_rate, 0
    for key, count in taken.items():
        state = _state(tx, number, key)
        if state is not None and state.parked:
            state.take(policy, tx.now, count)
            _save(tx, lane, policy, key, state)
            latest = max(latest, state.tat)
            continue
        # As above, in a third of the time: it is leased, so an end of a lease comes first.
        leased, tat = count, 0
        if state is not None:
            state.take(policy, tx.now, count)
            leased, tat = state.leased, state.tat
        elif rate is not None:
            tat = fairness.take_permits(0, tx.now, rate, count)
        latest = max(latest, tat)
        tx.key_states.put((number, key), leased, 0, tat if rate is not None else 0, 0, NO_RANK, 0)
    if rate is not None and latest:
        lane.keys_recover = max(lane.keys_recover, recovered_us(latest))


def load(tx: Transaction, slots: Sequence[tuple[int, str]]) -> None:
    """Read what `free` needs for these (lane, key), all of one table in one statement."""
    tx.key_states.load(slots)
    numbers = {lane for lane, _ in slots}
    tx.load_numbers(numbers)
    lanes = tx.lane_cache.lanes
    if not any(number in lanes and lanes[number].parked for number in numbers):
        return
    busy = [slot for slot in slots if (stored := tx.key_states.get(*slot)) and stored[1]]
    if busy:
        tx.key_parked.load_firsts(busy)
        firsts = (tx.key_parked.first(*slot) for slot in busy)
        tx.messages.load(mid for mid in firsts if mid is not None)


def free(tx: Transaction, lane: Lane, key: str) -> None:
    """A lease of the key ended: the first message that its limits parked becomes ready."""
    stored = tx.key_states.get(lane.lane, key)
    if stored is None:
        return
    if stored[0] > 1 and not stored[1]:  # as below: another lease is held, and nothing waits
        tx.key_states.put((lane.lane, key), stored[0] - 1, *stored[1:])
        return
    state, policy = StoredKeyState(*stored), tx.policy_of(lane)
    state.leased = max(state.leased - 1, 0)
    if state.parked and state.room(policy, tx.now):
        _bring_forward(tx, lane, key, state, 1)
    _save(tx, lane, policy, key, state)


def give_back(tx: Transaction, lane: Lane, key: str, since_us: int) -> None:
    """The delivery never began: return its permit, which it took `since_us` ago."""
    state, policy = _state(tx, lane.lane, key), tx.policy_of(lane)
    if state is not None and policy.key_rate is not None:
        state.give_back(policy.key_rate, since_us)
        if state.parked and state.room(policy, tx.now):  # the message itself may be delayed now
            _bring_forward(tx, lane, key, state, 1)
        _save(tx, lane, policy, key, state)


def unpark(tx: Transaction, lane: Lane, row: Row) -> None:
    """A parked message stops waiting: delete it from the messages of its key."""
    key = row.line or ""
    tx.key_parked.delete(lane.lane, key, row.rank, row.pos, row.seq)
    state = _state(tx, lane.lane, key)
    if state is not None:
        state.parked -= 1
        _save(tx, lane, tx.policy_of(lane), key, state)


def leave(tx: Transaction, lane: Lane, row: Row) -> None:
    """
    A message stopped waiting, or is delayed now, without a delivery. If it was ready, the next one
    of its key becomes ready in its place.
    """
    if not lane.parked or row.serial or row.key is None or row.state != READY:
        return
    key = row.line or ""
    state = _state(tx, lane.lane, key)
    if state is not None:
        _bring_forward(tx, lane, key, state, 1)
        _save(tx, lane, tx.policy_of(lane), key, state)


def _bring_forward(
    tx: Transaction, lane: Lane, key: str, state: StoredKeyState, count: int
) -> None:
    """The first messages that the key's limits parked become ready."""
    for _ in range(min(count, state.parked)):
        mid = tx.key_parked.first(lane.lane, key)
        row = tx.messages.get(mid) if mid is not None else None
        if row is None:
            state.parked = 0  # the doctor reports what the store lost
            return
        state.parked -= 1
        state.first_rank, state.first_pos = row.rank, row.pos
        lane.parked -= 1
        lane.ready += 1
        row.state = READY
        tx.expect_ready(lane, row)
        tx.key_parked.delete(lane.lane, key, row.rank, row.pos, row.seq)
        tx.ready.put((lane.lane, row.rank, row.pos, row.seq), row.mid)
        tx.messages.save_state(row)
        tx.touch(lane)


def wake(tx: Transaction, budget: int) -> None:
    """
    Keys whose time has come: as many of their parked messages as they admit become ready. Most have
    none, and are deleted together.
    """
    first = tx.shard.first_wake
    tx.run("key_states_recovered", first, tx.now, fairness.TICKS * tx.now, budget)
    due = tx.all("keys_to_wake", first, tx.now, budget)
    if not due:
        return
    load(tx, due)
    woken: dict[int, Lane] = {}
    for number, key in due:
        lane = tx.lane_cache.lanes.get(number)
        if lane is None:
            tx.key_states.delete(number, key)
            continue
        _wake_key(tx, lane, key)
        woken[number] = lane
    for lane in woken.values():
        if lane.place == IDLE:
            tx.place(lane)


def _wake_key(tx: Transaction, lane: Lane, key: str) -> None:
    state = _state(tx, lane.lane, key)
    if state is None:
        return
    policy = tx.policy_of(lane)
    state.woken()
    room = state.room(policy, tx.now)
    _bring_forward(tx, lane, key, state, min(room, MOST_PARKED))
    _save(tx, lane, policy, key, state)
    if state.parked and room > MOST_PARKED:
        state.wake = tx.now
        tx.key_states.put((lane.lane, key), *msgspec.structs.astuple(state))


def limits_changed(tx: Transaction, lane: Lane, policy: Resolved) -> None:
    """
    The limits are not those under which the lane's messages were parked: look at all of its keys,
    at the first of them at once.
    """
    lane.key_limits = policy.key_limits
    tx.run("key_states_wake", tx.now, lane.lane)
    tx.shard.expect_wake(tx.now)
    keys = [(lane.lane, key) for (key,) in tx.all("key_states_parked", lane.lane, MOST_PARKED)]
    load(tx, keys)
    for _, key in keys:
        _wake_key(tx, lane, key)


def recount(tx: Transaction, lane: int, key: str, leased: int, parked: int) -> None:
    """For the doctor: the key has so many leases and parked messages; look at these now."""
    state = _state(tx, lane, key) or StoredKeyState()
    state.leased, state.parked, state.wake = leased, parked, tx.now
    state.first_rank = NO_RANK
    tx.key_states.put((lane, key), *msgspec.structs.astuple(state))
