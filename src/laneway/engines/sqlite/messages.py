"""
The states of one message, and the rows that each state has.

    state      `message`   also in
    READY      state 0     `ready`, under its lane, rank, position and number; `serial_key` as its
                           key's head, where it is serial
    leased     state 0     `lease`, by fence; `serial_key` with `held`; no row in `ready`
    DELAYED    state 1     `event` of kind DUE, at its `since`
    PARKED     state 2     `parked`, behind the head of its serial key
    DEAD       state 3     `dead`; `event` of kind RETENTION_ENDS; its lane is 0
    finished   no row      `ident` without a message, while its id is known; `kept`, its outcome

    A message that waits (READY, DELAYED, PARKED) has besides: `event` of kind EXPIRES, where it has
    a ttl; `merge_key`, where it merges. In any state: `ident` for an id of the user's own and for
    the ids that joined it, `part` for bodies beyond the first, `note` for its history, `came` for
    the signals that it received. At most once: `lease` has `empty` set, and no message is left.

These functions are the general path, row by row. `putting`, `serving` and `settling` have fast
paths for plain messages, which have no key, no ttl, no id of the user's own and do not merge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from laneway.engines import base
from laneway.engines.shared.naming import generated_id, parse_generated_id
from laneway.engines.shared.refusals import EXPIRED, HISTORY
from laneway.engines.shared.states import (
    DEAD,
    DELAYED,
    DUE,
    EXPIRES,
    PARKED,
    READY,
    RETENTION_ENDS,
    YIELD,
)
from laneway.engines.sqlite import message_ends
from laneway.engines.sqlite.rows import Lane, Row
from laneway.policy import FOREVER

if TYPE_CHECKING:
    from laneway.engines.sqlite.transaction import Transaction


def topic_of(row: Row, lane: Lane) -> str:
    return row.topic if row.topic is not None else lane.topic or ""


def read(tx: Transaction, mid: int) -> Row | None:
    row = tx.one("message_read", mid)
    return Row(*row) if row else None


def size_of(tx: Transaction, row: Row) -> int:
    size = len(row.body)
    return size + int(tx.one("parts_size", row.mid)[0]) if row.parts else size


def save(tx: Transaction, row: Row) -> None:
    """Write the columns that change while a message is stored; its content is written apart."""
    tx.run(
        "message_move",
        row.lane,
        row.state,
        row.rank,
        row.seq,
        row.since,
        row.expires,
        row.serial,
        row.attempts,
        row.deliveries,
        row.suspect,
        row.joined,
        row.parts,
        row.mid,
    )


# Waiting


def begin_waiting(tx: Transaction, lane: Lane, row: Row) -> None:
    """The message begins to wait: delayed if its `since` is in the future, else it arrives."""
    size = size_of(tx, row)
    lane.bytes += size
    tx.shard.bytes += size
    tx.shard.waiting += 1
    if row.expires is not None:
        tx.run("event_insert", row.expires, EXPIRES, row.mid, 0)
    if row.mkey is not None:
        tx.run("merge_key_write", lane.lane, row.mkey, row.mid)
    if row.since > tx.now:
        row.state = DELAYED
        lane.delayed += 1
        tx.run("event_insert", row.since, DUE, row.mid, 0)
    else:
        arrive(tx, lane, row)
    tx.touch(lane)


def end_waiting(tx: Transaction, lane: Lane, row: Row) -> None:
    """
    Delete a waiting message from all tables of waiting messages, except `serial_key`: callers
    that remove the message call `free_key` too.
    """
    size = size_of(tx, row)
    lane.bytes -= size
    tx.shard.bytes -= size
    tx.shard.waiting -= 1
    if row.expires is not None:
        tx.run("event_delete", row.expires, EXPIRES, row.mid)
    if row.mkey is not None:
        tx.run("merge_key_delete", lane.lane, row.mkey, row.mid)
    if row.state == DELAYED:
        lane.delayed -= 1
        tx.run("event_delete", row.since, DUE, row.mid)
    elif row.state == PARKED:
        lane.parked -= 1
        tx.run("parked_delete", lane.lane, row.line, row.rank, row.pos, row.seq)
    else:
        lane.ready -= 1
        tx.run("ready_delete", lane.lane, row.rank, row.pos, row.seq)
    tx.touch(lane)


def arrive(tx: Transaction, lane: Lane, row: Row) -> None:
    """The message becomes ready, or is parked behind the head of its serial key."""
    if row.serial and row.line is not None:
        key = tx.one("serial_key_read", lane.lane, row.line)
        if key is None:
            tx.run("serial_key_write", lane.lane, row.line, row.mid, 0)
        elif key[0] != row.mid:
            head, is_held = key
            if is_held or not _precedes(tx, row, head):
                _park(tx, lane, row)
                return
            _park_overtaken(tx, lane, head)
            tx.run("serial_key_write", lane.lane, row.line, row.mid, 0)
    row.state = READY
    lane.ready += 1
    tx.run("ready_insert", lane.lane, row.rank, row.pos, row.seq, row.mid)


def _precedes(tx: Transaction, row: Row, head: int) -> bool:
    """Whether the message is before its key's head in the order of the lane."""
    other = read(tx, head)
    return other is None or (row.rank, row.pos, row.seq) < (other.rank, other.pos, other.seq)


