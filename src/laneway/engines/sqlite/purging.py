"""Taking away: purge and delete of a topic, redriving and dropping dead letters. Page by page, so that nobody waits long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.engines.naming import lane_name
from laneway.engines.sqlite import keeping, messages, views
from laneway.engines.sqlite.rows import DELAYED, PARKED, RETENTION_ENDS, Held, Lane, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.engines.sqlite.turn import Turn

PAGE = 5000
"""Messages that one transaction takes away."""


def purge(turn: Turn, topic: str, last: int) -> int:
    """Remove waiting messages with numbers up to `last`, at most a page; returns how many."""
    removed = 0
    for lane, listed in _waiting(turn, topic):
        # A serial key's next message came forward when its head was removed: it is no longer where it was listed.
        row = messages.read(turn, listed.mid) if listed.serial else listed
        if row is not None and row.seq <= last:
            keeping.ends(turn, row, topic, "cancelled")
            messages.withdraw(turn, lane, row, topic)
            removed += 1
            if removed == PAGE:
                break
    for lane in views.lanes_of(turn, topic):
        turn.place(lane)
    return removed


def _waiting(turn: Turn, topic: str) -> list[tuple[Lane, Row]]:
    if turn.policy(topic).buckets is not None:
        rows = [Row(*row) for row in turn.all("folded_list", topic, PAGE)]
        return [(turn.lane(row.lane), row) for row in rows]
    found: list[tuple[Lane, Row]] = []
    for lane in views.lanes_of(turn, topic):
        # Parked ones first: else each removed head would only bring the next one forward.
        for state in (PARKED, DELAYED):
            found += [(lane, Row(*row)) for row in turn.all("aside_any", lane.lane, state, PAGE)]
        if len(found) < PAGE:
            found += [(lane, Row(*row)) for row in turn.all("ready_list", lane.lane, PAGE)]
    return found


def delete(turn: Turn, topic: str) -> int:
    """After a purge: leases, known ids and counters too. Returns how many leases were given up."""
    given_up = 0
    for lane in views.lanes_of(turn, topic):
        for row in turn.all("leased_in_lane", lane.lane):
            given_up += _give_up(turn, lane, Held(*row), topic)
        if lane.topic is None:
            turn.place(lane)
        elif not (lane.waiting or lane.leased):
            turn.forget(lane)
    turn.run("idents_delete_topic", topic)
    turn.run("edges_delete_topic", topic)
    return given_up


def _give_up(turn: Turn, lane: Lane, held: Held, topic: str) -> int:
    """A leased message goes; its lease stays as a mark, so that its settle is answered "gone"."""
    row = messages.read(turn, held.mid)
    if held.gone or (row is not None and messages.topic_of(row, lane) != topic) or (row is None and lane.topic is None):
        return 0
    turn.run("lease_gone", held.fence)
    lane.leased -= 1
    turn.shard.leased -= 1
    if held.gate is not None and (gate := turn.gate(held.gate)) is not None:
        gate.leased -= 1
        turn.touch_gate(gate)
    if row is not None:
        keeping.ends(turn, row, topic, "cancelled")
        messages.take_out(turn, lane, row, topic)
    elif held.empty:
        messages.free_key(turn, lane, held.empty, held.mid)
    return 1


# Dead letters


def _dead(turn: Turn, topic: str | None, ids: Sequence[str] | None, limit: int) -> list[tuple[int, str, int]]:
    """(message, topic, when its retention ends) of those meant, oldest first."""
    if ids is not None:
        rows = (views.find(turn, message_id, topic) for message_id in ids[:limit])
        found = [turn.one("dead_read", mid) for mid in dict.fromkeys(row.mid for row in rows if row is not None)]
        return [(row[1], row[2], row[4]) for row in found if row is not None]
    listed = turn.all("dead_list", 0, limit) if topic is None else turn.all("dead_list_of", topic, 0, limit)
    return [(row[1], row[2], row[4]) for row in listed]


def redrive(turn: Turn, topic: str | None, ids: Sequence[str] | None, limit: int, *, first: int, spacing_us: int) -> int:
    """Put dead letters back, with a new number and since, and attempts from the start."""
    found = _dead(turn, topic, ids, limit)
    lanes: dict[int, Lane] = {}
    for n, (mid, its_topic, until) in enumerate(found):
        row = messages.read(turn, mid)
        if row is None:
            continue
        turn.run("event_delete", until, RETENTION_ENDS, mid)
        turn.run("dead_delete", mid)
        turn.shard.dead -= 1
        keeping.begins_again(turn, row)
        lane = _put_back(turn, row, its_topic, first + n * spacing_us)
        lanes[lane.lane] = lane
    for lane in lanes.values():
        turn.place(lane)
    return len(found)


def _put_back(turn: Turn, row: Row, topic: str, since: int) -> Lane:
    policy = turn.policy(topic)
    row.seq = turn.next_seq()
    row.since = since
    row.attempts = row.suspect = 0
    row.odd = 1
    row.expires = since + policy.ttl if policy.ttl is not None else None
    spread_by = row.key.encode() if row.key is not None else row.body if row.mkey is not None else None
    lane = turn.make_lane(*lane_name(policy, topic, spread_by, row.seq))
    row.lane = lane.lane
    row.topic = topic if lane.topic is None else None  # it may have died where its topic was not folded yet, or still was
    turn.run("message_topic", row.topic, row.mid)
    turn.run("note_begin_anew", row.mid)
    if row.mkey is not None and turn.one("merge_key_read", lane.lane, row.mkey) is not None:
        row.mkey = None  # another one of its key waits already; it goes its own way
    messages.begin_waiting(turn, lane, row)
    messages.save(turn, row)
    return lane


def drop_dead(turn: Turn, topic: str | None, ids: Sequence[str] | None, limit: int) -> int:
    """Forget dead letters."""
    found = _dead(turn, topic, ids, limit)
    for mid, _, _ in found:
        messages.forget_dead(turn, mid)
    return len(found)
