"""
A namespace of several stores, its shards: its policies, its tiers and its gates.

All stores have the policies of patterns, the tiers and the gates; a topic's own policy is in the
store where its messages are.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

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
from laneway.engines.sharded.queue import Rerouted
from laneway.engines.sharded.splitting import Numbers
from laneway.engines.shared import gates, views as shared
from laneway.engines.shared.naming import parse_generated_id
from laneway.engines.sql import policies, tiers as tier_changes
from laneway.engines.sql.rows import to_sorted_json
from laneway.engines.sql.shard_store import OtherVersion, ShardStore
from laneway.engines.sql.statements import GRANT
from laneway.engines.sql.store import own_bits
from laneway.engines.sql.wakeup import Wakeup
from laneway.errors import EngineCorrupt
from laneway.policy import Gate, Layer, Layers
from laneway.tiers import TierLayers
from laneway.topic_groups import TOPIC
from laneway.units import SECOND

T = TypeVar("T")

TOPIC_GRANT, AFTER_TOPICS = GRANT + TOPIC, GRANT + chr(ord(TOPIC) + 1)
"""The names of the settings with parts of topics' gates are between these."""

CLAIM = "granting"
"""The setting of the first store that says until when a process moves the grants."""


class ShardNumbers(Numbers, frozen=True):
    """Numbers that contain their shard in the high bits, see `store.own_bits`."""

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


