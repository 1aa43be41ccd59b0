"""
The states of one message, and the rows that each state has.

    state      `message`   also in
    READY      state 0     `ready`, under its lane, rank, position and number; `serial_key` as its
                           key's head, where it is serial
    leased     state 0     `lease`, by fence; `serial_key` with `held`; no row in `ready`
    DELAYED    state 1     `timer` of its lane, at its `since` or before
    PARKED     state 2     `parked`, behind the head of its serial key; or `key_parked`, while its
                           key is at a limit
    DEAD       state 3     `dead`; `event` of kind RETENTION_ENDS; its lane is 0
    finished   no row      `ident` without a message, while its id is known; `kept`, its outcome

    A message that waits (READY, DELAYED, PARKED) has besides: `event` of kind EXPIRES, where it has
    a ttl; `merge_key`, where it merges. In any state: `ident` for an id of the user's own and for
    the ids that joined it, `part` for bodies beyond the first, `note` for its history, `came` for
    the signals that it received. At most once: `lease` has `empty` set, and no message is left.

These functions decide message by message; a transaction's `tables` read and write the rows of all
of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from laneway import headers as control
from laneway.engines import base
from laneway.engines.shared.naming import generated_id, parse_generated_id
from laneway.engines.shared.refusals import EXPIRED, HISTORY
from laneway.engines.shared.states import (
    DEAD,
    DELAYED,
    EXPIRES,
    PARKED,
    READY,
    RETENTION_ENDS,
    YIELD,
)
from laneway.engines.sql import key_limits, message_ends
from laneway.engines.sql.rows import Ended, Lane, Row, read_headers, to_json
from laneway.engines.sql.transaction import Transaction
from laneway.headers import COST
from laneway.policy import FOREVER

_history = msgspec.json.Decoder(list[dict[str, Any]]).decode


def topic_of(row: Row | Ended, lane: Lane) -> str:
    return row.topic if row.topic is not None else lane.topic or ""


def resize(tx: Transaction, lane: Lane, row: Row, by: int) -> None:
    """A waiting message got this number of bytes more."""
    lane.bytes += by
    tx.shard.bytes += by
    if lane.folded is not None:
        lane.count_folded(row.topic, 0, by)
        tx.touch(lane)
    if (backlog := tx.backlogs.get(topic_of(row, lane))) is not None:
        backlog.resize(0, by)


def size_of(tx: Transaction, row: Row) -> int:
    size = len(row.body)
    return size + sum(map(len, tx.parts.bodies(row.mid))) if row.parts else size


# Waiting


def begin_waiting(tx: Transaction, lane: Lane, row: Row, *, collects: bool = True) -> None:
    """
    The message begins to wait: delayed if its `since` is in the future, else it arrives.
    `collects`: messages with its merge key join it.
    """
    if row.headers is not None and COST in row.headers:
        expect_costs(tx, lane)
    size = len(row.body) if not row.parts else size_of(tx, row)
    lane.bytes += size
    shard = tx.shard
    shard.bytes += size
    shard.waiting += 1
    if tx.backlogs and (backlog := tx.backlogs.get(topic_of(row, lane))) is not None:
        backlog.came(row, size)
    if lane.folded is not None:
        lane.count_folded(row.topic, 1, size)
        tx.touch(lane)
    if row.expires is not None:
        tx.events.put((row.expires, EXPIRES, row.mid))
    if row.mkey is not None and collects:
        tx.merge_keys.put((lane.lane, row.mkey), row.mid)
    if row.since > tx.now:
        row.state = DELAYED
        lane.delayed += 1
        tx.timers.expect(lane.lane, row.since)
        tx.touch(lane)
    else:
        arrive(tx, lane, row)


def begin_waiting_again(tx: Transaction, lane: Lane, row: Row) -> None:
    """A stored message begins to wait; alone, if another one with its merge key waits."""
    collects = row.mkey is None or tx.merge_keys.get(lane.lane, row.mkey) is None
    begin_waiting(tx, lane, row, collects=collects)
    tx.messages.save(row)


def cost_of(headers: str | None) -> int:
    return control.cost(read_headers(headers)) if headers and COST in headers else 1


def expect_costs(tx: Transaction, lane: Lane) -> None:
    """A message of the lane may cost more than 1: visits read what its next messages cost."""
    if not lane.need:
        lane.need = 1
        tx.touch(lane)


def end_waiting(tx: Transaction, lane: Lane, row: Row) -> None:
    """
    Delete a waiting message from all tables of waiting messages, except `serial_key`: callers
    that remove the message call `free_key` too.
    """
    if lane.parked and row.mid in tx.messages.new:
        tx.messages.write()  # else a read of parked messages writes it where it waits no more
    size = len(row.body) if not row.parts else size_of(tx, row)
    lane.bytes -= size
    tx.shard.bytes -= size
    tx.shard.waiting -= 1
    if tx.backlogs and (backlog := tx.backlogs.get(topic_of(row, lane))) is not None:
        backlog.resize(-1, -size)
    if lane.folded is not None:
        lane.count_folded(row.topic, -1, -size)
    if row.expires is not None:
        tx.events.delete(row.expires, EXPIRES, row.mid)
    free_merge_key(tx, lane, row)
    if row.state == DELAYED:
        end_delay(tx, lane)
    elif row.state == PARKED:
        lane.parked -= 1
        if row.serial:
            tx.parked.delete(lane.lane, row.line, row.rank, row.pos, row.seq)
        else:
            key_limits.unpark(tx, lane, row)
    else:
        lane.ready -= 1
        tx.ready.delete(lane.lane, row.rank, row.pos, row.seq)
    tx.touch(lane)


def end_delay(tx: Transaction, lane: Lane) -> None:
    """
    A message of the lane is delayed no more. The timer stays while others are: housekeeping moves
    it to the first of them.
    """
    lane.delayed -= 1
    if not lane.delayed:
        tx.timers.delete(lane.lane)


def take_out(tx: Transaction, lane: Lane, row: Row) -> None:
    """As `end_waiting`, of a message that will not wait again: the next one of its key may come."""
    end_waiting(tx, lane, row)
    key_limits.leave(tx, lane, row)


def free_merge_key(tx: Transaction, lane: Lane, row: Row) -> None:
    """The message no longer waits: no other one joins it."""
    if row.mkey is not None and tx.merge_keys.get(lane.lane, row.mkey) == (row.mid,):
        tx.merge_keys.delete(lane.lane, row.mkey)


def arrive(tx: Transaction, lane: Lane, row: Row) -> None:
    """The message becomes ready, or is parked behind the head of its serial key."""
    number = lane.lane
    if row.serial and (line := row.line) is not None:
        key = tx.serial_keys.get(number, line)
        if key is None:
            tx.serial_keys.put((number, line), row.mid, 0, row.rank, row.pos)
        elif key[0] != row.mid:
            head, is_held, *_ = key
            if is_held or not _precedes(tx, row, head):
                _park(tx, lane, row, line)
                return
            park_overtaken(tx, lane, head, line)
            tx.serial_keys.put((number, line), row.mid, 0, row.rank, row.pos)
    row.state = READY
    lane.ready += 1
    if row.mid not in tx.messages.new:
        tx.ready.put((number, row.rank, row.pos, row.seq), row.mid)
    if row.rank != lane.first_rank or row.pos < lane.first_pos:
        tx.expect_ready(lane, row)
    tx.grown[number] = lane


def _precedes(tx: Transaction, row: Row, head: int) -> bool:
    """Whether the message is before its key's head in the order of the lane."""
    other = tx.messages.get(head)
    return other is None or (row.rank, row.pos, row.seq) < (other.rank, other.pos, other.seq)