def _park(tx: Transaction, lane: Lane, row: Row) -> None:
    row.state = PARKED
    lane.parked += 1
    tx.run("parked_insert", lane.lane, row.line, row.rank, row.pos, row.seq, row.mid)


def _park_overtaken(tx: Transaction, lane: Lane, head: int) -> None:
    """Park the head of a key that is not held: another message comes before it."""
    other = read(tx, head)
    if other is None:
        return
    lane.ready -= 1
    tx.run("ready_delete", lane.lane, other.rank, other.pos, other.seq)
    _park(tx, lane, other)
    save(tx, other)


def free_key(tx: Transaction, lane: Lane, key: str | None, mid: int) -> None:
    """The message leaves its serial key: the first parked message of the key becomes ready."""
    if key is None:
        return
    head = tx.one("serial_key_read", lane.lane, key)
    if head is None or head[0] != mid:
        return
    first = tx.one("parked_first", lane.lane, key)
    if first is None:
        tx.run("serial_key_delete", lane.lane, key)
        return
    row = read(tx, first[0])
    if row is None:  # pragma: no cover - a row is missing; the doctor repairs that
        tx.run("serial_key_delete", lane.lane, key)
        return
    tx.run("parked_delete", lane.lane, key, row.rank, row.pos, row.seq)
    lane.parked -= 1
    lane.ready += 1
    row.state = READY
    tx.run("ready_insert", lane.lane, row.rank, row.pos, row.seq, row.mid)
    tx.run("serial_key_write", lane.lane, key, row.mid, 0)
    save(tx, row)
    tx.touch(lane)


def yields(row: Row) -> bool:
    """Whether the next of its key goes first while this one waits for a retry."""
    return row.serial == YIELD


# Ids


def is_known(tx: Transaction, topic: str, message_id: str) -> bool:
    """
    Whether a message of that id is waiting, leased or dead, or was finished within its window.
    """
    ident = tx.one("ident_read", message_id, topic)
    if ident is not None:
        mid, until = ident
        if mid is not None or until is None or until > tx.now:
            return True
        tx.run("ident_delete", message_id, topic)
        return False
    mid = parse_generated_id(tx.shard.nonce, message_id)
    return mid is not None and topic_of_generated(tx, mid) == topic


def topic_of_generated(tx: Transaction, mid: int) -> str | None:
    """The topic of a message with a generated id; None: there is no such message."""
    stored = tx.one("message_at", mid)
    if stored is None:
        return None
    lane, state, topic = stored
    if topic is not None:
        return str(topic)
    if state == DEAD:
        return str(tx.one("dead_read", mid)[2])
    return tx.lane(lane).topic


def find(tx: Transaction, message_id: str, topic: str | None) -> Row | None:
    """A message by its id, its own or a generated one, which contains the row's number."""
    if topic is None:
        ident = tx.one("ident_anywhere", message_id)
        mid = ident[1] if ident is not None else None
    else:
        ident = tx.one("ident_read", message_id, topic)
        mid = ident[0] if ident is not None else None
    if mid is None:
        mid = parse_generated_id(tx.shard.nonce, message_id)
        if mid is None:
            return None
        its_topic = topic_of_generated(tx, mid)
        if its_topic is None or topic not in (None, its_topic):
            return None
    return read(tx, mid)


