"""
Leases that are held: start, extend, and what the end of a lease gives back.

A leaf: `settling`, `results` and `purging` end leases, each for its own reason.

A fence tells the leases of one message apart. For example, with `lease="10s"` and small numbers:

    s    worker A                     worker B
    0    leases message 1: fence 1
    11   (stalled)                    leases message 1: fence 2
    12   acks fence 1: lost
    13                                acks fence 2: acked
    14                                acks fence 2: lost

Why this is correct. The row of a lease has the fence as its key, and each delivery takes the next
number of one counter, so an old fence names a row that is gone, or a lease that is marked as gone.
A settlement looks the row up and ends the lease in one transaction: of two settlements of one lease
only the first finds it. Fences begin at the time, so they grow even over a loss of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from laneway.engines import base
from laneway.engines.shared import adaptive, fairness
from laneway.engines.shared.refusals import DEFAULT_MEAN_US
from laneway.engines.shared.states import READY
from laneway.engines.sql import key_limits
from laneway.engines.sql.rows import MEAN_OVER, Held, Lane, Row
from laneway.engines.sql.transaction import Transaction
from laneway.message import Settlement


def by_fence(tx: Transaction, fences: Iterable[int]) -> dict[int, Held]:
    return {row[0]: Held(*row) for row in tx.all("leases_read", tx.array(list(fences)))}


def of_message(tx: Transaction, row: Row) -> Held | None:
    """
    The lease of a message that is not dead, or None if it waits. Leases have no index by message,
    so they are searched only for one that is leased.
    """
    if row.state != READY or tx.one("is_ready", row.lane, row.rank, row.pos, row.seq) is not None:
        return None
    lease = tx.one("lease_of_message", row.mid)
    return Held(*lease) if lease is not None else None


def is_held(lease: Held | None, handle: int) -> bool:
    """Whether a lease, as it was read, still belongs to the message of that handle."""
    return lease is not None and lease.mid == handle and not lease.gone


def start(tx: Transaction, leases: Sequence[tuple[int, int]]) -> list[bool]:
    """Record that suspects are about to run; answers which of the (handle, fence) are held."""
    held = by_fence(tx, (fence for _, fence in leases))
    answers = [is_held(held.get(fence), handle) for handle, fence in leases]
    tx.run_many(
        "lease_started",
        [(fence,) for (_, fence), answer in zip(leases, answers, strict=True) if answer],
    )
    return answers


def extend(tx: Transaction, leases: Sequence[tuple[int, int]], by_us: int) -> list[bool]:
    """
    Move deadlines to at least now + `by_us`; answers which of the (handle, fence) are held.

    The batch's end stays where it is: when it is due it finds later deadlines and moves there.
    """
    held = by_fence(tx, (fence for _, fence in leases))
    until = tx.now + by_us
    answers = [is_held(held.get(fence), handle) for handle, fence in leases]
    if not all(answers):  # their workers do not settle them
        for (_, fence), answer in zip(leases, answers, strict=True):
            if not answer:
                tx.lane_cache.leases.pop(fence, None)
    tx.run_many(
        "lease_extend",
        [
            (until, fence)
            for (_, fence), answer in zip(leases, answers, strict=True)
            if answer and held[fence].deadline < until
        ],
    )
    return answers


def release_slots(tx: Transaction, lane: Lane, held: Held, cost_us: int) -> None:
    """The lease ended: free its slots in lane and gates, and correct the lane's virtual time."""
    lane.leased -= 1
    tx.shard.leased -= 1
    if held.gate is not None:
        tx.free_gates(held.gate, tx.now - held.granted)
    if held.slot is not None:
        key_limits.free(tx, lane, held.slot)
    if held.charge:
        _correct_charge(tx, lane, held, cost_us)


def adapt(tx: Transaction, lane: Lane, settlement: Settlement) -> Settlement:
    """
    Adapt the limit of the lane, or of what its topic's partitions share, to how a lease ended, if
    the concurrency is "auto".

    Returns the settlement; one that reports an unavailable destination becomes a release with a
    delay if the smaller limit is enough.
    """
    policy, flow, gate = tx.policy_of(lane), lane.flow, None
    least, most = policy.min_concurrency, max(policy.min_concurrency, policy.max_concurrency)
    here = adaptive.limit_of(flow, least, most)
    if policy.shared is not None:
        gate = tx.topic_gate(lane.rule, policy)
        flow, here = (gate.flow, gate.limits.concurrency or 1) if gate is not None else (None, 1)
    if flow is None or not policy.adapts:
        return settlement
    reason = adaptive.reason_of(settlement.action, settlement.overload)
    if reason is not None:
        if (
            settlement.action == "back_off"
            and settlement.delay_us is None
            and not lane.back_off_step
            and adaptive.bears(flow, settlement.fence, least, most)
        ):
            settlement = msgspec.structs.replace(
                settlement, action="release", delay_us=base.BACK_OFF_FIRST_US, begun=True
            )
        fence = tx.last_fence()
        adaptive.overloaded(flow, reason, settlement.fence, fence, least, most, tx.now)
    elif settlement.action == "ack":
        adaptive.succeeded(flow, settlement.cost_us, least, most, here, tx.now)
    tx.touch(lane)
    if gate is not None:
        gate.adapt()
        tx.touch_gate(gate)
    return settlement


def _correct_charge(tx: Transaction, lane: Lane, held: Held, cost_us: int) -> None:
    """
    In a tier that is fair by time the lane pays for the time that its message took.

    The delivery charged an estimate. A refund does not move the lane before its tier queue's
    virtual time.
    """
    tier_queue, group = tx.tier_queue_of(lane), tx.group_of(lane)
    cost = max(0, min(cost_us, held.deadline - held.granted))
    weight = tx.policy_of(lane).weight
    queue_vt = tier_queue.vt if group is None else group.inner_vt
    more = cost - held.charge
    lane.vt = max(lane.vt + fairness.stride_of_work(more, weight), min(queue_vt, lane.vt))
    if group is not None:
        charged = group.vt + fairness.stride_of_work(more, group.weight)
        group.vt = max(charged, min(tier_queue.vt, group.vt))
        tx.groups.touch(group)
    if cost:
        lane.mean = _moved_mean(lane.mean or tier_queue.mean or DEFAULT_MEAN_US, cost)
        tier_queue.mean = _moved_mean(tier_queue.mean or DEFAULT_MEAN_US, cost)
    tx.touch(lane)


def _moved_mean(mean: int, cost: int) -> int:
    return max(1, mean + (cost - mean) // MEAN_OVER)


def return_permits(tx: Transaction, lane: Lane, held: Held, cost: int) -> None:
    """The delivery never began: return its permits of the lane's rate and of its gates."""
    policy, since = tx.policy_of(lane), tx.now - held.granted
    cost = min(cost, tx.largest_cost(policy, tx.gates_in(held.gate)))
    if policy.lane_rate:
        lane.tat = fairness.return_permits(lane.tat, policy.lane_rate, cost, since)
    for gate in tx.gates_in(held.gate):
        gate.give_back(cost, since)
    if held.slot is not None:
        key_limits.give_back(tx, lane, held.slot, since)
