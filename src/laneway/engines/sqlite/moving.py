"""Moving to another store: what is sent is kept aside until it has arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from laneway.engines.base import Parcel
from laneway.engines.naming import lane_name, merge_key
from laneway.engines.sqlite import messages
from laneway.engines.sqlite.rows import HOLD, READY, RETENTION_ENDS, YIELD, Lane, Row, rank_of
from laneway.message import Draft

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from laneway.engines.sqlite.turn import Turn

PAGE = 1000
_SERIAL: dict[str | None, int] = {None: 0, "hold": HOLD, "yield": YIELD}
_SERIAL_NAMES = {number: name for name, number in _SERIAL.items()}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Parcel).decode


def send(turn: Turn, limit: int) -> list[Parcel]:
    """What is on its way already, else what comes next."""
    found = [_decode(value) for (value,) in turn.all("moving_first", limit)]
    lanes: dict[int, Lane] = {}
    for listed in [Row(*row) for row in turn.all("messages_to_move", limit - len(found))]:
        row = messages.read(turn, listed.mid)  # another one's going may have brought it forward
        if row is not None:
            lane = lanes[row.lane] = turn.lane(row.lane)
            found.append(_take(turn, lane, row))
    for lane in lanes.values():
        turn.place(lane)
    for number, mid, topic, died, until, reason, error in turn.all("dead_list", 0, limit - len(found)):
        del number
        row = messages.read(turn, mid)
        if row is not None:
            parcel = _parcel(turn, row, topic)
            parcel.death = (died, until, reason, error)
            messages.forget_dead(turn, mid)
            found.append(_keep(turn, parcel))
    return found


def _take(turn: Turn, lane: Lane, row: Row) -> Parcel:
    topic = messages.topic_of(row, lane)
    parcel = _parcel(turn, row, topic)
    messages.withdraw(turn, lane, row, topic)
    return _keep(turn, parcel)


def _keep(turn: Turn, parcel: Parcel) -> Parcel:
    turn.run("moving_write", _name(parcel), _encode(parcel).decode())
    return parcel


def _name(parcel: Parcel) -> str:
    return f"moving:{parcel.number:020d}"


def _parcel(turn: Turn, row: Row, topic: str) -> Parcel:
    unhandled, tries, history = turn.one("note_read", row.mid) or (None, 0, "[]")
    return Parcel(
        number=row.mid, id=messages.id_of(turn, row), topic=topic, bodies=[row.body, *(body for _, body in turn.all("parts_read", row.mid))],
        key=row.key, priority=row.priority, at_front=not row.rank & 1, headers=msgspec.json.decode(row.headers) if row.headers else None,
        published_us=row.published, since_us=row.since, expires_us=row.expires, attempts=row.attempts, deliveries=row.deliveries,
        suspect=bool(row.suspect), serial=_SERIAL_NAMES[row.serial], merges=row.mkey is not None, sticky=bool(row.sticky),
        joined=[message_id for message_id, _ in turn.all("idents_joined", row.mid)] if row.joined else [],
        unhandled_us=unhandled, unhandled_times=tries,
        history=[(each["at_us"], each["what"], each["error"]) for each in msgspec.json.decode(history)],
    )  # fmt: skip


def sent(turn: Turn, parcels: Sequence[Parcel]) -> None:
    """They have arrived."""
    turn.run_many("moving_end", [(_name(parcel),) for parcel in parcels])


def receive(turn: Turn, parcels: Sequence[Parcel]) -> list[str]:
    """Take in what is not known here."""
    answers = []
    lanes: dict[int, Lane] = {}
    for parcel in parcels:
        if messages.is_known(turn, parcel.topic, parcel.id):
            answers.append("duplicate")
            continue
        answers.append("accepted")
        lane = _receive(turn, parcel)
        lanes[lane.lane] = lane
    for lane in lanes.values():
        turn.place(lane)
    return answers


def _receive(turn: Turn, parcel: Parcel) -> Lane:
    policy, mid = turn.policy(parcel.topic), turn.next_seq()
    mkey = merge_key(Draft(parcel.topic, parcel.bodies[0], key=parcel.key)) if parcel.merges else None
    spread_by = parcel.key.encode() if parcel.key is not None else parcel.bodies[0] if parcel.merges else None
    lane = turn.make_lane(*lane_name(policy, parcel.topic, spread_by, mid))
    headers = _encode(parcel.headers).decode() if parcel.headers else None
    row = Row(
        mid, lane.lane, READY, rank_of(parcel.priority, at_front=parcel.at_front), mid, parcel.since_us, parcel.published_us, parcel.expires_us,
        _SERIAL[parcel.serial], 1, parcel.key, parcel.id, parcel.topic if lane.topic is None else None, mkey, headers, parcel.attempts,
        parcel.deliveries, int(parcel.suspect), int(bool(parcel.joined)), len(parcel.bodies) - 1, int(parcel.sticky), parcel.bodies[0],
    )  # fmt: skip
    lane.published += 1
    turn.shard.published += 1
    turn.run(
        "message_insert", mid, lane.lane, READY, row.rank, mid, row.since, row.published, row.expires, row.serial, 1, row.key, row.id, row.topic,
        mkey, headers, row.sticky, row.body,
    )  # fmt: skip
    turn.run("ident_write", parcel.id, parcel.topic, mid, 0, None)
    for message_id in parcel.joined:
        turn.run("ident_write", message_id, parcel.topic, mid, 1, None)
    turn.run_many("part_insert", [(mid, n, body) for n, body in enumerate(parcel.bodies[1:], 1)])
    history = [{"at_us": at, "what": what, "error": error} for at, what, error in parcel.history]
    if history or parcel.unhandled_us is not None:
        turn.run("note_write", mid, parcel.unhandled_us, parcel.unhandled_times, _encode(history).decode())
    if parcel.death is not None:
        _bury(turn, lane, row, parcel.death)
    else:
        collects = mkey is None or turn.one("merge_key_read", lane.lane, mkey) is None
        row.mkey = mkey if collects else None  # another one of its key waits already; it goes its own way
        messages.begin_waiting(turn, lane, row)
        messages.save(turn, row)
    turn.touch(lane)
    return lane


def _bury(turn: Turn, lane: Lane, row: Row, death: tuple[int, int, str, str | None]) -> None:
    died, until, reason, error = death
    messages.bury(turn, lane, row, reason, error)
    turn.run("event_delete", turn.now + turn.policy(messages.topic_of(row, lane)).dead_ttl, RETENTION_ENDS, row.mid)
    turn.run("event_insert", until, RETENTION_ENDS, row.mid, 0)
    turn.run("dead_set", died, until, row.mid)


def finished_ids(turn: Turn) -> Iterator[tuple[str, str, int | None]]:
    """By topic and id."""
    after = ("", "")
    while page := turn.all("idents_finished", *after, PAGE):
        yield from page
        after = page[-1][:2]


def receive_finished(turn: Turn, ids: Sequence[tuple[str, str, int | None]]) -> None:
    """Where they are not known already."""
    turn.run_many("ident_know", [(message_id, topic, until) for topic, message_id, until in ids])
