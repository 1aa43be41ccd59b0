"""
One namespace on its shards: how it is made and opened, what is known of its policies, and how its
scripts are called.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.engines.base import Settings
from laneway.engines.shared.naming import parse_generated_id
from laneway.engines.shared.refusals import check_namespace
from laneway.engines.valkey import layouts, records
from laneway.engines.valkey.connection import Connections
from laneway.engines.valkey.errors import NamespaceGone
from laneway.engines.valkey.records import Counters
from laneway.errors import NoNamespace, UsageError
from laneway.policy import PROGRAM, PolicyBook, Resolved
from laneway.tiers import TierLayers, Tiers
from laneway.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from laneway.message import Draft
    from laneway.policy import Layers

log = logging.getLogger("laneway.engine")

LOOKED_AT = 1000
"""Topics among which an example is looked for."""

TIERS_EVERY = 1.0
"""Seconds between two looks at the tiers, where there are several shards."""

MOST_ROUTES = 200_000
"""Topics whose policy is kept at hand."""

OWN_AT_ONCE = 500
"""Topics whose own policies one call reads."""


class Route(msgspec.Struct, frozen=True, gc=False):
    """
    What a publisher has to know of a topic. `own`: the id of what the topic sets of its own, where
    that is known.

    `is_plain`: nothing of the policy makes its messages other than plain, see
    `scripts/parts/messages.lua`; of one with a serial key `is_serial` does. `head`: what stands
    before the body of its plainest messages.
    """

    policy: Resolved
    own: bytes
    shard: int
    is_plain: bool
    is_serial: bool
    head: bytes


class Book:
    """The policies as this process knows them."""

    def __init__(self, tiers: Tiers, shards: int) -> None:
        self.policies = PolicyBook(tiers)
        self.version = 0
        self._shards = shards
        self._routes: dict[str, Route] = {}
        self._own: dict[str, bytes] = {}
        self._sets: dict[bytes, Layers] = {}

    def load(self, version: int, rows: list[tuple[str, str, dict[str, Any]]]) -> None:
        """Replace everything."""
        self.policies.load(rows)
        self.version = version
        self._routes.clear()

    def learn(self, topic: str, own: bytes, record: bytes) -> None:
        """
        What a topic sets of its own, as far as it decides how a message is written; b"": nothing
        that does.
        """
        if own and records.is_marked(record):
            if len(self._own) >= MOST_ROUTES:
                self._own.clear()
                self._sets.clear()
                self._routes.clear()
            self._own[topic] = own
            self._sets[own] = records.own_layers(record)
        else:
            self._own.pop(topic, None)
        self._routes.pop(topic, None)

    def forget_own(self) -> None:
        """The server has lost them."""
        self._own.clear()
        self._routes.clear()

    def knows_own(self, topic: str) -> bool:
        """Whether something is known of what the topic sets of its own."""
        return topic in self._own

    def known_own(self, drafts: Sequence[Draft]) -> dict[str, str]:
        """The ids of what is known, by topic: the functions compare them with what is."""
        own = self._own
        return (
            {draft.topic: own[draft.topic].decode() for draft in drafts if draft.topic in own}
            if own
            else {}
        )

    def set_tiers(self, tiers: Tiers) -> None:
        """These hold from here on."""
        self.policies.tiers = tiers
        self.policies.forget_resolved()
        self._routes.clear()

    def route(self, topic: str) -> Route:
        """What holds for a topic."""
        found = self._routes.get(topic)
        if found is None:
            if len(self._routes) >= MOST_ROUTES:
                self._routes.clear()
            own = self._own.get(topic, b"")
            policy = (
                self.policies.resolve_own(topic, self._sets[own])
                if own
                else self.policies.resolve(topic)
            )
            is_plain = (
                policy.merge is None
                and policy.ttl is None
                and policy.partitions == 1
                and policy.buckets is None
                and policy.max_backlog is None
                and policy.max_backlog_bytes is None
            )
            # A bucket is one lane: its topics live together.
            place = zlib.crc32(topic.encode())
            if policy.buckets is not None and policy.buckets_pattern is not None:
                place = zlib.crc32(policy.buckets_pattern.encode()) + place % policy.buckets
            found = Route(
                policy,
                own,
                place % self._shards,
                is_plain,
                policy.serial is not None,
                records.plain_head(topic),
            )
            self._routes[topic] = found
        return found

    def ttl_of(self, draft: Draft) -> int:
        ttl = draft.ttl_us if draft.ttl_us is not None else self.route(draft.topic).policy.ttl
        return ttl or 0


class Namespace:
    """The shards, the tiers, the policies."""

    def __init__(self, url: str, settings: Settings) -> None:
        check_namespace(settings.namespace)
        self.name = settings.namespace
        self._look_again = 0.0
        self.server = Connections(url, durability=settings.durability or "memory")
        self.server.keys_of = self.keys_of
        try:
            self._open(settings)
        except BaseException:
            self.server.close()
            raise

    # Keys

    def key(self, shard: int, name: str) -> str:
        """A key of a shard: all of one have the same hash tag."""
        return f"laneway:{{{self.name}/{shard}}}:{name}"

    def keys_of(self, shard: int) -> tuple[str, str]:
        """
        What a script is given: the counters, and a key that never exists (see
        `scripts/parts/shard.lua`).
        """
        return self.key(shard, "shard"), self.key(shard, "never")

    def shards_of(self, topic: str) -> list[int]:
        """Where a topic's lanes are: partitions live on neighbouring shards."""
        route = self.book.route(topic)
        return sorted(
            {(route.shard + part) % self.shards for part in range(route.policy.partitions)}
        )

    def shard_of(self, topic: str, part: int) -> int:
        """Where the lane of a message is. `part`: what picks its partition."""
        route = self.book.route(topic)
        return (route.shard + part % route.policy.partitions) % self.shards

    def home(self, topic: str) -> int:
        """Where what a topic sets of its own is kept."""
        return zlib.crc32(topic.encode()) % self.shards

    def own_ids(self, topics: Iterable[str]) -> dict[str, tuple[bytes, Layers]]:
        """What each of these topics has set of its own on its shard, and the id of that."""
        found: dict[str, tuple[bytes, Layers]] = {}
        by_shard: dict[int, list[str]] = {}
        for topic in topics:
            by_shard.setdefault(self.home(topic), []).append(topic)
        for shard, those in by_shard.items():
            for start in range(0, len(those), OWN_AT_ONCE):
                page = those[start : start + OWN_AT_ONCE]
                answer = self.run("own_read", shard, None, records.pack(page), repeatable=True)
                meanings = {each[0]: records.own_layers(each[1]) for each in answer if each}
                for topic, each in zip(page, answer, strict=True):
                    found[topic] = (each[0], meanings[each[0]]) if each else (b"", {})
        return found

    def refresh_own(self, topic: str) -> None:
        """Look again what a topic sets of its own."""
        _, layers = self.own_ids([topic])[topic]
        self.book.learn(topic, *(records.own_record(layers) if layers else (b"", b"")))

    def own_of(self, topics: Iterable[str]) -> dict[str, Layers]:
        """What each of these topics has set of its own on its shard."""
        return {topic: layers for topic, (_, layers) in self.own_ids(topics).items()}

    def policy(self, topic: str) -> Resolved:
        """What holds for a topic, also by what it sets of its own."""
        policies = self.book.policies
        own = {} if policies.layers(topic) else self.own_of([topic])[topic]
        return policies.resolve_own(topic, own) if own else policies.resolve(topic)

    def made(self, message_id: str) -> tuple[int, int] | None:
        """Shard and number of a message of which Laneway made the id."""
        handle = parse_generated_id(self.nonce, message_id)
        return (handle % self.shards, handle // self.shards) if handle is not None else None

    # Opening

    def _open(self, settings: Settings) -> None:
        stored = self._settings()
        if (
            b"layout" not in stored
        ):  # written last: who makes a namespace may have ended in the middle
            if not settings.create:
                raise NoNamespace(
                    f"{self.server.name}: there is no namespace {self.name}; check the URL and the"
                    " name, or start a program that publishes to it"
                )
            stored = self._make(settings)
        self.shards = int(stored[b"shards"])
        self.nonce = stored[b"nonce"].decode()
        self._know_tiers(stored.get(b"tier_layers") or stored[b"tiers"])
        if self.server.shards is not None and self.server.shards != self.shards:
            raise UsageError(
                f"{self.server.name}: namespace {self.name} was made with {self.shards} shards, the"
                f" URL says {self.server.shards}; the number is fixed when a namespace is made:"
                " leave ?shards= out, or move to a new namespace with `laneway migrate`"
            )
        self.book = Book(self.tiers, self.shards)
        layouts.bring_up(self)
        if b"tier_layers" not in stored:
            self._begin_layers()
        self.reload()
        self.change_tiers(
            lambda layers: layers.declare(
                settings.tiers, settings.default_tier, self.tier_named_by
            ),
            None,
        )
        if settings.max_backlog is not None or settings.max_backlog_bytes is not None:
            limits = (
                _part(settings.max_backlog, self.shards),
                _part(settings.max_backlog_bytes, self.shards),
                settings.on_full,
            )
            for shard in range(self.shards):
                self.run("limits", shard, None, *limits, repeatable=True)

    def _settings(self) -> dict[bytes, bytes]:
        found = self.read(0, "HGETALL", "settings")
        return dict(zip(found[::2], found[1::2], strict=True))

    def _make(self, settings: Settings, layers: TierLayers | None = None) -> dict[bytes, bytes]:
        """
        Each step may be done by several processes at once, or have been done before by one that
        ended in its middle.
        """
        layers = layers or TierLayers.new(settings.tiers, settings.default_tier)
        values = {
            "shards": str(self.server.shards or self.server.usual_shards),
            "nonce": secrets.token_hex(4)[:7],
            "tier_layers": layers.json(),
            # Of the policies: grows with each change, and is larger than any that a namespace lost
            # with its server has had.
            "version": self.server.read(0, [("TIME",)])[0][0],
        }
        key = self.key(0, "settings")
        self.server.read(0, [("HSETNX", key, field, value) for field, value in values.items()])
        stored = self._settings()
        self.shards, self.nonce = int(stored[b"shards"]), stored[b"nonce"].decode()
        default, tiers = (
            records.rule_record(Resolved()),
            records.tiers_record(TierLayers.read(stored[b"tier_layers"])),
        )
        for shard in range(self.shards):
            counters = Counters(
                records.LAYOUT, self.nonce, self.shards, shard, version=int(stored[b"version"])
            )
            self.server.read(
                shard,
                [
                    ("HSETNX", self.key(shard, "rules"), "", default),
                    ("SET", self.key(shard, "tiers"), tiers, "NX"),
                    ("SET", self.key(shard, "shard"), records.counters_record(counters), "NX"),
                ],
            )
        self.read(0, "HSETNX", "settings", "layout", str(records.LAYOUT))
        return self._settings()

    def _make_again(self, error: NamespaceGone) -> None:
        """
        The server has lost everything: it keeps nothing over a restart. The policies at least are
        known here.
        """
        for shard in range(self.shards):
            self.read(
                shard, "GET", "shard"
            )  # raises EngineCorrupt where a key of another program is in the way
        if self.server.durability != "memory":
            raise error
        log.warning(
            "%s: the server has forgotten namespace %s and all its messages (was it restarted?); it"
            " is made again",
            self.server.name,
            self.name,
        )
        rows = self.book.policies.stored_rows()
        self._make(Settings(), self.tier_layers)
        self.reload()
        if rows and not self.book.policies.stored_rows():
            fields = [
                each
                for layer, pattern, fields in rows
                for each in (f"{layer}:{pattern}", json.dumps(fields))
            ]
            self.read(0, "HSET", "policies", *fields)
            self.book.forget_own()
            before = self.book.version
            self.book.load(before + 1, rows)
            for shard in range(self.shards):
                self.tell(shard, before)

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
            self._make_again(error)
            return self.server.call(*call, durable=durable, repeatable=repeatable)

    def run_many(self, calls: list[tuple[int, str, tuple[Any, ...]]]) -> list[Any]:
        """Call functions on several shards, at the same time where these live on several nodes."""
        return self.server.call_many(
            [
                (shard, function, (b"", self._tiers, *arguments))
                for shard, function, arguments in calls
            ]
        )

    def read(self, shard: int, command: str, key: str, *arguments: Any) -> Any:
        """A command on a key of a shard, which is named without its prefix."""
        return self.server.read(shard, [(command, self.key(shard, key), *arguments)])[0]

    def counters(self, shard: int) -> tuple[Counters, int]:
        """
        A shard's counters, and what its server's clock says in microseconds. Raises NamespaceGone.
        """
        stored, (seconds, micros) = self.server.read(
            shard, [("GET", self.key(shard, "shard")), ("TIME",)]
        )
        if stored is not None:
            return records.read_counters(stored), int(seconds) * SECOND + int(micros)
        try:  # this looks again where the shard may have moved, and says what is wrong
            self.server.call(shard, "policies", (b"", self._tiers), repeatable=True)
        except NamespaceGone:
            if self.server.durability != "memory":
                raise
            empty = Counters(
                records.LAYOUT, self.nonce, self.shards, shard, version=self.book.version
            )
            return empty, int(seconds) * SECOND + int(micros)
        return self.counters(shard)

    def read_many(self, shard: int, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Several."""
        return self.server.read(
            shard,
            [(command, self.key(shard, key), *arguments) for command, key, *arguments in commands],
        )

    def scan(self, shard: int, command: str, key: str) -> Iterator[tuple[bytes, bytes]]:
        """
        All pairs of a hash (HSCAN) or sorted set (ZSCAN), page by page; one that changes meanwhile
        may be told twice.
        """
        cursor = 0
        while True:
            cursor, page = self.read(shard, command, key, cursor, "COUNT", 500)
            cursor = int(cursor)
            yield from zip(page[::2], page[1::2], strict=True)
            if cursor == 0:
                return

    # Tiers

    def _know_tiers(self, stored: bytes) -> None:
        """
        What the first shard has is what counts; every call brings it to the shard that it goes to.
        """
        self.tier_layers = TierLayers.read(stored)
        self.tiers = self.tier_layers.in_force()
        self._tiers = records.tiers_record(self.tier_layers)
        self._tiers_stored = stored

    def _begin_layers(self) -> None:
        """
        Of a namespace of before there were layers: what they were is the code's, and every shard
        knows it before anything changes.
        """
        for shard in range(self.shards):
            self.read(shard, "SET", "tiers", self._tiers, "NX")
        self.read(0, "HSETNX", "settings", "tier_layers", self.tier_layers.json())

    def reload_tiers(self) -> None:
        """Read them as they are."""
        stored = self.read(0, "HGET", "settings", "tier_layers")
        if stored is not None and stored != self._tiers_stored:
            self._know_tiers(stored)
            self.book.set_tiers(self.tiers)

    def look_at_tiers(self) -> None:
        """
        Once a second, of a namespace with several shards: one of them may not have been told of a
        change.
        """
        now = time.monotonic()
        if self.shards > 1 and now >= self._look_again:
            self._look_again = now + TIERS_EVERY
            self.reload_tiers()

    def change_tiers(self, change: Callable[[TierLayers], TierLayers], now_us: int | None) -> bool:
        """
        Change them on the first shard, then tell the others; whether anything changed. Again, where
        another process changed something meanwhile.

        Whoever ends in the middle leaves shards that have the shares of before, until a lease comes
        to them from a process that knows the new ones: each learns of these within about a second.
        """
        while True:
            before, version = self.tier_layers, self.book.version
            after = change(before)
            if after is before:
                return False
            text, record = after.json(), records.tiers_record(after)
            if (
                self.run(
                    "tiers",
                    0,
                    now_us,
                    self._tiers_stored,
                    text,
                    record,
                    version,
                    version + 1,
                    durable=True,
                )
                != b"changed"
            ):
                self.reload_tiers()
                self.reload()
                continue
            self._know_tiers(text)
            self.book.set_tiers(self.tiers)
            self.book.version = version + 1
            for shard in range(1, self.shards):
                known = version
                while (
                    self.run(
                        "tiers", shard, now_us, b"", b"", record, known, version + 1, durable=True
                    )
                    != b"changed"
                ):
                    known = records.read_counters(self.read(shard, "GET", "shard")).version
                    self.agree(shard, known)
                    known = self.book.version
            return True

    def tier_named_by(self, tier: str) -> str | None:
        """
        A policy that names the tier: of a pattern (these are in memory), or of topics of their own
        (each shard counts them).
        """
        for _, pattern, fields in self.book.policies.stored_rows():
            if fields.get("tier") == tier:
                return pattern
        for shard in range(self.shards):
            count = self.read(shard, "HGET", "own_tiers", tier)
            if count is not None:
                return self._topic_with(shard, tier) or f"of {int(count):,} topics of their own"
        return None

    def _topic_with(self, shard: int, tier: str) -> str | None:
        """
        A topic whose own policy names the tier, for people: looked for among the first ones only.
        """
        _, entries = self.read(shard, "HSCAN", "own", 0, "COUNT", LOOKED_AT)
        layers = self.own_of([topic.decode() for topic in entries[::2]])
        return next(
            (
                topic
                for topic, own in layers.items()
                if any(fields.get("tier") == tier for fields in own.values())
            ),
            None,
        )

    # Policies

    def reload(self) -> None:
        """Read the policies as they are; those of the first shard are the ones that count."""
        self.reload_tiers()
        version, nonce, rows = self.run("policies", 0, None, repeatable=True)
        self.nonce = nonce.decode()
        found = []
        for field, fields in zip(rows[::2], rows[1::2], strict=True):
            found.append((*_layer_and_pattern(field.decode()), json.loads(fields)))
        self.book.load(version, found)

    def agree(self, shard: int, version: int) -> None:
        """A shard has other policies than this process knows."""
        if version > self.book.version:
            self.reload()
        if version < self.book.version:  # whoever changed them ended before he had told all shards
            self.tell(shard, version)

    def tell(self, shard: int, version: int) -> None:
        """Write all policies to a shard that is behind."""
        book = self.book.policies
        there = {pattern for _, pattern, _ in book.stored_rows()}
        names = sorted(
            there | {name.decode() for name, _ in self.scan(shard, "HSCAN", "rules") if name}
        )
        rules = [
            records.rule_of(book, name, self.shards) if name in there else b"" for name in names
        ]
        arguments = (
            version,
            self.book.version,
            "*",
            records.pack([]),
            records.pack(names),
            records.exact_names(there),
            0,
        )
        self.run("policy", shard, None, *arguments, *rules, durable=True)


def _part(limit: int | None, parts: int) -> int | bytes:
    return -(-limit // parts) if limit is not None else b""


def _layer_and_pattern(field: str) -> tuple[str, str]:
    """
    Of a field of the hash `policies`: `code:PATTERN`, `program:NAME:PATTERN`; a program's name has
    no colon.
    """
    if field.startswith(PROGRAM):
        name, _, pattern = field.removeprefix(PROGRAM).partition(":")
        return PROGRAM + name, pattern
    layer, _, pattern = field.partition(":")
    return layer, pattern