def _park(tx: Transaction, lane: Lane, row: Row, line: str) -> None:
    row.state = PARKED
    lane.parked += 1
    tx.touch(lane)
    tx.serial_keys.expect(lane.lane, line, (row.rank, row.pos))
    if row.mid in tx.messages.new:
        tx.parked.forget_first(lane.lane, line)
    else:
        tx.parked.put((lane.lane, line, row.rank, row.pos, row.seq), row.mid)


def park_overtaken(tx: Transaction, lane: Lane, head: int, line: str) -> None:
    """Park the head of a key that is not held: another message comes before it."""
    other = tx.messages.get(head)
    if other is None:
        return
    lane.ready -= 1
    tx.ready.delete(lane.lane, other.rank, other.pos, other.seq)
    _park(tx, lane, other, line)
    tx.messages.save_state(other)


def load_parked(tx: Transaction, serial_keys: Sequence[tuple[int, str]]) -> None:
    """Read what `arrive` and `free_key` need for these (lane, serial key)."""
    if serial_keys:
        tx.serial_keys.load(serial_keys)
        _load_first_parked(tx, [key for key in serial_keys if tx.lane(key[0]).parked])


def _load_first_parked(tx: Transaction, serial_keys: Sequence[tuple[int, str]]) -> None:
    tx.parked.load_firsts(serial_keys)
    firsts = (tx.parked.first(*key) for key in serial_keys)
    tx.messages.load(mid for mid in firsts if mid is not None)


