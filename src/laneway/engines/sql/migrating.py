"""
Export to another store, and import from one.

An exported message leaves its topic and stays in `setting` until the other store has confirmed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from laneway.engines.base import ExportedMessage, ImportAnswer
from laneway.engines.shared.naming import merge_key
from laneway.engines.shared.states import HOLD, RETENTION_ENDS, YIELD
from laneway.engines.sql import messages
from laneway.engines.sql.rows import Lane, Row, rank_of, to_json
from laneway.engines.sql.transaction import Transaction
from laneway.message import Draft

PAGE = 1000
_SERIAL: dict[str | None, int] = {None: 0, "hold": HOLD, "yield": YIELD}
_SERIAL_NAMES = {number: name for name, number in _SERIAL.items()}
_decode = msgspec.json.Decoder(ExportedMessage).decode


def export(tx: Transaction, limit: int) -> list[ExportedMessage]:
    """Messages that are exported and not confirmed, then the next ones; dead letters last."""
    exports = [_decode(value) for (value,) in tx.all("exported_read", limit)]
    lanes: dict[int, Lane] = {}
    for listed in [Row(*row) for row in tx.all("messages_to_export", limit - len(exports))]:
        row = tx.messages.get(listed.mid)  # the export of its key's head may have changed it
        if row is not None:
            lane = lanes[row.lane] = tx.lane(row.lane)
            exports.append(_remove(tx, lane, row))
    for lane in lanes.values():
        tx.place(lane)
    for number, mid, topic, died, until, reason, error in tx.all(
        "dead_list", 0, limit - len(exports)
    ):
        del number
        row = tx.messages.get(mid)
        if row is not None:
            exported = _exported(tx, row, topic)
            exported.death = (died, until, reason, error)
            messages.delete_dead(tx, mid)
            exports.append(_store(tx, exported))
    return exports


def _remove(tx: Transaction, lane: Lane, row: Row) -> ExportedMessage:
    topic = messages.topic_of(row, lane)
    exported = _exported(tx, row, topic)
    head = tx.serial_keys.get(lane.lane, row.line) if row.serial and row.line is not None else None
    exported.holds_key = head is not None and head[:2] == (row.mid, 1)
    messages.remove_waiting(tx, lane, row, topic)
    return _store(tx, exported)


def _store(tx: Transaction, exported: ExportedMessage) -> ExportedMessage:
    tx.run("exported_write", _name(exported), to_json(exported).decode())
    return exported


def _name(exported: ExportedMessage) -> str:
    return f"moving:{exported.number:020d}"


def _exported(tx: Transaction, row: Row, topic: str) -> ExportedMessage:
    unhandled, tries, history = tx.one("note_read", row.mid) or (None, 0, "[]")
    return ExportedMessage(
        number=row.mid,
        id=tx.id_of(row),
        topic=topic,
        bodies=[row.body, *(body for _, body in tx.all("parts_read", row.mid))],
        key=row.key,
        priority=row.priority,
        at_front=not row.rank & 1,
        headers=msgspec.json.decode(row.headers) if row.headers else None,
        published_us=row.published,
        since_us=row.since,
        expires_us=row.expires,
        attempts=row.attempts,
        deliveries=row.deliveries,
        suspect=bool(row.suspect),
        serial=_SERIAL_NAMES[row.serial],
        merges=row.mkey is not None,
        sticky=bool(row.sticky),
        joined=(
            [message_id for message_id, _ in tx.all("idents_joined", row.mid)] if row.joined else []
        ),
        unhandled_us=unhandled,
        unhandled_times=tries,
        history=[
            (each["at_us"], each["what"], each["error"]) for each in msgspec.json.decode(history)
        ],
    )


def confirm_export(tx: Transaction, exported_messages: Sequence[ExportedMessage]) -> None:
    """The other store has these messages: forget them."""
    tx.run_many("exported_delete", [(_name(exported),) for exported in exported_messages])


def import_(tx: Transaction, exported_messages: Sequence[ExportedMessage]) -> list[ImportAnswer]:
    """Insert messages whose ids are not known here; answers "accepted" or "duplicate" for each."""
    answers: list[ImportAnswer] = []
    lanes: dict[int, Lane] = {}
    for exported in exported_messages:
        if messages.is_known(tx, exported.topic, exported.id):
            answers.append("duplicate")
            continue
        answers.append("accepted")
        lane = _insert(tx, exported)
        lanes[lane.lane] = lane
    for lane in lanes.values():
        tx.place(lane)
    return answers


def _insert(tx: Transaction, exported: ExportedMessage) -> Lane:
    policy, mid = tx.policy(exported.topic), tx.next_seq()
    mkey = (
        merge_key(Draft(exported.topic, exported.bodies[0], key=exported.key))
        if exported.merges
        else None
    )
    spread_by = (
        exported.key.encode()
        if exported.key is not None
        else exported.bodies[0]
        if exported.merges
        else None
    )
    lane = tx.ensure_lane(*tx.lane_of(policy, exported.topic, spread_by, mid))
    headers = to_json(exported.headers).decode() if exported.headers else None
    row = Row(
        mid,
        lane.lane,
        rank_of(exported.priority, at_front=exported.at_front),
        mid,
        exported.since_us,
        exported.published_us,
        exported.expires_us,
        exported.key,
        exported.id,
        headers,
        exported.bodies[0],
        _SERIAL[exported.serial],
        odd=1,
        topic=exported.topic if lane.topic is None else None,
        mkey=mkey,
        attempts=exported.attempts,
        deliveries=exported.deliveries,
        suspect=int(exported.suspect),
        joined=int(bool(exported.joined)),
        parts=len(exported.bodies) - 1,
        sticky=int(exported.sticky),
    )
    lane.published += 1
    tx.shard.published += 1
    tx.messages.add(row)
    tx.run("ident_write", exported.id, exported.topic, mid, 0, None)
    for message_id in exported.joined:
        tx.run("ident_write", message_id, exported.topic, mid, 1, None)
    tx.run_many("part_insert", [(mid, n, body) for n, body in enumerate(exported.bodies[1:], 1)])
    history = [{"at_us": at, "what": what, "error": error} for at, what, error in exported.history]
    if history or exported.unhandled_us is not None:
        tx.run(
            "note_write",
            mid,
            exported.unhandled_us,
            exported.unhandled_times,
            to_json(history).decode(),
        )
    if exported.death is not None:
        _bury(tx, lane, row, exported.death)
    else:
        if exported.holds_key:
            _hold_key(tx, lane, row)
        messages.begin_waiting_again(tx, lane, row)
    tx.touch(lane)
    return lane


def _hold_key(tx: Transaction, lane: Lane, row: Row) -> None:
    """The message holds its serial key, unless another message holds it."""
    line, first = row.line or "", (row.rank, row.pos)
    key = tx.serial_keys.get(lane.lane, line)
    if key is not None:
        if key[1]:
            return
        messages.park_overtaken(tx, lane, key[0], line)
        # Parked messages may have earlier places than the one that holds the key.
        first = (tx.serial_keys.get(lane.lane, line) or key)[2:]
    tx.serial_keys.put((lane.lane, line), row.mid, 1, *first)


def _bury(tx: Transaction, lane: Lane, row: Row, death: tuple[int, int, str, str | None]) -> None:
    died, until, reason, error = death
    messages.bury(tx, lane, row, reason, error)
    usual = tx.now + tx.policy(messages.topic_of(row, lane)).dead_ttl
    tx.events.delete(usual, RETENTION_ENDS, row.mid)
    tx.events.put((until, RETENTION_ENDS, row.mid))
    tx.run("dead_set", died, until, row.mid)


def finished_ids(tx: Transaction) -> Iterator[tuple[str, str, int | None]]:
    """(topic, id, until when) of the ids of finished messages, in the order of topic and id."""
    after = ("", "")
    while page := tx.all("idents_finished", *after, PAGE):
        yield from page
        after = page[-1][:2]


def import_finished(tx: Transaction, ids: Sequence[tuple[str, str, int | None]]) -> None:
    """Make these ids known, unless they are known already."""
    tx.run_many("ident_know", [(message_id, topic, until) for topic, message_id, until in ids])
    for _, _, until in ids:
        tx.shard.expect_wake(until)
