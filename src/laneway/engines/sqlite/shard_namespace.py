"""
A namespace of several files, its shards: opening it, its policies, its tiers and its gates.

All files have the policies of patterns, the tiers and the gates; a topic's own policy is in the
file where its messages are.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

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
from laneway.engines.sharded.splitting import Numbers, part_of
from laneway.engines.shared import gates
from laneway.engines.shared import views as shared
from laneway.engines.shared.naming import parse_generated_id
from laneway.engines.sqlite import policies
from laneway.engines.sqlite import tiers as tier_changes
from laneway.engines.sqlite.address import Place, file_in, has_others, own_bits, parse
from laneway.engines.sqlite.shard_file import OtherVersion, ShardFile
from laneway.engines.sqlite.statements import GRANT
from laneway.errors import EngineCorrupt, EngineUnavailable, UsageError
from laneway.policy import Gate
from laneway.printable import redacted
from laneway.topic_groups import TOPIC
from laneway.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from laneway.engines.base import Settings
    from laneway.engines.sqlite.wakeup import Wakeup
    from laneway.policy import Layer, Layers
    from laneway.tiers import TierLayers

T = TypeVar("T")

TOPIC_GRANT, AFTER_TOPICS = GRANT + TOPIC, GRANT + chr(ord(TOPIC) + 1)
"""The names of the settings with parts of topics' gates are between these."""

COMPLETE = "complete"
"""The setting of the first file that says that all files were created."""

CLAIM = "granting"
"""The setting of the first file that says until when a process moves the grants."""

_dumps = msgspec.json.Encoder(order="sorted").encode


class FileNumbers(Numbers, frozen=True):
    """Numbers that contain their shard in the high bits, see `address.own_bits`."""

    def join(self, shard: int, number: int) -> int:
        return (shard << own_bits(self.shards)) + number

    def shard(self, joined: int) -> int:
        return (joined >> own_bits(self.shards)) % self.shards

    def number(self, joined: int) -> int:
        return joined & ((1 << own_bits(self.shards)) - 1)

    def number_on(self, shard: int, joined: int) -> int:
        return self.number(joined) if self.shard(joined) == shard else -1

    def first_beyond(self, shard: int, joined: int) -> int:
        return max(joined + 1 - self.join(shard, 0), 0)

    def by_shard(self, joined: Sequence[int]) -> dict[int, Sequence[int]]:
        bits = own_bits(self.shards)
        positions: dict[int, list[int]] = {}
        for position, number in enumerate(joined):
            positions.setdefault((number >> bits) % self.shards, []).append(position)
        return dict(positions)


class _Undone(Exception):  # it only ends a transaction
    """The transaction was a trial."""


