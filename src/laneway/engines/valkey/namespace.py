"""
One namespace on its shards: creating and opening it, calling its functions, and reading its keys.
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from laneway.engines.base import Settings, result_name
from laneway.engines.sharded.grants import (
    MOST_WAITED,
    Answer,
    Grant,
    Usage,
    no_share,
    topic_usage,
)
from laneway.engines.sharded.namespace import (
    Behind,
    InUse,
    OwnChange,
    OwnPolicy,
    PolicyChange,
    ShardedNamespace,
)
from laneway.engines.sharded.routes import Routes
from laneway.engines.sharded.splitting import part_of
from laneway.engines.shared.refusals import check_namespace
from laneway.engines.valkey import record_formats
from laneway.engines.valkey.connection import Connections, ShardReads
from laneway.engines.valkey.errors import NamespaceGone
from laneway.engines.valkey.record_formats import Counters
from laneway.errors import NoNamespace, UsageError
from laneway.policy import PROGRAM, Gate, Layers, Resolved, gate_names
from laneway.subscriptions import is_copy
from laneway.tiers import TierLayers
from laneway.topic_groups import TOPIC
from laneway.units import SECOND

log = logging.getLogger("laneway.engine")


FINISH_AFTER = 1.0
"""Seconds after which a process that has not changed all shards counts as ended."""


class _Seen(NamedTuple):
    """The record of a shard's counters as it was read last, and what was decoded of it."""

    record: bytes | None
    changed_us: int
    version: int


