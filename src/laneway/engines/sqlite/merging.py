"""
Joining messages about the same thing: on publish, and when a leased one comes back while another of
its key waits.

The rules are docs/specification.md, "Merging on publish" and "Arriving".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from laneway.engines.shared.refusals import MAX_WAIT_WINDOWS, explicit_due
from laneway.engines.sqlite import messages
from laneway.engines.sqlite.rows import Lane, Row, rank_of

if TYPE_CHECKING:
    from laneway.engines.sqlite.transaction import Transaction
    from laneway.message import Draft
    from laneway.policy import Resolved


def waiting_one(tx: Transaction, lane: Lane, mkey: bytes) -> Row | None:
    """The message of that merge key that waits in the lane."""
    found = tx.one("merge_key_read", lane.lane, mkey)
    return messages.read(tx, found[0]) if found else None


def join(tx: Transaction, lane: Lane, row: Row, draft: Draft, policy: Resolved) -> bool:
    """
    Let a new message join the waiting `row`; False if that one is full and the newcomer has to
    begin another.
    """
    if policy.merge == "all":
        if row.parts + 1 >= policy.merge_limit:
            return False
        row.parts += 1
        tx.run("part_insert", row.mid, row.parts, draft.body)
        _resize(tx, lane, len(draft.body))
        messages.save(tx, row)
    _change_waiting(tx, lane, row, draft, policy)
    if draft.sticky and not row.sticky:
        _stick(tx, row)
    if draft.id is not None:
        row.joined = 1
        messages.save(tx, row)
        tx.run("ident_write", draft.id, messages.topic_of(row, lane), row.mid, 1, None)
    lane.merged += 1
    tx.shard.merged += 1
    tx.touch(lane)
    return True


def _resize(tx: Transaction, lane: Lane, by: int) -> None:
    lane.bytes += by
    tx.shard.bytes += by


def _change_waiting(tx: Transaction, lane: Lane, row: Row, draft: Draft, policy: Resolved) -> None:
    """
    What a newcomer changes of the waiting message that it joins: its due time, and with `last` all
    that it carries.
    """
    due = _new_due(tx, row, draft, policy)
    if policy.merge != "last" and due == row.since:
        return
    messages.end_waiting(tx, lane, row)
    if row.serial and not _holds_key(tx, lane, row):
        messages.free_key(tx, lane, row.line, row.mid)  # it stands in line for its key anew
    row.since = due
    if policy.merge == "last":
        headers = msgspec.json.encode(draft.headers).decode() if draft.headers else None
        _change_content(tx, row, [draft.body], headers)
        ttl = draft.ttl_us if draft.ttl_us is not None else policy.ttl
        row.expires = tx.now + ttl if ttl is not None else None
        row.attempts = 0
        _change_rank(tx, row, rank_of(draft.priority, at_front=draft.at_front))
    messages.begin_waiting(tx, lane, row)
    messages.save(tx, row)


def _new_due(tx: Transaction, row: Row, draft: Draft, policy: Resolved) -> int:
    due = explicit_due(draft, tx.now) if policy.merge == "last" else None
    if due is None and policy.debounce and policy.window is not None and row.since > tx.now:
        most = policy.max_wait if policy.max_wait is not None else MAX_WAIT_WINDOWS * policy.window
        due = max(min(row.published + most, tx.now + policy.window), tx.now)
    return due if due is not None else row.since


def _holds_key(tx: Transaction, lane: Lane, row: Row) -> bool:
    found = tx.one("serial_key_read", lane.lane, row.line)
    return found is not None and found[0] == row.mid and bool(found[1])


def _change_content(tx: Transaction, row: Row, bodies: list[bytes], headers: str | None) -> None:
    row.body, row.headers = bodies[0], headers
    tx.run("message_content", headers, row.body, row.mid)
    if row.parts:  # collected while the policy merged all
        tx.run("parts_delete", row.mid)
    row.parts = 0
    _add_parts(tx, row, bodies[1:])


def _add_parts(tx: Transaction, row: Row, bodies: list[bytes]) -> None:
    tx.run_many("part_insert", [(row.mid, row.parts + n, body) for n, body in enumerate(bodies, 1)])
    row.parts += len(bodies)


def _stick(tx: Transaction, row: Row) -> None:
    """Its ids are kept for a day after the finish, because one that joined it is sticky."""
    row.sticky = 1
    tx.run("message_sticky", row.mid)


def _change_rank(tx: Transaction, row: Row, rank: int) -> None:
    """A changed priority gives a new number; the old one counts as removed."""
    if rank != row.rank:
        row.rank = rank
        row.seq = tx.next_seq()


def window_due(tx: Transaction, topic: str, mkey: bytes, policy: Resolved) -> int | None:
    """When a message that begins a key is due by the policy's window."""
    if policy.window is None:
        return None
    if policy.edge == "trailing":
        return tx.now + policy.window
    found = tx.one("edge_read", topic, mkey)
    if found is not None and found[0] > tx.now:
        # The window after the one that runs begins when this message is due.
        tx.run("edge_write", topic, mkey, found[0] + policy.window)
        return int(found[0])
    tx.run("edge_write", topic, mkey, tx.now + policy.window)
    return None


def rejoin(tx: Transaction, lane: Lane, row: Row) -> None:
    """
    `row`, back from a lease and about to wait, takes in the one of its merge key that has come
    meanwhile, as if it had been published first. Where the two are too many for one, both stay.
    """
    if row.mkey is None:
        return
    other = waiting_one(tx, lane, row.mkey)
    if other is None or other.mid == row.mid:
        return
    policy = tx.policy(messages.topic_of(row, lane))
    if policy.merge == "all" and row.parts + other.parts + 2 > policy.merge_limit:
        row.mkey = None  # the later one goes on collecting; this one no longer does
        return
    messages.end_waiting(tx, lane, other)
    bodies = [other.body, *(body for _, body in tx.all("parts_read", other.mid))]
    if policy.merge == "all":
        _add_parts(tx, row, bodies)
    elif policy.merge == "last":
        _change_content(tx, row, bodies, other.headers)
        row.expires = other.expires
        _change_rank(tx, row, other.rank)
    _absorb_ids(tx, lane, row, other)
    if other.sticky and not row.sticky:
        _stick(tx, row)
    if other.serial:
        messages.free_key(tx, lane, other.line, other.mid)
    messages.delete(tx, other)
    lane.merged += 1
    tx.shard.merged += 1


def _absorb_ids(tx: Transaction, lane: Lane, row: Row, other: Row) -> None:
    topic = messages.topic_of(row, lane)
    if other.joined:
        tx.run("idents_rejoin", row.mid, other.mid)
        row.joined = 1
    tx.run("ident_write", tx.id_of(other), topic, row.mid, 1, None)
    row.joined = 1
