"""
The end of leases: `Queue.settle`, and leases that run out.

Acks of cached leases are settled together (`_quick_acks`), and so are the deaths of a call that has
no third kind (`_quick_deaths`); others are settled one by one (`_Settling`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from laneway.engines import base
from laneway.engines.shared import adaptive
from laneway.engines.shared.naming import generated_id
from laneway.engines.shared.refusals import (
    AT_MOST_ONCE,
    NO_HANDLER,
    REFUSED,
    STARTED_AND_LOST,
    backlog_full_with_ack,
    finished_without_ack,
    retries_used_up,
)
from laneway.engines.shared.states import (
    ASLEEP,
    AT_GATE,
    FULL,
    IDLE,
    RETENTION_ENDS,
)
from laneway.engines.sql import key_limits, leases, merging, message_ends, messages, putting, views
from laneway.engines.sql.lane_cache import CachedLease, LaneCache
from laneway.engines.sql.rows import Ended, Held, Lane, Row
from laneway.engines.sql.store import Outdated, Read
from laneway.engines.sql.transaction import Transaction
from laneway.errors import BacklogFull
from laneway.message import Action, Draft, Settlement, SettlementAnswer

_LEASE_COLUMNS = 11
"""Columns of `leases_and_messages` that belong to the lease; those of the message follow."""


MOST_RANGES = 8
"""Above this number of ranges, deleting rows by their numbers is faster."""


_FINISHED_ANSWERS: dict[Action, SettlementAnswer] = {"ack": "acked", "dead": "died"}
"""How a lease of a message that is delivered at most once ends; otherwise it is released."""


def settle(
    tx: Transaction, settlements: Sequence[Settlement], publish: Mapping[int, Sequence[Draft]]
) -> list[SettlementAnswer]:
    """
    End each lease; store the outcomes and publish the messages of the settlements that end their
    messages. Raises Outdated, BacklogFull.

    `publish`: drafts by the position of their settlement.
    """
    cached = _take_cached(tx, settlements)
    left, lanes = _quick_acks(tx, settlements, cached)
    answers: list[SettlementAnswer] = ["acked"] * len(settlements)
    parents = {n: _id_of(tx, settlements[n].handle, cached[n]) for n in publish}
    died = _quick_deaths(tx, settlements, left, cached, publish) if left else None
    if died is not None:
        lanes |= died
        for n in left:
            answers[n] = "died"
    elif left:
        settling = _Settling(tx)
        pairs = settling.take(settlements, left, cached)
        settling.load((*pair, settlements[n]) for n, pair in pairs if pair is not None)
        for n, pair in pairs:
            if pair is None:  # also the second settlement of one lease
                answers[n], parents[n] = "lost", ""
                continue
            has_outcome = settlements[n].outcome is not None
            tx.reported_by_handler = (
                (settlements[n].handle, has_outcome) if has_outcome or publish.get(n) else None
            )
            answers[n], parents[n] = settling.settle(*pair, settlements[n])
        tx.reported_by_handler = None
        lanes |= settling.lanes
    _place(tx, lanes.values())
    message_ends.store_outcomes(tx, settlements, answers)
    ended = [
        n
        for n in sorted(publish)
        if (settlements[n].action, answers[n]) in (("ack", "acked"), ("dead", "died"))
    ]
    drafts = [draft for n in ended for draft in _derived(publish[n], parents[n])]
    if drafts:
        for receipt in putting.put(tx, drafts):
            if receipt.outcome == "refused":
                raise BacklogFull(backlog_full_with_ack(receipt), [receipt])
    return answers


def _id_of(tx: Transaction, mid: int, cached: CachedLease | None) -> str:
    own = cached[2].id if cached is not None and cached[2] is not None else None
    return own if own is not None else generated_id(tx.shard.nonce, mid)


def _held(row: Any) -> tuple[Held, Ended | None]:
    """A row of `leases_and_messages`: the lease, and its message if there is one."""
    message = row[_LEASE_COLUMNS:]
    return Held(*row[:_LEASE_COLUMNS]), Ended(*message) if message[0] is not None else None


def _held_in_cache(fence: int, cached: CachedLease) -> tuple[Held, Ended]:
    """As `_held`; its deadline is unknown, which only leases with a charge need."""
    mid, lane, message = cached
    message = message or _bare(mid)
    held = Held(fence, mid, lane, 0, message.granted, 0, 0, message.gate, None, 0, message.slot)
    return held, message


def _bare(mid: int) -> Ended:
    return Ended(mid, None, None, None, 0, 0, 0, 0, 0, 0)


def reads(lane_cache: LaneCache, settlements: Sequence[Settlement]) -> Iterator[Read]:
    """What a settlement of these reads if no lane is cached: the lanes of cached leases."""
    leases = map(lane_cache.leases.get, (each.fence for each in settlements))
    numbers = tuple(dict.fromkeys(lease[1] for lease in leases if lease is not None))
    if numbers:
        yield ("lanes_by_number", numbers) if len(numbers) > 1 else ("lane_by_number", *numbers)


def _take_cached(tx: Transaction, settlements: Sequence[Settlement]) -> list[CachedLease | None]:
    """
    Delete the leases that are cached, and answer them. Nothing is read; the number of rows that
    were deleted shows whether all of them were still held. Raises Outdated.

    Not those that return permits: how many depends on when their lease was granted.
    """
    cache = tx.lane_cache.leases
    cached = [cache.pop(settlement.fence, None) for settlement in settlements]
    fences: list[int] = []
    for n, (settlement, lease) in enumerate(zip(settlements, cached, strict=True)):
        if lease is None:
            continue
        if lease[0] == settlement.handle and not _returns_permits(settlement):
            fences.append(settlement.fence)
        else:
            cached[n] = None
    if fences:
        tx.change_exactly("leases_end", _ranges(fences), len(fences))
    numbers = dict.fromkeys(lease[1] for lease in cached if lease is not None)
    tx.load_numbers(numbers)
    if numbers.keys() - tx.lane_cache.lanes.keys():  # deleted, with its leases
        raise Outdated
    return cached


def _returns_permits(settlement: Settlement) -> bool:
    """Whether it releases a message that never began."""
    return settlement.action == "release" and not settlement.begun


def _quick_acks(
    tx: Transaction, settlements: Sequence[Settlement], cached: Sequence[CachedLease | None]
) -> tuple[list[int], dict[int, Lane]]:
    """
    Settle the acks of cached leases, as most settlements are: delete the messages, and count.

    Returns the positions of all other settlements, and the lanes, which have still to be placed.
    """
    lanes = tx.lane_cache.lanes
    left: list[int] = []
    mids: list[int] = []
    touched: dict[int, Lane] = {}
    featured: list[tuple[Lane, Ended]] = []
    last, dedupes, is_quick = -1, False, True
    flow: adaptive.Flow | None = None
    least = most = 0
    mixed: set[int] | None = None
    for n, (settlement, lease) in enumerate(zip(settlements, cached, strict=True)):
        if lease is None or settlement.action != "ack":
            left.append(n)
            continue
        mid, number, message = lease
        lane = lanes[number]
        if number != last:
            last, policy = number, tx.policy_of(lane)
            dedupes = policy.dedupe is not None
            is_quick, flow = not (lane.back_off_step or policy.adapts), lane.flow
            if flow is not None:
                if mixed is None:
                    mixed = _mixed_lanes(settlements, cached)
                is_quick = not lane.back_off_step and policy.lane_adapts and number not in mixed
                least = policy.min_concurrency
                most = max(least, policy.max_concurrency)
            if is_quick:
                touched[number] = lane
        if not is_quick:
            left.append(n)
            continue
        mids.append(mid)
        lane.leased -= 1
        lane.done += 1
        if flow is not None:
            here = adaptive.limit_of(flow, least, most)
            adaptive.succeeded(flow, settlement.cost_us, least, most, here, tx.now)
        if message is not None:
            featured.append((lane, message))
        elif dedupes:
            featured.append((lane, _bare(mid)))
    if mids:
        _delete_messages(tx, mids)
        tx.shard.leased -= len(mids)
        tx.shard.done += len(mids)
    if featured:
        _finish(tx, featured)
    return left, touched


def _mixed_lanes(
    settlements: Sequence[Settlement], cached: Sequence[CachedLease | None]
) -> set[int]:
    """
    The lanes with other settlements than acks of cached leases: what they learn of their
    destination depends on the order. All lanes, if one is not known.
    """
    is_all = None in cached
    return {
        lease[1]
        for settlement, lease in zip(settlements, cached, strict=True)
        if lease is not None
        and (is_all or settlement.action != "ack" or settlement.overload is not None)
    }


def _finish(tx: Transaction, acked: list[tuple[Lane, Ended]]) -> None:
    """End messages that are more than rows of `message` and `lease`."""
    joined = [message.mid for _, message in acked if message.joined]
    if joined:
        tx.idents.load_joined(joined)
    last, topic, dedupes = -1, "", False
    for lane, message in acked:
        if lane.lane != last:
            last, topic = lane.lane, lane.topic or ""
            dedupes = not topic or tx.policy_of(lane).dedupe is not None
        if dedupes or message.id is not None or message.joined or message.sticky:
            messages.finish_ids(tx, message, message.topic or topic, remember=True)
        if message.parts or message.has_note:
            messages.delete_extras(tx, message)
    _free_held(tx, acked)


def _free_held(tx: Transaction, ended: list[tuple[Lane, Ended]]) -> None:
    """Free what the leases of these messages held: slots of gates and keys, and serial keys."""
    serial_keys: list[tuple[Lane, str]] = []
    slots: list[tuple[Lane, str]] = []
    tx.load_gates({message.gate for _, message in ended if message.gate is not None})
    for lane, message in ended:
        if message.gate is not None:
            tx.free_gates(message.gate, tx.now - message.granted)
        if message.slot is not None:
            slots.append((lane, message.slot))
        if message.serial and (line := message.line) is not None:
            serial_keys.append((lane, line))
    if serial_keys:
        messages.free_held_keys(tx, serial_keys)
    if slots:
        key_limits.load(tx, [(lane.lane, slot) for lane, slot in slots])
        for lane, slot in slots:
            key_limits.free(tx, lane, slot)


def _quick_deaths(
    tx: Transaction,
    settlements: Sequence[Settlement],
    left: Sequence[int],
    cached: Sequence[CachedLease | None],
    publish: Collection[int],
) -> dict[int, Lane] | None:
    """
    Bury the messages of cached leases without reading them, if all settlements that are `left` do
    this. Else None, and nothing is done: dead letters are numbered in the order of the call.

    Returns the lanes, which have still to be placed.
    """
    dying = _dying(tx, settlements, left, cached)
    if dying is None:
        return None
    shard, now = tx.shard, tx.now
    mids = [message.mid for _, message in dying]
    _notify_of_deaths(tx, settlements, left, dying, publish)
    if tx.change("messages_bury", tx.array(mids)) != len(mids):
        raise Outdated
    tx.notes.load((message.mid,) for _, message in dying if message.has_note)
    letters: list[tuple[Any, ...]] = []
    ends: dict[int, list[int]] = {}
    first_entries: dict[tuple[str, str | None], str] = {}
    for n, (lane, message) in zip(left, dying, strict=True):
        lane.leased -= 1
        lane.died += 1
        mid, topic = message.mid, messages.topic_of(message, lane)
        reason, error = settlements[n].reason or REFUSED, settlements[n].error
        if message.has_note:
            messages.add_history(tx, mid, reason, error)
        else:
            entry = first_entries.get((reason, error))
            if entry is None:
                entry = first_entries[reason, error] = messages.first_history(now, reason, error)
            tx.notes.put((mid,), None, 0, entry)
        until = now + tx.policy(topic).dead_ttl
        letters.append((mid, topic, now, until, reason, 0 if error is None else error))
        ends.setdefault(until, []).append(mid)
        tx.letters[topic] = tx.letters.get(topic, 0) + 1
    tx.run_rows("dead_insert", letters)
    for until, ending in ends.items():
        tx.expect_event(until)
        tx.run("retention_ends", until, RETENTION_ENDS, tx.array(ending))
    shard.leased -= len(mids)
    shard.died += len(mids)
    shard.dead += len(mids)
    _free_held(tx, dying)
    touched = {lane.lane: lane for lane, _ in dying}
    for lane in touched.values():
        tx.touch(lane)
    return touched


def _dying(
    tx: Transaction,
    settlements: Sequence[Settlement],
    left: Sequence[int],
    cached: Sequence[CachedLease | None],
) -> list[tuple[Lane, Ended]] | None:
    """The lanes and messages of these settlements, if all are deaths of cached leases."""
    lanes, dying = tx.lane_cache.lanes, []
    for n in left:
        lease = cached[n]
        if lease is None or settlements[n].action != "dead":
            return None
        mid, number, message = lease
        lane = lanes[number]
        if lane.flow is not None or tx.policy_of(lane).adapts:
            return None
        dying.append((lane, _bare(mid) if message is None else message))
    return dying


def _notify_of_deaths(
    tx: Transaction,
    settlements: Sequence[Settlement],
    left: Sequence[int],
    dying: Sequence[tuple[Lane, Ended]],
    publish: Collection[int],
) -> None:
    """Store the outcomes, and publish the end notices, of those messages that ask for them."""
    mids = [message.mid for _, message in dying]
    rows = {row[0]: Row(*row) for row in tx.all("messages_with_headers", tx.array(mids))}
    if not rows:
        return
    for n, (lane, message) in zip(left, dying, strict=True):
        row = rows.get(message.mid)
        if row is None:
            continue
        has_outcome = settlements[n].outcome is not None
        tx.reported_by_handler = (row.mid, has_outcome) if has_outcome or n in publish else None
        messages.dead_letter_ended(
            tx, row, messages.topic_of(row, lane), settlements[n].reason or REFUSED
        )
    tx.reported_by_handler = None


def _delete_messages(tx: Transaction, mids: list[int]) -> None:
    """Delete their rows: one range after the other, or one by one where they are scattered."""
    ranges = _ranges(mids)
    if len(ranges) <= MOST_RANGES:
        tx.run_many("messages_end", ranges)
    else:
        tx.run("messages_delete", tx.array(mids))


def _place(tx: Transaction, lanes: Iterable[Lane]) -> None:
    """
    Place lanes that have fewer leases now; most keep their place, and are only written. In the
    order of their numbers, because the first ones may use up what gates have to spare.
    """
    for lane in sorted(lanes, key=attrgetter("lane")):
        if (
            lane.place in (FULL, ASLEEP, AT_GATE)
            or lane.back_off_step
            or lane.flow is not None
            or (not lane.ready and lane.place != IDLE)
            or (lane.tier_queue < 0 and tx.groups.get(-lane.tier_queue).limited)
        ):
            tx.place(lane)
        else:
            tx.touch_shrunk(lane)


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """The fewest ranges, each first and last, that contain exactly these numbers."""
    numbers.sort()
    ranges: list[tuple[int, int]] = []
    first = last = numbers[0]
    for number in numbers:
        if number > last + 1:
            ranges.append((first, last))
            first = number
        last = number
    ranges.append((first, last))
    return ranges


def _derived(drafts: Sequence[Draft], parent: str) -> list[Draft]:
    """Give messages that are published with an ack ids from it, so that a repeat is a duplicate."""
    return [
        msgspec.structs.replace(
            draft, id=draft.id if draft.id is not None else f"{parent}:{n}", sticky=True
        )
        for n, draft in enumerate(drafts)
    ]


class _Settling:
    """One call's settlements: reads what they need, then decides each of them."""

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        self.lanes: dict[int, Lane] = {}
        """The lanes of these leases, which have still to be placed."""

    def take(
        self,
        settlements: Sequence[Settlement],
        positions: Sequence[int],
        cached: Sequence[CachedLease | None],
    ) -> list[tuple[int, tuple[Held, Ended | None] | None]]:
        """
        The leases of these settlements, and their messages; None: it is not held. Those that were
        not cached are read and deleted.
        """
        tx = self.tx
        fences = [settlements[n].fence for n in positions if cached[n] is None]
        rows = tx.all("leases_and_messages", tx.array(fences)) if fences else []
        tx.load_numbers({row[2] for row in rows})
        held = {(row[0], row[1]): _held(row) for row in rows}
        pairs: list[tuple[int, tuple[Held, Ended | None] | None]] = []
        ended: list[int] = []
        for n in positions:
            lease, fence = cached[n], settlements[n].fence
            if lease is not None:
                pairs.append((n, _held_in_cache(fence, lease)))
                continue
            pair = held.pop((fence, settlements[n].handle), None)
            pairs.append((n, pair))
            if pair is not None:
                ended.append(fence)
        if ended:
            tx.run("leases_delete", tx.array(ended))
        return pairs

    def load(self, pairs: Iterable[tuple[Held, Ended | None, Settlement]]) -> None:
        """Read the rows that decide these settlements, all of one table in one statement."""
        tx = self.tx
        returned: list[tuple[int, int]] = []
        joined: list[int] = []
        serial_keys: list[tuple[int, str]] = []
        slots: list[tuple[int, str]] = []
        notes: list[tuple[int]] = []
        for held, ended, settlement in pairs:
            if held.gone:
                continue
            if held.empty is not None:
                notes.append((held.mid,))
            if held.slot is not None:
                slots.append((held.lane, held.slot))
            if held.empty:
                serial_keys.append((held.lane, held.empty))
            if ended is None:
                continue
            if ended.serial:
                serial_keys.append((held.lane, ended.line or ""))
            if settlement.action == "ack":
                if ended.joined:
                    joined.append(ended.mid)
            else:
                returned.append((held.lane, ended.mid))
        if joined:
            tx.idents.load_joined(joined)
        if serial_keys:
            messages.load_parked(tx, serial_keys)
        if slots:
            key_limits.load(tx, slots)
        notes += [(mid,) for _, mid in returned]
        if notes:
            tx.notes.load(notes)
        if returned:
            merging.load_returning(tx, returned)

    def settle(
        self, held: Held, ended: Ended | None, settlement: Settlement
    ) -> tuple[SettlementAnswer, str]:
        """End one lease; returns the answer and the message's id."""
        tx = self.tx
        if held.gone:
            return "gone", ""
        lane = tx.lane(held.lane)
        self.lanes[lane.lane] = lane
        leases.release_slots(tx, lane, held, settlement.cost_us)
        if lane.flow is not None or tx.policy_of(lane).adapts:
            settlement = leases.adapt(tx, lane, settlement)
        if held.empty is not None:
            return self._settle_empty(lane, held, settlement), generated_id(
                tx.shard.nonce, held.mid
            )
        if settlement.action == "ack":
            return "acked", self._ack(lane, held, ended)
        tx.touch(lane)
        message = tx.messages.get(held.mid)
        if message is None:
            return "gone", ""
        message_id = tx.id_of(message)
        return _end_unacked(tx, lane, held, message, settlement), message_id

    def _ack(self, lane: Lane, held: Held, ended: Ended | None) -> str:
        tx = self.tx
        lane.done += 1
        tx.shard.done += 1
        self._end_back_off(lane, held)
        message_id = generated_id(tx.shard.nonce, held.mid)
        if ended is None:
            return message_id
        messages.finish_ids(tx, ended, messages.topic_of(ended, lane), remember=True)
        messages.delete(tx, ended)
        if ended.serial:
            messages.free_key(tx, lane, ended.line, ended.mid)
        return ended.id if ended.id is not None else message_id

    def _settle_empty(self, lane: Lane, held: Held, settlement: Settlement) -> SettlementAnswer:
        """
        At most once: the message was finished at its delivery, whatever the action is. Only an ack
        and a back-off have an effect, on the topic's back-off.
        """
        self._report_finished(held, settlement)
        messages.free_key(self.tx, lane, held.empty or None, held.mid)
        if settlement.action == "ack":
            self._end_back_off(lane, held)
        elif settlement.action == "back_off":
            _back_off(self.tx, lane, held, settlement.delay_us)
        return _FINISHED_ANSWERS.get(settlement.action, "released")

    def _report_finished(self, held: Held, settlement: Settlement) -> None:
        """At most once: report the end of a message that its handler has not reported."""
        if settlement.action not in _FINISHED_ANSWERS:
            self.tx.reported_by_handler = None
        status = None if settlement.action == "ack" else "dead"
        reason = finished_without_ack(settlement.action, settlement.error, settlement.reason)
        message_ends.finished_message_ended(self.tx, held.mid, status, reason)

    def _end_back_off(self, lane: Lane, held: Held) -> None:
        """An ack of a lease that began after the back-off shows that the destination works."""
        if lane.back_off_step and held.fence > lane.back_off_fence:
            lane.back_off_step = lane.back_off_until = 0
            self.tx.touch(lane)


