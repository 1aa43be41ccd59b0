"""What an operator does to messages that wait: ready now, dead, and a topic that backs off."""

from __future__ import annotations

from laneway.engines.base import UNTIL_SIGNALLED_US, MoveAnswer, MoveTarget
from laneway.engines.shared.states import DEAD, DELAYED
from laneway.engines.sql import messages, settling, views
from laneway.engines.sql.transaction import Transaction


def move(
    tx: Transaction, message_id: str, topic: str | None, to: MoveTarget, reason: str
) -> MoveAnswer:
    """Make a delayed message ready now, or a waiting one a dead letter."""
    row = messages.find(tx, message_id, topic)
    if row is None:
        return "unknown"
    if row.state == DEAD:
        return "dead"
    if tx.one("lease_of_message", row.mid) is not None:
        return "leased"
    if to == "ready" and (row.state != DELAYED or row.since == UNTIL_SIGNALLED_US):
        return "waiting"
    lane = tx.lane(row.lane)
    messages.take_out(tx, lane, row)
    if to == "dead":
        settling.die(tx, lane, row, reason, None)
    else:
        row.since = min(row.since, tx.now)
        collects = row.mkey is None or tx.merge_keys.get(lane.lane, row.mkey) is None
        messages.begin_waiting(tx, lane, row, collects=collects)
        tx.messages.save(row)
    tx.place(lane)
    return "moved"


def back_off(tx: Transaction, topic: str, by_us: int) -> int:
    """Let the lanes of a topic back off; 0: end that. Returns how many lanes there are."""
    lanes = views.lanes_of(tx, topic)
    for lane in lanes:
        lane.back_off_step, lane.back_off_fence = by_us, tx.shard.fence
        lane.back_off_until = tx.now + by_us if by_us else 0
        tx.touch(lane)
        tx.place(lane)
    return len(lanes)