class ShardsOfNamespace(ShardedNamespace):
    """The namespace's stores as this process has opened them; a database adds opening them."""

    stores: Sequence[ShardStore]
    wakeup: Wakeup
    nonce: str

    def close(self) -> None:
        for store in self.stores:
            store.close()

    # Calls

    def on(
        self,
        shard: int,
        call: Callable[[ShardStore], T],
        belongs: Callable[[], bool] = lambda: True,
    ) -> T:
        """
        Call a store; again once it and this process know the same policies. Raises Rerouted if by
        these what is put there no longer `belongs` to the shard.
        """
        while True:
            try:
                return call(self.stores[shard])
            except OtherVersion as other:
                before = self.routes.version
                self.agree(shard, other.version)
                if self.routes.version != before and not belongs():
                    raise Rerouted from None

    def agree(self, shard: int, version: int) -> None:
        super().agree(shard, version)
        if version > self.routes.version:
            noun = self.stores[0].noun
            raise EngineCorrupt(
                f"{self.stores[shard].name}: this {noun} has newer policies than"
                f" {self.stores[0].name}; was one of them restored without the other? Put all"
                f" {noun}s of one copy back"
            )

    def generated(self, message_id: str) -> tuple[int, int] | None:
        number = parse_generated_id(self.nonce, message_id)
        shard = number >> own_bits(self.shards) if number is not None else self.shards
        return (shard, number) if number is not None and shard < self.shards else None

    # Policies

    def reload(self) -> None:
        with self.stores[0].view() as tx:
            self.use_tiers(tx.rules.tier_layers)
            self.routes.load(tx.shard.policy_version, tx.rules.policy_table.stored_rows())

    def reload_tiers(self) -> None:
        with self.stores[0].view() as tx:
            self.use_tiers(tx.rules.tier_layers)

    def read_own(self, pages_: Sequence[tuple[int, Sequence[str]]]) -> list[list[OwnPolicy]]:
        found = []
        for shard, topics in pages_:
            with self.stores[shard].view() as tx:
                own = policies.OwnPolicies(tx)
                found.append([_own_policy(own.stored(topic)) for topic in topics])
        return found

    def own_topics(self, shard: int) -> Iterator[str]:
        after = ""
        while True:
            with self.stores[shard].view() as tx:
                page = policies.page(tx, after, 1000)
            yield from (topic for topic, _ in page)
            if not page:
                return
            after = page[-1][0]

    def own_page(self, shard: int, cursor: str, limit: int) -> tuple[str, list[tuple[str, Layers]]]:
        with self.stores[shard].view() as tx:
            rows = policies.page(tx, cursor, limit)
        return rows[-1][0] if len(rows) == limit else "", rows

    def write_own(
        self,
        pages_: Sequence[tuple[int, Sequence[OwnChange]]],
        version: int,
        now_us: int | None,
    ) -> list[list[OwnPolicy | None] | Behind]:
        return [self._write_own(shard, version, changes, now_us) for shard, changes in pages_]

    def _write_own(
        self, shard: int, version: int, changes: Sequence[OwnChange], now_us: int | None
    ) -> list[OwnPolicy | None] | Behind:
        with self.stores[shard].transaction_at_any_version(now_us) as tx:
            if tx.shard.policy_version != version:
                return Behind(tx.shard.policy_version)
            own = policies.OwnPolicies(tx, as_stored=True)  # the caller has checked them
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

    def write_policies_on(
        self, shards: Sequence[int], change: PolicyChange, now_us: int | None
    ) -> list[Behind | InUse | None]:
        return [self._write_policies(shard, change, now_us) for shard in shards]

    def try_policies_on(
        self, shards: Sequence[int], change: PolicyChange, now_us: int | None
    ) -> list[Behind | InUse | None]:
        return [self._write_policies(shard, change, now_us, is_trial=True) for shard in shards]

    def _write_policies(
        self, shard: int, change: PolicyChange, now_us: int | None, *, is_trial: bool = False
    ) -> Behind | None:
        """Raises TopicInUse if the store refuses the change."""
        with (
            contextlib.suppress(_Undone),
            self.stores[shard].transaction_at_any_version(now_us, durable=not is_trial) as tx,
        ):
            if tx.shard.policy_version != change.version:
                return Behind(tx.shard.policy_version)
            policies.write_all(tx, change)
            if is_trial:
                raise _Undone
        return None

    def policy_names(self, shard: int) -> set[str]:
        del shard
        return set()  # `write_policies_on` compares all policies of the store

    def version_on(self, shard: int) -> int:
        with self.stores[shard].view() as tx:
            return tx.shard.policy_version

    # Tiers

    def write_tiers_on(
        self,
        shards: Sequence[int],
        layers: TierLayers,
        version: int,
        new_version: int,
        now_us: int | None,
    ) -> list[bool]:
        return [self._write_tiers(shard, layers, version, new_version, now_us) for shard in shards]

    def _write_tiers(
        self, shard: int, layers: TierLayers, version: int, new_version: int, now_us: int | None
    ) -> bool:
        with self.stores[shard].transaction_at_any_version(now_us) as tx:
            if tx.shard.policy_version != version or (
                shard == 0 and tx.rules.tier_layers.json() != self.tier_layers.json()
            ):
                return False
            tier_changes.write(tx, layers)
            tx.shard.policy_version = tx.rules.version = new_version
        return True

    def write_all_policies(self, shard: int, version: int) -> None:
        """Also the tiers: a version counts both."""
        with self.stores[shard].transaction_at_any_version(None) as tx:
            if tx.shard.policy_version == version:
                tier_changes.write(tx, self.tier_layers)
                tx.shard.policy_version = tx.rules.version = version
        super().write_all_policies(shard, version)

    def own_tier_count(self, shard: int, tier: str) -> int:
        with self.stores[shard].view() as tx:
            return tier_changes.own_count(tx, tier)

    def use_tiers(self, layers: TierLayers) -> None:
        if layers.json() != self.tier_layers.json():
            self.tier_layers = layers
            self.tiers = layers.in_force()
            self.routes.set_tiers(self.tiers)

    # Gates

    def has_gates(self) -> bool:
        with self.stores[0].view() as tx:
            return self.routes.has_partitions or bool(tx.one("gates_exist")[0])

    def waited_gates(self) -> set[str]:
        names: set[str] = set()
        for store in self.stores:
            with store.view() as tx:
                names.update(name for (name,) in tx.all("gates_waited_at", MOST_WAITED))
                granted = tx.all("settings_between", TOPIC_GRANT, AFTER_TOPICS, MOST_WAITED)
                names.update(name.removeprefix(GRANT) for (name,) in granted)
        return names

    def leased_topics(self) -> set[str]:
        names: set[str] = set()
        for store in self.stores:
            with store.view() as tx:
                names.update(name for (name,) in tx.all("topic_gates_in_use"))
        return {name.removeprefix(TOPIC) for name in names}

    def claim_grants(self, seconds: float) -> bool:
        # by the machine's clock: the store's stands still after that was set back
        now, length = time.time_ns() // 1000, round(seconds * SECOND)
        with self.stores[0].transaction_at_any_version(None, durable=False) as tx:
            claimed = tx.one("setting_read", CLAIM)
            if claimed is not None and now < int(claimed[0]) <= now + length:
                return False
            tx.run("setting_write", CLAIM, str(now + length))
            return True

    def hold_grants(self, seconds: float) -> None:
        until = time.time_ns() // 1000 + round(seconds * SECOND)
        with self.stores[0].transaction_at_any_version(None, durable=False) as tx:
            tx.run("setting_write", CLAIM, str(until))

    def gate_usages(self, gates: Sequence[str]) -> list[tuple[Gate, list[Usage]] | None]:
        return [self._gate_usage(gate) for gate in gates]

    def _gate_usage(self, gate: str) -> tuple[Gate, list[Usage]] | None:
        if gate.startswith(TOPIC):
            return self._topic_usage(gate)
        usage: list[Usage] = []
        limits = None
        for store in self.stores:
            with store.view() as tx:
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

    def _topic_usage(self, gate: str) -> tuple[Gate, list[Usage]]:
        states, waiting, versions = [], [], []
        for store in self.stores:
            with store.view() as tx:
                versions.append(tx.shard.policy_version)
                state = tx.gate(gate)
                states.append(state)
                waiting.append(min(state.waiting, shared.COUNTED) if state is not None else 0)
        limits = self.topic_limits(gate, versions[0])
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
        with self.stores[shard].transaction_at_any_version(now_us) as tx:
            tx.run("setting_delete", GRANT + gate)
            state = tx.gate(gate)
            if state is not None:
                state.grant(None, tx.now)
                tx.touch_gate(state)
                tx.topic_left(gate.removeprefix(TOPIC))

    def grant_on(self, gate: str, grants: Mapping[int, Grant], now_us: int | None) -> list[Answer]:
        return [self._grant(gate, shard, grant, now_us) for shard, grant in grants.items()]

    def _grant(self, gate: str, shard: int, grant: Grant, now_us: int | None) -> Answer:
        with self.stores[shard].transaction_at_any_version(now_us) as tx:
            state = tx.gate(gate)
            if gate.startswith(TOPIC):  # its limits may have changed since a lane was placed
                topic = gate.removeprefix(TOPIC)
                shared = tx.topic_gate(topic, tx.policy(topic), was_empty=True)
                state = shared or tx.ensure_gate(gate)
            if state is None:
                return Answer(0, 0.0)
            if grant.moves:
                state.flow = gates.moved(state.whole, state.flow, grant.moves)
            gave_up = state.grant(grant.gate, tx.now, grant.permits)
            tx.touch_gate(state)
            return Answer(max(state.limits.concurrency or 0, state.leased), gave_up)

    def set_gate(self, shard: int, name: str, gate: Gate, layer: Layer, now_us: int | None) -> None:
        """Set a gate's limits in a store. With several stores it is shut until it has a grant."""
        with self.stores[shard].transaction_at_any_version(now_us) as tx:
            if self.shards > 1 and tx.gate(name) is None:
                tx.ensure_gate(name).grant(Gate(concurrency=0), tx.now)
            policies.set_gate(tx, name, gate, layer)


def _own_policy(layers: Layers) -> OwnPolicy:
    return OwnPolicy(to_sorted_json(layers) if layers else b"", layers)