def free_key(tx: Transaction, lane: Lane, key: str | None, mid: int) -> None:
    """The message leaves its serial key: the first parked message of the key becomes ready."""
    if key is None:
        return
    head = tx.serial_keys.get(lane.lane, key)
    if head is not None and head[0] == mid:
        _pass_key_on(tx, lane, key)


def free_held_keys(tx: Transaction, keys: Sequence[tuple[Lane, str]]) -> None:
    """As `free_key` for keys whose heads have held them: their leases end, or they are dropped."""
    parked = [(lane.lane, key) for lane, key in keys if lane.parked]
    if parked:
        _load_first_parked(tx, parked)
    for lane, key in keys:
        _pass_key_on(tx, lane, key)


def _pass_key_on(tx: Transaction, lane: Lane, key: str) -> None:
    """The head of the key leaves: the first parked message takes its place."""
    first = tx.parked.first(lane.lane, key) if lane.parked else None
    row = tx.messages.get(first) if first is not None else None
    if row is None:
        tx.serial_keys.delete(lane.lane, key)
        return
    tx.parked.delete(lane.lane, key, row.rank, row.pos, row.seq)
    lane.parked -= 1
    lane.ready += 1
    row.state = READY
    tx.expect_ready(lane, row)
    tx.ready.put((lane.lane, row.rank, row.pos, row.seq), row.mid)
    tx.serial_keys.put((lane.lane, key), row.mid, 0, row.rank, row.pos)
    tx.messages.save_state(row)
    tx.touch(lane)


def holds_key(tx: Transaction, lane: Lane, row: Row) -> bool:
    """Whether the message keeps its serial key while it waits for a retry."""
    key = tx.serial_keys.get(lane.lane, row.line)
    return key is not None and key[0] == row.mid and bool(key[1])


def yields(row: Row) -> bool:
    """Whether the next of its key goes first while this one waits for a retry."""
    return row.serial == YIELD


# Ids


def is_known(tx: Transaction, topic: str, message_id: str) -> bool:
    """
    Whether a message of that id is waiting, leased or dead, or was finished within its window.
    """
    ident = tx.idents.get(message_id, topic)
    if ident is not None:
        mid, _, until = ident
        if mid is not None or until is None or until > tx.now:
            return True
        tx.idents.delete(message_id, topic)
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
        letter = tx.dead_letters.get(mid)
        return str(letter[0]) if letter is not None else None
    return tx.lane(lane).topic


def find(tx: Transaction, message_id: str, topic: str | None) -> Row | None:
    """A message by its topic and id. Without the topic, only a generated id is found."""
    number = parse_generated_id(tx.shard.nonce, message_id)
    if topic is None:
        row = tx.messages.get(number) if number is not None else None
        if row is not None or number is None:
            return row
        ident = tx.one("ident_anywhere", message_id)
    else:
        ident = tx.idents.get(message_id, topic)
    if ident is not None and ident[0] is not None:
        return tx.messages.get(ident[0])
    if number is None or topic is None or topic_of_generated(tx, number) != topic:
        return None
    return tx.messages.get(number)


