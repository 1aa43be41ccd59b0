"""Administration of the Valkey engine: policies, gates, topics, dead letters, and the overview."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from laneway.engines.base import (
    BY_OPERATOR,
    CHANGED,
    CancelAnswer,
    Check,
    DoctorStep,
    Explanation,
    ExportedMessage,
    HeldState,
    IdState,
    ImportAnswer,
    LaneRate,
    LogEntry,
    MessageView,
    MoveAnswer,
    MoveTarget,
    Overview,
    RecordChange,
    RecordKind,
    Settings,
    SpoolBatch,
    StorePart,
    Tallies,
    TopicOrder,
    TopicStats,
)
from laneway.engines.sharded.admin import DeadAction, ShardedAdmin
from laneway.engines.sharded.splitting import PAGE, group, pages
from laneway.engines.shared import gates, views as shared
from laneway.engines.shared.explaining import absent
from laneway.engines.shared.naming import lane_names
from laneway.engines.shared.refusals import nobody_follows
from laneway.engines.valkey import (
    doctor,
    explaining,
    listing,
    record_formats,
    views,
)
from laneway.engines.valkey.engine import ValkeyQueue
from laneway.engines.valkey.errors import NamespaceGone
from laneway.engines.valkey.migrating import (
    MigratingShards,
    finished_ids,
    gate_layers,
    import_spool_batches,
    spool_batches,
)
from laneway.engines.valkey.namespace import Call
from laneway.engines.valkey.record_formats import Record
from laneway.engines.valkey.views import View
from laneway.policy import Gate, Layer
from laneway.units import SECOND

INDEXED: frozenset[RecordKind] = frozenset({"endpoint", "endpoint_state"})
"""Kinds of records of which there may be millions."""

LOOKED_UP_AT_ONCE = 250
"""Ids that one call looks up: with large bodies it should block the server no longer than 10 ms."""

STATES: dict[str, IdState] = {
    "w": "waiting",
    "l": "leased",
    "d": "dead",
    "f": "finished",
    "u": "unknown",
}
"""The answers of `scripts/states.lua`."""

LOGGED_AT_ONCE = 100
"""Entries that one call appends, because the server answers no other client meanwhile."""

LOG_END_US = 1 << 52
"""A time after all entries of the delivery log."""


class ValkeyEngine(ValkeyQueue, ShardedAdmin):
    """The queue and the administration in one object."""

    def __init__(self, url: str, settings: Settings) -> None:
        super().__init__(url, settings)
        self._moving = MigratingShards(self._space)

    def _view(self, now_us: int | None = None) -> View:
        return View(self._space, now_us)

    # Programs

    def programs(self) -> dict[str, bytes]:
        found = self._space.read(0, "HGETALL", "programs")
        return {name.decode(): value for name, value in zip(found[::2], found[1::2], strict=True)}

    def program_swap(self, name: str, before: bytes | None, after: bytes | None) -> bool:
        return bool(
            self._space.run(
                "swap", 0, None, "programs", name, before or b"", after or b"", durable=True
            )
        )

    # Elections: each is on the shard of its name

    def election_read(self, name: str, *, now_us: int | None = None) -> tuple[bytes | None, int]:
        shard = self._space.routes.home(name)
        record = self._space.read(shard, "HGET", "elections", name)
        counters, clock = self._space.counters(shard)  # the time is not before that of the record
        return record, max(counters.now, clock if now_us is None else now_us)

    def election_swap(
        self,
        name: str,
        before: bytes | None,
        after: bytes,
        *,
        durable: bool = True,
        now_us: int | None = None,
    ) -> bool:
        # Renewals too: a replica that takes over without one gives the term away while its holder
        # goes on.
        del durable
        shard = self._space.routes.home(name)
        return bool(
            self._space.run(
                "swap", shard, now_us, "elections", name, before or b"", after, durable=True
            )
        )

    def elections(self, *, limit: int = 1000, after: str = "") -> list[str]:
        names = (
            name.decode()
            for shard in range(self._space.shards)
            for name in self._space.read(shard, "HGETALL", "elections")[::2]
        )
        return heapq.nsmallest(limit, (name for name in names if name > after))

    # Records: a hash for each kind, on the first shard. Those of a kind with millions are on the
    # shards of their names, with an index of the names in order.

    def record_read(self, kind: RecordKind, names: Sequence[str]) -> list[bytes | None]:
        found: list[bytes | None] = [None] * len(names)
        by_shard: dict[int, list[int]] = {}
        for n, name in enumerate(names):
            by_shard.setdefault(self._record_shard(kind, name), []).append(n)
        for shard, positions in by_shard.items():
            for page in pages(positions, PAGE):
                asked = [names[n] for n in page]
                read = self._space.read(shard, "HMGET", f"records:{kind}", *asked)
                for n, record in zip(page, read, strict=True):
                    found[n] = record
        return found

    def record_swap(
        self, kind: RecordKind, name: str, before: bytes | None, after: bytes | None
    ) -> bool:
        shard, function, arguments = self._record_swap(kind, name, before, after)
        return bool(self._space.run(function, shard, None, *arguments, durable=True))

    def record_swap_many(self, kind: RecordKind, changes: Sequence[RecordChange]) -> list[bool]:
        calls = [self._record_swap(kind, *change) for change in changes]
        return [
            bool(answer)
            for page in pages(calls, PAGE)
            for answer in self._space.write_many(page, None)
        ]

    def _record_swap(
        self, kind: RecordKind, name: str, before: bytes | None, after: bytes | None
    ) -> Call:
        index = f"names:{kind}" if kind in INDEXED else ""
        arguments = (f"records:{kind}", name, before or b"", after or b"", index)
        return self._record_shard(kind, name), "swap", arguments

    def _record_shard(self, kind: RecordKind, name: str) -> int:
        return self._space.routes.home(name) if kind in INDEXED else 0

    def records(
        self, kind: RecordKind, *, limit: int = 1000, after: str = ""
    ) -> list[tuple[str, bytes]]:
        if kind in INDEXED:
            return self._indexed_records(kind, limit, after)
        found = self._space.read(0, "HGETALL", f"records:{kind}")
        pairs = zip((name.decode() for name in found[::2]), found[1::2], strict=True)
        return heapq.nsmallest(limit, (pair for pair in pairs if pair[0] > after))

    def _indexed_records(self, kind: RecordKind, limit: int, after: str) -> list[tuple[str, bytes]]:
        start = f"({after}" if after else "-"
        span = (f"names:{kind}", start, "+", "BYLEX", "LIMIT", 0, limit)
        names = [
            name.decode()
            for shard in range(self._space.shards)
            for name in self._space.read(shard, "ZRANGE", *span)
        ]
        names = heapq.nsmallest(limit, names)
        found = zip(names, self.record_read(kind, names), strict=True)
        pairs = [(name, record) for name, record in found if record is not None]
        if pairs or not names:
            return pairs
        return self._indexed_records(kind, limit, names[-1])  # all were removed meanwhile

    # History: its records are on the first shard

    def tallies(self, *, now_us: int | None = None) -> Tallies:
        return views.tallies(self._view(now_us))

    def history_read(self, names: Sequence[str]) -> list[bytes | None]:
        return [
            record
            for page in pages(names, PAGE)
            for record in self._space.read(0, "HMGET", "history", *page)
        ]

    def history_write(self, name: str, before: bytes | None, records: Mapping[str, bytes]) -> bool:
        flat = [part for record in records.items() for part in record]
        return bool(self._space.run("history", 0, None, name, before or b"", *flat))

    # The delivery log: an entry is on the home shard of its topic, and numbers contain the shard

    def delivery_log_append(
        self,
        entries: Sequence[LogEntry],
        *,
        keep_us: int,
        max_bytes: int,
        from_us: int | None = None,
        now_us: int | None = None,
    ) -> None:
        most = max_bytes // self._space.shards
        first = b"" if from_us is None else from_us
        by_home = group((self._space.routes.home(each.topic), each) for each in entries)
        for shard, own in by_home.items():
            for page in pages(own, LOGGED_AT_ONCE):
                flat = [part for each in page for part in (each.topic, each.at_us, each.data)]
                self._space.run("log_append", shard, now_us, keep_us, most, first, *flat)

    def delivery_log_read(
        self,
        topic: str | None = None,
        *,
        limit: int = 100,
        before: int | None = None,
        until_us: int | None = None,
    ) -> list[tuple[int, LogEntry]]:
        home = self._space.routes.home
        shards = range(self._space.shards) if topic is None else [home(topic)]
        found = [
            entry
            for shard in shards
            for entry in self._delivery_log_on(shard, topic, limit, before, until_us)
        ]
        return heapq.nlargest(limit, found, key=lambda entry: entry[0])

    def _delivery_log_on(
        self, shard: int, topic: str | None, limit: int, before: int | None, until_us: int | None
    ) -> list[tuple[int, LogEntry]]:
        shards = self._space.shards
        end = LOG_END_US if until_us is None else until_us + 1
        if before is not None:
            end = min(end, (before - shard - 1) // shards + 1)
        found = self._space.run("log_read", shard, None, topic or b"", end, limit, repeatable=True)
        return [
            (number * shards + shard, LogEntry(of.decode(), int(at_us), data))
            for number, of, at_us, data in zip(
                found[::4], found[1::4], found[2::4], found[3::4], strict=True
            )
        ]

    # One shard

    def _advance_clock_on(self, shard: int, now_us: int | None) -> None:
        self._space.run("extend", shard, now_us, record_formats.pack([]), b"", repeatable=True)

    def _gate_limits(self, gate: str) -> Gate | None:
        stored = self._space.read(0, "HGET", "gates", gate)
        return (
            record_formats.settings_of(gate, record_formats.read_gate(stored))
            if stored is not None
            else None
        )

    def _set_gate(self, name: str, gate: Gate, layer: Layer, now_us: int | None) -> None:
        arguments = (name, layer, record_formats.gate_record(gate))
        calls = [(shard, "gate", arguments) for shard in range(self._space.shards)]
        self._space.write_many(calls, now_us)

    def _reset_gate(self, name: str, now_us: int | None) -> None:
        calls = [(shard, "gate", (name, "reset", b"")) for shard in range(self._space.shards)]
        self._space.write_many(calls, now_us)

    def _purge_on(self, shard: int, topic: str, now_us: int | None) -> int:
        removed = 0
        last: int | bytes = b""
        has_more = 1
        while has_more:
            most = self._removals.limit
            count, last, has_more, call_us = self._space.run(
                "purge", shard, now_us, topic, last, most, durable=True
            )
            self._removals.fit(most, call_us, is_full=bool(has_more))
            removed += count
        return removed

    def _dead_on(
        self,
        shard: int,
        action: DeadAction,
        topic: str | None,
        numbers: Sequence[int] | None,
        most: int,
        first_us: int,
        spacing_us: int,
        now_us: int | None,
    ) -> int:
        packed = b"" if numbers is None else record_formats.pack(list(numbers))
        count, call_us = self._space.run(
            "dead",
            shard,
            now_us,
            action,
            topic or "",
            packed,
            most,
            first_us,
            spacing_us,
            durable=True,
        )
        self._removals.fit(most, call_us, is_full=count == most)
        return int(count)

    def _locate(self, ids: Iterable[str], topic: str | None) -> list[tuple[int, int]]:
        view = self._view()
        located = (views.find(view, message_id, topic) for message_id in ids)
        return [(each[0], each[1].mid) for each in located if each is not None]

    # Gates

    def gate_list(self) -> list[dict[str, Any]]:
        return gates.of_gates(views.gates(self._view()))

    def topic_group_list(self) -> list[dict[str, Any]]:
        return gates.of_groups(views.gates(self._view()))

    # Topics

    def topic_stats(self, topic: str, *, now_us: int | None = None) -> TopicStats:
        view = self._view(now_us)
        stats = views.topic_stats(view, topic)
        stats.cursors = views.cursors(view, topic)
        return stats

    def topic_list(
        self,
        *,
        order: TopicOrder = "name",
        pattern: str = "*",
        limit: int = 20,
        after: str | None = None,
        now_us: int | None = None,
    ) -> list[TopicStats]:
        return listing.topics(self._view(now_us), order, pattern, limit, after)

    def topic_peek(
        self,
        topic: str,
        *,
        limit: int = 10,
        state: HeldState | None = None,
        now_us: int | None = None,
    ) -> list[MessageView]:
        return views.peek(self._view(now_us), topic, limit, state)

    def lane_rates(self, limit: int, *, now_us: int | None = None) -> list[LaneRate]:
        return listing.lane_rates(self._view(now_us), limit)

    def delayed_counts(
        self, topic: str, until_us: Sequence[int], *, now_us: int | None = None
    ) -> list[int]:
        return views.delayed_counts(self._view(now_us), topic, until_us)

    def topic_delete(self, topic: str, *, now_us: int | None = None) -> int:
        removed = self.topic_purge(topic, now_us=now_us)
        while got := self.dead_drop(topic, limit=PAGE, now_us=now_us):
            removed += got
        for shard in self._space.routes.shards_of(topic):
            held = [
                mid
                for mid, lease in views.held_in(self._view(), shard)
                if views.topic_of_lane(lease.lane) in (topic, None)
            ]
            pages = [held[start : start + PAGE] for start in range(0, len(held), PAGE)] or [[]]
            for n, page in enumerate(pages, 1):
                removed += self._space.run(
                    "delete",
                    shard,
                    now_us,
                    topic,
                    record_formats.pack(page),
                    int(n == len(pages)),
                    durable=True,
                )
            views.drop_edges(self._view(), shard, topic)
        return removed

    def cursors(self, topic: str) -> dict[int, tuple[int, int]]:
        return views.cursors(self._view(), topic)

    # Messages

    # If the server lost its data, each of these answers that the message is unknown.

    def lookup(
        self, topic: str, ids: Sequence[str], *, now_us: int | None = None
    ) -> dict[str, IdState]:
        try:
            return self._lookup(topic, ids, now_us)
        except NamespaceGone:
            return dict.fromkeys(ids, "unknown")

    def _lookup(self, topic: str, ids: Sequence[str], now_us: int | None) -> dict[str, IdState]:
        space = self._view(now_us).space
        states: dict[str, IdState] = dict.fromkeys(ids, "unknown")
        generated = {
            message_id: place
            for message_id in states
            if (place := space.generated(message_id)) is not None
        }
        shards = space.routes.shards_of(topic)
        by_shard: dict[int, list[str]] = {shard: list(states) for shard in shards}
        for message_id, (shard, _) in generated.items():
            if shard not in shards:  # the topic had other partitions when it was published
                by_shard.setdefault(shard, []).append(message_id)
        for shard, theirs in by_shard.items():
            for page in pages(theirs, LOOKED_UP_AT_ONCE):
                numbers = [
                    number if on == shard else 0
                    for on, number in (generated.get(message_id, (-1, 0)) for message_id in page)
                ]
                packed = map(record_formats.pack, (page, numbers))
                letters: bytes = space.run("states", shard, now_us, topic, *packed, repeatable=True)
                for message_id, letter in zip(page, letters.decode(), strict=True):
                    # A message that has not ended decides, on whichever shard it is.
                    if letter not in "uf" or (letter == "f" and states[message_id] == "unknown"):
                        states[message_id] = STATES[letter]
        return states

    def find(self, message_id: str, topic: str | None = None) -> MessageView | None:
        found = self._find(message_id, topic, None)
        return views.message_view(*found) if found is not None else None

    def _find(
        self, message_id: str, topic: str | None, now_us: int | None
    ) -> tuple[View, int, Record] | None:
        try:
            view = self._view(now_us)
            found = views.find(view, message_id, topic)
        except NamespaceGone:
            return None
        return (view, *found) if found is not None else None

    def explain(
        self, message_id: str, topic: str | None = None, *, now_us: int | None = None
    ) -> Explanation:
        try:
            return explaining.explain(self._view(now_us), message_id, topic)
        except NamespaceGone:
            return absent(message_id, topic, finished=False)

    def cancel(
        self, message_id: str, topic: str | None = None, *, now_us: int | None = None
    ) -> CancelAnswer:
        return cast("CancelAnswer", self._move(message_id, topic, now_us, "cancel"))

    def message_move(
        self,
        message_id: str,
        topic: str | None = None,
        *,
        to: MoveTarget,
        reason: str = BY_OPERATOR,
        now_us: int | None = None,
    ) -> MoveAnswer:
        return cast("MoveAnswer", self._move(message_id, topic, now_us, to, reason))

    def _move(self, message_id: str, topic: str | None, now_us: int | None, *to: str) -> str:
        found = self._find(message_id, topic, now_us)
        if found is None:
            return "unknown"
        _, shard, record = found
        answer: bytes = self._space.run("move", shard, now_us, record.mid, *to, durable=True)
        return answer.decode()

    def on_end(self, message_id: str, topic: str | None, follower: bytes) -> bytes | None:
        found = views.find(self._view(), message_id, topic)
        shards = self._shards_of_result(message_id, topic) if found is None else [found[0]]
        for shard in shards:
            mid, its_topic = (b"", topic) if found is None else (found[1].mid, found[1].topic)
            (name,) = self._space.result_names(shard, [(message_id, its_topic)])
            answer: list[bytes] | bytes = self._space.run(
                "on_end", shard, None, mid, name, follower, durable=True
            )
            if isinstance(answer, list):
                return answer[0] if answer else None
        raise nobody_follows(message_id)

    def watch_topic(self, topic: str, seconds: float, *, now_us: int | None = None) -> list[str]:
        calls = [
            (shard, "watch_lanes", (round(seconds * SECOND), record_formats.pack(names)))
            for shard, names in self._lanes_by_shard(topic, now_us).items()
        ]
        busy = self._space.run_many(calls, now_us)
        return [CHANGED + name.decode() for names in busy for name in names]

    def topic_back_off(self, topic: str, by_us: int, *, now_us: int | None = None) -> int:
        calls = [
            (shard, "back_off", (by_us, record_formats.pack(names)))
            for shard, names in self._lanes_by_shard(topic, now_us).items()
        ]
        return sum(self._space.run_many(calls, now_us))

    def _lanes_by_shard(self, topic: str, now_us: int | None) -> dict[int, list[str]]:
        """The names of the topic's lanes, whether they exist or not."""
        view = self._view(now_us)
        names_by_shard: dict[int, list[str]] = {}
        for part, name in enumerate(lane_names(view.policy(topic), topic)):
            names_by_shard.setdefault(view.space.routes.shard_of(topic, part), []).append(name)
        return names_by_shard

    # Dead letters

    def dead_list(
        self, topic: str | None = None, *, limit: int = 50, after: int = 0
    ) -> list[tuple[int, MessageView]]:
        return views.dead_list(self._view(), topic, limit, after)

    # Moving to another store

    def export(self, limit: int) -> list[ExportedMessage]:
        return self._moving.page(limit)

    def confirm_export(self, exported_messages: Sequence[ExportedMessage]) -> None:
        self._moving.confirm(exported_messages)

    def import_(self, exported_messages: Sequence[ExportedMessage]) -> list[ImportAnswer]:
        self._space.reload()
        return self._moving.import_(exported_messages)

    def finished_ids(self) -> Iterator[tuple[str, str, int | None]]:
        return finished_ids(self._view())

    def import_finished(self, ids: Sequence[tuple[str, str, int | None]]) -> None:
        self._moving.import_finished(ids)

    def spool_batches(self) -> Iterator[SpoolBatch]:
        return spool_batches(self._view())

    def import_spool_batches(self, batches: Sequence[SpoolBatch]) -> None:
        import_spool_batches(self._space, batches)

    def gate_layers(self) -> list[tuple[str, Layer, Gate]]:
        return gate_layers(self._view())

    # The namespace

    def time_us(self, topic: str | None = None, *, now_us: int | None = None) -> int:
        if topic is None:
            return self._view(now_us).now
        shard = self._space.routes.shards_of(topic)[0]
        counters, clock = self._space.counters(shard)
        return max(counters.now, clock if now_us is None else now_us)

    def overview(self, *, now_us: int | None = None) -> Overview:
        return views.overview(self._view(now_us))

    def store_parts(self) -> list[StorePart]:
        """The masters that have shards of the namespace, the one of the first shard first."""
        found: dict[str, StorePart] = {}
        for shards in self._space.server.shards_by_node(range(self._space.shards)):
            part = self._store_part(shards)
            before = found.get(part.name)  # it took over another one's shards meanwhile
            if before is not None:
                part = msgspec.structs.replace(part, shards=before.shards + part.shards)
            found[part.name] = part
        return list(found.values())

    def _store_part(self, shards: Sequence[int]) -> StorePart:
        """What a server that has these shards uses and has left, as it tells with INFO."""
        server, began = self._space.server, time.perf_counter()
        fields = server.info(self._space.key(shards[0], "shard"))
        seconds = time.perf_counter() - began
        used, most = _number(fields, "used_memory") or 0, _number(fields, "maxmemory")
        product = "Valkey" if "valkey_version" in fields else "Redis"
        version = fields.get(f"{product.lower()}_version", "")
        port = fields.get("tcp_port", "")
        return StorePart(
            name=f"port {port} ({fields.get('run_id', '')[:8]})"
            if server.address.kind == "cluster"
            else server.name,
            what=f"{product} {version}, {fields.get('connected_slaves', '0')} replicas",
            shards=len(shards),
            used=used,
            free=max(0, most - used) if most else None,
            log=_number(fields, "aof_current_size") if fields.get("aof_enabled") == "1" else None,
            per_second=_number(fields, "instantaneous_ops_per_sec"),
            seconds=seconds,
        )

    def doctor(self, *, repair: bool = False) -> list[Check]:
        return doctor.check(self._space, repair=repair)

    def doctor_steps(self, pause: Callable[[float], object]) -> Iterator[DoctorStep]:
        return doctor.check_steps(self._space, pause)

    def snapshot(self, *, now_us: int | None = None) -> dict[str, Any]:
        view = self._view(now_us)
        found = views.all_messages(view)
        of_lanes = (views.topic_of_lane(lane.name) for _, lane in views.all_lanes(view))
        names = sorted({each.topic for each in found}.union(filter(None, of_lanes)))
        return shared.snapshot(
            view.now,
            totals=self.overview(now_us=now_us),
            topics={name: views.topic_stats(view, name) for name in names},
            messages=found,
            gates=views.gates(view),
            policies=self._policy_rows(),
        )


def _number(fields: Mapping[str, str], name: str) -> int | None:
    text = fields.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