def _end_unacked(
    tx: Transaction, lane: Lane, held: Held, row: Row, settlement: Settlement
) -> SettlementAnswer:
    """A lease ended without an ack: the message waits again, or becomes a dead letter."""
    row.deliveries += 1
    row.odd = 1
    action = settlement.action
    row.attempts += action in ("retry", "dead")
    topic = messages.topic_of(row, lane)
    if action == "retry":
        return _retry(tx, lane, row, settlement, topic)
    if action == "dead":
        die(tx, lane, row, settlement.reason or REFUSED, settlement.error)
        return "died"
    if action == "unhandled":
        return _unhandled(tx, lane, row, topic)
    delay = settlement.delay_us or 0
    if action == "back_off":
        _back_off(tx, lane, held, settlement.delay_us)
        delay = 0
    elif not settlement.begun:
        leases.return_permits(tx, lane, held, messages.cost_of(row.headers))
    _wait_again(tx, lane, row, tx.now + delay if delay > 0 else None)
    return "released"


def _retry(
    tx: Transaction, lane: Lane, row: Row, settlement: Settlement, topic: str
) -> SettlementAnswer:
    policy = tx.policy(topic)
    what = settlement.reason or "failed"
    messages.add_history(tx, row.mid, what, settlement.error)
    if row.attempts > policy.retries:
        die(
            tx,
            lane,
            row,
            retries_used_up(row.attempts, settlement.error, settlement.reason),
            settlement.error,
            is_recorded=True,
        )
        return "died"
    delay = settlement.delay_us
    if delay is None:
        delay = policy.backoff.delay_us(
            row.attempts, tx.rules.random() if policy.backoff.jitter else 1.0
        )
    lane.retried += 1
    tx.shard.retried += 1
    if messages.yields(row):
        messages.free_key(tx, lane, row.line, row.mid)
    _wait_again(tx, lane, row, tx.now + max(delay, 0))
    return "retried"


