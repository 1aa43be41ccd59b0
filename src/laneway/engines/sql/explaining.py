"""The facts about a message that waits, for `laneway.engines.shared.explaining`."""

from __future__ import annotations

from collections.abc import Sequence

from laneway.engines.base import Explanation, MessageView
from laneway.engines.shared import explaining, size_classes
from laneway.engines.shared.explaining import COUNTED, Facts, GateFacts, GroupFacts, KeyFacts
from laneway.engines.shared.states import DELAYED, PARKED, RUNNABLE
from laneway.engines.sql import key_limits, messages, views
from laneway.engines.sql.rows import Lane, Row
from laneway.engines.sql.transaction import Transaction
from laneway.policy import Resolved
from laneway.tiers import share_text
from laneway.topic_groups import TOPIC


def explain(
    tx: Transaction, message_id: str, topic: str | None, stores: Sequence[Transaction]
) -> Explanation:
    """
    What the message waits for, the decisive reason first, and when it will probably start.

    `stores`: all of the namespace.
    """
    row = messages.find(tx, message_id, topic)
    view = views.message_view(tx, row) if row is not None else None
    if row is None or view is None:
        return _absent(tx, message_id, topic)
    if view.state in ("dead", "leased"):
        return explaining.not_waiting(view, tx.now, tx.clock)
    return explaining.waiting(_facts(tx, row, view, stores))


def _absent(tx: Transaction, message_id: str, topic: str | None) -> Explanation:
    known = tx.one("ident_read", message_id, topic) if topic is not None else None
    finished = known is not None and (known[1] is None or known[1] > tx.now)
    return explaining.absent(message_id, topic, finished=finished)


def _facts(tx: Transaction, row: Row, view: MessageView, stores: Sequence[Transaction]) -> Facts:
    lane = tx.lane(row.lane)
    policy = tx.policy_of(lane)
    is_runnable = lane.place == RUNNABLE
    return Facts(
        now_us=tx.now,
        clock_us=tx.clock,
        view=view,
        policy=policy,
        is_runnable=is_runnable,
        leased=lane.leased,
        back_off_step=lane.back_off_step,
        rest_until_us=lane.back_off_until,
        tat=lane.tat,
        need=lane.need,
        owes=lane.owes,
        rate_now=size_classes.rate(tx.now, lane.seen, lane.lately, lane.before),
        tier=tx.tier_queue_of(lane).tier,
        share=share_text(tx.rules.tiers, tx.tier_queue_of(lane).tier),
        ahead=(
            tx.one("ready_before", lane.lane, row.rank, row.pos, row.seq, COUNTED)[0]
            if row.state != DELAYED
            else 0
        ),
        lanes_before=_before(tx, lane.tier_queue, lane.vt, lane.lane) if is_runnable else 0,
        group=_group(tx, lane),
        key=_key(tx, lane, policy, row),
        busy_with=_busy_with(tx, lane, row) if row.state == PARKED else None,
        flow=lane.flow,
        gates=_gates(tx, lane, policy, stores),
        unhandled_us=(tx.one("note_read", row.mid) or (None,))[0],
    )


def _key(tx: Transaction, lane: Lane, policy: Resolved, row: Row) -> KeyFacts | None:
    """What the message's key has used of its limits."""
    slot = key_limits.key_of(policy, row)
    if slot is None:
        return None
    state = key_limits.StoredKeyState(*(tx.key_states.get(lane.lane, slot) or ()))
    return KeyFacts(leased=state.leased, permit_us=state.permit_us(policy, tx.now))


def _busy_with(tx: Transaction, lane: Lane, row: Row) -> str | None:
    """The id of the message that its serial key is busy with."""
    key = tx.serial_keys.get(lane.lane, row.line)
    head = tx.messages.get(key[0]) if key is not None else None
    return tx.id_of(head) if head is not None else None


def _before(tx: Transaction, queue: int, vt: int, number: int) -> int:
    """What is served before a lane or group in a tier queue, or before a lane in its group."""
    lanes: int = tx.one("lanes_before", queue, vt, number, COUNTED)[0]
    if queue > 0 and tx.groups.exist():
        lanes += tx.one("groups_before", queue, vt, number, COUNTED)[0]
    return min(lanes, COUNTED)


def _group(tx: Transaction, lane: Lane) -> GroupFacts | None:
    group = tx.group_of(lane)
    if group is None:
        return None
    before = _before(tx, group.tier_queue, group.vt, group.number)
    return GroupFacts(name=group.name, before=before)


def _gates(
    tx: Transaction, lane: Lane, policy: Resolved, stores: Sequence[Transaction]
) -> list[GateFacts]:
    key = tx.gate_of(lane, policy)
    shares = views.shares_of(lane.rule, policy, stores)
    return [
        GateFacts(
            name=gate.name,
            room=gate.room(tx.now, lane.lane),
            leased=gate.leased,
            wake_us=gate.wake,
            need=gate.need if gate.is_held(tx.now) else 1,
            owes=gate.owes,
            shares=shares if gate.name.startswith(TOPIC) else (),
        )
        for gate in tx.gates_in(key)
    ]