def finish_ids(tx: Transaction, row: Row | Ended, topic: str, *, remember: bool) -> None:
    """
    The message is removed: forget its ids. With `remember` (it was acked) they stay known for the
    window of `dedupe`, and sticky ones for a day.
    """
    dedupe = tx.policy(topic).dedupe if remember else None
    if dedupe is None and row.id is None and not (row.joined or row.sticky):
        return
    window = _window(dedupe, sticky=bool(row.sticky)) if remember else 0
    ids = (
        [(row.id or generated_id(tx.shard.nonce, row.mid), topic)]
        if row.id is not None or window
        else []
    )
    if row.joined:
        ids += tx.idents.joined(row.mid)
    until = None if window == FOREVER else tx.now + window
    for known in ids:
        if window:
            tx.idents.put(known, None, 0, until)
        else:
            tx.idents.delete(*known)


def _window(dedupe: int | None, *, sticky: bool) -> int:
    if dedupe == FOREVER:
        return FOREVER
    return max(dedupe or 0, base.STICKY_US if sticky else 0)


# The end


def delete(tx: Transaction, row: Row | Ended) -> None:
    """Delete the message's own rows; counts, ids and keys are the callers'."""
    tx.messages.delete(row.mid)
    delete_extras(tx, row)


def delete_extras(tx: Transaction, row: Row | Ended) -> None:
    """Delete its rows beyond the one in `message`, which few messages have."""
    if row.parts:
        tx.parts.delete(row.mid)
        if row.since == base.UNTIL_SIGNALLED_US:
            tx.run("came_delete", row.mid)
    if row.has_note:
        tx.notes.delete(row.mid)


def bury(tx: Transaction, lane: Lane, row: Row, reason: str, error: str | None) -> None:
    """A message that no longer waits, nor is leased, becomes a dead letter."""
    topic = topic_of(row, lane)
    until = tx.now + tx.policy(topic).dead_ttl
    row.state = DEAD
    row.lane = 0  # its lane may be forgotten; a dead letter belongs to its topic
    tx.messages.save(row)
    tx.dead_letters.put((row.mid,), topic, tx.now, until, reason, error)
    tx.events.put((until, RETENTION_ENDS, row.mid))
    tx.shard.dead += 1
    tx.letters[topic] = tx.letters.get(topic, 0) + 1
    dead_letter_ended(tx, row, topic, reason)


def dead_letter_ended(tx: Transaction, row: Row, topic: str, reason: str) -> None:
    """Store the outcome of a message that became a dead letter, and publish end notices."""
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
    letter = tx.dead_letters.get(mid)
    row = tx.messages.get(mid)
    if letter is None or row is None:
        return
    topic, _, until, _, _ = letter
    tx.events.delete(until, RETENTION_ENDS, mid)
    tx.dead_letters.delete(mid)
    finish_ids(tx, row, topic, remember=False)
    delete(tx, row)
    tx.notes.delete(mid)
    tx.shard.dead -= 1
    tx.letters[topic] = tx.letters.get(topic, 0) - 1


def add_history(tx: Transaction, mid: int, what: str, error: str | None) -> None:
    """Add an entry to the history of a message, which `MessageView` shows."""
    note = tx.notes.get(mid)
    if note is None:
        tx.notes.put((mid,), None, 0, first_history(tx.now, what, error))
        return
    unhandled, tries, encoded = note
    history = [*_history(encoded), _entry(tx.now, what, error)]
    tx.notes.put((mid,), unhandled, tries, to_json(history[-HISTORY:]).decode())


def first_history(now: int, what: str, error: str | None) -> str:
    return to_json([_entry(now, what, error)]).decode()


def _entry(now: int, what: str, error: str | None) -> dict[str, Any]:
    return {"at_us": now, "what": what, "error": error}


def remove_waiting(tx: Transaction, lane: Lane, row: Row, topic: str) -> None:
    """Remove a message that waits, with its ids: it was purged, cancelled or exported."""
    take_out(tx, lane, row)
    remove_ended(tx, lane, row, topic)


def remove_ended(tx: Transaction, lane: Lane, row: Row, topic: str) -> None:
    """Remove a message that neither waits nor is leased, with its ids; free its serial key."""
    finish_ids(tx, row, topic, remember=False)
    delete(tx, row)
    if row.serial:
        free_key(tx, lane, row.line, row.mid)
    lane.removed += 1
    tx.shard.removed += 1