def die(
    tx: Transaction,
    lane: Lane,
    row: Row,
    reason: str,
    error: str | None,
    *,
    is_recorded: bool = False,
) -> None:
    """The message becomes a dead letter; `is_recorded`: its history has the reason already."""
    if not is_recorded:
        messages.add_history(tx, row.mid, reason, error)
    lane.died += 1
    tx.shard.died += 1
    messages.bury(tx, lane, row, reason, error)
    if row.serial:
        messages.free_key(tx, lane, row.line, row.mid)


def _unhandled(tx: Transaction, lane: Lane, row: Row, topic: str) -> SettlementAnswer:
    """No handler: the message waits, longer each time, and dies after `on_unhandled`."""
    first, tries, history = tx.notes.get(row.mid) or (None, 0, "[]")
    first = first if first is not None else tx.now
    longest = tx.policy(topic).on_unhandled
    if longest is not None and tx.now - first >= longest:
        die(tx, lane, row, NO_HANDLER, None)
        return "died"
    delay = min(base.UNHANDLED_FIRST_US << min(tries, 16), base.UNHANDLED_MAX_US)
    tx.notes.put((row.mid,), first, tries + 1, history)
    _wait_again(tx, lane, row, tx.now + delay)
    return "released"


def _back_off(tx: Transaction, lane: Lane, held: Held, delay_us: int | None) -> None:
    """The topic's destination is unavailable: all its lanes back off."""
    if held.fence <= lane.back_off_fence:
        return
    if lane.back_off_step:
        step = min(lane.back_off_step * 2, base.BACK_OFF_MAX_US)
    else:
        step = base.BACK_OFF_FIRST_US
    if delay_us is not None:
        step = max(delay_us, 1)
    for each in _lanes_of_topic(tx, lane):
        each.back_off_step, each.back_off_until, each.back_off_fence = (
            step,
            tx.now + step,
            tx.shard.fence,
        )
        tx.place(each)