class FileNamespace(ShardedNamespace):
    """The namespace's files as this process has opened them."""

    def __init__(self, url: str, settings: Settings, wakeup: Callable[[Path], Wakeup]) -> None:
        address = parse(url)
        self.name = settings.namespace
        self.folder = address.path or Path()
        self.files: list[ShardFile] = []
        self.routes = None  # type: ignore[assignment]  # the first file tells how many there are
        try:
            self._open(url, settings, address.shards, wakeup)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()

    # Opening

    def _open(
        self, url: str, settings: Settings, shards: int | None, wakeup: Callable[[Path], Wakeup]
    ) -> None:
        self._make_folder(settings)
        self.wakeup = wakeup(file_in(self.folder, self.name, 0))
        own = msgspec.structs.replace(
            settings,
            max_backlog=None,  # until their number is known
            max_backlog_bytes=None,
        )
        # In this order, because another process may be creating the files now, the first one first.
        if has_others(self.folder, self.name) and not os.path.exists(self._path(0)):
            raise self._missing(0)
        first = self._open_file(url, own, Place(self._path(0), 0, shards or 0))
        self.shards = first.place.shards
        if shards not in (None, self.shards):
            raise UsageError(
                f"engine URL {redacted(url)!r}: namespace {self.name} was made with"
                f" {self.shards} files, the URL says {shards}; the number is fixed when a namespace"
                " is made: leave ?shards= out, or move to a new namespace with `laneway migrate`"
            )
        self.nonce = first.nonce
        is_complete = first.setting(COMPLETE) is not None
        others = msgspec.structs.replace(
            own,
            tiers=None,
            default_tier=None,
            create=settings.create and not is_complete,
            max_backlog=part_of(settings.max_backlog, self.shards),
            max_backlog_bytes=part_of(settings.max_backlog_bytes, self.shards),
        )
        if others.max_backlog or others.max_backlog_bytes:
            first.limit_backlog(others)
        for shard in range(1, self.shards):
            if is_complete and not os.path.exists(self._path(shard)):
                raise self._missing(shard)
            self._open_file(
                url,
                others,
                Place(
                    self._path(shard),
                    shard,
                    self.shards,
                    self.nonce,
                    first.setting("tiers"),
                    is_complete,
                ),
            )
        if not is_complete:
            with first.transaction_at_any_version(None) as tx:
                tx.run("setting_write", COMPLETE, "1")
        self.tier_layers = first.tier_layers()
        self.tiers = self.tier_layers.in_force()
        self.routes = Routes(self.tiers, self.shards, lambda _: b"")
        self.reload()
        self.change_tiers(
            lambda layers: layers.declare(
                settings.tiers, settings.default_tier, self.tier_named_by
            ),
            None,
        )

    def _missing(self, shard: int) -> EngineUnavailable:
        return EngineUnavailable(
            f"{self._path(shard)}: this file of namespace {self.name} is missing, and others of it"
            " are there; put it back, or restore a copy of all files"
        )

    def _make_folder(self, settings: Settings) -> None:
        folder = self.folder
        if folder.is_dir():
            return
        if folder.exists() and not folder.is_dir():  # else another process has just made it
            raise UsageError(
                f"{folder}: this is a file, and ?shards= asks for a folder of several; leave"
                " ?shards= out, or move to a new folder with `laneway migrate`"
            )
        if not settings.create:
            raise EngineUnavailable(
                f"{folder}: there is no such folder; check the path, or start a program that"
                " publishes to it"
            )
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise EngineUnavailable(
                f"{folder}: the folder cannot be created ({error.strerror}); check its parent"
            ) from error

    def _path(self, shard: int) -> str:
        return str(file_in(self.folder, self.name, shard))

    def _open_file(self, url: str, settings: Settings, place: Place) -> ShardFile:
        file = ShardFile(url, settings, place, self.wakeup, self._known_version)
        self.files.append(file)
        return file

    def _known_version(self) -> int:
        return self.routes.version

    # Calls

    def on(self, shard: int, call: Callable[[ShardFile], T]) -> T:
        """Call a file; again once it and this process know the same policies."""
        while True:
            try:
                return call(self.files[shard])
            except OtherVersion as other:
                self.agree(shard, other.version)

    def agree(self, shard: int, version: int) -> None:
        super().agree(shard, version)
        if version > self.routes.version:
            raise EngineCorrupt(
                f"{self._path(shard)}: this file has newer policies than {self._path(0)}; was one"
                " of them restored by itself? Put all files of one copy back"
            )

    def generated(self, message_id: str) -> tuple[int, int] | None:
        number = parse_generated_id(self.nonce, message_id)
        shard = number >> own_bits(self.shards) if number is not None else self.shards
        return (shard, number) if number is not None and shard < self.shards else None

    # Policies

    def reload(self) -> None:
        with self.files[0].view() as tx:
            self._use_tiers(tx.rules.tier_layers)
            self.routes.load(tx.shard.policy_version, tx.rules.policy_table.stored_rows())

    def reload_tiers(self) -> None:
        with self.files[0].view() as tx:
            self._use_tiers(tx.rules.tier_layers)

    def read_own(self, shard: int, topics: Sequence[str]) -> list[OwnPolicy]:
        with self.files[shard].view() as tx:
            own = policies.OwnPolicies(tx)
            return [_own_policy(own.stored(topic)) for topic in topics]

    def own_topics(self, shard: int) -> Iterator[str]:
        after = ""
        while True:
            with self.files[shard].view() as tx:
                page = policies.page(tx, after, 1000)
            yield from (topic for topic, _ in page)
            if not page:
                return
            after = page[-1][0]

    def own_page(self, shard: int, cursor: str, limit: int) -> tuple[str, list[tuple[str, Layers]]]:
        with self.files[shard].view() as tx:
            rows = policies.page(tx, cursor, limit)
        return rows[-1][0] if len(rows) == limit else "", rows

    def write_own(
        self, shard: int, version: int, changes: Sequence[OwnChange], now_us: int | None
    ) -> list[OwnPolicy | None] | Behind:
        with self.files[shard].transaction_at_any_version(now_us) as tx:
            if tx.shard.policy_version != version:
                return Behind(tx.shard.policy_version)
            own = policies.OwnPolicies(tx)
            answers: list[OwnPolicy | None] = []
            for change in changes:
                if _own_policy(own.stored(change.topic)).id != change.before:
                    answers.append(None)
                    continue
                if change.layers != own.stored(change.topic):
                    own.replace(change.topic, change.layers)
                answers.append(_own_policy(change.layers))
            own.write()
            return answers

    def write_policies(
        self, shard: int, change: PolicyChange, now_us: int | None
    ) -> Behind | InUse | None:
        with self.files[shard].transaction_at_any_version(now_us) as tx:
            if tx.shard.policy_version != change.version:
                return Behind(tx.shard.policy_version)
            policies.write_all(tx, change)
        return None

    def try_policies_on(
        self, shards: Sequence[int], change: PolicyChange, now_us: int | None
    ) -> list[Behind | InUse | None]:
        return [self._try_policies(shard, change, now_us) for shard in shards]

    def _try_policies(self, shard: int, change: PolicyChange, now_us: int | None) -> Behind | None:
        """Raise TopicInUse if the file would refuse the change."""
        try:
            with self.files[shard].transaction_at_any_version(now_us, durable=False) as tx:
                if tx.shard.policy_version != change.version:
                    return Behind(tx.shard.policy_version)
                policies.write_all(tx, change)
                raise _Undone
        except _Undone:
            return None

    def policy_names(self, shard: int) -> set[str]:
        del shard
        return set()  # `write_policies` compares all policies of the file

    def version_on(self, shard: int) -> int:
        with self.files[shard].view() as tx:
            return tx.shard.policy_version

    # Tiers

    def write_tiers(
        self, shard: int, layers: TierLayers, version: int, new_version: int, now_us: int | None
    ) -> bool:
        with self.files[shard].transaction_at_any_version(now_us) as tx:
            if tx.shard.policy_version != version or (
                shard == 0 and tx.rules.tier_layers.json() != self.tier_layers.json()
            ):
                return False
            tier_changes.write(tx, layers)
            tx.shard.policy_version = tx.rules.version = new_version
        return True

    def write_all_policies(self, shard: int, version: int) -> None:
        """Also the tiers: a version counts both."""
        with self.files[shard].transaction_at_any_version(None) as tx:
            if tx.shard.policy_version == version:
                tier_changes.write(tx, self.tier_layers)
                tx.shard.policy_version = tx.rules.version = version
        super().write_all_policies(shard, version)

    def own_tier_count(self, shard: int, tier: str) -> int:
        with self.files[shard].view() as tx:
            return tier_changes.own_count(tx, tier)

    def use_tiers(self, layers: TierLayers) -> None:
        self._use_tiers(layers)

    def _use_tiers(self, layers: TierLayers) -> None:
        if layers.json() != self.tier_layers.json():
            self.tier_layers = layers
            self.tiers = layers.in_force()
            self.routes.set_tiers(self.tiers)

    # Gates

    def has_gates(self) -> bool:
        with self.files[0].view() as tx:
            return self.routes.has_partitions or bool(tx.one("gates_exist")[0])

    def waited_gates(self) -> set[str]:
        names: set[str] = set()
        for file in self.files:
            with file.view() as tx:
                names.update(name for (name,) in tx.all("gates_waited_at", MOST_WAITED))
                granted = tx.all("settings_between", TOPIC_GRANT, AFTER_TOPICS, MOST_WAITED)
                names.update(name.removeprefix(GRANT) for (name,) in granted)
        return names

    def claim_grants(self, seconds: float) -> bool:
        # by the machine's clock: the store's stands still after that was set back
        now, length = time.time_ns() // 1000, round(seconds * SECOND)
        with self.files[0].transaction_at_any_version(None, durable=False) as tx:
            claimed = tx.one("setting_read", CLAIM)
            if claimed is not None and now < int(claimed[0]) <= now + length:
                return False
            tx.run("setting_write", CLAIM, str(now + length))
            return True

    def hold_grants(self, seconds: float) -> None:
        until = time.time_ns() // 1000 + round(seconds * SECOND)
        with self.files[0].transaction_at_any_version(None, durable=False) as tx:
            tx.run("setting_write", CLAIM, str(until))

    def gate_usages(self, gates: Sequence[str]) -> list[tuple[Gate, list[Usage]] | None]:
        return [self._gate_usage(gate) for gate in gates]

    def _gate_usage(self, gate: str) -> tuple[Gate, list[Usage]] | None:
        if gate.startswith(TOPIC):
            return self._topic_usage(gate)
        usage: list[Usage] = []
        limits = None
        for file in self.files:
            with file.view() as tx:
                state = tx.gate(gate)
                if state is None:
                    return None
                limits = state.whole
                waiting = min(state.waiting, shared.COUNTED)
                if state.granted is None:
                    usage.append(Usage(state.leased, waiting, None))
                else:
                    granted = state.limits.concurrency
                    usage.append(Usage(state.leased, waiting, granted, state.here))
        return (limits, usage) if limits is not None else None

    def _topic_usage(self, gate: str) -> tuple[Gate, list[Usage]] | None:
        states, waiting = [], []
        for file in self.files:
            with file.view() as tx:
                state = tx.gate(gate)
                states.append(state)
                waiting.append(min(state.waiting, shared.COUNTED) if state is not None else 0)
        limits = next((each.whole for each in states if each is not None and each.code), None)
        if limits is None:
            return None
        parts = self.parts_of(gate, limits)
        return limits, [
            topic_usage(
                part,
                state.here if state is not None else None,
                state.limits if state is not None else None,
                state.share if state is not None else no_share(limits, part),
                state.leased if state is not None else 0,
                lanes,
            )
            for part, state, lanes in zip(parts, states, waiting, strict=True)
        ]

    def end_grant(self, gate: str, shard: int, now_us: int | None) -> None:
        with self.files[shard].transaction_at_any_version(now_us) as tx:
            tx.run("setting_delete", GRANT + gate)
            state = tx.gate(gate)
            if state is not None:
                state.grant(None, tx.now)
                tx.touch_gate(state)
                tx.topic_left(gate.removeprefix(TOPIC))

    def grant_on(self, gate: str, grants: Mapping[int, Grant], now_us: int | None) -> list[Answer]:
        return [self._grant(gate, shard, grant, now_us) for shard, grant in grants.items()]

    def _grant(self, gate: str, shard: int, grant: Grant, now_us: int | None) -> Answer:
        with self.files[shard].transaction_at_any_version(now_us) as tx:
            state = tx.ensure_gate(gate) if gate.startswith(TOPIC) else tx.gate(gate)
            if state is None:
                return Answer(0, 0.0)
            if grant.moves:
                state.flow = gates.moved(state.whole, state.flow, grant.moves)
            gave_up = state.grant(grant.gate, tx.now, grant.permits)
            tx.touch_gate(state)
            return Answer(max(state.limits.concurrency or 0, state.leased), gave_up)

    def set_gate(self, shard: int, name: str, gate: Gate, layer: Layer, now_us: int | None) -> None:
        """Set a gate's limits in a file. With several files it is shut until it has a grant."""
        with self.files[shard].transaction_at_any_version(now_us) as tx:
            if self.shards > 1 and tx.gate(name) is None:
                tx.ensure_gate(name).grant(Gate(concurrency=0), tx.now)
            policies.set_gate(tx, name, gate, layer)


def _own_policy(layers: Layers) -> OwnPolicy:
    return OwnPolicy(_dumps(layers) if layers else b"", layers)
