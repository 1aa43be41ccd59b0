"""
Merging: a new message joins a waiting one with its merge key, and a message that returns from a
lease takes in the one that waits.

The rules are in docs/specification.md, "Merging on publish" and "Arriving".

For example, the messages a, b, c and d of one key are published in this order. With
`merge_limit=3` one message holds at most three bodies.

    merge    what waits then     a is leased, b is published, a is retried
    first    a                   a, the second attempt
    last     d                   b, the second attempt
    all      [a, b, c] and [d]   [a, b], the second attempt

Why this is correct. The table of merge keys has one waiting message for each key, and publish,
lease and settle change it in the transaction that changes the message. A leased message is not in
it, so what its handler has read never changes, and a newcomer begins a message of its own. When the
leased one returns, the two join before either is delivered, so a key has one waiting message again,
except where `merge_limit` keeps them apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from laneway.engines.shared.refusals import MAX_WAIT_WINDOWS, explicit_due
from laneway.engines.sql import key_limits, messages
from laneway.engines.sql.rows import Lane, Row, rank_of
from laneway.engines.sql.transaction import Transaction
from laneway.message import Draft
from laneway.policy import Resolved


def waiting_message(tx: Transaction, lane: Lane, mkey: bytes) -> Row | None:
    key = tx.merge_keys.get(lane.lane, mkey)
    return tx.messages.get(key[0]) if key is not None else None


def join(tx: Transaction, lane: Lane, row: Row, draft: Draft, policy: Resolved) -> bool:
    """Merge a new message into the waiting `row`; False: that one has reached `merge_limit`."""
    if policy.merge == "all":
        if row.parts + 1 >= policy.merge_limit:
            return False
        row.parts += 1
        tx.parts.add(row.mid, row.parts, draft.body)
        messages.resize(tx, lane, row, len(draft.body))
        tx.messages.save(row)
    _change_waiting(tx, lane, row, draft, policy)
    if draft.sticky and not row.sticky:
        tx.messages.make_sticky(row)
    if draft.id is not None:
        row.joined = 1
        tx.messages.save(row)
        tx.idents.put((draft.id, messages.topic_of(row, lane)), row.mid, 1, None)
    lane.merged += 1
    tx.shard.merged += 1
    tx.touch(lane)
    return True


def _change_waiting(tx: Transaction, lane: Lane, row: Row, draft: Draft, policy: Resolved) -> None:
    """Change what the new message changes: the due time, and with `last` the whole content."""
    due = _new_due(tx, row, draft, policy)
    if policy.merge != "last" and due == row.since:
        return
    messages.end_waiting(tx, lane, row)
    if due > tx.now:
        key_limits.leave(tx, lane, row)
    if row.serial and not messages.holds_key(tx, lane, row):
        messages.free_key(tx, lane, row.line, row.mid)  # its position may change
    row.since = due
    if policy.merge == "last":
        headers = msgspec.json.encode(draft.headers).decode() if draft.headers else None
        _change_content(tx, row, [draft.body], headers)
        row.expires = policy.expires_us(draft.ttl_us, tx.now)
        row.attempts = 0
        _change_rank(tx, row, rank_of(draft.priority, at_front=draft.at_front))
    messages.begin_waiting(tx, lane, row)
    tx.messages.save(row)


def _new_due(tx: Transaction, row: Row, draft: Draft, policy: Resolved) -> int:
    due = explicit_due(draft, tx.now) if policy.merge == "last" else None
    if due is None and policy.debounce and policy.window is not None and row.since > tx.now:
        most = policy.max_wait if policy.max_wait is not None else MAX_WAIT_WINDOWS * policy.window
        due = max(min(row.published + most, tx.now + policy.window), tx.now)
    return due if due is not None else row.since


def _change_content(tx: Transaction, row: Row, bodies: list[bytes], headers: str | None) -> None:
    row.body, row.headers = bodies[0], headers
    tx.messages.save_content(row)
    if row.parts:  # from a time when the policy said "all"
        tx.parts.delete(row.mid)
    row.parts = 0
    _add_parts(tx, row, bodies[1:])


def _add_parts(tx: Transaction, row: Row, bodies: list[bytes]) -> None:
    for body in bodies:
        row.parts += 1
        tx.parts.add(row.mid, row.parts, body)


def _change_rank(tx: Transaction, row: Row, rank: int) -> None:
    """A changed priority needs a new sequence number; for cursors the old one is removed."""
    if rank != row.rank:
        row.rank = rank
        row.seq = tx.next_seq()


def window_due(tx: Transaction, topic: str, mkey: bytes, policy: Resolved) -> int | None:
    """When the first message of a merge key is due by the policy's window; None: now."""
    if policy.window is None:
        return None
    if policy.edge == "trailing":
        return tx.now + policy.window
    edge = tx.edges.get(topic, mkey)
    if edge is not None and edge[0] > tx.now:
        # The next window begins when this message is due, at the end of the present one.
        tx.edges.put((topic, mkey), edge[0] + policy.window)
        return int(edge[0])
    tx.edges.put((topic, mkey), tx.now + policy.window)
    return None


def load_returning(tx: Transaction, returned: Sequence[tuple[int, int]]) -> None:
    """Read what the return of these (lane, message) from their leases needs."""
    if not returned:
        return
    tx.messages.load(mid for _, mid in returned)
    rows = [(lane, row) for lane, mid in returned if (row := tx.messages.get(mid)) is not None]
    mkeys = [(lane, row.mkey) for lane, row in rows if row.mkey is not None]
    tx.merge_keys.load(mkeys)
    waiting = [key[0] for mkey in mkeys if (key := tx.merge_keys.get(*mkey)) is not None]
    tx.messages.load(waiting)
    others = [row for mid in waiting if (row := tx.messages.get(mid)) is not None]
    tx.parts.load(row.mid for row in [*others, *(row for _, row in rows)] if row.parts)
    tx.idents.load_joined(row.mid for row in others if row.joined)


def rejoin(tx: Transaction, lane: Lane, row: Row) -> bool:
    """
    `row` comes back from a lease: merge the message with its merge key that arrived meanwhile into
    it, as if `row` had been published first. If both together exceed `merge_limit`, both stay, and
    only the later one collects from now on: False.
    """
    if row.mkey is None:
        return True
    other = waiting_message(tx, lane, row.mkey)
    if other is None or other.mid == row.mid:
        return True
    policy = tx.policy(messages.topic_of(row, lane))
    if policy.merge == "all" and row.parts + other.parts + 2 > policy.merge_limit:
        return False
    messages.take_out(tx, lane, other)
    bodies = [other.body, *(tx.parts.bodies(other.mid) if other.parts else ())]
    if policy.merge == "all":
        _add_parts(tx, row, bodies)
    elif policy.merge == "last":
        _change_content(tx, row, bodies, other.headers)
        row.expires = other.expires
        _change_rank(tx, row, other.rank)
    _absorb_ids(tx, lane, row, other)
    if other.sticky and not row.sticky:
        tx.messages.make_sticky(row)
    if other.serial:
        messages.free_key(tx, lane, other.line, other.mid)
    messages.delete(tx, other)
    lane.merged += 1
    tx.shard.merged += 1
    return True


def _absorb_ids(tx: Transaction, lane: Lane, row: Row, other: Row) -> None:
    topic = messages.topic_of(row, lane)
    if other.joined:
        for known in tx.idents.joined(other.mid):
            tx.idents.put(known, row.mid, 1, None)
    tx.idents.put((tx.id_of(other), topic), row.mid, 1, None)
    row.joined = 1
