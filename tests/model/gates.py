"""
Gates of the model: the order of the lanes at each gate, and what is held for a lane.

A lane waits at one of its gates. An entry of a gate is a lane, or a group with lanes there.
"""

from __future__ import annotations

from collections.abc import Sequence

from laneway.engines.shared import adaptive, fairness, gates
from laneway.policy import Gate, Resolved, gate_names
from laneway.tiers import TierLayers, Tiers
from laneway.topic_groups import GROUP, TOPIC
from tests.model.state import (
    HOLD_US,
    Call,
    GateState,
    GroupQueue,
    HeldLease,
    Lane,
    TierQueue,
    moving_mean,
)


class Gates:
    """The gates, and the lanes that wait at them."""

    now: int
    gates: dict[str, GateState]
    lanes: dict[str, Lane]
    tier_settings: TierLayers

    @property
    def tiers(self) -> Tiers:
        """The tiers in force."""
        return self.tier_settings.in_force()

    def _gates_of(self, lane: Lane, policy: Resolved) -> tuple[str, ...]:
        """
        A delivery goes through all of these gates, or is not made. What the partitions of a topic
        share is one, and a group with limits.
        """
        names = tuple(gate_names(policy.gate))
        if policy.shared is not None:
            names += (TOPIC + lane.rule,)
        if lane.group is not None and self._group_settings(lane.group).is_limited:
            names += (GROUP + lane.group.name,)
        return names

    def _group_settings(self, group: GroupQueue) -> Gate:
        name = GROUP + group.name
        return self.gates[name].limits if name in self.gates else Gate()

    # What a gate admits

    def _gate_room(self, name: str, lane: Lane) -> int:
        """How many deliveries of the lane the gate admits now."""
        gate, limits = self.gates[name], self.gates[name].limits
        need = gate.need if self._is_kept_from(gate, lane) else 0
        is_holder = self.now < gate.held_until and gate.holder == lane.number
        need = gate.need if is_holder else need
        room = 1 << 30
        if limits.rate is not None:
            clock = (gate.tat, self.now, limits.rate, limits.effective_burst)
            room = fairness.permits(*clock)
            if is_holder:
                room = room if fairness.admits(*clock, need) else 0
            else:
                room -= need
        if gate.concurrency is not None:
            kept = 1 if need and not is_holder else 0
            room = min(room, gate.concurrency - gate.leased - kept)
        return max(room, 0)

    def _is_kept_from(self, gate: GateState, lane: Lane) -> bool:
        """
        Whether something is held there for another lane, which this one does not precede. At the
        gate where it waits the holder is first.
        """
        if self.now >= gate.held_until or gate.holder == lane.number:
            return False
        is_here = lane.place == "at_gate" and lane.gate == gate.name
        return is_here or self._turn(lane, gate.name) >= gate.held_turn

    def _has_spare(self, name: str) -> bool:
        """
        Whether the gate is in use and decides nothing now: it admits two deliveries, or its permits
        would be lost. What the partitions of a topic share always decides.
        """
        gate, limits = self.gates[name], self.gates[name].limits
        if name.startswith(TOPIC) or self.now < gate.held_until:
            return False
        if not gate.leased and gate.tat < (self.now - IN_USE_US) * fairness.TICKS:
            return False
        if limits.rate is not None and not fairness.recovered(gate.tat, self.now):
            clock = (gate.tat, self.now, limits.rate, limits.effective_burst)
            if fairness.permits(*clock) < 2:
                return False
        return gate.concurrency is None or gate.concurrency - gate.leased >= 2

    def _has_spare_for(self, name: str) -> bool:
        """
        Whether a lane that comes to the gate is runnable: it has more spare than the lanes before
        it use up. A million that arrive while it has would be looked at one by one when it is full.
        """
        claimed = self.gates[name].claimed
        return self._has_spare(name) and (not claimed or self._free(name) >= claimed + 2)

    def _free(self, name: str) -> int:
        """How many deliveries it admits, as far as nothing is held."""
        gate, limits = self.gates[name], self.gates[name].limits
        free = 1 << 30 if gate.concurrency is None else gate.concurrency - gate.leased
        if limits.rate is None:
            return free
        clock = (gate.tat, self.now, limits.rate, limits.effective_burst)
        return min(free, fairness.permits(*clock))

    def _gates_room(self, lane: Lane, names: Sequence[str]) -> int:
        """How many deliveries of the lane all of these gates admit now."""
        return min((self._gate_room(name, lane) for name in names), default=1 << 30)

    def _gate_admits(self, gate: GateState, taken: int, cost: int) -> bool:
        """Whether the gate's rate admits a delivery after others that took so many permits."""
        limits = gate.limits
        assert limits.rate is not None
        tat = fairness.take_permits(gate.tat, self.now, limits.rate, taken)
        return fairness.admits(tat, self.now, limits.rate, limits.effective_burst, cost)

    def _interval(self, gate: GateState, need: int = 1) -> int:
        """Microseconds between deliveries of `need` permits that it admits, if it is used up."""
        rate_us = 0
        if gate.limits.rate is not None:
            rate_us = fairness.interval(gate.limits.rate) // fairness.TICKS
        return max(rate_us * max(gate.owes, need), gate.mean // max(gate.concurrency or 1, 1))

    def _time_to_open(self, gate: GateState, lane: Lane, need: int = 1) -> int:
        """
        Microseconds until the gate is expected to admit a delivery of the lane that uses `need`
        permits; `FOREVER_US`: not known, or it cannot while it is held for another lane.
        """
        is_kept = self.now < gate.held_until and gate.holder != lane.number
        wait = 0
        if gate.limits.rate is not None:
            need += gate.need if is_kept else 0
            if is_kept and need > gate.limits.effective_burst:
                return FOREVER_US
            clock = (gate.tat, self.now, gate.limits.rate, gate.limits.effective_burst)
            wait = fairness.next_permit_us(*clock, need) - self.now
        if gate.concurrency is not None and gate.leased + is_kept >= gate.concurrency:
            if not gate.mean:
                return FOREVER_US
            wait = max(wait, gate.mean // max(gate.concurrency, 1) // 2)
        return wait

    def _hold(self, gate: GateState, lane: Lane, need: int, for_us: int) -> None:
        """Keep so many permits, or a slot, for the lane."""
        gate.holder, gate.need, gate.held_until = lane.number, need, self.now + for_us
        gate.held_turn = self._turn(lane, gate.name)
        self._set_gate_wake(gate)

    def _end_holds(self, lane: Lane) -> None:
        """The lane leaves its gates: what is held for it there is free again."""
        for name in lane.gates:
            gate = self.gates.get(name)
            if gate is not None and gate.holder == lane.number:
                gate.holder = gate.need = gate.held_until = 0
                self._set_gate_wake(gate)

    def _set_gate_wake(self, gate: GateState) -> None:
        """Set when the gate opens by the clock: only if its rate alone shuts it, or a hold."""
        limits = gate.limits
        gate.wake = None
        if gate.concurrency is not None and gate.leased >= gate.concurrency:
            return
        times = [gate.held_until]
        if limits.rate is not None:
            clock = (gate.tat, self.now, limits.rate, limits.effective_burst)
            times.append(fairness.next_permit_us(*clock))
            if self.now < gate.held_until:
                times += [fairness.next_permit_us(*clock, gate.need + n) for n in (0, 1)]
        gate.wake = min((at for at in times if at > self.now), default=None)

    def _free_gates(self, lease: HeldLease) -> None:
        for name in lease.gates:
            gate = self.gates[name]
            gate.leased -= 1
            if gate.limits.concurrency is not None:
                took = max(self.now - lease.granted, 1)
                gate.mean = moving_mean(gate.mean, took) if gate.mean else took
            self._set_gate_wake(gate)

    # Order

    def _waiting_at(self, name: str, tier_queue: TierQueue | None = None) -> list[Lane]:
        return [
            lane
            for lane in self.lanes.values()
            if lane.place == "at_gate"
            and lane.gate == name
            and (tier_queue is None or lane.tier_queue is tier_queue)
        ]

    @staticmethod
    def _group_at(lane: Lane, name: str) -> GroupQueue | None:
        """The group that the lane belongs to at a gate: at its group's own gate to none."""
        group = lane.group
        return None if group is None or name == GROUP + group.name else group

    def _entry(self, lane: Lane, name: str) -> Lane | GroupQueue:
        return self._group_at(lane, name) or lane

    def _order_at(self, lane: Lane) -> tuple[int, int, int, int, int]:
        """The lane's position at the gate where it waits."""
        gate, entry = self.gates[lane.gate], self._entry(lane, lane.gate)
        is_holder = self.now < gate.held_until and gate.holder == lane.number
        return (
            not is_holder,
            entry.turns[gate.name],
            entry.number,
            lane.turns[gate.name],
            lane.number,
        )

    def _is_turn(self, call: Call, lane: Lane, name: str) -> bool:
        """Whether nothing that waits at the gate is before the lane, which waits at another one."""
        entry = self._entry(lane, name)
        turn, inner = self._turn(lane, name), self._inner_turn(lane, name)
        for other in self._waiting_at(name):
            if other in call.left_out or self._is_served_later(other.tier_queue, lane.tier_queue):
                continue
            its = self._entry(other, name)
            if its is entry:
                if (other.turns[name], other.number) < (inner, lane.number):
                    return False
            elif (its.turns[name], its.number) < (turn, entry.number):
                return False
        return True

    def _is_served_later(self, one: TierQueue, other: TierQueue) -> bool:
        return one.pool == other.pool and gates.is_served_later(self.tiers, one.tier, other.tier)

    def _turn(self, lane: Lane, name: str) -> int:
        """The virtual time of the lane's entry at a gate."""
        entry = self._entry(lane, name)
        return max(entry.turns.get(name, 0), self._lower_bound(lane, self.gates[name].turn))

    def _inner_turn(self, lane: Lane, name: str) -> int:
        """The lane's virtual time at a gate, inside its group."""
        group = self._group_at(lane, name)
        if group is None:
            return self._turn(lane, name)
        return max(lane.turns.get(name, 0), self._lower_bound(lane, group.inner_turns.get(name, 0)))

    @staticmethod
    def _lower_bound(lane: Lane, reached: int) -> int:
        """
        The lower bound of a lane's turn in an order: that of the entry served last, less one
        delivery if the lane waited at another of its gates meanwhile.
        """
        return reached - fairness.stride(1, 1.0) if lane.place == "at_gate" else reached

    def _come_to_gate(self, lane: Lane, name: str) -> None:
        """The lane waits at this gate from now on."""
        group = self._group_at(lane, name)
        turn, inner = self._turn(lane, name), self._inner_turn(lane, name)
        lane.gate = ""
        if group is not None and not any(
            other.group is group for other in self._waiting_at(name, lane.tier_queue)
        ):
            group.turns[name] = turn
        lane.turns[name] = inner
        lane.gate = name

    def _choose_gate(self, lane: Lane) -> str:
        """Where a lane waits at first: at a gate that is shut, else at one that has no spare."""
        shut = (name for name in lane.gates if not self._gate_room(name, lane))
        tight = (name for name in lane.gates if not self._has_spare_for(name))
        return next(shut, None) or next(tight, lane.gates[0])

    def _move_to_gate(self, call: Call, lane: Lane, blocked: Sequence[str], cost: int) -> None:
        """
        The lane, whose turn it is at its gate, goes to another one that does not admit it.

        Where it is its turn, what its next message of that cost needs is held for it, see
        `_hold_for`.
        """
        others = [name for name in blocked if self._gate_room(name, lane)]
        if others:  # it is not its turn there
            self._come_to_gate(lane, others[0])
            return
        waits = {name: self._time_to_open(self.gates[name], lane, cost) for name in blocked}
        to = max(blocked, key=lambda name: waits[name])
        for name in lane.gates:
            if name != to and (name not in blocked or self._is_turn(call, lane, name)):
                self._hold_for(lane, self.gates[name], waits[to], cost)
        self._come_to_gate(lane, to)

    def _hold_for(self, lane: Lane, gate: GateState, wait: int, need: int = 1) -> None:
        """
        Keep permits, or a slot, while the lane waits for another gate: if that opens within a part
        of the time of this delivery through this one, so little is lost, or if others can use the
        rate meanwhile: then until it is the lane's turn there.
        """
        is_held = self.now < gate.held_until
        is_holder = is_held and gate.holder == lane.number
        loses_nothing = not is_held and self._keeps_up(gate, need)
        is_short = 5 * wait <= 3 * self._interval(gate, need)
        if wait < FOREVER_US and (is_holder or is_short or loses_nothing):
            for_us = HOLD_US if loses_nothing else min(3 * wait + LATE_US, HOLD_US)
            if is_holder:  # it may need more permits
                need, for_us = max(need, gate.need), max(for_us, gate.held_until - self.now)
            self._hold(gate, lane, need, for_us)

    @staticmethod
    def _keeps_up(gate: GateState, need: int) -> bool:
        """Whether others can use the whole rate while `need` permits are kept."""
        limits = gate.limits
        return (
            limits.rate is not None
            and gate.concurrency is None
            and need + max(gate.owes, 1) <= limits.effective_burst
        )

    def _waits_for_pool(self, call: Call, name: str, lane: Lane, room: int) -> bool:
        """
        Whether a lane of another pool precedes the first one of a pool at a gate: for a part of the
        time of one delivery the gate is held for it. If no worker takes it then, it misses its
        turn. If others can use the rate meanwhile, it is held for long. Nothing is held where the
        gate admits more than `room`, what the call takes at most.
        """
        gate = self.gates[name]
        if self._gate_room(name, lane) > room:
            return False
        waiting = [
            other
            for other in self._waiting_at(name)
            if other.tier_queue.pool != lane.tier_queue.pool and other not in call.left_out
        ]
        first = min(waiting, key=self._order_at, default=None)
        if first is None or self._order_at(first) > self._order_at(lane):
            return False
        if self.now < gate.held_until:
            return False
        if gate.holder == first.number:
            gate.holder = gate.need = gate.held_until = 0
            self._set_gate_wake(gate)
            entry = self._entry(first, name)
            entry.turns[name] = self._entry(lane, name).turns[name] + 1
            return False
        for_us = max(self._interval(gate), gate.mean) // HOLD_PART
        if self._keeps_up(gate, 1):
            for_us = HOLD_US
        if for_us:
            self._hold(gate, first, 1, for_us)
        return not self._gate_room(name, lane)

    def _wait_for_permits(
        self, call: Call, lane: Lane, short: Sequence[GateState], cost: int
    ) -> None:
        """
        The lane waits at the gate that has enough permits for its next message last. That gate
        keeps its permits for it, if it is its turn: a tier may serve it before that of another one.
        """
        to = max(short, key=lambda gate: self._time_to_open(gate, lane, cost))
        is_held = self.now < to.held_until
        is_free = not is_held or to.need < cost
        if (is_held and to.holder == lane.number) or (
            is_free and self._is_turn(call, lane, to.name)
        ):
            self._hold(to, lane, cost, HOLD_US)
        if lane.place == "at_gate":
            wait = self._time_to_open(to, lane, cost)
            for name in lane.gates:
                if name != to.name:
                    self._hold_for(lane, self.gates[name], wait, cost)
            self._come_to_gate(lane, to.name)

    def _pass_gates(
        self, lane: Lane, names: Sequence[str], costs: Sequence[int], weight: float
    ) -> None:
        """So many deliveries of the lane go through all of these gates."""
        for name in names:
            gate, taken = self.gates[name], len(costs)
            gate.leased += taken
            gate.claimed = max(gate.claimed - 1, 0)
            if gate.holder == lane.number:
                gate.holder = gate.need = gate.held_until = 0
            if gate.limits.rate is not None:
                gate.tat = fairness.take_permits(gate.tat, self.now, gate.limits.rate, sum(costs))
                gate.owes = max(costs)
            else:
                gate.tat = max(gate.tat, self.now * fairness.TICKS)  # when it was used last
            if gate.limits.least is not None:
                gate.flow = gate.flow or adaptive.Flow(changed=self.now)
                adaptive.delivered(gate.flow, gate.leased, gate.concurrency or 0)
            self._set_gate_wake(gate)
            self._advance_turn(lane, gate, taken, weight)

    def _advance_turn(self, lane: Lane, gate: GateState, taken: int, weight: float) -> None:
        name, group = gate.name, self._group_at(lane, gate.name)
        before = self._inner_turn(lane, name)
        lane.turns[name] = before + fairness.stride(taken, weight)
        reached = _reached(before, taken, weight)
        if group is not None:
            group.inner_turns[name] = reached
            weight = self._group_weight(group)
            before = self._turn(lane, name)
            group.turns[name] = before + fairness.stride(taken, weight)
            reached = _reached(before, taken, weight)
        gate.turn = reached

    def _group_weight(self, group: GroupQueue) -> float:
        weight = self._group_settings(group).weight
        return 1.0 if weight is None else weight


FOREVER_US = 1 << 62
IN_USE_US = 1_000_000  # for how long a gate is in use after a delivery
HOLD_PART = 8  # for this part of an interval a gate is held for a lane of another pool
LATE_US = 5_000  # by how much a worker may be late


def _reached(before: int, taken: int, weight: float) -> int:
    """The virtual time that an order has reached after a visit: where its last chunk began."""
    one_chunk = fairness.stride(fairness.chunk(taken, 2, weight), weight)
    return fairness.reached(before, before + fairness.stride(taken, weight), one_chunk)
