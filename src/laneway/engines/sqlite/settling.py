"""The end of leases: `Engine.settle`, `start`, `extend`, and leases that run out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from laneway.engines import base
from laneway.engines.shared.naming import PARTITION, generated_id
from laneway.engines.shared.refusals import (
    NO_HANDLER,
    REFUSED,
    STARTED_AND_LOST,
    backlog_full_with_ack,
    retries_used_up,
)
from laneway.engines.shared.states import ASLEEP, AT_GATE, FULL, IDLE, LEASES_END
from laneway.engines.sqlite import endings, leases, merging, messages, putting
from laneway.engines.sqlite.rows import Held, Lane, Row
from laneway.errors import BacklogFull

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from laneway.engines.sqlite.transaction import Transaction
    from laneway.message import Action, Draft, Settlement, SettlementAnswer

_dumps = msgspec.json.Encoder().encode

_PLAIN = 10
"""Columns of `leases_and_messages` that are the lease's; the message's follow."""


class Outdated(Exception):  # never leaves the engine
    """
    A lease that was handed out here is held no more: the transaction is to be rolled back and done
    again, by what the file says.
    """


_FINISHED_ANSWERS: dict[Action, SettlementAnswer] = {"ack": "acked", "dead": "died"}
"""How a lease of a message that is delivered at most once ends; otherwise it is released."""


def settle(
    tx: Transaction, settlements: Sequence[Settlement], publish: Mapping[int, Sequence[Draft]]
) -> list[SettlementAnswer]:
    """
    End each lease as it says; keep and publish what goes with those that end their messages. Raises
    Outdated, BacklogFull.
    """
    left, lanes = _quick_acks(tx, settlements)
    answers: list[SettlementAnswer] = ["acked"] * len(settlements)
    parents = {n: generated_id(tx.shard.nonce, settlements[n].handle) for n in publish}
    if left:
        found = {
            row[0]: row
            for row in tx.all("leases_and_messages", _dumps([settlements[n].fence for n in left]))
        }
        tx.load_numbers({row[2] for row in found.values()})
        ending = _Ending(tx)
        for n in left:
            row = found.get(settlements[n].fence)
            if row is not None and row[1] == settlements[n].handle:
                del found[row[0]]  # the second settlement of one lease is lost
            has_outcome = settlements[n].outcome is not None
            tx.reported_by_handler = (
                (settlements[n].handle, has_outcome) if has_outcome or publish.get(n) else None
            )
            answers[n], parents[n] = ending.settle(row, settlements[n])
        tx.reported_by_handler = None
        lanes |= ending.write()
    _stand(tx, lanes.values())
    endings.store_outcomes(tx, settlements, answers)
    ends = [
        n
        for n in sorted(publish)
        if (settlements[n].action, answers[n]) in (("ack", "acked"), ("dead", "died"))
    ]
    drafts = [draft for n in ends for draft in _derived(publish[n], parents[n])]
    if drafts:
        for receipt in putting.put(tx, drafts):
            if receipt.outcome == "refused":
                raise BacklogFull(backlog_full_with_ack(receipt), [receipt])
    return answers


def _quick_acks(
    tx: Transaction, settlements: Sequence[Settlement]
) -> tuple[list[int], dict[int, Lane]]:
    """
    Acks of leases that were handed out here and of which nothing stays but counts, which is most of
    them: nothing is read of them.

    That they were still held is seen from the number of rows that go. Returns the positions of all
    other settlements, and the lanes.
    """
    handed, lanes = tx.lane_cache.plain_leases, tx.lane_cache.lanes
    places = [handed.pop(settlement.fence, None) for settlement in settlements]
    tx.load_numbers({place[1] for place in places if place is not None})
    left: list[int] = []
    fences: list[int] = []
    mids: list[int] = []
    touched: dict[int, Lane] = {}
    for n, (settlement, place) in enumerate(zip(settlements, places, strict=True)):
        lane = lanes.get(place[1]) if place is not None else None
        if (
            place is None
            or lane is None
            or settlement.action != "ack"
            or settlement.handle != place[0]
            or lane.rest_step
            or tx.policy_of(lane).dedupe is not None
        ):
            left.append(n)
            continue
        fences.append(settlement.fence)
        mids.append(place[0])
        lane.leased -= 1
        lane.done += 1
        touched[lane.lane] = lane
    if fences:
        if tx.run_many("leases_end", _runs(fences)) != len(fences):
            raise Outdated
        tx.run_many("messages_end", _runs(mids))
        tx.shard.leased -= len(fences)
        tx.shard.done += len(fences)
    return left, touched


def _stand(tx: Transaction, lanes: Iterable[Lane]) -> None:
    """Lanes with fewer leases: most stand where they stood."""
    for lane in lanes:
        if (
            lane.place in (FULL, ASLEEP, AT_GATE)
            or lane.rest_step
            or (not lane.ready and lane.place != IDLE)
        ):
            tx.place(lane)
        else:
            tx.touch_shrunk(lane)


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """The ranges, first and last, that hold these numbers and no other."""
    numbers.sort()
    runs: list[tuple[int, int]] = []
    first = last = numbers[0]
    for number in numbers:
        if number > last + 1:
            runs.append((first, last))
            first = number
        last = number
    runs.append((first, last))
    return runs


def _derived(drafts: Sequence[Draft], parent: str) -> list[Draft]:
    """Messages published with an ack: their ids come from it, so that a repeat is a duplicate."""
    return [
        msgspec.structs.replace(
            draft, id=draft.id if draft.id is not None else f"{parent}:{n}", sticky=True
        )
        for n, draft in enumerate(drafts)
    ]


class _Ending:
    """One call's settlements: plain acks are collected and written together."""

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        self._leases: list[tuple[int]] = []
        self._messages: list[tuple[int]] = []
        self._lanes: dict[int, Lane] = {}

    def write(self) -> dict[int, Lane]:
        """Returns the lanes, which have still to be placed."""
        tx = self.tx
        tx.run_many("lease_delete", self._leases)
        tx.run_many("message_delete", self._messages)
        return self._lanes

    def settle(self, row: Any, settlement: Settlement) -> tuple[SettlementAnswer, str]:
        if row is None or row[1] != settlement.handle:
            return "lost", ""
        tx = self.tx
        held = Held(*row[:_PLAIN])
        self._leases.append((held.fence,))
        if held.gone:
            return "gone", ""
        lane = tx.lane(held.lane)
        self._lanes[lane.lane] = lane
        leases.release_slots(tx, lane, held, settlement.cost_us)
        if held.empty is not None:
            return self._settle_empty(lane, held, settlement), generated_id(
                tx.shard.nonce, held.mid
            )
        if settlement.action == "ack":
            return "acked", self._ack(lane, held, row)
        tx.touch(lane)
        message = messages.read(tx, held.mid)
        if message is None:
            return "gone", ""
        message_id = tx.id_of(message)
        return come_back(tx, lane, held, message, settlement), message_id

    def _ack(self, lane: Lane, held: Held, row: Any) -> str:
        tx = self.tx
        message_id, serial, joined, parts, sticky, troubled, key = row[_PLAIN:]
        lane.done += 1
        tx.shard.done += 1
        self._is_well(lane, held)
        if (
            message_id is not None
            or joined
            or parts
            or sticky
            or troubled
            or tx.policy_of(lane).dedupe is not None
            or lane.topic is None
        ):
            message = messages.read(tx, held.mid)
            if message is not None:
                messages.finish_ids(tx, message, messages.topic_of(message, lane), remember=True)
                messages.delete(tx, message)
        else:
            self._messages.append((held.mid,))
        if serial:
            messages.free_key(tx, lane, key, held.mid)
        return message_id if message_id is not None else generated_id(tx.shard.nonce, held.mid)

    def _settle_empty(self, lane: Lane, held: Held, settlement: Settlement) -> SettlementAnswer:
        """
        At most once: whatever the handler says, the message is done; what it says of the
        destination counts.
        """
        messages.free_key(self.tx, lane, held.empty or None, held.mid)
        if settlement.action == "ack":
            self._is_well(lane, held)
        elif settlement.action == "back_off":
            _rest(self.tx, lane, held, settlement.delay_us)
        return _FINISHED_ANSWERS.get(settlement.action, "released")

    def _is_well(self, lane: Lane, held: Held) -> None:
        """An ack of a lease from after the rest's beginning ends it."""
        if lane.rest_step and held.fence > lane.rest_fence:
            lane.rest_step = lane.rest_until = 0
            self.tx.touch(lane)


