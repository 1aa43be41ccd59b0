"""What this engine knows of a message, for `laneway.engines.explaining`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.engines import classes, explaining
from laneway.engines.explaining import COUNTED, Facts, GateFacts
from laneway.engines.sqlite import messages, views
from laneway.engines.sqlite.rows import DELAYED, PARKED, RUNNABLE, Lane, Row
from laneway.tiers import share_text

if TYPE_CHECKING:
    from laneway.engines.base import Explanation, MessageView
    from laneway.engines.sqlite.turn import Turn
    from laneway.policy import Resolved


def explain(turn: Turn, message_id: str, topic: str | None) -> Explanation:
    """What the message waits for, the binding reason first, and when it will likely start."""
    row = views.find(turn, message_id, topic)
    view = views.message_view(turn, row, views.Leased(turn)) if row is not None else None
    if row is None or view is None:
        return _absent(turn, message_id, topic)
    if view.state in ("dead", "leased"):
        return explaining.not_waiting(view, turn.now, turn.clock)
    return explaining.waiting(_facts(turn, row, view))


def _absent(turn: Turn, message_id: str, topic: str | None) -> Explanation:
    known = turn.one("ident_anywhere", message_id) if topic is None else turn.one("ident_read", message_id, topic)
    if known is None or (known[-1] is not None and known[-1] <= turn.now):
        return explaining.absent(message_id, topic, finished=False)
    return explaining.absent(message_id, topic or known[0], finished=True)


def _facts(turn: Turn, row: Row, view: MessageView) -> Facts:
    lane = turn.lane(row.lane)
    policy = turn.rule(lane)
    is_runnable = lane.place == RUNNABLE
    return Facts(
        now_us=turn.now, clock_us=turn.clock, view=view, policy=policy, is_runnable=is_runnable, leased=lane.leased, rest_step=lane.rest_step,
        rest_until_us=lane.rest_until, tat=lane.tat, rate_now=classes.rate(turn.now, lane.seen, lane.lately, lane.before),
        tier=turn.bands[lane.band].tier,
        share=share_text(turn.rules.tiers, turn.bands[lane.band].tier),
        ahead=turn.one("ready_before", lane.lane, row.rank, row.pos, row.seq, COUNTED)[0] if row.state != DELAYED else 0,
        lanes_before=turn.one("lanes_before", lane.band, lane.vt, lane.lane, COUNTED)[0] if is_runnable else 0,
        busy_with=_busy_with(turn, lane, row) if row.state == PARKED else None, gate=_gate(turn, policy),
        unhandled_us=(turn.one("note_read", row.mid) or (None,))[0],
    )  # fmt: skip


def _busy_with(turn: Turn, lane: Lane, row: Row) -> str | None:
    found = turn.one("serial_key_read", lane.lane, row.line)
    head = messages.read(turn, found[0]) if found is not None else None
    return messages.id_of(turn, head) if head is not None else None


def _gate(turn: Turn, policy: Resolved) -> GateFacts | None:
    gate = turn.gate(policy.gate) if policy.gate is not None else None
    return GateFacts(room=gate.room(turn.now), leased=gate.leased, wake_us=gate.wake) if gate is not None else None
