"""
One namespace over its shards: its policies, its tiers, and the shards that do not know them yet.

An engine's namespace implements the abstract methods. Each calls one function, on one shard or on
several; on servers, those are called together. Its arguments and answers are plain values.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from laneway.engines.sharded.grants import Gates, Grant
from laneway.engines.sharded.routes import Routes, generated_number
from laneway.engines.sharded.splitting import group, rounds
from laneway.engines.shared import gates
from laneway.engines.shared.naming import first_partition_on, partitions_on
from laneway.policy import Gate, Layers, PolicyTable, Resolved
from laneway.subscriptions import base_of
from laneway.tiers import TierLayers, Tiers
from laneway.topic_groups import TOPIC

TIERS_EVERY = 1.0
"""Seconds between two reads of the tiers, in a namespace with several shards."""

OWN_AT_ONCE = 500
"""Topics whose own policies one call reads."""


class OwnPolicy(NamedTuple):
    """A topic's own policy and its id, which is the same for equal policies; b"" and {}: none."""

    id: bytes
    layers: Layers


class OwnChange(NamedTuple):
    """A topic's own policy is replaced, unless another process has changed it meanwhile."""

    topic: str
    before: bytes
    layers: Layers


class Behind(NamedTuple):
    """A shard knows another version of the policies than the caller said. Nothing was changed."""

    version: int


class InUse(NamedTuple):
    """A change would move the lanes of a topic that is not empty. Nothing was changed."""

    topic: str
    waiting: int
    leased: int


class PolicyChange(NamedTuple):
    """
    The policies that every client knows, from one version to the next, as one shard gets them.

    `policy_table`: the policies of the new version. `names`: patterns and topics whose policies are
    written (deleted, if the table does not have them), `subscription_patterns` included. `rows`:
    (layer, name, fields) that the first shard stores, None deletes. `pattern`: the topics that have
    to be placed again. `may_change_lanes`: the shard refuses it where a topic that would change its
    lanes is not empty.
    """

    version: int
    new_version: int
    policy_table: PolicyTable
    names: Sequence[str]
    rows: Sequence[tuple[str, str, dict[str, Any] | None]] = ()
    pattern: str = "*"
    may_change_lanes: bool = False


