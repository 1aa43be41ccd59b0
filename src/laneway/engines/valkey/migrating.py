"""
Export and import over the shards. An exported message moves to the hash `moving` until its arrival
is confirmed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from laneway.engines.base import ExportedMessage, ImportAnswer, SpoolBatch
from laneway.engines.sharded.migrating import Arrival
from laneway.engines.sharded.splitting import Numbers, by_shard, group, pages
from laneway.engines.shared.naming import FORWARDED_KEY_BYTES
from laneway.engines.valkey import record_formats
from laneway.engines.valkey.namespace import Namespace
from laneway.engines.valkey.record_formats import Record
from laneway.engines.valkey.views import View
from laneway.policy import Gate, Layer
from laneway.topic_groups import TOPIC

AT_ONCE = 200
"""Messages that one call exports or imports."""

_SPOOLS_AT_ONCE = 20
"""Batches of spools in a call; each has up to `FORWARD_AT_ONCE` keys."""

_HOLDS_KEY = "\x01"
"""What export.lua writes before the id of a message that holds its serial key."""

_SERIAL = (None, "hold", "yield")


class MigratingShards:
    """
    Export and import on the shards of one namespace, page by page.

    A page of an export continues at the lane where the last one ended. Lanes stay for a moment
    after their last message, so to begin with the first one each time would read all emptied lanes
    for each page.
    """

    def __init__(self, space: Namespace) -> None:
        self._space = space
        self._lanes: Iterator[tuple[int, str | None]] = iter(())
        """The lanes (None: dead letters) that follow, each with its shard."""
        self._lane: tuple[int, str | None] | None = None
        """The lane that the last page ended in."""

    def page(self, limit: int) -> list[ExportedMessage]:
        """The exported messages that were not confirmed yet, then the next ones."""
        messages: list[ExportedMessage] = []
        for shard in range(self._space.shards):
            mids = sorted(int(mid) for mid, _ in self._space.scan(shard, "HSCAN", "moving"))
            messages += self._read(shard, mids[:limit])
        self._fill(messages, limit)
        if not messages:  # what came after their lane was read is still there
            self._lanes = self._every_lane()
            self._fill(messages, limit)
        # The other store numbers them in this order: of those at the front, the last one is first.
        return sorted(messages, key=lambda each: each.number if each.death is None else math.inf)

    def _fill(self, messages: list[ExportedMessage], limit: int) -> None:
        while len(messages) < limit:
            self._lane = self._lane or next(self._lanes, None)
            if self._lane is None:
                return
            page = self.export(*self._lane, min(AT_ONCE, limit - len(messages)))
            messages += page
            if not page:
                self._lane = None

    def _every_lane(self) -> Iterator[tuple[int, str | None]]:
        for shard in range(self._space.shards):
            names = (name.decode() for name, _ in self._space.scan(shard, "HSCAN", "lanes"))
            for lane in itertools.chain(names, (None,)):
                yield shard, lane

    def export(self, shard: int, lane: str | None, limit: int) -> list[ExportedMessage]:
        mids = self._space.run("export", shard, None, lane or "", limit, durable=True)
        return self._read(shard, mids)

    def _read(self, shard: int, mids: Sequence[int]) -> list[ExportedMessage]:
        if not mids:
            return []
        stored, ids = self._space.read_many(
            shard, [("HMGET", "moving", *mids), ("HMGET", "moving_ids", *mids)]
        )
        return [
            self._exported_message(
                shard, record_formats.read_record(mid, each), message_id.decode()
            )
            for mid, each, message_id in zip(mids, stored, ids, strict=True)
        ]

    def _exported_message(self, shard: int, record: Record, message_id: str) -> ExportedMessage:
        space = self._space
        more = space.read(shard, "LRANGE", f"b:{record.mid}", 0, -1) if record.parts else []
        joined = space.read(shard, "LRANGE", f"j:{record.mid}", 0, -1) if record.joined else []
        death = None
        if record.death:
            _, died, until, reason, error = record.death
            death = (died, until, reason, error or None)
        return ExportedMessage(
            number=record.mid * space.shards + shard,
            id=message_id.removeprefix(_HOLDS_KEY),
            topic=record.topic,
            bodies=[record.body, *more],
            key=record.key,
            priority=record.priority,
            at_front=not record.rank & 1,
            headers=record.headers,
            published_us=record.published,
            since_us=record.since,
            expires_us=record.expires or None,
            attempts=record.attempts,
            deliveries=record.deliveries,
            suspect=record.suspect,
            serial=_SERIAL[record.serial],
            holds_key=message_id.startswith(_HOLDS_KEY),
            merges=bool(record.mkey),
            sticky=record.sticky,
            joined=[each.decode() for each in joined],
            unhandled_us=record.unhandled_from or None,
            unhandled_times=record.unhandled_times,
            history=[(at, what, error or None) for at, what, error in record.history],
            death=death,
        )

    def confirm(self, messages: Sequence[ExportedMessage]) -> None:
        """Forget messages that have arrived in the other store."""
        numbers = Numbers(self._space.shards)
        for shard, mids in group(
            (numbers.shard(each.number), numbers.number(each.number)) for each in messages
        ).items():
            self._space.read_many(
                shard,
                [
                    command
                    for mid in mids
                    for command in (
                        ("DEL", f"b:{mid}"),
                        ("DEL", f"j:{mid}"),
                        ("DEL", f"w:{mid}"),
                        ("HDEL", "moving_ids", mid),
                        ("HDEL", "moving", mid),
                    )
                ],
            )

    def import_(self, messages: Sequence[ExportedMessage]) -> list[ImportAnswer]:
        """Import each shard's part, in calls of at most `AT_ONCE`."""
        space = self._space
        arrivals = [Arrival(space, message) for message in messages]
        answers: list[ImportAnswer] = ["accepted"] * len(arrivals)
        for shard, positions in by_shard(arrival.shard(space) for arrival in arrivals).items():
            for page in pages(positions, AT_ONCE):
                bodies = [body for n in page for body in messages[n].bodies]
                rows = record_formats.pack([_import_row(arrivals[n]) for n in page])
                outcomes = space.run("import", shard, None, rows, *bodies, durable=True)
                for position, outcome in zip(page, outcomes, strict=True):
                    answers[position] = outcome.decode()
        return answers

    def import_finished(self, ids: Sequence[tuple[str, str, int | None]]) -> None:
        """Remember finished ids on every shard of their topics."""
        on_shards = group(
            (shard, (topic, message_id, until or 0))
            for topic, message_id, until in ids
            for shard in self._space.routes.shards_of(topic)
        )
        for shard, rows in on_shards.items():
            for page in pages(rows, AT_ONCE):
                self._space.run(
                    "remember_finished",
                    shard,
                    None,
                    record_formats.pack(page),
                    durable=True,
                    repeatable=True,
                )


