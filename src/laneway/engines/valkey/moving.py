"""Moving to another store: what is sent is kept aside until it has arrived."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from laneway.engines.base import Parcel
from laneway.engines.naming import merge_key
from laneway.engines.valkey import records
from laneway.message import Draft

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from laneway.engines.valkey.namespace import Namespace
    from laneway.engines.valkey.records import Record
    from laneway.engines.valkey.views import View
    from laneway.policy import Gate, Layer

AT_ONCE = 200
_SERIAL = (None, "hold", "yield")


def send(view: View, limit: int) -> list[Parcel]:
    """What is on its way already, else what comes next."""
    space = view.space
    found = list(_on_their_way(view, limit))
    for shard in range(space.shards):
        for name, _ in space.scan(shard, "HSCAN", "lanes"):
            while len(found) < limit and (taken := space.run("send", shard, None, name, min(AT_ONCE, limit - len(found)), durable=True)):
                found += _read(view, shard, taken)
        while len(found) < limit and (taken := space.run("send", shard, None, "", min(AT_ONCE, limit - len(found)), durable=True)):
            found += _read(view, shard, taken)
    return found


def _on_their_way(view: View, limit: int) -> Iterator[Parcel]:
    for shard in range(view.space.shards):
        mids = sorted(int(mid) for mid, _ in view.space.scan(shard, "HSCAN", "moving"))
        yield from _read(view, shard, mids[:limit])


def _read(view: View, shard: int, mids: Sequence[int]) -> list[Parcel]:
    if not mids:
        return []
    stored = view.space.read(shard, "HMGET", "moving", *mids)
    ids = view.space.read(shard, "HMGET", "moving_ids", *mids)
    return [_parcel(view, shard, records.read_record(mid, each), made.decode()) for mid, each, made in zip(mids, stored, ids, strict=True)]


def _parcel(view: View, shard: int, record: Record, message_id: str) -> Parcel:
    space = view.space
    more = space.read(shard, "LRANGE", f"b:{record.mid}", 0, -1) if record.parts else []
    joined = space.read(shard, "LRANGE", f"j:{record.mid}", 0, -1) if record.joined else []
    death = None
    if record.death:
        _, died, until, reason, error = record.death
        death = (died, until, reason, error or None)
    return Parcel(
        number=record.mid * space.shards + shard, id=message_id, topic=record.topic, bodies=[record.body, *more], key=record.key or None,  # type: ignore[arg-type]
        priority=record.priority, at_front=not record.rank & 1, headers=record.headers or None, published_us=record.published,  # type: ignore[arg-type]
        since_us=record.since, expires_us=record.expires or None, attempts=record.attempts, deliveries=record.deliveries, suspect=record.suspect,
        serial=_SERIAL[record.serial], merges=bool(record.mkey), sticky=record.sticky, joined=[each.decode() for each in joined],
        unhandled_us=record.unhandled_from or None, unhandled_times=record.unhandled_times,
        history=[(at, what, error or None) for at, what, error in record.history], death=death,
    )  # fmt: skip


def sent(space: Namespace, parcels: Sequence[Parcel]) -> None:
    """They have arrived."""
    for parcel in parcels:
        mid, shard = divmod(parcel.number, space.shards)
        space.read_many(shard, [("DEL", f"b:{mid}"), ("DEL", f"j:{mid}"), ("HDEL", "moving_ids", mid), ("HDEL", "moving", mid)])


def receive(space: Namespace, parcels: Sequence[Parcel]) -> list[str]:
    """Each shard's part in one call for every `AT_ONCE`."""
    by_shard: dict[int, list[int]] = {}
    metas = [_meta(space, parcel) for parcel in parcels]
    for n, parcel in enumerate(parcels):
        route = space.book.route(parcel.topic)
        spread = metas[n][-2]
        part = spread if spread is not False else zlib.crc32(parcel.id.encode())
        by_shard.setdefault(space.shard_of(parcel.topic, part) if route.policy.partitions > 1 else route.shard, []).append(n)
    answers = [""] * len(parcels)
    for shard, positions in by_shard.items():
        for start in range(0, len(positions), AT_ONCE):
            page = positions[start : start + AT_ONCE]
            bodies = [body for n in page for body in parcels[n].bodies]
            told = space.run("receive", shard, None, records.pack([metas[n] for n in page]), *bodies, durable=True)
            for n, answer in zip(page, told, strict=True):
                answers[n] = answer.decode()
    return answers


def _meta(space: Namespace, parcel: Parcel) -> list[Any]:
    policy = space.book.route(parcel.topic).policy
    mkey = merge_key(Draft(parcel.topic, parcel.bodies[0], key=parcel.key)).hex() if parcel.merges else False
    made = space.made(parcel.id)
    spread: int | bool = False
    if parcel.key is not None:
        spread = zlib.crc32(parcel.key.encode())
    elif parcel.merges:
        spread = zlib.crc32(parcel.bodies[0])
    elif policy.partitions > 1 and space.shards > 1:
        spread = zlib.crc32(parcel.id.encode())
    rank = -2 * parcel.priority + (0 if parcel.at_front else 1)
    return [
        parcel.topic, parcel.id, parcel.key or False, parcel.headers or False, parcel.sticky, rank, parcel.published_us, parcel.since_us,
        parcel.expires_us or False, parcel.attempts, parcel.deliveries, parcel.suspect, _SERIAL.index(parcel.serial), mkey,
        made[1] if made is not None else False, parcel.unhandled_us or 0, parcel.unhandled_times, parcel.joined,
        [(at, what, error or False) for at, what, error in parcel.history],
        (*parcel.death[:3], parcel.death[3] or False) if parcel.death is not None else False, spread, len(parcel.bodies),
    ]  # fmt: skip


def finished_ids(view: View) -> Iterator[tuple[str, str, int | None]]:
    """Topic by topic, as the server lists its keys."""
    space = view.space
    for shard in range(space.shards):
        prefix, cursor = space.key(shard, "i:"), 0
        while True:
            cursor, names = space.link.read(shard, [("SCAN", cursor, "MATCH", prefix.replace("[", "\\[") + "*", "COUNT", 1000)])[0]
            for name in names:
                topic = name.decode()[len(prefix) :]
                for message_id, stored in space.scan(shard, "HSCAN", f"i:{topic}"):
                    if stored.startswith(b"f"):
                        yield topic, message_id.decode(), int(stored[1:]) or None
            cursor = int(cursor)
            if not cursor:
                break


def receive_finished(space: Namespace, ids: Sequence[tuple[str, str, int | None]]) -> None:
    """Where they are not known already."""
    by_shard: dict[int, list[tuple[str, str, int]]] = {}
    for topic, message_id, until in ids:
        for shard in space.shards_of(topic):
            by_shard.setdefault(shard, []).append((topic, message_id, until or 0))
    for shard, several in by_shard.items():
        for start in range(0, len(several), AT_ONCE):
            space.run("know", shard, None, records.pack(several[start : start + AT_ONCE]), durable=True, repeatable=True)


def gate_layers(view: View) -> list[tuple[str, Layer, Gate]]:
    """Each gate as the code and as the operator set it."""
    found: list[tuple[str, Layer, Gate]] = []
    for name, stored in view.space.scan(0, "HSCAN", "gates"):
        gate = records.read_gate(stored)
        layers: tuple[tuple[Layer, Any], ...] = (("code", gate.code), ("operator", gate.operator))
        found += [(name.decode(), layer, records.gate_of(limits)) for layer, limits in layers if limits]
    return found
