"""
The gates of lanes in a transaction: at which of its gates a lane waits, in which order, and what
its deliveries use there.

A lane waits at one of its gates. An entry of a gate is a lane, or a group with lanes there; its
*turn* is its virtual time there, which only what goes through this gate advances. At its own gate a
group is no entry: its lanes are. So topics that share a gate share it fairly, whatever else they
share, see docs/specification.md, "Gates".

For example, the gate `fast` admits 10/s, `slow` 4/s, both with a burst of 1. The topic `both` goes
through both gates, `one` through `fast` only; both topics have a backlog.

    ms    delivered   then
    0     both        its turn at `fast` is 100,800, that of `one` is 0
    100   one         both turns are 100,800; the smaller lane number decides: `both`
    200               `both` is first at `fast`, but `slow` opens in 50 ms: it waits there, and
                      `fast` is held for it, because 50 ms is at most 3/5 of its interval of 100 ms
    250   both        `fast` admits the next after 100 ms: it has lost 50 ms
    350   one
    450   one
    550   both        `slow` had a permit at 500 ms, and was held until `fast` had one

Why this is correct. A visit checks all gates of a lane and takes from all of them in one step, so
no gate is exceeded, and a permit is used only by a delivery. A lane that cannot deliver leaves the
order where it is first, so it blocks nobody there, and goes to a gate that does not admit it: when
that gate opens, or its turn there comes, the lane is looked at again. A hold costs a gate less than
one delivery, because it begins only for a wait within 3/5 of the gate's interval.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from laneway.engines.shared import fairness, gates
from laneway.engines.shared.states import AT_GATE
from laneway.engines.sql.group_queues import GroupQueues
from laneway.engines.sql.rows import GateState, GroupQueue, Lane
from laneway.topic_groups import GROUP

if TYPE_CHECKING:

    class Transaction(Protocol):
        """What gates need of a transaction, which uses them."""

        now: int
        groups: GroupQueues

        @property
        def gates_in(self) -> Callable[[str | None], list[GateState]]: ...
        @property
        def touch_gate(self) -> Callable[[GateState], None]: ...
        @property
        def moves_at_gate(self) -> Callable[[Lane], None]: ...
        @property
        def moves_in(self) -> Callable[[int, str], None]: ...


CREDIT = fairness.VT_SCALE
"""How much earlier than others a lane comes from one of its gates to another."""


def group_at(tx: Transaction, lane: Lane, gate: str) -> GroupQueue | None:
    """The group that the lane belongs to at a gate: at its group's own gate to none."""
    if lane.tier_queue > 0:
        return None
    group = tx.groups.get(-lane.tier_queue)
    return None if gate == GROUP + group.name else group


def group_turn(tx: Transaction, lane: Lane, group: GroupQueue, gate: GateState) -> int:
    """The virtual time of the lane's group at a gate."""
    return max(tx.groups.turn(group, gate.name).turn, _lower_bound(lane, gate.turn))


def entry_turn(tx: Transaction, lane: Lane, gate: GateState) -> int:
    """The virtual time at a gate of the lane, or of its group."""
    group = group_at(tx, lane, gate.name)
    return lane_turn(tx, lane, None, gate) if group is None else group_turn(tx, lane, group, gate)


def room(tx: Transaction, lane: Lane, gate: GateState) -> int:
    """
    How many deliveries of the lane the gate admits. What is held for another lane is not kept from
    one that precedes it in the order of the gate, and waits elsewhere.
    """
    is_here = lane.place == AT_GATE and lane.gate == gate.name
    precedes = not is_here and gate.is_held(tx.now) and entry_turn(tx, lane, gate) < gate.held_turn
    return gate.room(tx.now, lane.lane, precedes=precedes)


def lane_turn(tx: Transaction, lane: Lane, group: GroupQueue | None, gate: GateState) -> int:
    """The lane's virtual time at a gate, or inside its group there."""
    reached = gate.turn if group is None else tx.groups.turn(group, gate.name).inner
    return max(lane.turn_at(gate.name), _lower_bound(lane, reached))


def _lower_bound(lane: Lane, reached: int) -> int:
    """
    The lower bound of a lane's turn in an order: that of the entry served last, less `CREDIT` if
    the lane waited at another of its gates meanwhile.
    """
    return reached - CREDIT if lane.place == AT_GATE else reached


def arrive(tx: Transaction, lane: Lane, key: str) -> None:
    """The lane comes to these gates, and waits at one that is shut, else at one without spare."""
    states = tx.gates_in(key)
    lane.gates = key if len(states) > 1 else None
    shut = (state for state in states if not room(tx, lane, state))
    tight = (state for state in states if not state.has_spare(tx.now, state.claimed))
    wait_at(tx, lane, next(shut, None) or next(tight, states[0]))