def _lanes_of_topic(tx: Transaction, lane: Lane) -> list[Lane]:
    if lane.topic is None or tx.policy_of(lane).partitions == 1:
        return [lane]
    return views.lanes_of(tx, lane.topic)


def _wait_again(tx: Transaction, lane: Lane, row: Row, due: int | None) -> None:
    """
    The message waits again: delayed until `due`, which becomes its since, or ready with its old
    since. It expires if its ttl is over.
    """
    if row.expires is not None and row.expires <= tx.now:
        tx.messages.save(row)
        messages.expire(tx, lane, row)
        if row.serial:
            messages.free_key(tx, lane, row.line, row.mid)
        return
    if due is not None:
        row.since = due
    collects = merging.rejoin(tx, lane, row)
    messages.begin_waiting(tx, lane, row, collects=collects)
    tx.messages.save(row)


def give_back(tx: Transaction, lane: Lane, held: Held, row: Row) -> None:
    """Take a message from its worker, whose settlement will be lost; it waits again."""
    tx.run("leases_delete", tx.array([held.fence]))
    tx.lane_cache.leases.pop(held.fence, None)
    leases.release_slots(tx, lane, held, tx.now - held.granted)
    row.deliveries += 1
    _wait_again(tx, lane, row, None)
    tx.touch(lane)


