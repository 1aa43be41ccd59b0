"""
Joining messages about the same thing: on publish, and when a leased one comes back while another of its key waits.

The rules are docs/behaviour.md, "Merging on publish" and "Arriving".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from laneway.engines.admission import MAX_WAIT_WINDOWS, explicit_due
from laneway.engines.sqlite import messages
from laneway.engines.sqlite.rows import Lane, Row, rank_of

if TYPE_CHECKING:
    from laneway.engines.sqlite.turn import Turn
    from laneway.message import Draft
    from laneway.policy import Resolved


def waiting_one(turn: Turn, lane: Lane, mkey: bytes) -> Row | None:
    """The message of that merge key that waits in the lane."""
    found = turn.one("merge_key_read", lane.lane, mkey)
    return messages.read(turn, found[0]) if found else None


def join(turn: Turn, lane: Lane, row: Row, draft: Draft, policy: Resolved) -> bool:
    """Let a new message join the waiting `row`; False if that one is full and the newcomer has to begin another."""
    if policy.merge == "all":
        if row.parts + 1 >= policy.merge_limit:
            return False
        row.parts += 1
        turn.run("part_insert", row.mid, row.parts, draft.body)
        _resize(turn, lane, len(draft.body))
        messages.save(turn, row)
    _change_waiting(turn, lane, row, draft, policy)
    if draft.sticky and not row.sticky:
        _stick(turn, row)
    if draft.id is not None:
        row.joined = 1
        messages.save(turn, row)
        turn.run("ident_write", draft.id, messages.topic_of(row, lane), row.mid, 1, None)
    lane.merged += 1
    turn.shard.merged += 1
    turn.touch(lane)
    return True


def _resize(turn: Turn, lane: Lane, by: int) -> None:
    lane.bytes += by
    turn.shard.bytes += by


def _change_waiting(turn: Turn, lane: Lane, row: Row, draft: Draft, policy: Resolved) -> None:
    """What a newcomer changes of the waiting message that it joins: its due time, and with `last` all that it carries."""
    due = _new_due(turn, row, draft, policy)
    if policy.merge != "last" and due == row.since:
        return
    messages.end_waiting(turn, lane, row)
    if row.serial and not _holds_key(turn, lane, row):
        messages.free_key(turn, lane, row.line, row.mid)  # it stands in line for its key anew
    row.since = due
    if policy.merge == "last":
        headers = msgspec.json.encode(draft.headers).decode() if draft.headers else None
        _change_content(turn, row, [draft.body], headers)
        ttl = draft.ttl_us if draft.ttl_us is not None else policy.ttl
        row.expires = turn.now + ttl if ttl is not None else None
        row.attempts = 0
        _change_rank(turn, row, rank_of(draft.priority, at_front=draft.at_front))
    messages.begin_waiting(turn, lane, row)
    messages.save(turn, row)


def _new_due(turn: Turn, row: Row, draft: Draft, policy: Resolved) -> int:
    due = explicit_due(draft, turn.now) if policy.merge == "last" else None
    if due is None and policy.debounce and policy.window is not None and row.since > turn.now:
        most = policy.max_wait if policy.max_wait is not None else MAX_WAIT_WINDOWS * policy.window
        due = max(min(row.published + most, turn.now + policy.window), turn.now)
    return due if due is not None else row.since


def _holds_key(turn: Turn, lane: Lane, row: Row) -> bool:
    found = turn.one("serial_key_read", lane.lane, row.line)
    return found is not None and found[0] == row.mid and bool(found[1])


def _change_content(turn: Turn, row: Row, bodies: list[bytes], headers: str | None) -> None:
    row.body, row.headers = bodies[0], headers
    turn.run("message_content", headers, row.body, row.mid)
    if row.parts:  # collected while the policy merged all
        turn.run("parts_delete", row.mid)
    row.parts = 0
    _add_parts(turn, row, bodies[1:])


def _add_parts(turn: Turn, row: Row, bodies: list[bytes]) -> None:
    turn.run_many("part_insert", [(row.mid, row.parts + n, body) for n, body in enumerate(bodies, 1)])
    row.parts += len(bodies)


def _stick(turn: Turn, row: Row) -> None:
    """Its ids are kept for a day after the finish, because one that joined it is sticky."""
    row.sticky = 1
    turn.run("message_sticky", row.mid)


def _change_rank(turn: Turn, row: Row, rank: int) -> None:
    """A changed priority gives a new number; the old one counts as removed."""
    if rank != row.rank:
        row.rank = rank
        row.seq = turn.next_seq()


def window_due(turn: Turn, topic: str, mkey: bytes, policy: Resolved) -> int | None:
    """When a message that begins a key is due by the policy's window."""
    if policy.window is None:
        return None
    if policy.edge == "trailing":
        return turn.now + policy.window
    found = turn.one("edge_read", topic, mkey)
    if found is not None and found[0] > turn.now:
        # The window after the one that runs begins when this message is due.
        turn.run("edge_write", topic, mkey, found[0] + policy.window)
        return int(found[0])
    turn.run("edge_write", topic, mkey, turn.now + policy.window)
    return None


def rejoin(turn: Turn, lane: Lane, row: Row) -> None:
    """
    `row`, back from a lease and about to wait, takes in the one of its merge key that has come meanwhile, as if it had
    been published first. Where the two are too many for one, both stay.
    """
    if row.mkey is None:
        return
    other = waiting_one(turn, lane, row.mkey)
    if other is None or other.mid == row.mid:
        return
    policy = turn.policy(messages.topic_of(row, lane))
    if policy.merge == "all" and row.parts + other.parts + 2 > policy.merge_limit:
        row.mkey = None  # the later one goes on collecting; this one no longer does
        return
    messages.end_waiting(turn, lane, other)
    bodies = [other.body, *(body for _, body in turn.all("parts_read", other.mid))]
    if policy.merge == "all":
        _add_parts(turn, row, bodies)
    elif policy.merge == "last":
        _change_content(turn, row, bodies, other.headers)
        row.expires = other.expires
        _change_rank(turn, row, other.rank)
    _absorb_ids(turn, lane, row, other)
    if other.sticky and not row.sticky:
        _stick(turn, row)
    if other.serial:
        messages.free_key(turn, lane, other.line, other.mid)
    messages.remove(turn, other)
    lane.merged += 1
    turn.shard.merged += 1


def _absorb_ids(turn: Turn, lane: Lane, row: Row, other: Row) -> None:
    topic = messages.topic_of(row, lane)
    if other.joined:
        turn.run("idents_rejoin", row.mid, other.mid)
        row.joined = 1
    turn.run("ident_write", messages.id_of(turn, other), topic, row.mid, 1, None)
    row.joined = 1
