"""What the doctor looks at: whether the file is sound, and whether its parts agree with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.engines.base import Check
from laneway.engines.checks import disagreement, finding, unhandled
from laneway.engines.naming import lane_name
from laneway.engines.sqlite import messages, views
from laneway.engines.sqlite.rows import DEAD, LEASES_END, READY, Lane

if TYPE_CHECKING:
    from laneway.engines.sqlite.store import Store
    from laneway.engines.sqlite.turn import Turn

MOST = 100_000
"""Findings of one kind that one run mends."""


def check_file(store: Store) -> list[Check]:
    """SQLite's own check of the file."""
    with store.reading() as connection:
        found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(10)")]
    sound = found == ["ok"]
    return [Check("file", sound, "sound" if sound else "; ".join(found), "" if sound else "restore a copy, or `sqlite3 FILE .recover`")]


def check_parts(turn: Turn, *, repair: bool) -> list[Check]:
    """Whether messages, orders, counts, leases and totals agree; mended where asked for. What was lost is counted."""
    checks = [
        _memory(turn),
        _entries_without_message(turn, repair=repair),
        _messages_nowhere(turn, repair=repair),
        _leases_without_end(turn, repair=repair),
        _lane_counts(turn, repair=repair),
        _totals(turn, repair=repair),
        unhandled(turn.one("check_unhandled")[0]),
    ]
    if repair:
        for lane in views.all_lanes(turn):
            turn.place(lane)
    return checks


def _memory(turn: Turn) -> Check:
    """What this process remembers of lanes must be what the file says; what is wrong is forgotten."""
    wrong = 0
    for row in turn.all("lanes_all", views.ALL):
        remembered = turn.memory.lanes.get(row[0])
        if remembered is not None and remembered.standing() + remembered.counts() != (read := Lane(*row)).standing() + read.counts():
            wrong += 1
            turn.memory.drop(remembered)
    return finding("memory", wrong, "lanes that this process remembered wrongly, mended", repair=False)


def _entries_without_message(turn: Turn, *, repair: bool) -> Check:
    found = turn.all("check_ready_orphans", MOST)
    if repair:
        turn.run_many("ready_delete", found)
    return disagreement("order", len(found), repair=repair)


def _messages_nowhere(turn: Turn, *, repair: bool) -> Check:
    found = turn.all("check_lost_messages", MOST)
    if repair:
        for (mid,) in found:
            _take_in_again(turn, mid)
    return disagreement("messages", len(found), repair=repair)


def _take_in_again(turn: Turn, mid: int) -> None:
    row = messages.read(turn, mid)
    if row is None:
        return
    known = turn.one("lane_by_number", row.lane)
    if row.state == DEAD:
        messages.bury(turn, turn.keep(known), row, "found by the doctor without its reason", None) if known else messages.remove(turn, row)
        return
    if known is None:
        topic = row.topic or "laneway.recovered"
        policy = turn.policy(topic)
        name, rule = lane_name(policy, topic, None, row.seq)
        row.lane = turn.make_lane(name, rule).lane
    lane = turn.lane(row.lane)
    row.state = READY
    messages.arrive(turn, lane, row)
    messages.save(turn, row)


def _leases_without_end(turn: Turn, *, repair: bool) -> Check:
    found = turn.all("check_leases", MOST)
    if repair:
        turn.run_many("event_insert", [(turn.now, LEASES_END, fence, fence) for (fence,) in found])
    return disagreement("leases", len(found), repair=repair)


def _lane_counts(turn: Turn, *, repair: bool) -> Check:
    turn.flush()
    found = turn.all("check_lane_counts", MOST)
    if repair:
        for number, ready, delayed, parked, leased in found:
            lane = turn.lane(number)
            lane.ready, lane.delayed, lane.parked, lane.leased = ready, delayed, parked, leased
            turn.touch(lane)
    return disagreement("counts", len(found), repair=repair)


def _totals(turn: Turn, *, repair: bool) -> Check:
    turn.flush()
    waiting, size, leased, dead, lanes = turn.one("check_totals")
    shard = turn.shard
    wrong = sum(
        now != then
        for now, then in (
            (waiting, shard.waiting), (size, shard.bytes), (leased, shard.leased), (dead, shard.dead), (lanes, shard.lanes),
        )
    )  # fmt: skip
    if repair:
        shard.waiting, shard.bytes, shard.leased, shard.dead, shard.lanes = waiting, size, leased, dead, lanes
    return disagreement("totals", wrong, repair=repair)
