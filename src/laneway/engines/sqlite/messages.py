"""
The ways of one message: waiting, coming back, finished, dead. The slow and general paths;
`putting`, `serving` and `settling` have short cuts for messages that use none of keys, merges, ttl
or ids of the user's own.
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
from laneway.engines.sqlite import endings
from laneway.engines.sqlite.rows import Lane, Row
from laneway.policy import FOREVER

if TYPE_CHECKING:
    from laneway.engines.sqlite.transaction import Transaction


def topic_of(row: Row, lane: Lane) -> str:
    return row.topic if row.topic is not None else lane.topic or ""


def read(tx: Transaction, mid: int) -> Row | None:
    found = tx.one("message_read", mid)
    return Row(*found) if found else None


def size_of(tx: Transaction, row: Row) -> int:
    size = len(row.body)
    return size + int(tx.one("parts_size", row.mid)[0]) if row.parts else size


def save(tx: Transaction, row: Row) -> None:
    """Write where the message stands; its content is written apart."""
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
    """
    The message waits from now on: delayed until its `since`, if that is to come, else it arrives.
    """
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
    Take a waiting message out of everything that it waits in; its serial key is the caller's
    business.
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
    """The message becomes ready, or is parked behind the one that its serial key is busy with."""
    if row.serial and row.line is not None:
        found = tx.one("serial_key_read", lane.lane, row.line)
        if found is None:
            tx.run("serial_key_write", lane.lane, row.line, row.mid, 0)
        elif found[0] != row.mid:
            head, held = found
            if held or not _goes_before(tx, row, head):
                _park(tx, lane, row)
                return
            _step_back(tx, lane, head)
            tx.run("serial_key_write", lane.lane, row.line, row.mid, 0)
    row.state = READY
    lane.ready += 1
    tx.run("ready_insert", lane.lane, row.rank, row.pos, row.seq, row.mid)


def _goes_before(tx: Transaction, row: Row, head: int) -> bool:
    other = read(tx, head)
    return other is None or (row.rank, row.pos, row.seq) < (other.rank, other.pos, other.seq)


def _park(tx: Transaction, lane: Lane, row: Row) -> None:
    row.state = PARKED
    lane.parked += 1
    tx.run("parked_insert", lane.lane, row.line, row.rank, row.pos, row.seq, row.mid)


def _step_back(tx: Transaction, lane: Lane, head: int) -> None:
    """The key's head was overtaken while the key was free."""
    other = read(tx, head)
    if other is None:
        return
    lane.ready -= 1
    tx.run("ready_delete", lane.lane, other.rank, other.pos, other.seq)
    _park(tx, lane, other)
    save(tx, other)


def free_key(tx: Transaction, lane: Lane, key: str | None, mid: int) -> None:
    """
    The message no longer holds (or heads) its serial key: the next one of the key comes forward.
    """
    if key is None:
        return
    found = tx.one("serial_key_read", lane.lane, key)
    if found is None or found[0] != mid:
        return
    first = tx.one("parked_first", lane.lane, key)
    if first is None:
        tx.run("serial_key_delete", lane.lane, key)
        return
    row = read(tx, first[0])
    if row is None:  # pragma: no cover - a store that lost a row; the doctor mends it
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
    found = tx.one("ident_read", message_id, topic)
    if found is not None:
        mid, until = found
        if mid is not None or until is None or until > tx.now:
            return True
        tx.run("ident_delete", message_id, topic)
        return False
    mid = parse_generated_id(tx.shard.nonce, message_id)
    return mid is not None and topic_of_generated(tx, mid) == topic


def topic_of_generated(tx: Transaction, mid: int) -> str | None:
    """The topic of a message that has an id of our own making, if it is here."""
    found = tx.one("message_at", mid)
    if found is None:
        return None
    lane, state, topic = found
    if topic is not None:
        return str(topic)
    if state == DEAD:
        return str(tx.one("dead_read", mid)[2])
    return tx.lane(lane).topic