def finish_ids(tx: Transaction, row: Row, topic: str, *, remember: bool) -> None:
    """
    The message is removed: forget its ids. With `remember` (it was acked) they stay known for the
    window of `dedupe`, and sticky ones for a day.
    """
    window = _window(tx.policy(topic).dedupe, sticky=bool(row.sticky)) if remember else 0
    ids = (
        [(row.id or generated_id(tx.shard.nonce, row.mid), topic)]
        if row.id is not None or window
        else []
    )
    if row.joined:
        ids += tx.all("idents_joined", row.mid)
    for message_id, its_topic in ids:
        if window:
            tx.run(
                "ident_write",
                message_id,
                its_topic,
                None,
                0,
                None if window == FOREVER else tx.now + window,
            )
        else:
            tx.run("ident_delete", message_id, its_topic)


def _window(dedupe: int | None, *, sticky: bool) -> int:
    if dedupe == FOREVER:
        return FOREVER
    return max(dedupe or 0, base.STICKY_US if sticky else 0)


# The end


def delete(tx: Transaction, row: Row) -> None:
    """Delete the message's own rows; counts, ids and keys are the callers'."""
    tx.run("message_delete", row.mid)
    if row.parts:
        tx.run("parts_delete", row.mid)
        if row.since == base.UNTIL_SIGNALLED_US:
            tx.run("came_delete", row.mid)
    if row.attempts or row.suspect or row.deliveries or row.odd:
        tx.run("note_delete", row.mid)


def bury(tx: Transaction, lane: Lane, row: Row, reason: str, error: str | None) -> None:
    """A message that no longer waits, nor is leased, becomes a dead letter."""
    topic = topic_of(row, lane)
    until = tx.now + tx.policy(topic).dead_ttl
    row.state = DEAD
    row.lane = 0  # its lane may be forgotten; a dead letter belongs to its topic
    save(tx, row)
    tx.run("dead_insert", row.mid, topic, tx.now, until, reason, error)
    tx.run("event_insert", until, RETENTION_ENDS, row.mid, 0)
    tx.shard.dead += 1
    message_ends.message_ended(tx, row, topic, "expired" if reason == EXPIRED else "dead", reason)


def expire(tx: Transaction, lane: Lane, row: Row) -> None:
    """The ttl of a message, which no longer waits, is over."""
    topic = topic_of(row, lane)
    lane.expired += 1
    tx.shard.expired += 1
    if tx.policy(topic).on_expiry == "drop":
        message_ends.message_ended(tx, row, topic, "expired", EXPIRED)
        finish_ids(tx, row, topic, remember=False)
        delete(tx, row)
    else:
        bury(tx, lane, row, EXPIRED, None)


def delete_dead(tx: Transaction, mid: int) -> None:
    """Delete a dead letter: it was dropped, or its retention is over."""
    dead = tx.one("dead_read", mid)
    row = read(tx, mid)
    if dead is None or row is None:
        return
    tx.run("event_delete", dead[4], RETENTION_ENDS, mid)
    tx.run("dead_delete", mid)
    finish_ids(tx, row, dead[2], remember=False)
    delete(tx, row)
    tx.run("note_delete", mid)
    tx.shard.dead -= 1


def add_history(tx: Transaction, row: Row, what: str, error: str | None) -> None:
    """Add an entry to the history that `MessageView` shows."""
    unhandled, tries, encoded = tx.one("note_read", row.mid) or (None, 0, "[]")
    history: list[dict[str, Any]] = msgspec.json.decode(encoded)
    history.append({"at_us": tx.now, "what": what, "error": error})
    tx.run(
        "note_write", row.mid, unhandled, tries, msgspec.json.encode(history[-HISTORY:]).decode()
    )


def remove_waiting(tx: Transaction, lane: Lane, row: Row, topic: str) -> None:
    """Remove a message that waits, with its ids: it was purged, cancelled or exported."""
    end_waiting(tx, lane, row)
    remove_ended(tx, lane, row, topic)


def remove_ended(tx: Transaction, lane: Lane, row: Row, topic: str) -> None:
    """Remove a message that neither waits nor is leased, with its ids; free its serial key."""
    finish_ids(tx, row, topic, remember=False)
    delete(tx, row)
    if row.serial:
        free_key(tx, lane, row.line, row.mid)
    lane.removed += 1
    tx.shard.removed += 1