class Namespace(ShardedNamespace):
    """The state of one namespace, and the calls of its functions."""

    _behind_since: float | None = None
    """Since when shards have different versions of the policies (monotonic seconds)."""

    _counters_reads: ShardReads | None = None

    def __init__(self, url: str, settings: Settings, bring_up: Callable[[Namespace], None]) -> None:
        """`bring_up`: brings an older layout to the one of this version."""
        check_namespace(settings.namespace)
        self.name = settings.namespace
        self.server = Connections(url, durability=settings.durability or "memory")
        self._keys: dict[int, tuple[str, str]] = {}
        self.server.keys_of = self.keys_of
        try:
            self._open(settings, bring_up)
        except BaseException:
            self.server.close()
            raise

    # Keys

    def key(self, shard: int, name: str) -> str:
        """A key of a shard. All keys of a shard have the same hash tag."""
        return f"laneway:{{{self.name}/{shard}}}:{name}"

    def keys_of(self, shard: int) -> tuple[str, str]:
        """
        The keys that every function gets: the counters, and a key that never exists (see
        `scripts/parts/shard.lua`).
        """
        keys = self._keys.get(shard)
        if keys is None:
            keys = self._keys[shard] = self.key(shard, "shard"), self.key(shard, "never")
        return keys

    # Opening

    def _open(self, settings: Settings, bring_up: Callable[[Namespace], None]) -> None:
        stored = self._settings()
        if (
            b"layout" not in stored
        ):  # written last, because a process that creates a namespace may end in between
            if not settings.create:
                raise NoNamespace(
                    f"{self.server.name}: there is no namespace {self.name}; check the URL and the"
                    " name, or start a program that publishes to it"
                )
            stored = self._create(settings)
        self.shards = int(stored[b"shards"])
        self.nonce = stored[b"nonce"].decode()
        # Without layers its layout is too old, and `bring_up` refuses it.
        self._set_tiers(stored.get(b"tier_layers") or TierLayers.new(None, None).json())
        if self.server.shards is not None and self.server.shards != self.shards:
            raise UsageError(
                f"{self.server.name}: namespace {self.name} was created with {self.shards}"
                f" shards, the URL asks for {self.server.shards}; the number is fixed when a"
                " namespace is created: omit ?shards=, or move to a new namespace with `laneway"
                " migrate`"
            )
        self.routes = Routes(self.tiers, self.shards, record_formats.plain_head)
        bring_up(self)
        self.reload()
        if self.shards > 1:
            self.finish_changes()
        self.change_tiers(
            lambda layers: layers.declare(
                settings.tiers, settings.default_tier, self.tier_named_by
            ),
            None,
        )
        if settings.max_backlog is not None or settings.max_backlog_bytes is not None:
            limits = (
                *(
                    b"" if limit is None else part_of(limit, self.shards)
                    for limit in (settings.max_backlog, settings.max_backlog_bytes)
                ),
                settings.on_full,
            )
            for shard in range(self.shards):
                self.run("limits", shard, None, *limits, repeatable=True)

    def _settings(self) -> dict[bytes, bytes]:
        found = self.read(0, "HGETALL", "settings")
        return dict(zip(found[::2], found[1::2], strict=True))

    def _create(self, settings: Settings, layers: TierLayers | None = None) -> dict[bytes, bytes]:
        """
        Create the namespace. Several processes may do so at once, and one may have ended in
        between: each step keeps what exists.
        """
        layers = layers or TierLayers.new(settings.tiers, settings.default_tier)
        values = {
            "shards": str(self.server.shards or self.server.usual_shards),
            "nonce": secrets.token_hex(4)[:7],
            "tier_layers": layers.json(),
            # The version of the policies grows with each change. It begins at the time, which is
            # larger than any version of a namespace that was lost with its server.
            "version": self.server.read(0, [("TIME",)])[0][0],
        }
        key = self.key(0, "settings")
        self.server.read(0, [("HSETNX", key, field, value) for field, value in values.items()])
        stored = self._settings()
        self.shards, self.nonce = int(stored[b"shards"]), stored[b"nonce"].decode()
        default, tiers = (
            record_formats.policy_record(Resolved()),
            record_formats.tiers_record(TierLayers.read(stored[b"tier_layers"])),
        )
        for shard in range(self.shards):
            counters = Counters(
                record_formats.LAYOUT,
                self.nonce,
                self.shards,
                shard,
                version=int(stored[b"version"]),
            )
            self.server.read(
                shard,
                [
                    ("HSETNX", self.key(shard, "resolved"), "", default),
                    ("SET", self.key(shard, "tiers"), tiers, "NX"),
                    (
                        "SET",
                        self.key(shard, "shard"),
                        record_formats.counters_record(counters),
                        "NX",
                    ),
                ],
            )
        self.read(0, "HSETNX", "settings", "layout", str(record_formats.LAYOUT))
        return self._settings()

    def _create_again(self, error: NamespaceGone) -> None:
        """
        Create the namespace again after the server has lost it, because it stores nothing over a
        restart. This process still knows the policies.
        """
        for shard in range(self.shards):
            self.read(
                shard, "GET", "shard"
            )  # raises EngineCorrupt if another program has a key of this name
        if self.server.durability != "memory":
            raise error
        log.warning(
            "%s: the server has forgotten namespace %s and all its messages (was it restarted?); it"
            " is created again",
            self.server.name,
            self.name,
        )
        rows = self.routes.policies.stored_rows()
        self._create(Settings(), self.tier_layers)
        self.reload()
        if rows and not self.routes.policies.stored_rows():
            fields = [
                each
                for layer, pattern, fields in rows
                for each in (f"{layer}:{pattern}", json.dumps(fields))
            ]
            self.read(0, "HSET", "policies", *fields)
            self.routes.forget_own()
            before = self.routes.version
            self.routes.load(before + 1, rows)
            for shard in range(self.shards):
                self.write_all_policies(shard, before)

    # Functions

    def run(
        self,
        function: str,
        shard: int,
        now_us: int | None,
        *arguments: Any,
        durable: bool = False,
        repeatable: bool = False,
    ) -> Any:
        """Call a function on a shard."""
        now = b"" if now_us is None else now_us
        call = (shard, function, (now, self._tiers, *arguments))
        try:
            return self.server.call(*call, durable=durable, repeatable=repeatable)
        except NamespaceGone as error:
            self._create_again(error)
            return self.server.call(*call, durable=durable, repeatable=repeatable)

    def run_many(
        self,
        calls: Sequence[Call],
        now_us: int | None = None,
        *,
        durable: bool = False,
        repeatable: bool = True,
    ) -> list[Any]:
        """Call functions on several shards, in one round trip to each server."""
        now = b"" if now_us is None else now_us

        def call() -> list[Any]:
            return self.server.call_many(
                [
                    (shard, function, (now, self._tiers, *arguments))
                    for shard, function, arguments in calls
                ],
                durable=durable,
                repeatable=repeatable,
            )

        try:
            return call()
        except NamespaceGone as error:
            self._create_again(error)
            return call()

    def write_many(self, calls: Sequence[Call], now_us: int | None) -> list[Any]:
        """The same for functions that write, and must not be called twice."""
        return self.run_many(calls, now_us, durable=True, repeatable=False)

    def read(self, shard: int, command: str, key: str, *arguments: Any) -> Any:
        """Send a command on a key of a shard. The key is named without its prefix."""
        return self.server.read(shard, [(command, self.key(shard, key), *arguments)])[0]

    def result_names(self, shard: int, ids: Sequence[tuple[str, str | None]]) -> list[str]:
        """The names of results of a shard; the topics of generated ids may be None."""
        topics = {
            message_id: (self.read(shard, "GET", f"g:{message_id}") or b"").decode()
            for message_id, topic in ids
            if topic is None
        }
        return [result_name(each, topics[each] if topic is None else topic) for each, topic in ids]

    def publish_results(self, name: str, payloads: Sequence[str]) -> None:
        """Notify the result listeners that subscribed to `name`."""
        channel = f"{self.results_prefix}{name}"
        self.server.read(0, [("PUBLISH", channel, payload) for payload in payloads])

    @property
    def results_prefix(self) -> str:
        """The prefix of the channels of result listeners; see `scripts/parts/results.lua`."""
        return f"laneway:{self.name}:of:"

    def counters(self, shard: int) -> tuple[Counters, int]:
        """
        A shard's counters, and what its server's clock says in microseconds. Raises NamespaceGone.
        """
        stored, (seconds, micros) = self.server.read(
            shard, [("GET", self.key(shard, "shard")), ("TIME",)]
        )
        if stored is not None:
            return record_formats.read_counters(stored), int(seconds) * SECOND + int(micros)
        try:  # a call looks where the shard may have moved, and explains an error
            self.server.call(shard, "policies_read", (b"", self._tiers), repeatable=True)
        except NamespaceGone:
            if self.server.durability != "memory":
                raise
            empty = Counters(
                record_formats.LAYOUT, self.nonce, self.shards, shard, version=self.routes.version
            )
            return empty, int(seconds) * SECOND + int(micros)
        return self.counters(shard)

    def all_counters(self) -> list[tuple[Counters, int]]:
        """The same of all shards."""
        reads: list[tuple[int, tuple[str, ...]]] = []
        for shard in range(self.shards):
            reads += ((shard, ("GET", self.key(shard, "shard"))), (shard, ("TIME",)))
        answers = self.server.read_each(ShardReads(reads))
        return [
            (record_formats.read_counters(stored), int(seconds) * SECOND + int(micros))
            if stored is not None
            else self.counters(shard)
            for shard, (stored, (seconds, micros)) in enumerate(
                zip(answers[::2], answers[1::2], strict=True)
            )
        ]

    def changed_us(self) -> list[int]:
        """
        When each shard was changed last, by its own clock; -1: it does not exist. Every worker
        reads this often, so one of them finishes what a process left that ended while it changed
        policies.
        """
        if self._counters_reads is None:
            self._counters_reads = ShardReads(
                (shard, ("GET", self.key(shard, "shard"))) for shard in range(self.shards)
            )
            self._seen = [_Seen(None, -1, -1)] * self.shards
        for shard, record in enumerate(self.server.read_each(self._counters_reads)):
            if record != self._seen[shard].record:
                counters = record_formats.read_counters(record) if record is not None else None
                self._seen[shard] = (
                    _Seen(record, counters.now, counters.version)
                    if counters is not None
                    else _Seen(None, -1, -1)
                )
        now = time.monotonic()
        if len({each.version for each in self._seen}) == 1:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        elif now - self._behind_since >= FINISH_AFTER:
            self._behind_since = None
            self.finish_changes()
        return [each.changed_us for each in self._seen]

    def finish_changes(self) -> None:
        """
        Write the policies to the shards that have older ones, because the process that changed them
        ended before all shards had them.
        """
        versions = [counters.version for counters, _ in self.all_counters()]
        if min(versions) < versions[0]:
            self.reload()
            for shard, version in enumerate(versions):
                if version < self.routes.version:
                    self.write_all_policies(shard, version)

    def read_many(self, shard: int, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Send several commands on keys of a shard, in one round trip."""
        return self.server.read(
            shard,
            [(command, self.key(shard, key), *arguments) for command, key, *arguments in commands],
        )

    def scan(self, shard: int, command: str, key: str) -> Iterator[tuple[bytes, bytes]]:
        """
        All pairs of a hash (HSCAN) or sorted set (ZSCAN), page by page. A pair that changes
        meanwhile may come twice.
        """
        cursor = 0
        while True:
            cursor, page = self.read(shard, command, key, cursor, "COUNT", 500)
            cursor = int(cursor)
            yield from zip(page[::2], page[1::2], strict=True)
            if cursor == 0:
                return

    # Tiers

    def _set_tiers(self, stored: bytes) -> None:
        """
        Use the tiers that the first shard stores. Every call brings them to its shard.
        """
        self.tier_layers = TierLayers.read(stored)
        self.tiers = self.tier_layers.in_force()
        self._tiers = record_formats.tiers_record(self.tier_layers)
        self._tiers_stored = stored

    def reload_tiers(self) -> None:
        """Read the tiers of the first shard again."""
        stored = self.read(0, "HGET", "settings", "tier_layers")
        if stored is not None and stored != self._tiers_stored:
            self._set_tiers(stored)
            self.routes.set_tiers(self.tiers)

    # Policies

    def reload(self) -> None:
        """Read the policies of the first shard again; they are the ones in force."""
        self.reload_tiers()
        version, nonce, rows = self.run("policies_read", 0, None, repeatable=True)
        self.nonce = nonce.decode()
        found = []
        for field, fields in zip(rows[::2], rows[1::2], strict=True):
            found.append((*_layer_and_pattern(field.decode()), json.loads(fields)))
        self.routes.load(version, found)

    def read_own(self, pages_: Sequence[tuple[int, Sequence[str]]]) -> list[list[OwnPolicy]]:
        answers = self.run_many(
            [(shard, "own_read", (record_formats.pack(list(topics)),)) for shard, topics in pages_]
        )
        found = []
        for answer in answers:
            layers = {each[0]: record_formats.own_layers(each[1]) for each in answer if each}
            found.append(
                [OwnPolicy(each[0], layers[each[0]]) if each else NO_POLICY for each in answer]
            )
        return found

    def own_topics(self, shard: int) -> Iterator[str]:
        for name, _ in self.scan(shard, "HSCAN", "own"):
            yield name.decode()

    def own_page(self, shard: int, cursor: str, limit: int) -> tuple[str, list[tuple[str, Layers]]]:
        following, entries = self.read(shard, "HSCAN", "own", cursor or 0, "COUNT", limit)
        ids = dict(zip(entries[::2], entries[1::2], strict=True))
        wanted = list(dict.fromkeys(ids.values()))
        stored = self.read(shard, "HMGET", "own_sets", *wanted) if wanted else ()
        layers = {
            own: record_formats.own_layers(record)
            for own, record in zip(wanted, stored, strict=True)
            if record is not None
        }
        rows = [(topic.decode(), layers[own]) for topic, own in ids.items() if own in layers]
        return following.decode() if int(following) else "", rows

    def write_own(
        self,
        pages_: Sequence[tuple[int, Sequence[OwnChange]]],
        version: int,
        now_us: int | None,
    ) -> list[list[OwnPolicy | None] | Behind]:
        calls: list[Call] = []
        ids_of_pages: list[list[bytes]] = []
        for shard, changes in pages_:
            stored = record_formats.OwnRecords()
            ids = [stored.add(change.layers) for change in changes]
            rows = [
                (change.topic, change.before.decode(), own.decode())
                for change, own in zip(changes, ids, strict=True)
            ]
            names = [own.decode() for own in stored.by_id]
            arguments = (
                record_formats.pack(rows),
                record_formats.pack(names),
                *stored.by_id.values(),
            )
            calls.append((shard, "own", (version, *arguments)))
            ids_of_pages.append(ids)
        return [
            _own_answer(changes, ids, answer)
            for (_, changes), ids, answer in zip(
                pages_, ids_of_pages, self.write_many(calls, now_us), strict=True
            )
        ]

    def write_policies_on(
        self, shards: Sequence[int], change: PolicyChange, now_us: int | None
    ) -> list[Behind | InUse | None]:
        return self._call_policy(shards, change, "1" if change.may_change_lanes else "0", now_us)

    def try_policies_on(
        self, shards: Sequence[int], change: PolicyChange, now_us: int | None
    ) -> list[Behind | InUse | None]:
        return self._call_policy(shards, change, "try", now_us)

    def _call_policy(
        self, shards: Sequence[int], change: PolicyChange, how: str, now_us: int | None
    ) -> list[Behind | InUse | None]:
        policy_table = change.policy_table
        known = record_formats.resolved_policies(policy_table)
        names = list(change.names)
        if record_formats.SUBSCRIPTIONS not in names and any(map(is_copy, names)):
            names.append(record_formats.SUBSCRIPTIONS)
        records = [known.record(name, self.shards) for name in names]
        fields: list[str] = []
        for layer, name, values in change.rows:
            fields += (f"{layer}:{name}", json.dumps(values) if values is not None else "")
        arguments = (
            change.version,
            change.new_version,
            change.pattern,
            record_formats.pack(fields),
            record_formats.pack(names),
            known.exact_count,
            how,
            *records,
        )
        answers = self.write_many([(shard, "policy", arguments) for shard in shards], now_us)
        return [_policy_answer(answer) for answer in answers]

    def policy_names(self, shard: int) -> set[str]:
        return {name.decode() for name, _ in self.scan(shard, "HSCAN", "resolved") if name}

    def version_on(self, shard: int) -> int:
        return record_formats.read_counters(self.read(shard, "GET", "shard")).version

    def write_tiers_on(
        self,
        shards: Sequence[int],
        layers: TierLayers,
        version: int,
        new_version: int,
        now_us: int | None,
    ) -> list[bool]:
        record = record_formats.tiers_record(layers)
        calls = []
        for shard in shards:
            stored = (self._tiers_stored, layers.json()) if shard == 0 else (b"", b"")
            calls.append((shard, "tiers", (*stored, record, version, new_version)))
        return [answer == b"changed" for answer in self.write_many(calls, now_us)]

    def own_tier_count(self, shard: int, tier: str) -> int:
        return int(self.read(shard, "HGET", "own_tiers", tier) or 0)

    def use_tiers(self, layers: TierLayers) -> None:
        self._set_tiers(layers.json())
        self.routes.set_tiers(self.tiers)

    # Gates

    def has_gates(self) -> bool:
        return self.routes.has_partitions or bool(self.read(0, "EXISTS", "gates"))

    def waited_gates(self) -> set[str]:
        names: set[str] = set()
        answers = self._read_all(
            [
                ("ZRANDMEMBER", "waited_gates", MOST_WAITED),
                ("ZRANDMEMBER", "topic_grants", MOST_WAITED),
            ]
        )
        for waited, granted in answers:
            for member in waited:
                names.update(gate_names(member.decode().partition(":")[2]))
            names.update(member.decode() for member in granted)
        return names

    def leased_topics(self) -> set[str]:
        return {
            name.decode().removeprefix(TOPIC)
            for shard in range(self.shards)
            for name, record in self.scan(shard, "HSCAN", "gates")
            if name.startswith(TOPIC.encode()) and record_formats.read_gate(record).leased
        }

    def _read_all(
        self, commands: Sequence[tuple[Any, ...]], more: Sequence[Sequence[tuple[Any, ...]]] = ()
    ) -> list[list[Any]]:
        """
        Send the same commands on keys of all shards, in one round trip to each server; after them
        those of each shard in `more`.
        """
        every = [[*commands, *own] for own in more or [()] * self.shards]
        reads = [
            (shard, (command, self.key(shard, key), *arguments))
            for shard, each in enumerate(every)
            for command, key, *arguments in each
        ]
        answers = iter(self.server.read_each(ShardReads(reads)) if reads else [])
        return [list(itertools.islice(answers, len(each))) for each in every]

    def claim_grants(self, seconds: float) -> bool:
        claim = self.read(0, "SET", "granting", "1", "NX", "PX", round(seconds * 1000))
        return claim is not None

    def hold_grants(self, seconds: float) -> None:
        self.read(0, "SET", "granting", "1", "PX", max(1, round(seconds * 1000)))

    def gate_usages(self, gates: Sequence[str]) -> list[tuple[Gate, list[Usage]] | None]:
        stored = self._read_all(
            [("GET", "shard"), ("HMGET", "gates", *gates), ("HMGET", "gate_lanes", *gates)]
        )
        counters = [record_formats.read_counters(record) for record, _, _ in stored]
        keys = [
            [record_formats.gate_lanes(gate, len(each.tier_queues)) for gate in gates]
            for each in counters
        ]
        counts = self._read_all(
            (), [[("ZCARD", key) for each in of_shard for key in each] for of_shard in keys]
        )
        by_shard = []
        for (_, found, elsewhere), of_shard, lanes in zip(stored, keys, counts, strict=True):
            numbers = iter(lanes)
            by_shard.append(
                [
                    (
                        record_formats.read_gate(record) if record is not None else None,
                        sum(itertools.islice(numbers, len(each))) + int(more or 0),
                    )
                    for record, more, each in zip(found, elsewhere, of_shard, strict=True)
                ]
            )
        return [
            self._topic_usage(gate, found, counters[0].version)
            if gate.startswith(TOPIC)
            else _usage(gate, found)
            for gate, found in zip(gates, zip(*by_shard, strict=True), strict=True)
        ]

    def _topic_usage(
        self,
        gate: str,
        found: Sequence[tuple[record_formats.GateRecord | None, int]],
        version: int,
    ) -> tuple[Gate, list[Usage]]:
        limits = self.topic_limits(gate, version)
        return limits, [
            topic_usage(
                part,
                record.here if record is not None else None,
                record.limits_here if record is not None else None,
                (record.share if record is not None else None) or no_share(limits, part),
                record.leased if record is not None else 0,
                waiting,
            )
            for part, (record, waiting) in zip(self.parts_of(gate, limits), found, strict=True)
        ]

    def end_grant(self, gate: str, shard: int, now_us: int | None) -> None:
        self.write_many([(shard, "gate", (gate, "no grant", b""))], now_us)

    def grant_on(self, gate: str, grants: Mapping[int, Grant], now_us: int | None) -> list[Answer]:
        calls: list[Call] = []
        for shard, grant in grants.items():
            values = (
                grant.rate or None,
                grant.burst,
                grant.concurrency,
                None,
                None,
                grant.out_of,
                None,  # the largest cost is not divided
                grant.start,
                grant.finish,
                grant.left,
            )
            limits = record_formats.pack([False if value is None else value for value in values])
            more = record_formats.pack([grant.moves, grant.permits])
            calls.append((shard, "gate", (gate, "grant", limits, more)))
        answers = self.write_many(calls, now_us)
        return [Answer(held, float(gave_up)) for held, gave_up in answers]


def _usage(
    gate: str, found: Sequence[tuple[record_formats.GateRecord | None, int]]
) -> tuple[Gate, list[Usage]] | None:
    """Limits and usage of a gate with these records and waiting lanes on the shards."""
    usage: list[Usage] = []
    limits = None
    for record, waiting in found:
        if record is None:
            return None
        limits = record_formats.settings_of(gate, record)
        here = record.here if record.grant else None
        granted = here.concurrency if here is not None else None
        usage.append(Usage(record.leased, waiting, granted, here))
    return (limits, usage) if limits is not None else None


Call = tuple[int, str, tuple[Any, ...]]
"""A function call: shard, function, arguments."""

NO_POLICY = OwnPolicy(b"", {})


def _own_answer(
    changes: Sequence[OwnChange], ids: Sequence[bytes], answer: list[Any]
) -> list[OwnPolicy | None] | Behind:
    if answer and answer[0] == b"stale":
        return Behind(answer[1])
    changed_by_others = {position - 1 for position in answer}
    return [
        None if n in changed_by_others else OwnPolicy(own, change.layers)
        for n, (change, own) in enumerate(zip(changes, ids, strict=True))
    ]


def _policy_answer(answer: list[Any]) -> Behind | InUse | None:
    if answer[0] == b"in use":
        return InUse(answer[1].decode(), answer[2], answer[3])
    return Behind(answer[1]) if answer[0] == b"stale" else None


def _layer_and_pattern(field: str) -> tuple[str, str]:
    """
    Layer and pattern of a field of the hash `policies`: `code:PATTERN`, `program:NAME:PATTERN`; a
    program's name has no colon.
    """
    if field.startswith(PROGRAM):
        name, _, pattern = field.removeprefix(PROGRAM).partition(":")
        return PROGRAM + name, pattern
    layer, _, pattern = field.partition(":")
    return layer, pattern
