"""Why a message is not running: `Desk.explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.engines import classes, fairness
from fairlead.engines.base import Explanation
from fairlead.engines.sqlite import messages, views
from fairlead.engines.sqlite.rows import DEAD, DELAYED, PARKED, RUNNABLE, Lane, Row
from fairlead.units import SECOND

if TYPE_CHECKING:
    from fairlead.engines.sqlite.turn import Turn
    from fairlead.policy import Resolved

COUNTED = 10_000
"""Messages and topics ahead are counted up to here."""


def explain(turn: Turn, message_id: str, topic: str | None) -> Explanation:
    """What the message waits for, the binding reason first, and when it will likely start."""
    row = views.find(turn, message_id, topic)
    if row is None:
        return _absent(turn, message_id, topic)
    view = views.message_view(turn, row, views.Leased(turn))
    if view is None:
        return _absent(turn, message_id, topic)
    told = Explanation(id=view.id, topic=view.topic, state=view.state, message=view)
    if row.state == DEAD:
        told.reasons = [f"it is a dead letter since {_ago(turn, view.died_us)}: {view.reason}; redrive it to try again"]
    elif view.state == "leased":
        told.reasons = [f"a worker holds it (fence {view.fence}), for {_in(turn, view.deadline_us)} more unless it is extended"]
    else:
        _waiting(turn, row, told)
    return told


def _absent(turn: Turn, message_id: str, topic: str | None) -> Explanation:
    known = turn.one("ident_anywhere", message_id) if topic is None else turn.one("ident_read", message_id, topic)
    finished = known is not None and (known[-1] is None or known[-1] > turn.now)
    if finished:
        return Explanation(id=message_id, topic=topic or known[0], state="finished", reasons=["it was finished; its id is kept as known"])
    return Explanation(
        id=message_id, topic=topic, state="unknown",
        reasons=["no message of that id waits, is leased or dead: it was finished, removed, or never published here"],
    )  # fmt: skip


def _waiting(turn: Turn, row: Row, told: Explanation) -> None:
    lane = turn.lane(row.lane)
    policy = turn.rule(lane)
    starts = turn.now
    if policy.paused:
        told.reasons.append("the topic is paused; resume it")
    if row.state == DELAYED:
        told.reasons.append(f"it is due in {_in(turn, row.since)}")
        starts = row.since
    if row.state == PARKED:
        told.reasons.append(_parked(turn, lane, row))
    ahead = turn.one("ready_before", lane.lane, row.rank, row.pos, row.seq, COUNTED)[0] if row.state != DELAYED else 0
    told.ahead = ahead
    later = _limits(turn, lane, policy, told, ahead)
    if ahead:
        told.reasons.append(f"{ahead:,}{'+' if ahead == COUNTED else ''} messages of its topic are ahead of it")
    if lane.place == RUNNABLE:
        _turn_of_lane(turn, lane, told)
    if not told.reasons:
        told.reasons.append("nothing holds it back: it waits for a free worker" + f' of pool "{policy.pool}"')
    if not policy.paused and row.state != PARKED and later is not None:
        told.starts_us = max(starts, later) + _time_ahead(turn, lane, policy, ahead)


def _parked(turn: Turn, lane: Lane, row: Row) -> str:
    found = turn.one("serial_key_read", lane.lane, row.line)
    head = messages.read(turn, found[0]) if found is not None else None
    who = messages.id_of(turn, head) if head is not None else "another message"
    return f'its key "{row.key}" is busy with {who}; they run one at a time, in order'


def _limits(turn: Turn, lane: Lane, policy: Resolved, told: Explanation, ahead: int) -> int | None:
    """Add what its lane's limits say; returns when they admit the next delivery, None where no clock tells."""
    at: int | None = turn.now
    if lane.rest_step and lane.rest_until > turn.now:
        told.reasons.append(f"the topic rests for {_in(turn, lane.rest_until)}, because its destination is unwell")
        at = lane.rest_until
    elif lane.rest_step and lane.leased:
        told.reasons.append("the topic probes whether its destination is well again, one delivery at a time")
        at = None
    concurrency = policy.lane_concurrency
    if concurrency is not None and lane.leased >= concurrency:
        told.reasons.append(f"{lane.leased} of its topic run, and its concurrency is {policy.concurrency}")
        at = None
    if policy.rate is not None:
        tat = fairness.rebase(lane.tat, turn.now, policy.lane_rate, policy.lane_burst)
        permit = fairness.next_permit_us(tat, turn.now, policy.lane_rate, policy.lane_burst)
        if permit > turn.now or ahead:
            told.reasons.append(f"the topic may send again in {_in(turn, permit)} (rate {policy.rate:g}/s)")
            at = max(at, permit) if at is not None else None
    if policy.gate is not None:
        gate = turn.gate(policy.gate)
        if gate is None or not gate.room(turn.now):
            told.reasons.append(f'the gate "{policy.gate}" is shut' + (f", {gate.leased} run through it" if gate is not None else ""))
            at = max(at, gate.wake) if gate is not None and gate.wake is not None and at is not None else None
    return at


def _turn_of_lane(turn: Turn, lane: Lane, told: Explanation) -> None:
    before = turn.one("lanes_before", lane.band, lane.vt, lane.lane, COUNTED)[0]
    band = turn.bands[lane.band]
    if before:
        told.reasons.append(f'{before:,}{"+" if before == COUNTED else ""} topics of tier "{band.tier}" are served before its own')


def _time_ahead(turn: Turn, lane: Lane, policy: Resolved, ahead: int) -> int:
    """How long those ahead will take: by the rate they are limited to, or at which they were delivered lately."""
    speeds = [rate for rate in (policy.lane_rate, classes.rate(turn.now, lane.seen, lane.lately, lane.before)) if rate]
    return round(ahead / min(speeds) * SECOND) if speeds else 0


def _in(turn: Turn, at: int | None) -> str:
    return _duration((at or turn.now) - turn.now)


def _ago(turn: Turn, at: int | None) -> str:
    return _duration(turn.now - (at or turn.now)) + " ago"


def _duration(us: int) -> str:
    if us < SECOND:
        return f"{max(us, 0) / 1000:.0f} ms"
    seconds = us / SECOND
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