def come_back(
    tx: Transaction, lane: Lane, held: Held, row: Row, settlement: Settlement
) -> SettlementAnswer:
    """A lease ended without an ack: the message waits again, or dies."""
    row.deliveries += 1
    row.odd = 1
    action = settlement.action
    topic = messages.topic_of(row, lane)
    if action == "retry":
        return _retry(tx, lane, row, settlement, topic)
    if action == "dead":
        _die(tx, lane, row, settlement.reason or REFUSED, settlement.error)
        return "died"
    if action == "unhandled":
        return _unhandled(tx, lane, row, topic)
    delay = settlement.delay_us or 0
    if action == "back_off":
        _rest(tx, lane, held, settlement.delay_us)
        delay = 0
    elif not settlement.begun:
        leases.return_permits(tx, lane, held)
    wait_again(tx, lane, row, tx.now + delay if delay > 0 else None)
    return "released"


def _retry(
    tx: Transaction, lane: Lane, row: Row, settlement: Settlement, topic: str
) -> SettlementAnswer:
    policy = tx.policy(topic)
    row.attempts += 1
    what = settlement.reason or "failed"
    messages.add_history(tx, row, what, settlement.error)
    if row.attempts > policy.retries:
        _die(
            tx,
            lane,
            row,
            retries_used_up(row.attempts, settlement.error, settlement.reason),
            settlement.error,
            noted=True,
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
    wait_again(tx, lane, row, tx.now + max(delay, 0))
    return "retried"


def _die(
    tx: Transaction, lane: Lane, row: Row, reason: str, error: str | None, *, noted: bool = False
) -> None:
    if not noted:
        messages.add_history(tx, row, reason, error)
    lane.died += 1
    tx.shard.died += 1
    messages.bury(tx, lane, row, reason, error)
    if row.serial:
        messages.free_key(tx, lane, row.line, row.mid)


def _unhandled(tx: Transaction, lane: Lane, row: Row, topic: str) -> SettlementAnswer:
    first, tries, history = tx.one("note_read", row.mid) or (None, 0, "[]")
    first = first if first is not None else tx.now
    longest = tx.policy(topic).on_unhandled
    if longest is not None and tx.now - first >= longest:
        _die(tx, lane, row, NO_HANDLER, None)
        return "died"
    delay = min(base.UNHANDLED_FIRST_US << min(tries, 16), base.UNHANDLED_MAX_US)
    tx.run("note_write", row.mid, first, tries + 1, history)
    wait_again(tx, lane, row, tx.now + delay)
    return "released"


def _rest(tx: Transaction, lane: Lane, held: Held, asked: int | None) -> None:
    """The topic's destination is unwell: all its lanes rest."""
    if held.fence <= lane.rest_fence:
        return
    if lane.rest_step:
        step = min(lane.rest_step * 2, base.BACK_OFF_MAX_US)
    else:
        step = base.BACK_OFF_FIRST_US
    if asked is not None:
        step = max(asked, 1)
    for each in _lanes_of_topic(tx, lane):
        each.rest_step, each.rest_until, each.rest_fence = step, tx.now + step, tx.shard.fence
        tx.place(each)


def _lanes_of_topic(tx: Transaction, lane: Lane) -> list[Lane]:
    partitions = tx.policy_of(lane).partitions
    if lane.topic is None or partitions == 1:
        return [lane]
    names = [f"{lane.topic}{PARTITION}{n}" for n in range(partitions)]
    tx.load_names(names)
    return [found for found in map(tx.find_lane, names) if found is not None]


def wait_again(tx: Transaction, lane: Lane, row: Row, due: int | None) -> None:
    """
    The message waits again, delayed until `due` (its new since) or ready with its old since; past
    its ttl it expires.
    """
    if row.expires is not None and row.expires <= tx.now:
        messages.save(tx, row)
        messages.expire(tx, lane, row)
        if row.serial:
            messages.free_key(tx, lane, row.line, row.mid)
        return
    if due is not None:
        row.since = due
    merging.rejoin(tx, lane, row)
    messages.begin_waiting(tx, lane, row)
    messages.save(tx, row)


# Leases that run out


def run_out(tx: Transaction, held: Held) -> None:
    """Nobody settled the lease in time."""
    tx.run("lease_delete", held.fence)
    if held.gone:
        return
    lane = tx.lane(held.lane)
    leases.release_slots(tx, lane, held, held.deadline - held.granted)
    if held.empty is not None:
        messages.free_key(tx, lane, held.empty or None, held.mid)
    else:
        row = messages.read(tx, held.mid)
        if row is not None:
            _suspect(tx, lane, held, row)
    tx.place(lane)


def _suspect(tx: Transaction, lane: Lane, held: Held, row: Row) -> None:
    row.deliveries += 1
    row.odd = 1
    row.suspect = 1
    if held.started:
        row.attempts += 1
        messages.add_history(tx, row, STARTED_AND_LOST, None)
        if row.attempts > tx.policy(messages.topic_of(row, lane)).retries:
            _die(tx, lane, row, STARTED_AND_LOST, None, noted=True)
            return
    wait_again(tx, lane, row, None)


def lease_batch_over(
    tx: Transaction, first: int, last: int, at: int, most: int
) -> tuple[int, int | None]:
    """
    Take back those of a batch whose time was over at `at`; the batch's event moves on to the next
    deadline.

    Returns how many, and that deadline.
    """
    ended = [Held(*row) for row in tx.all("leases_ended", first, last, at, most)]
    tx.load_numbers({held.lane for held in ended if not held.gone})
    for held in ended:
        run_out(tx, held)
    (deadline,) = tx.one("leases_next_deadline", first, last)
    if deadline is not None:
        tx.run("event_insert", deadline, LEASES_END, first, last)
    return len(ended), deadline