def find(tx: Transaction, message_id: str, topic: str | None) -> Row | None:
    """A message by its id: one of our making names its row, one of the user's is looked up."""
    if topic is None:
        found = tx.one("ident_anywhere", message_id)
        mid = found[1] if found is not None else None
    else:
        found = tx.one("ident_read", message_id, topic)
        mid = found[0] if found is not None else None
    if mid is None:
        made = parse_generated_id(tx.shard.nonce, message_id)
        if made is None:
            return None
        its_topic = topic_of_generated(tx, made)
        if its_topic is None or topic not in (None, its_topic):
            return None
        mid = made
    return read(tx, mid)


def finish_ids(tx: Transaction, row: Row, topic: str, *, keep: bool) -> None:
    """
    The message is gone: its ids are forgotten, or kept (acked ones, for the window of `dedupe`, or
    a day where they are sticky).
    """
    window = _window(tx.policy(topic).dedupe, sticky=bool(row.sticky)) if keep else 0
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


def remove(tx: Transaction, row: Row) -> None:
    """Delete the message's rows."""
    tx.run("message_delete", row.mid)
    if row.parts:
        tx.run("parts_delete", row.mid)
        if row.since == base.UNTIL_SIGNALLED_US:
            tx.run("came_delete", row.mid)
    if row.attempts or row.suspect or row.deliveries or row.odd:
        tx.run("note_delete", row.mid)


def bury(tx: Transaction, lane: Lane, row: Row, reason: str, error: str | None) -> None:
    """The message, which neither waits nor is leased any more, becomes a dead letter."""
    topic = topic_of(row, lane)
    until = tx.now + tx.policy(topic).dead_ttl
    row.state = DEAD
    row.lane = 0  # lanes come and go; a dead letter belongs to its topic
    save(tx, row)
    tx.run("dead_insert", row.mid, topic, tx.now, until, reason, error)
    tx.run("event_insert", until, RETENTION_ENDS, row.mid, 0)
    tx.shard.dead += 1
    endings.message_ended(tx, row, topic, "expired" if reason == EXPIRED else "dead", reason)


def expire(tx: Transaction, lane: Lane, row: Row) -> None:
    """A message, no longer waiting, whose ttl is over."""
    topic = topic_of(row, lane)
    lane.expired += 1
    tx.shard.expired += 1
    if tx.policy(topic).on_expiry == "drop":
        endings.message_ended(tx, row, topic, "expired", EXPIRED)
        finish_ids(tx, row, topic, keep=False)
        remove(tx, row)
    else:
        bury(tx, lane, row, EXPIRED, None)


def forget_dead(tx: Transaction, mid: int) -> None:
    """A dead letter is dropped, or past its retention."""
    found = tx.one("dead_read", mid)
    row = read(tx, mid)
    if found is None or row is None:
        return
    tx.run("event_delete", found[4], RETENTION_ENDS, mid)
    tx.run("dead_delete", mid)
    finish_ids(tx, row, found[2], keep=False)
    remove(tx, row)
    tx.run("note_delete", mid)
    tx.shard.dead -= 1


def note_trouble(tx: Transaction, row: Row, what: str, error: str | None) -> None:
    """Remember what happened to the message, for people who ask."""
    found = tx.one("note_read", row.mid) or (None, 0, "[]")
    history: list[dict[str, Any]] = msgspec.json.decode(found[2])
    history.append({"at_us": tx.now, "what": what, "error": error})
    tx.run(
        "note_write", row.mid, found[0], found[1], msgspec.json.encode(history[-HISTORY:]).decode()
    )


def withdraw(tx: Transaction, lane: Lane, row: Row, topic: str) -> None:
    """
    Take a message that waits out of the store, and its id with it: purged, cancelled, or moved
    elsewhere.
    """
    end_waiting(tx, lane, row)
    take_out(tx, lane, row, topic)


def take_out(tx: Transaction, lane: Lane, row: Row, topic: str) -> None:
    """
    Take a message that no longer waits, nor is leased, out of the store, and its id and its hold on
    its key with it.
    """
    finish_ids(tx, row, topic, keep=False)
    remove(tx, row)
    if row.serial:
        free_key(tx, lane, row.line, row.mid)
    lane.removed += 1
    tx.shard.removed += 1
