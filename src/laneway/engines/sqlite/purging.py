"""
Taking away: purge and delete of a topic, redriving and dropping dead letters. Page by page, so that
nobody waits long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.engines.base import ABORT, CancelAnswer
from laneway.engines.shared.naming import lane_name
from laneway.engines.shared.states import DEAD, DELAYED, PARKED, RETENTION_ENDS
from laneway.engines.sqlite import endings, leases, messages, views
from laneway.engines.sqlite.rows import Held, Lane, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.engines.sqlite.transaction import Transaction

PAGE = 5000
"""Messages that one transaction takes away."""


def purge(tx: Transaction, topic: str, last: int) -> int:
    """Remove waiting messages with numbers up to `last`, at most a page; returns how many."""
    removed = 0
    for lane, listed in _waiting(tx, topic):
        # A serial key's next message came forward when its head was removed: it is no longer where
        # it was listed.
        row = messages.read(tx, listed.mid) if listed.serial else listed
        if row is not None and row.seq <= last:
            endings.message_ended(tx, row, topic, "cancelled")
            messages.remove_waiting(tx, lane, row, topic)
            removed += 1
            if removed == PAGE:
                break
    for lane in views.lanes_of(tx, topic):
        tx.place(lane)
    return removed


def _waiting(tx: Transaction, topic: str) -> list[tuple[Lane, Row]]:
    if tx.policy(topic).buckets is not None:
        rows = [Row(*row) for row in tx.all("folded_list", topic, PAGE)]
        return [(tx.lane(row.lane), row) for row in rows]
    found: list[tuple[Lane, Row]] = []
    for lane in views.lanes_of(tx, topic):
        # Parked ones first: else each removed head would only bring the next one forward.
        for state in (PARKED, DELAYED):
            found += [(lane, Row(*row)) for row in tx.all("aside_any", lane.lane, state, PAGE)]
        if len(found) < PAGE:
            found += [(lane, Row(*row)) for row in tx.all("ready_list", lane.lane, PAGE)]
    return found


def delete(tx: Transaction, topic: str) -> int:
    """After a purge: leases, known ids and counters too. Returns how many leases were given up."""
    given_up = 0
    for lane in views.lanes_of(tx, topic):
        for row in tx.all("leased_in_lane", lane.lane):
            given_up += _give_up(tx, lane, Held(*row), topic)
        if lane.topic is None:
            tx.place(lane)
        elif not (lane.waiting or lane.leased):
            tx.forget(lane)
    tx.run("idents_delete_topic", topic)
    tx.run("edges_delete_topic", topic)
    return given_up


def _give_up(tx: Transaction, lane: Lane, held: Held, topic: str) -> int:
    """A leased message goes; its lease stays as a mark, so that its settle is answered "gone"."""
    row = messages.read(tx, held.mid)
    if (
        held.gone
        or (row is not None and messages.topic_of(row, lane) != topic)
        or (row is None and lane.topic is None)
    ):
        return 0
    tx.run("lease_gone", held.fence)
    lane.leased -= 1
    tx.shard.leased -= 1
    if held.gate is not None and (gate := tx.gate(held.gate)) is not None:
        gate.leased -= 1
        tx.touch_gate(gate)
    if row is not None:
        endings.message_ended(tx, row, topic, "cancelled")
        messages.remove_ended(tx, lane, row, topic)
    elif held.empty:
        messages.free_key(tx, lane, held.empty, held.mid)
    return 1


# One message


def cancel(tx: Transaction, message_id: str, topic: str | None) -> CancelAnswer:
    """Cancel what waits, abort what is leased."""
    row = messages.find(tx, message_id, topic)
    if row is None:
        return "unknown"
    if row.state == DEAD:
        return "dead"
    lane = tx.lane(row.lane)
    its_topic = messages.topic_of(row, lane)
    found = tx.one("lease_of_message", row.mid)
    endings.message_ended(tx, row, its_topic, "cancelled")
    if found is None:
        messages.remove_waiting(tx, lane, row, its_topic)
        tx.place(lane)
        return "cancelled"
    held = Held(*found)
    tx.run("lease_delete", held.fence)
    tx.lane_cache.plain_leases.pop(held.fence, None)
    leases.release_slots(tx, lane, held, tx.now - held.granted)
    messages.remove_ended(tx, lane, row, its_topic)
    tx.place(lane)
    tx.changed_ids.append(ABORT + tx.id_of(row))
    return "aborted"


# Dead letters


def _dead(
    tx: Transaction, topic: str | None, ids: Sequence[str] | None, limit: int
) -> list[tuple[int, str, int]]:
    """(message, topic, when its retention ends) of those meant, oldest first."""
    if ids is not None:
        rows = (messages.find(tx, message_id, topic) for message_id in ids[:limit])
        found = [
            tx.one("dead_read", mid)
            for mid in dict.fromkeys(row.mid for row in rows if row is not None)
        ]
        return [(row[1], row[2], row[4]) for row in found if row is not None]
    listed = (
        tx.all("dead_list", 0, limit) if topic is None else tx.all("dead_list_of", topic, 0, limit)
    )
    return [(row[1], row[2], row[4]) for row in listed]


def redrive(
    tx: Transaction,
    topic: str | None,
    ids: Sequence[str] | None,
    limit: int,
    *,
    first: int,
    spacing_us: int,
) -> int:
    """Put dead letters back, with a new number and since, and attempts from the start."""
    found = _dead(tx, topic, ids, limit)
    lanes: dict[int, Lane] = {}
    for n, (mid, its_topic, until) in enumerate(found):
        row = messages.read(tx, mid)
        if row is None:
            continue
        tx.run("event_delete", until, RETENTION_ENDS, mid)
        tx.run("dead_delete", mid)
        tx.shard.dead -= 1
        endings.message_revived(tx, row)
        lane = _put_back(tx, row, its_topic, first + n * spacing_us)
        lanes[lane.lane] = lane
    for lane in lanes.values():
        tx.place(lane)
    return len(found)


def _put_back(tx: Transaction, row: Row, topic: str, since: int) -> Lane:
    policy = tx.policy(topic)
    row.seq = tx.next_seq()
    row.since = since
    row.attempts = row.suspect = 0
    row.odd = 1
    row.expires = since + policy.ttl if policy.ttl is not None else None
    spread_by = (
        row.key.encode() if row.key is not None else row.body if row.mkey is not None else None
    )
    lane = tx.ensure_lane(*lane_name(policy, topic, spread_by, row.seq))
    row.lane = lane.lane
    row.topic = (
        topic if lane.topic is None else None
    )  # it may have died where its topic was not folded yet, or still was
    tx.run("message_topic", row.topic, row.mid)
    tx.run("note_begin_anew", row.mid)
    if row.mkey is not None and tx.one("merge_key_read", lane.lane, row.mkey) is not None:
        row.mkey = None  # another one of its key waits already; it goes its own way
    messages.begin_waiting(tx, lane, row)
    messages.save(tx, row)
    return lane


def drop_dead(tx: Transaction, topic: str | None, ids: Sequence[str] | None, limit: int) -> int:
    """Forget dead letters."""
    found = _dead(tx, topic, ids, limit)
    for mid, _, _ in found:
        messages.delete_dead(tx, mid)
    return len(found)
