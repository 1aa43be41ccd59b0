"""
What happens by the clock: due messages, leases that run out, ttl, retention, lanes and gates that
wake; and sweeps, which place the lanes of a changed pattern. Each call does a bounded amount.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from laneway.engines.shared.naming import BUCKET
from laneway.engines.shared.states import (
    ASLEEP,
    DEAD,
    EXPIRES,
    IDLE,
    RETENTION_ENDS,
)
from laneway.engines.sql import key_limits, messages, settling
from laneway.engines.sql.rows import NONE, Lane, Row, Shard
from laneway.engines.sql.store import Read
from laneway.engines.sql.transaction import Transaction
from laneway.policy import matches

LEASE_ENDS_AHEAD = 100
"""
How many of the next ends of leases are examined when some are due. Most leases were settled long
before; without this, each such end would wake an idle worker.
"""

LATEST_AT_ONCE = 8
"""The maximum of a lane in one call while more lanes are due than the call handles."""


def due(shard: Shard) -> Read:
    """What is read first: when something is due."""
    return "housekeeping_due", *shard.firsts


def run(tx: Transaction, budget: int) -> None:
    """
    Do everything that is due, at most `budget` of each kind; call it at the beginning of a
    transaction.
    """
    shard, now = tx.shard, tx.now
    event, end, timer, asleep, idle, key, *others = (
        NONE if first is None else first for first in tx.one(*due(shard))
    )
    # What this transaction has not written yet lowers these when it is written.
    shard.first_event, shard.first_end, shard.first_timer = event, end, timer
    shard.first_asleep, shard.first_idle = asleep, idle
    shard.first_wake = wake = min(key, *others)
    if shard.first_sweep == NONE and min(event, end, timer, asleep, idle, wake) > now:
        return
    if timer <= now:
        _come_due(tx, budget)
    if end <= now:
        _lease_ends(tx, budget)
    _events(tx, budget)
    sweep(tx, budget)
    if key <= now:
        key_limits.wake(tx, budget)
    _wake(tx, budget)


def next_wake(tx: Transaction) -> int | None:
    """When housekeeping is due again; call it after the lanes were written."""
    if tx.shard.first_sweep < NONE:
        return tx.now
    return _not_before(tx, tx.all("next_wake", *tx.shard.firsts))


def next_wake_after(tx: Transaction, then: Callable[[int | None], None]) -> None:
    """Call `then` with `next_wake` once the transaction is committed."""
    if tx.shard.first_sweep < NONE:
        then(tx.now)
    else:
        tx.after_commit(lambda rows: then(_not_before(tx, rows)), "next_wake", *tx.shard.firsts)


def _not_before(tx: Transaction, rows: list[Any]) -> int | None:
    ((at,),) = rows
    return max(int(at), tx.now) if at is not None else None


def _come_due(tx: Transaction, budget: int) -> None:
    """
    Delayed messages whose time has come arrive. Lanes share the budget. If more lanes have such
    messages, half of it is for those that have waited longest, half for the latest ones, which do
    not wait until a flood before them is handled.
    """
    left, is_flood = budget, False
    times = tx.shard.first_timer, tx.now
    while left > 0 and not is_flood and (lanes := _lanes(tx, "timers_due", *times, left)):
        is_flood, half = len(lanes) == left, left // 2
        if is_flood:
            due = _first_due(tx, lanes[: left - half], 1)
            latest = _lanes(tx, "timers_due_lately", *times, half)
            due |= _first_due(tx, latest, LATEST_AT_ONCE, half)
        else:
            due = _first_due(tx, lanes, left // len(lanes))
        rows = _load(tx, [mid for found in due.values() for mid in found])
        for row in sorted(rows, key=lambda row: (row.since, row.mid)):
            _arrives(tx, row)
        if left_in := [lane for lane in due if not tx.timers.is_deleted(lane)]:
            tx.run("timers_move", tx.array(left_in), tx.now)
        left -= sum(max(len(found), 1) for found in due.values())


def _lanes(tx: Transaction, statement: str, first: int, last: int, most: int) -> list[int]:
    return [lane for (lane,) in tx.all(statement, first, last, most)]


def _first_due(
    tx: Transaction, lanes: list[int], share: int, most: int | None = None
) -> dict[int, list[int]]:
    """
    The first due messages of lanes in this order: at most `share` of each, `most` together. A lane
    without such messages, whose timer was too early, counts as one.
    """
    found = dict[int, list[int]]()
    for lane, mid in tx.all("messages_due", tx.array(lanes), tx.now, share):
        found.setdefault(lane, []).append(mid)
    due, count = dict[int, list[int]](), 0
    for lane in lanes:
        if most is not None and count >= most:
            break
        due[lane] = found.get(lane, [])
        count += max(len(due[lane]), 1)
    return due


def _lease_ends(tx: Transaction, budget: int) -> None:
    left, had_one = budget, False
    while left > 0 and (page := tx.all("lease_ends_due", tx.shard.first_end, tx.now, left)):
        had_one = True
        left -= _end_leases(tx, page, left)
    if had_one:
        tx.run("lease_ends_forget", tx.now, LEASE_ENDS_AHEAD)


def _end_leases(tx: Transaction, page: list[Any], left: int) -> int:
    """Leases run out in the order of their deadlines. Stops early where a new one is between."""
    done = 0
    tx.lease_ends.first_new = (NONE,)
    with_leases = {
        first for (first,) in tx.all_rows("leases_left", [(first, last) for _, first, last in page])
    }
    for at, first, last in page:
        if done >= left or tx.lease_ends.first_new < (at, first):
            break
        tx.lease_ends.delete(at, first)
        if first in with_leases:
            done += settling.expire_leases(tx, first, last, at, left - done)
    return done


def _events(tx: Transaction, budget: int) -> None:
    left = budget
    while left > 0 and (page := tx.all("events_due", tx.shard.first_event, tx.now, left)):
        _load_events(tx, page)
        for at, kind, mid in page:
            if tx.events.is_deleted(at, kind, mid):
                continue  # by an earlier event
            tx.events.delete(at, kind, mid)
            left -= 1
            if kind == EXPIRES:
                _expires(tx, mid)
            elif kind == RETENTION_ENDS:
                messages.delete_dead(tx, mid)
    for name in ("idents_forget", "edges_forget", "kept_forget"):
        tx.run(name, tx.shard.first_wake, tx.now, budget)


def _load_events(tx: Transaction, page: list[Any]) -> None:
    """Read the rows that these events need, all of one table in one statement."""
    rows = _load(tx, [mid for _, _, mid in page])
    tx.merge_keys.load(
        (row.lane, row.mkey) for row in rows if row.mkey is not None and row.state != DEAD
    )
    tx.dead_letters.load((row.mid,) for row in rows if row.state == DEAD)
    tx.parts.load(row.mid for row in rows if row.parts)
    tx.idents.load_joined(row.mid for row in rows if row.joined)


def _load(tx: Transaction, mids: list[int]) -> list[Row]:
    """Read messages, their lanes and what waits for their keys."""
    tx.messages.load(mids)
    rows = [row for mid in mids if (row := tx.messages.get(mid)) is not None]
    waiting = [row for row in rows if row.state != DEAD]
    tx.load_numbers({row.lane for row in waiting})
    messages.load_parked(tx, [(row.lane, row.line or "") for row in waiting if row.serial])
    return rows


def _arrives(tx: Transaction, row: Row) -> None:
    lane = tx.lane(row.lane)
    messages.end_delay(tx, lane)
    messages.arrive(tx, lane, row)
    tx.messages.save_state(row)
    tx.touch(lane)
    if lane.place == IDLE:
        tx.place(lane)


def _expires(tx: Transaction, mid: int) -> None:
    row = tx.messages.get(mid)
    if row is None:
        return
    lane = tx.lane(row.lane)
    messages.take_out(tx, lane, row)
    messages.expire(tx, lane, row)
    if row.serial:
        messages.free_key(tx, lane, row.line, row.mid)
    tx.place(lane)


def _wake(tx: Transaction, budget: int) -> None:
    to_wake = tx.all("gates_to_wake", tx.shard.first_wake, tx.now, budget)
    tx.reopen([tx.cached_gate(row) for row in to_wake])
    asleep = _asleep(tx, "lanes_to_wake", budget + 1)
    if len(asleep) > budget:
        half = budget // 2
        asleep[budget - half :] = _asleep(tx, "lanes_to_wake_lately", half)
    for lane in asleep:
        tx.place(lane)
    tx.forget_idle(budget)


def _asleep(tx: Transaction, statement: str, most: int) -> list[Lane]:
    # The index may still list lanes that an event has just placed elsewhere.
    rows = tx.all(statement, tx.shard.first_asleep, tx.now, most + tx.changed_lanes)
    listed = map(tx.cached_lane, rows)
    return [
        lane
        for lane in listed
        if lane.place == ASLEEP and lane.wake is not None and lane.wake <= tx.now
    ][:most]


def begin_sweep(tx: Transaction, pattern: str) -> None:
    """The policy of the pattern changed: its lanes have to be placed again."""
    (number,) = tx.one("sweep_begin", pattern)
    tx.shard.first_sweep = min(tx.shard.first_sweep, number)


def sweep(tx: Transaction, budget: int) -> None:
    """Place the lanes of patterns whose policy changed, at most `budget` of them."""
    shard, left = tx.shard, budget
    if shard.first_sweep == NONE:
        return
    for number, pattern, after in tx.all("sweeps", shard.first_sweep):
        shard.first_sweep = number
        if left <= 0:
            return
        placed, is_over = _sweep_pattern(tx, number, pattern, after, left)
        left -= placed
        if not is_over:
            return
    shard.first_sweep = NONE


def _sweep_pattern(
    tx: Transaction, number: int, pattern: str, after: str, most: int
) -> tuple[int, bool]:
    """
    Place the lanes that the pattern covers, in the order of their names; returns how many, and
    whether these were all.
    """
    prefix = pattern[:-1]
    # The names of buckets begin with their patterns, and sort before those of topics.
    lanes = _range(tx, max(after, prefix), prefix + "\U0010ffff", most)
    for lane in lanes:
        tx.place(lane)
    if len(lanes) < most:
        for lane in _range(tx, BUCKET, BUCKET + "\U0010ffff", most):
            if pattern in ("*", lane.rule) or matches(pattern, lane.rule.removesuffix(".*")):
                tx.place(lane)
        tx.run("sweep_end", number)
        return len(lanes), True
    tx.run("sweep_go_on", lanes[-1].name, number)
    return len(lanes), False


def _range(tx: Transaction, after: str, before: str, most: int) -> list[Lane]:
    return [tx.cached_lane(row) for row in tx.all("lanes_in_range", after, before, most)]