# Leases that run out


def _expire_lease(tx: Transaction, held: Held) -> None:
    """Nobody settled the lease before its deadline: its message is a suspect."""
    if held.gone:
        return
    lane = tx.lane(held.lane)
    leases.release_slots(tx, lane, held, held.deadline - held.granted)
    if held.empty is not None:
        message_ends.finished_message_ended(tx, held.mid, "dead", AT_MOST_ONCE)
        messages.free_key(tx, lane, held.empty or None, held.mid)
    else:
        row = tx.messages.get(held.mid)
        if row is not None:
            _suspect(tx, lane, held, row)
    tx.place(lane)


def load_expired(tx: Transaction, over: Sequence[Held]) -> None:
    """Read the rows that decide what the messages of these leases become."""
    returned = [(held.lane, held.mid) for held in over if held.empty is None]
    tx.notes.load((held.mid,) for held in over if held.started or held.empty is not None)
    merging.load_returning(tx, returned)
    key_limits.load(tx, [(held.lane, held.slot) for held in over if held.slot is not None])
    lines = [(held.lane, held.empty) for held in over if held.empty]
    rows = ((lane, tx.messages.get(mid)) for lane, mid in returned)
    lines += [(lane, row.line or "") for lane, row in rows if row is not None and row.serial]
    messages.load_parked(tx, lines)