def wait_at(tx: Transaction, lane: Lane, gate: GateState) -> None:
    """The lane waits at this one of its gates from now on."""
    group = group_at(tx, lane, gate.name)
    turn = lane_turn(tx, lane, group, gate)
    lane.wait_at(gate.name)
    lane.turn = turn
    if group is not None:
        its = tx.groups.touch_turn(group, gate.name)
        if not its.waiting:
            its.turn = group_turn(tx, lane, group, gate)
        its.waiting += 1


def leave(tx: Transaction, lane: Lane) -> None:
    """The lane no longer waits where it waited."""
    assert lane.gate is not None
    group = group_at(tx, lane, lane.gate)
    if group is not None:
        tx.groups.touch_turn(group, lane.gate).waiting -= 1


def count(tx: Transaction, key: str, change: int) -> None:
    """A lane came to these gates (1), or left them (-1)."""
    for state in tx.gates_in(key):
        state.waiting += change
        tx.touch_gate(state)


def change(tx: Transaction, lane: Lane, key: str) -> None:
    """The lane at gates goes through these from now on, and waits where it waited."""
    count(tx, lane.gates_key, -1)
    count(tx, key, 1)
    lane.gates = key if key != lane.gate else None


def end_holds(tx: Transaction, lane: Lane, key: str) -> None:
    """The lane leaves its gates: what is held for it there is free again."""
    for state in tx.gates_in(key):
        if state.end_hold(lane.lane):
            tx.touch_gate(state)


def move(
    tx: Transaction,
    lane: Lane,
    blocked: Collection[GateState],
    is_turn: Callable[[Lane, GateState], bool],
    cost: int,
) -> None:
    """
    The lane, whose turn it is at its gate, goes to another one that does not admit it.

    Where it is its turn, what its next message of that cost needs is held for it, see
    `GateState.hold_for`.
    """
    now, number = tx.now, lane.lane
    elsewhere = next((state for state in blocked if room(tx, lane, state)), None)
    if elsewhere is not None:  # it is not its turn there
        _go(tx, lane, elsewhere)
        return
    waits = {state.name: state.time_to_open(now, number, cost) for state in blocked}
    to = max(blocked, key=lambda state: waits[state.name])
    for state in tx.gates_in(lane.gates_key):
        if state is not to and (state.name not in waits or is_turn(lane, state)):
            state.hold_for(now, number, entry_turn(tx, lane, state), waits[to.name], cost)
            tx.touch_gate(state)
    _go(tx, lane, to)


def wait_for_permits(
    tx: Transaction,
    lane: Lane,
    short: Collection[GateState],
    is_turn: Callable[[Lane, GateState], bool],
    cost: int,
) -> None:
    """
    The lane waits at the gate that has enough permits for its next message last. That gate keeps
    its permits for it, if it is its turn: a tier may serve it before that of another lane.
    """
    now, number = tx.now, lane.lane
    to = max(short, key=lambda state: state.time_to_open(now, number, cost))
    if (to.is_held(now) and to.holder == number) or (
        (not to.is_held(now) or to.need < cost) and is_turn(lane, to)
    ):
        to.hold(now, number, entry_turn(tx, lane, to), cost, gates.HOLD_US)
        tx.touch_gate(to)
    if not lane.gates_key:
        return
    wait = to.time_to_open(now, number, cost)
    for state in tx.gates_in(lane.gates_key):
        if state is not to:
            state.hold_for(now, number, entry_turn(tx, lane, state), wait, cost)
            tx.touch_gate(state)
    _go(tx, lane, to)


def _go(tx: Transaction, lane: Lane, gate: GateState) -> None:
    """The lane comes to a gate, perhaps the one where it waits: it earns no credit there."""
    tx.moves_at_gate(lane)
    leave(tx, lane)
    wait_at(tx, lane, gate)
    tx.moves_at_gate(lane)


def take(
    tx: Transaction,
    lane: Lane,
    states: Sequence[GateState],
    taken: int,
    permits: int,
    largest: int,
    weight: float,
) -> None:
    """
    So many deliveries of the lane go through all of these gates, and use so many permits; one of
    them uses `largest`.
    """
    for state in states:
        state.take(lane.lane, taken, permits, largest, tx.now)
        group = group_at(tx, lane, state.name)
        before = lane_turn(tx, lane, group, state)
        lane.set_turn(state.name, before + fairness.stride(taken, weight))
        reached = before + _without_last_chunk(taken, weight)
        if group is not None:
            its = tx.groups.touch_turn(group, state.name)
            its.inner, before = reached, group_turn(tx, lane, group, state)
            its.turn = before + fairness.stride(taken, group.weight)
            reached = before + _without_last_chunk(taken, group.weight)
            if its.waiting:
                tx.moves_in(group.tier_queue, state.name)
        state.turn = reached
        tx.touch_gate(state)


@lru_cache(4096)
def _without_last_chunk(taken: int, weight: float) -> int:
    """By how much an order advances with a visit: to where its last chunk began."""
    one_chunk = fairness.stride(fairness.chunk(taken, 2, weight), weight)
    return fairness.reached(0, fairness.stride(taken, weight), one_chunk)
