"""What this engine reads of a message, for `laneway.engines.shared.explaining`."""

from __future__ import annotations

from laneway.engines.base import Explanation, MessageView
from laneway.engines.shared import explaining, gates, size_classes
from laneway.engines.shared.explaining import COUNTED, Facts, GateFacts, GroupFacts, KeyFacts
from laneway.engines.shared.key_limits import KeyState
from laneway.engines.shared.naming import PARTITION
from laneway.engines.shared.states import DEAD, DELAYED, RUNNABLE
from laneway.engines.valkey import record_formats, views
from laneway.engines.valkey.record_formats import GroupRecord, Lane, Record
from laneway.engines.valkey.views import View
from laneway.policy import Resolved, gate_names
from laneway.tiers import share_text
from laneway.topic_groups import GROUP, TOPIC


def explain(view: View, message_id: str, topic: str | None) -> Explanation:
    """What the message waits for, and when it will likely start."""
    found = views.find(view, message_id, topic)
    if found is None:
        return explaining.absent(
            message_id,
            topic,
            finished=topic is not None and views.is_finished(view, message_id, topic),
        )
    shard, record = found
    message = views.message_view(view, shard, record)
    lane = views.read_lane(view, shard, str(record.lane))
    if record.state == DEAD or message.state == "leased" or lane is None:
        return explaining.not_waiting(message, view.times[shard], view.clocks[shard])
    return explaining.waiting(_facts(view, shard, record, message, lane))


def _facts(view: View, shard: int, record: Record, message: MessageView, lane: Lane) -> Facts:
    space = view.space
    policy = view.policy(
        record.topic
        if views.topic_of_lane(lane.name) is not None
        else lane.name[1:].partition(PARTITION)[0]
    )
    stored = (
        space.read(shard, "HGET", "group_queues", -lane.tier_queue) if lane.tier_queue < 0 else None
    )
    group = record_formats.read_group(stored) if stored is not None else None
    tier_queue = lane.tier_queue if group is None else group.tier_queue
    _, tier, *_ = view.counters[shard].tier_queues[tier_queue - 1]
    before = _before(view, shard, lane.tier_queue, lane.vt) if lane.place == RUNNABLE else 0
    return Facts(
        now_us=view.times[shard],
        clock_us=view.clocks[shard],
        view=message,
        policy=policy,
        is_runnable=lane.place == RUNNABLE,
        leased=lane.leased,
        back_off_step=lane.back_off_step,
        rest_until_us=lane.back_off_until,
        tat=lane.tat,
        need=lane.need,
        owes=lane.owes,
        rate_now=size_classes.rate(view.times[shard], lane.seen, lane.lately, lane.before),
        tier=tier,
        share=share_text(view.space.tiers, tier),
        ahead=min(_ahead(view, shard, record, lane), COUNTED) if record.state != DELAYED else 0,
        lanes_before=before,
        group=(
            GroupFacts(name=group.name, before=_before(view, shard, tier_queue, group.vt))
            if group is not None
            else None
        ),
        key=_key(view, shard, record, policy, lane),
        busy_with=_busy_with(view, shard, record) if message.state == "parked" else None,
        flow=lane.flow,
        gates=_gates(view, shard, lane, record.topic, policy, group),
        unhandled_us=record.unhandled_from or None,
    )


def _before(view: View, shard: int, queue: int, vt: int) -> int:
    """What is served before a lane or group in a tier queue, or before a lane in its group."""
    before: int = view.space.read(shard, "ZCOUNT", f"run:{queue}", "-inf", f"({vt}")
    return min(before, COUNTED)


def _ahead(view: View, shard: int, record: Record, lane: Lane) -> int:
    """
    The messages of its lane before it: among sorted ones by its position, among plain ones by
    binary search.
    """
    code = record_formats.rank_code(record.rank)
    place = code + record.position.to_bytes(7) + record.seq.to_bytes(7)
    sorted_ = view.space.read(shard, "ZLEXCOUNT", f"z:{lane.number}", "-", b"(" + place)
    latest = lane.latest_plain
    low, high = 0, lane.listed + len(latest)
    while low < high:
        middle = (low + high) // 2
        mid = (
            latest[middle - lane.listed]
            if middle >= lane.listed
            else int(view.space.read(shard, "LINDEX", f"q:{lane.number}", middle) or 0)
        )
        if (found := next(iter(views.read_records(view, shard, [mid])), None)) is not None and (
            (found.rank, found.position, found.seq) < (record.rank, record.position, record.seq)
        ):
            low = middle + 1
        else:
            high = middle
    return int(sorted_) + low


def _key(view: View, shard: int, record: Record, policy: Resolved, lane: Lane) -> KeyFacts | None:
    """What the message's key has used of its limits."""
    if not policy.key_limited or record.key is None or record.serial:
        return None
    slot = record_formats.key_slot(lane, record.topic, record.key)
    stored = view.space.read(shard, "HGET", "key_states", slot)
    state = record_formats.read_key_state(stored) if stored is not None else KeyState()
    return KeyFacts(leased=state.leased, permit_us=state.permit_us(policy, view.times[shard]))


def _busy_with(view: View, shard: int, record: Record) -> str | None:
    stored = view.space.read(shard, "HGET", "keys", f"{record.topic}\0{record.key}")
    if stored is None:
        return None
    holder, _ = record_formats.unpack_first(stored, 2)
    head = next(iter(views.read_records(view, shard, [holder])), None)
    return views.message_view(view, shard, head).id if head is not None else None


def _gates(
    view: View,
    shard: int,
    lane: Lane,
    topic: str,
    policy: Resolved,
    group: GroupRecord | None,
) -> list[GateFacts]:
    names, shares = gate_names(policy.gate), views.shares_of(view, topic)
    if policy.shared is not None:
        names.append(TOPIC + topic)
    if group is not None and group.limited:
        names.append(GROUP + group.name)
    found: list[GateFacts] = []
    for name, stored in zip(names, _stored_gates(view, shard, names), strict=True):
        if stored is not None:
            gate, now = record_formats.read_gate(stored), view.times[shard]
            limits, debt = gate.limits_here, gate.debt
            kept = debt.kept(now)
            found.append(
                GateFacts(
                    name=name,
                    room=gates.room(
                        limits,
                        gate.tat,
                        gate.leased,
                        now,
                        gate.owes,
                        kept,
                        is_holder=kept > 0 and gate.holder == lane.number,
                    ),
                    leased=gate.leased,
                    wake_us=gates.opens_us(limits, gate.tat, gate.leased, now, debt),
                    need=kept or 1,
                    owes=gate.owes,
                    shares=shares if name.startswith(TOPIC) else (),
                )
            )
    return found


def _stored_gates(view: View, shard: int, names: list[str]) -> list[bytes | None]:
    if not names:
        return []
    stored: list[bytes | None] = view.space.read(shard, "HMGET", "gates", *names)
    return stored