def _suspect(tx: Transaction, lane: Lane, held: Held, row: Row) -> None:
    row.deliveries += 1
    row.odd = 1
    row.suspect = 1
    if held.started:
        row.attempts += 1
        messages.add_history(tx, row.mid, STARTED_AND_LOST, None)
        if row.attempts > tx.policy(messages.topic_of(row, lane)).retries:
            die(tx, lane, row, STARTED_AND_LOST, None, is_recorded=True)
            return
    _wait_again(tx, lane, row, None)


def expire_leases(tx: Transaction, first: int, last: int, at: int, most: int) -> int:
    """
    End the leases of a batch (fences `first` to `last`) whose deadline is at most `at`, and move
    the batch's end to its next deadline. Returns how many leases ended.
    """
    over = [Held(*row) for row in tx.all("leases_ended", first, last, at, most)]
    tx.load_numbers({held.lane for held in over if not held.gone})
    if over:
        tx.run("leases_delete", tx.array([held.fence for held in over]))
        load_expired(tx, [held for held in over if not held.gone])
    for held in over:
        tx.lane_cache.leases.pop(held.fence, None)
        _expire_lease(tx, held)
    (deadline,) = tx.one("leases_next_deadline", first, last)
    if deadline is not None:
        tx.lease_ends.put((deadline, first), last)
    return len(over)
