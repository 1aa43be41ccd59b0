"""What happens by the clock: due messages, leases that run out, ttl, retention, sweeps of changed patterns, lanes that wake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway.engines.naming import BUCKET
from laneway.engines.sqlite import messages, settling
from laneway.engines.sqlite.rows import ASLEEP, DELAYED, DUE, EXPIRES, IDLE, LEASES_END, RETENTION_ENDS, Lane
from laneway.policy import matches

if TYPE_CHECKING:
    from laneway.engines.sqlite.turn import Turn


def keep_house(turn: Turn, budget: int) -> None:
    """Everything that is due, at most `budget` of each kind."""
    _events(turn, budget)
    sweep(turn, budget)
    _wake(turn, budget)


def next_wake(turn: Turn) -> int | None:
    """When there is something to do again; called after the flush."""
    if turn.one("sweeps") is not None:
        return turn.now
    (at,) = turn.one("next_wake")
    return max(int(at), turn.now) if at is not None else None


def _events(turn: Turn, budget: int) -> None:
    left = budget
    while left > 0 and (page := turn.all("events_due", turn.now, left)):
        left -= _happen(turn, page, left)
    turn.run("idents_forget", turn.now, budget)
    turn.run("edges_forget", turn.now, budget)
    turn.run("kept_forget", turn.now, budget)


def _happen(turn: Turn, page: list[Any], left: int) -> int:
    """The events of a page, in their order; ends early where another one comes between them. Returns how many messages and leases it were."""
    done = 0
    for at, kind, a, b in page:
        if done >= left:
            break
        if not turn.run("event_delete", at, kind, a):
            continue  # one before it did away with it: its message expired before it was due
        if kind == LEASES_END:
            ended, next_deadline = settling.lease_batch_over(turn, a, b, at, left - done)
            done += ended
            if next_deadline is not None and next_deadline <= turn.now:
                break
            continue
        done += 1
        if kind == DUE:
            _due(turn, a)
        elif kind == EXPIRES:
            _expires(turn, a)
        elif kind == RETENTION_ENDS:
            messages.forget_dead(turn, a)
    return done


def _due(turn: Turn, mid: int) -> None:
    row = messages.read(turn, mid)
    if row is None or row.state != DELAYED:
        return
    lane = turn.lane(row.lane)
    lane.delayed -= 1
    messages.arrive(turn, lane, row)
    messages.save(turn, row)
    turn.touch(lane)
    if lane.place == IDLE:
        turn.place(lane)


def _expires(turn: Turn, mid: int) -> None:
    row = messages.read(turn, mid)
    if row is None:
        return
    lane = turn.lane(row.lane)
    messages.end_waiting(turn, lane, row)
    messages.expire(turn, lane, row)
    if row.serial:
        messages.free_key(turn, lane, row.line, row.mid)
    turn.place(lane)


def _wake(turn: Turn, budget: int) -> None:
    for row in turn.all("gates_to_wake", turn.now, budget):
        turn.reopen(turn.keep_gate(row))
    # Lanes that an event has placed anew are still listed where they stood, and use no budget.
    listed = (turn.keep(row) for row in turn.all("lanes_to_wake", turn.now, budget + turn.changed_lanes))
    asleep = [lane for lane in listed if lane.place == ASLEEP and lane.wake is not None and lane.wake <= turn.now]
    for lane in asleep[:budget]:
        turn.place(lane)
    turn.forget_idle(budget)


def sweep(turn: Turn, budget: int) -> None:
    """Place lanes anew whose policy was changed by a pattern, at most `budget` of them."""
    left = budget
    for pattern, after in turn.all("sweeps"):
        if left <= 0:
            return
        left -= _sweep_pattern(turn, pattern, after, left)


def _sweep_pattern(turn: Turn, pattern: str, after: str, most: int) -> int:
    """Place lanes anew that the pattern covers, in the order of their names."""
    prefix = pattern[:-1]
    # A bucket's lane begins with its pattern; its name sorts before those of topics.
    lanes = _range(turn, max(after, prefix), prefix + "\U0010ffff", most)
    for lane in lanes:
        turn.place(lane)
    if len(lanes) < most:
        for lane in _range(turn, BUCKET, BUCKET + "\U0010ffff", most):
            if pattern in ("*", lane.rule) or matches(pattern, lane.rule.removesuffix(".*")):
                turn.place(lane)
        turn.run("sweep_end", pattern)
    else:
        turn.run("sweep_go_on", lanes[-1].name, pattern)
    return len(lanes)


def _range(turn: Turn, after: str, before: str, most: int) -> list[Lane]:
    return [turn.keep(row) for row in turn.all("lanes_in_range", after, before, most)]