def _import_row(arrival: Arrival) -> list[Any]:
    """A message as `import.lua` reads it, without its bodies."""
    message = arrival.message
    rank = -2 * message.priority + (0 if message.at_front else 1)
    return [
        message.topic,
        message.id,
        message.key or False,
        message.headers or False,
        message.sticky,
        rank,
        message.published_us,
        message.since_us,
        message.expires_us or False,
        message.attempts,
        message.deliveries,
        message.suspect,
        _SERIAL.index(message.serial),
        arrival.merge_key.hex() if arrival.merge_key is not None else False,
        arrival.number if arrival.number is not None else False,
        message.unhandled_us or 0,
        message.unhandled_times,
        message.joined,
        [(at, what, error or False) for at, what, error in message.history],
        (*message.death[:3], message.death[3] or False) if message.death is not None else False,
        arrival.spread if arrival.spread is not None else False,
        message.holds_key,
        len(message.bodies),
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


def spool_batches(view: View) -> Iterator[SpoolBatch]:
    """The last batch of each spool, shard by shard."""
    width = 2 * FORWARDED_KEY_BYTES
    for shard in range(view.space.shards):
        for spool, stored in view.space.scan(shard, "HSCAN", "forwarded"):
            if spool:  # the field '' is the place of forwarding.lua's next look
                batch, at, keys = record_formats.unpack_values(stored, 3)
                taken = (keys[first : first + width] for first in range(0, len(keys), width))
                yield SpoolBatch(spool.decode(), batch, frozenset(map(bytes.fromhex, taken)), at)


def import_spool_batches(space: Namespace, batches: Sequence[SpoolBatch]) -> None:
    """Remember on each shard what another store has taken of these batches."""
    rows = [(each.spool, each.batch, each.at_us, [k.hex() for k in each.taken]) for each in batches]
    for shard in range(space.shards):
        for page in pages(rows, _SPOOLS_AT_ONCE):
            space.run(
                "remember_batches",
                shard,
                None,
                record_formats.pack(page),
                durable=True,
                repeatable=True,
            )


def gate_layers(view: View) -> list[tuple[str, Layer, Gate]]:
    """Each gate as the code and as the operator set it."""
    found: list[tuple[str, Layer, Gate]] = []
    for name, stored in view.space.scan(0, "HSCAN", "gates"):
        gate = record_formats.read_gate(stored)
        layers: tuple[tuple[Layer, Any], ...] = (("code", gate.code), ("operator", gate.operator))
        found += [
            (name.decode(), layer, record_formats.gate_of(limits))
            for layer, limits in layers
            if limits and not name.startswith(TOPIC.encode())
        ]
    return found
