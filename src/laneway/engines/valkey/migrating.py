"""Moving to another store: what is sent is kept aside until it has arrived."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from laneway.engines.base import ExportedMessage, ImportAnswer
from laneway.engines.shared.naming import merge_key
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


def export(view: View, limit: int) -> list[ExportedMessage]:
    """What is on its way already, else what comes next."""
    space = view.space
    found = list(_on_their_way(view, limit))
    for shard in range(space.shards):
        for name, _ in space.scan(shard, "HSCAN", "lanes"):
            while len(found) < limit and (
                taken := space.run(
                    "export", shard, None, name, min(AT_ONCE, limit - len(found)), durable=True
                )
            ):
                found += _read(view, shard, taken)
        while len(found) < limit and (
            taken := space.run(
                "export", shard, None, "", min(AT_ONCE, limit - len(found)), durable=True
            )
        ):
            found += _read(view, shard, taken)
    return found


def _on_their_way(view: View, limit: int) -> Iterator[ExportedMessage]:
    for shard in range(view.space.shards):
        mids = sorted(int(mid) for mid, _ in view.space.scan(shard, "HSCAN", "moving"))
        yield from _read(view, shard, mids[:limit])


def _read(view: View, shard: int, mids: Sequence[int]) -> list[ExportedMessage]:
    if not mids:
        return []
    stored = view.space.read(shard, "HMGET", "moving", *mids)
    ids = view.space.read(shard, "HMGET", "moving_ids", *mids)
    return [
        _parcel(view, shard, records.read_record(mid, each), made.decode())
        for mid, each, made in zip(mids, stored, ids, strict=True)
    ]


def _parcel(view: View, shard: int, record: Record, message_id: str) -> ExportedMessage:
    space = view.space
    more = space.read(shard, "LRANGE", f"b:{record.mid}", 0, -1) if record.parts else []
    joined = space.read(shard, "LRANGE", f"j:{record.mid}", 0, -1) if record.joined else []
    death = None
    if record.death:
        _, died, until, reason, error = record.death
        death = (died, until, reason, error or None)
    return ExportedMessage(
        number=record.mid * space.shards + shard,
        id=message_id,
        topic=record.topic,
        bodies=[record.body, *more],
        key=record.key or None,  # type: ignore[arg-type]
        priority=record.priority,
        at_front=not record.rank & 1,
        headers=record.headers or None,  # type: ignore[arg-type]
        published_us=record.published,
        since_us=record.since,
        expires_us=record.expires or None,
        attempts=record.attempts,
        deliveries=record.deliveries,
        suspect=record.suspect,
        serial=_SERIAL[record.serial],
        merges=bool(record.mkey),
        sticky=record.sticky,
        joined=[each.decode() for each in joined],
        unhandled_us=record.unhandled_from or None,
        unhandled_times=record.unhandled_times,
        history=[(at, what, error or None) for at, what, error in record.history],
        death=death,
    )


def confirm_export(space: Namespace, exported_messages: Sequence[ExportedMessage]) -> None:
    """They have arrived."""
    for exported in exported_messages:
        mid, shard = divmod(exported.number, space.shards)
        space.read_many(
            shard,
            [
                ("DEL", f"b:{mid}"),
                ("DEL", f"j:{mid}"),
                ("HDEL", "moving_ids", mid),
                ("HDEL", "moving", mid),
            ],
        )


def import_(space: Namespace, exported_messages: Sequence[ExportedMessage]) -> list[ImportAnswer]:
    """Each shard's part in one call for every `AT_ONCE`."""
    by_shard: dict[int, list[int]] = {}
    metas = [_meta(space, exported) for exported in exported_messages]
    for n, exported in enumerate(exported_messages):
        route = space.book.route(exported.topic)
        spread = metas[n][-2]
        part = spread if spread is not False else zlib.crc32(exported.id.encode())
        by_shard.setdefault(
            space.shard_of(exported.topic, part) if route.policy.partitions > 1 else route.shard, []
        ).append(n)
    answers: list[ImportAnswer] = ["accepted"] * len(exported_messages)
    for shard, positions in by_shard.items():
        for start in range(0, len(positions), AT_ONCE):
            page = positions[start : start + AT_ONCE]
            bodies = [body for n in page for body in exported_messages[n].bodies]
            told = space.run(
                "import", shard, None, records.pack([metas[n] for n in page]), *bodies, durable=True
            )
            for n, answer in zip(page, told, strict=True):
                answers[n] = answer.decode()
    return answers


def _meta(space: Namespace, exported: ExportedMessage) -> list[Any]:
    policy = space.book.route(exported.topic).policy
    mkey = (
        merge_key(Draft(exported.topic, exported.bodies[0], key=exported.key)).hex()
        if exported.merges
        else False
    )
    made = space.made(exported.id)
    spread: int | bool = False
    if exported.key is not None:
        spread = zlib.crc32(exported.key.encode())
    elif exported.merges:
        spread = zlib.crc32(exported.bodies[0])
    elif policy.partitions > 1 and space.shards > 1:
        spread = zlib.crc32(exported.id.encode())
    rank = -2 * exported.priority + (0 if exported.at_front else 1)
    return [
        exported.topic,
        exported.id,
        exported.key or False,
        exported.headers or False,
        exported.sticky,
        rank,
        exported.published_us,
        exported.since_us,
        exported.expires_us or False,
        exported.attempts,
        exported.deliveries,
        exported.suspect,
        _SERIAL.index(exported.serial),
        mkey,
        made[1] if made is not None else False,
        exported.unhandled_us or 0,
        exported.unhandled_times,
        exported.joined,
        [(at, what, error or False) for at, what, error in exported.history],
        (*exported.death[:3], exported.death[3] or False) if exported.death is not None else False,
        spread,
        len(exported.bodies),
    ]


def finished_ids(view: View) -> Iterator[tuple[str, str, int | None]]:
    """Topic by topic, as the server lists its keys."""
    space = view.space
    for shard in range(space.shards):
        prefix, cursor = space.key(shard, "i:"), 0
        while True:
            cursor, names = space.server.read(
                shard, [("SCAN", cursor, "MATCH", prefix.replace("[", "\\[") + "*", "COUNT", 1000)]
            )[0]
            for name in names:
                topic = name.decode()[len(prefix) :]
                for message_id, stored in space.scan(shard, "HSCAN", f"i:{topic}"):
                    if stored.startswith(b"f"):
                        yield topic, message_id.decode(), int(stored[1:]) or None
            cursor = int(cursor)
            if not cursor:
                break


def import_finished(space: Namespace, ids: Sequence[tuple[str, str, int | None]]) -> None:
    """Where they are not known already."""
    by_shard: dict[int, list[tuple[str, str, int]]] = {}
    for topic, message_id, until in ids:
        for shard in space.shards_of(topic):
            by_shard.setdefault(shard, []).append((topic, message_id, until or 0))
    for shard, several in by_shard.items():
        for start in range(0, len(several), AT_ONCE):
            space.run(
                "remember_finished",
                shard,
                None,
                records.pack(several[start : start + AT_ONCE]),
                durable=True,
                repeatable=True,
            )


def gate_layers(view: View) -> list[tuple[str, Layer, Gate]]:
    """Each gate as the code and as the operator set it."""
    found: list[tuple[str, Layer, Gate]] = []
    for name, stored in view.space.scan(0, "HSCAN", "gates"):
        gate = records.read_gate(stored)
        layers: tuple[tuple[Layer, Any], ...] = (("code", gate.code), ("operator", gate.operator))
        found += [
            (name.decode(), layer, records.gate_of(limits)) for layer, limits in layers if limits
        ]
    return found