class ShardedNamespace(Gates):
    """The state of one namespace in this process. All processes agree by versions."""

    name: str
    shards: int
    nonce: str
    routes: Routes
    tiers: Tiers
    tier_layers: TierLayers
    _next_tiers = 0.0

    # Functions

    @abstractmethod
    def reload(self) -> None:
        """Read the policies and tiers from the first shard, whose state counts."""

    @abstractmethod
    def reload_tiers(self) -> None:
        """Read the tiers from the first shard."""

    @abstractmethod
    def read_own(self, pages_: Sequence[tuple[int, Sequence[str]]]) -> list[list[OwnPolicy]]:
        """The own policies of topics, by (shard, topics whose home it is)."""

    @abstractmethod
    def own_topics(self, shard: int) -> Iterator[str]:
        """The topics with an own policy on the shard."""

    @abstractmethod
    def own_page(self, shard: int, cursor: str, limit: int) -> tuple[str, list[tuple[str, Layers]]]:
        """About `limit` topics with their own policies, and the next cursor ("" at both ends)."""

    @abstractmethod
    def write_own(
        self,
        pages_: Sequence[tuple[int, Sequence[OwnChange]]],
        version: int,
        now_us: int | None,
    ) -> list[list[OwnPolicy | None] | Behind]:
        """
        Replace own policies, by (shard, changes). None for a topic that another process has changed
        meanwhile.
        """

    @abstractmethod
    def write_policies_on(
        self, shards: Sequence[int], change: PolicyChange, now_us: int | None
    ) -> list[Behind | InUse | None]:
        """Write the policies that every client knows, on the shards that do not refuse them."""

    @abstractmethod
    def try_policies_on(
        self, shards: Sequence[int], change: PolicyChange, now_us: int | None
    ) -> list[Behind | InUse | None]:
        """What `write_policies_on` would answer. Nothing is changed."""

    @abstractmethod
    def policy_names(self, shard: int) -> set[str]:
        """The patterns and topics whose policies the shard has."""

    @abstractmethod
    def version_on(self, shard: int) -> int:
        """The version of the policies that the shard has."""

    @abstractmethod
    def write_tiers_on(
        self,
        shards: Sequence[int],
        layers: TierLayers,
        version: int,
        new_version: int,
        now_us: int | None,
    ) -> list[bool]:
        """
        Write the tiers; False where the shard has other policies, or the first shard has other
        tiers, than this process knows.
        """

    @abstractmethod
    def own_tier_count(self, shard: int, tier: str) -> int:
        """How many own policies on the shard name a tier."""

    @abstractmethod
    def use_tiers(self, layers: TierLayers) -> None:
        """Every call from now on brings these tiers to its shard."""

    # Gates, see `laneway.engines.sharded.grants.Gates`

    @abstractmethod
    def leased_topics(self) -> set[str]:
        """The topics with leases whose partitions share limits."""

    def topic_limits(self, gate: str, version: int) -> Gate:
        """
        What the partitions of a topic share by the policies of the first shard, which has this
        version.
        """
        if version != self.routes.version:
            self.reload()
        return self.routes.route(gate.removeprefix(TOPIC)).policy.shared or Gate()

    def parts_of(self, gate: str, limits: Gate) -> list[Grant | None]:
        """What each shard has of a topic's gate without a grant; None: no partition is there."""
        topic = base_of(gate.removeprefix(TOPIC))
        partitions = self.routes.route(topic).policy.partitions
        parts: list[Grant | None] = []
        for shard in range(self.shards):
            here = partitions_on(shard, self.shards, topic, partitions)
            number = first_partition_on(shard, self.shards, topic)
            count = min(self.shards, partitions)
            part = gates.part_of_topic(limits, here, partitions, number, count)
            parts.append(Grant(part.rate, part.burst, part.concurrency) if here else None)
        return parts

    # Own policies

    def own_policies(self, topics: Iterable[str]) -> dict[str, OwnPolicy]:
        """The own policies of topics, from their home shards."""
        found: dict[str, OwnPolicy] = {}
        homes = group((self.routes.home(topic), topic) for topic in topics)
        for round_ in rounds(homes, OWN_AT_ONCE):
            for (_, page), own in zip(round_, self.read_own(round_), strict=True):
                found |= zip(page, own, strict=True)
        return found

    def own_layers(self, topics: Iterable[str]) -> dict[str, Layers]:
        """The same without their ids."""
        return {topic: own.layers for topic, own in self.own_policies(topics).items()}

    def refresh(self) -> None:
        """Read the policies again if another process has changed them."""
        if self.version_on(0) != self.routes.version:
            self.reload()

    def refresh_topics(self, topics: Iterable[str]) -> None:
        """Read again what holds for these topics."""
        self.refresh()
        for topic, own in self.own_policies(topics).items():
            self.routes.learn(topic, *own)

    def policy(self, topic: str) -> Resolved:
        """What holds for a topic, its own policy included."""
        policies = self.routes.policies
        own = {} if policies.layers(topic) else self.own_layers([topic])[topic]
        return policies.resolve_own(topic, own) if own else policies.resolve(topic)

    def generated(self, message_id: str) -> tuple[int, int] | None:
        """Shard and number of the message with a generated id; None for the user's own ids."""
        return generated_number(self.nonce, self.shards, message_id)

    # Versions

    def agree(self, shard: int, version: int) -> None:
        """A shard has another version of the policies than this process: update the older one."""
        if version > self.routes.version:
            self.reload()
        if version < self.routes.version:  # a process that changed them ended before all shards
            self.write_all_policies(shard, version)

    def write_all_policies(self, shard: int, version: int) -> None:
        """Write all policies to a shard that has an older version."""
        policy_table = self.routes.policies
        names = {name for _, name, _ in policy_table.stored_rows()} | self.policy_names(shard)
        names |= policy_table.subscription_patterns()
        change = PolicyChange(version, self.routes.version, policy_table, sorted(names))
        self.write_policies_on([shard], change, None)

    # Tiers

    def refresh_tiers(self) -> None:
        """
        Read the tiers, once a second. Only with several shards: one of them may not know a change.
        """
        now = time.monotonic()
        if self.shards > 1 and now >= self._next_tiers:
            self._next_tiers = now + TIERS_EVERY
            self.reload_tiers()

    def change_tiers(self, change: Callable[[TierLayers], TierLayers], now_us: int | None) -> bool:
        """
        Change the tiers on the first shard, then on the others; whether anything changed. Repeated
        if another process has changed something meanwhile.

        If the process ends in between, the other shards have the old shares until a process that
        knows the new ones leases from them: each learns them within about a second.
        """
        while True:
            before, version = self.tier_layers, self.routes.version
            after = change(before)
            if after is before:
                return False
            if self.write_tiers_on([0], after, version, version + 1, now_us) == [False]:
                self.reload_tiers()
                self.reload()
                continue
            self.use_tiers(after)
            self.routes.version = version + 1
            others = range(1, self.shards)
            written = self.write_tiers_on(others, after, version, version + 1, now_us)
            for shard in (shard for shard, done in zip(others, written, strict=True) if not done):
                is_written = [False]
                while is_written == [False]:
                    self.agree(shard, self.version_on(shard))
                    known = self.routes.version
                    is_written = self.write_tiers_on([shard], after, known, version + 1, now_us)
            return True

    def tier_named_by(self, tier: str) -> str | None:
        """
        A policy that names the tier: that of a pattern, which is in memory, or of a topic: each
        shard counts them.
        """
        for _, pattern, fields in self.routes.policies.stored_rows():
            if fields.get("tier") == tier:
                return pattern
        for shard in range(self.shards):
            if count := self.own_tier_count(shard, tier):
                return self._example(shard, tier) or f"of {count:,} topics of their own"
        return None

    def _example(self, shard: int, tier: str) -> str | None:
        """A topic whose own policy names the tier, among the first ones only."""
        _, rows = self.own_page(shard, "", 1000)
        for topic, layers in rows:
            if any(fields.get("tier") == tier for fields in layers.values()):
                return topic
        return None
