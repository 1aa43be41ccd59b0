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
    DELAYED,
    DUE,
    EXPIRES,
    IDLE,
    LEASES_END,
    RETENTION_ENDS,
)
from laneway.engines.sql import key_limits, messages, settling
from laneway.engines.sql.rows import NONE, Lane, Shard
from laneway.engines.sql.store import Read
from laneway.engines.sql.transaction import Transaction
from laneway.policy import matches

LEASE_ENDS_AHEAD = 100
"""
How many of the next events are examined when leases' ends are due. Most leases were settled long
before; without this, each such end would wake an idle worker.
"""


def due(shard: Shard) -> Read:
    """What is read first: when something is due."""
    return "housekeeping_due", *shard.firsts


def run(tx: Transaction, budget: int) -> None:
    """
    Do everything that is due, at most `budget` of each kind; call it at the beginning of a
    transaction.
    """
    shard, now = tx.shard, tx.now
    event, asleep, idle, key, *others = (
        NONE if first is None else first for first in tx.one(*due(shard))
    )
    # What this transaction has not written yet lowers these when it is written.
    shard.first_event, shard.first_asleep, shard.first_idle = event, asleep, idle
    shard.first_wake = wake = min(key, *others)
    if shard.first_sweep == NONE and min(event, asleep, idle, wake) > now:
        return
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


def _events(tx: Transaction, budget: int) -> None:
    left, had_lease_end = budget, False
    while left > 0 and (page := tx.all("events_due", tx.shard.first_event, tx.now, left)):
        had_lease_end |= any(kind == LEASES_END for _, kind, _, _ in page)
        left -= _apply(tx, page, left)
    if had_lease_end:
        tx.run("lease_ends_forget", tx.now, LEASE_ENDS_AHEAD)
    for name in ("idents_forget", "edges_forget", "kept_forget"):
        tx.run(name, tx.shard.first_wake, tx.now, budget)


def _apply(tx: Transaction, page: list[Any], left: int) -> int:
    """
    Apply events in their order; stop early where a new event comes between them. Returns how many
    messages and leases were changed.
    """
    done = 0
    tx.events.first_new = (NONE,)
    _load(tx, page)
    with_leases = _batches_with_leases(tx, page)
    for at, kind, a, b in page:
        if done >= left or tx.events.first_new < (at, kind, a):
            break
        if tx.events.is_deleted(at, kind, a):
            continue  # by an earlier event: the message expired before it was due
        tx.events.delete(at, kind, a)
        if kind == LEASES_END:
            done += settling.expire_leases(tx, a, b, at, left - done) if a in with_leases else 0
            continue
        done += 1
        if kind == DUE:
            _due(tx, a)
        elif kind == EXPIRES:
            _expires(tx, a)
        elif kind == RETENTION_ENDS:
            messages.delete_dead(tx, a)
    return done


def _batches_with_leases(tx: Transaction, page: list[Any]) -> set[int]:
    """Of the batches of leases whose deadline has come: those that have leases, by first fence."""
    batches = [(a, b) for _, kind, a, b in page if kind == LEASES_END]
    return {fence for (fence,) in tx.all_rows("leases_left", batches)}


def _load(tx: Transaction, page: list[Any]) -> None:
    """Read the rows that these events need, all of one table in one statement."""
    mids = [a for _, kind, a, _ in page if kind != LEASES_END]
    if not mids:
        return
    tx.messages.load(mids)
    rows = [row for mid in mids if (row := tx.messages.get(mid)) is not None]
    waiting = [row for row in rows if row.state != DEAD]
    tx.load_numbers({row.lane for row in waiting})
    messages.load_parked(tx, [(row.lane, row.line or "") for row in waiting if row.serial])
    ended = {a for _, kind, a, _ in page if kind in (EXPIRES, RETENTION_ENDS)}
    if ended:
        rows = [row for row in rows if row.mid in ended]
        tx.merge_keys.load(
            (row.lane, row.mkey) for row in rows if row.mkey is not None and row.state != DEAD
        )
        tx.dead_letters.load((row.mid,) for row in rows if row.state == DEAD)
        tx.parts.load(row.mid for row in rows if row.parts)
        tx.idents.load_joined(row.mid for row in rows if row.joined)


def _due(tx: Transaction, mid: int) -> None:
    row = tx.messages.get(mid)
    if row is None or row.state != DELAYED:
        return
    lane = tx.lane(row.lane)
    lane.delayed -= 1
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
    # The index may still list lanes that an event has just placed elsewhere; they use no budget.
    listed = (
        tx.cached_lane(row)
        for row in tx.all("lanes_to_wake", tx.shard.first_asleep, tx.now, budget + tx.changed_lanes)
    )
    asleep = [
        lane
        for lane in listed
        if lane.place == ASLEEP and lane.wake is not None and lane.wake <= tx.now
    ]
    for lane in asleep[:budget]:
        tx.place(lane)
    tx.forget_idle(budget)


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
