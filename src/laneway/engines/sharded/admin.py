"""
Administration over the shards of one namespace: tiers, policies, gates, purge and dead letters.

The methods whose names end in `_on` are the engine's: each calls one function on one shard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from laneway.engines.sharded.grants import Grants
from laneway.engines.sharded.namespace import ShardedNamespace
from laneway.engines.sharded.policies import Policies
from laneway.engines.sharded.splitting import CallSize, group
from laneway.engines.shared.policy_changes import PolicyChanges, refuse_undefined_gates
from laneway.policy import (
    Gate,
    Layer,
    Layers,
    PolicyTable,
    Resolved,
    check_policy_pattern,
    is_pattern,
    matches,
    own_rows,
    sources,
)
from laneway.tiers import Tier, TierLayers, Tiers
from laneway.topic_groups import GROUP

DeadAction = Literal["redrive", "drop"]


class ShardedAdmin(PolicyChanges, ABC):
    """The part of `laneway.engines.base.Admin` that splits calls over shards."""

    _namespace: ShardedNamespace
    _grants: Grants
    _removals: CallSize
    """Of calls that remove messages or put them back."""

    # One shard

    @abstractmethod
    def _advance_clock_on(self, shard: int, now_us: int | None) -> None:
        """Change nothing but the shard's time."""

    @abstractmethod
    def _gate_limits(self, gate: str) -> Gate | None:
        """The limits of a gate, from the first shard; None: it is not defined."""

    @abstractmethod
    def _set_gate(self, name: str, gate: Gate, layer: Layer, now_us: int | None) -> None:
        """Set the limits of a gate, on all shards."""

    @abstractmethod
    def _reset_gate(self, name: str, now_us: int | None) -> None:
        """Forget what a gate owes, on all shards."""

    @abstractmethod
    def _purge_on(self, shard: int, topic: str, now_us: int | None) -> int:
        """Remove what waits of a topic, in pages. Returns how many messages."""

    @abstractmethod
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
        """Process dead letters with these numbers, or (None) the oldest. Returns how many."""

    @abstractmethod
    def _locate(self, ids: Iterable[str], topic: str | None) -> list[tuple[int, int]]:
        """Shard and number of the messages with these ids, as far as they exist."""

    # Tiers

    @property
    def tiers(self) -> Tiers:
        return self._namespace.tiers

    def tier_layers(self) -> TierLayers:
        self._namespace.reload_tiers()
        return self._namespace.tier_layers

    def tier_set(
        self, layer: Layer, changes: Mapping[str, Tier | None], *, now_us: int | None = None
    ) -> None:
        named_by = self._namespace.tier_named_by
        self._change_tiers(lambda layers: layers.change(layer, changes, named_by), now_us)

    def tier_reset(self, name: str | None = None, *, now_us: int | None = None) -> bool:
        named_by = self._namespace.tier_named_by
        return self._change_tiers(lambda layers: layers.reset(name, named_by), now_us)

    def _change_tiers(self, change: Callable[[TierLayers], TierLayers], now_us: int | None) -> bool:
        self._namespace.reload()
        if self._namespace.change_tiers(change, now_us):
            return True
        self._advance_clocks(now_us)
        return False

    def _advance_clocks(self, now_us: int | None) -> None:
        """A change that changes nothing advances the clocks, as on every engine."""
        for shard in range(self._namespace.shards):
            self._advance_clock_on(shard, now_us)

    # Policies

    def policies(self) -> PolicyTable:
        self._namespace.reload()
        policy_table = PolicyTable(self.tiers, self.policy_own)
        rows = self._namespace.routes.policies.stored_rows()
        policy_table.load(row for row in rows if is_pattern(row[1]))
        return policy_table

    def policy_own(self, topic: str) -> Layers:
        return {} if is_pattern(topic) else Policies(self._namespace).layers_of(topic)

    def policy_own_list(
        self, after: str = "", limit: int = 1000
    ) -> tuple[list[tuple[str, Layers]], str | None]:
        return Policies(self._namespace).page(after, limit)

    def policy_of(self, topic: str) -> Resolved:
        self._namespace.reload()
        return self._namespace.policy(topic)

    def _change_policies(
        self,
        layer: str,
        changes: Sequence[tuple[str, dict[str, Any]]],
        now_us: int | None,
        *,
        as_stored: bool,
    ) -> list[dict[str, Any]]:
        named = {fields["tier"] for _, fields in changes if fields.get("tier") is not None}
        if any(tier not in self.tiers for tier in named):
            self._namespace.reload()  # another process may have added it
        refuse_undefined_gates(changes, lambda gate: self._gate_limits(gate) is not None)
        answers = Policies(self._namespace, now_us, as_stored=as_stored).change(layer, changes)
        self._lower([name for name, _ in changes], now_us)
        return answers

    def _lower(self, names: Sequence[str], now_us: int | None) -> None:
        """Divide lowered limits of topics that these changed patterns and topics cover."""
        routes = self._namespace.routes
        if self._namespace.shards == 1 or not routes.has_partitions:
            return
        patterns = [name for name in names if is_pattern(name)]
        topics = self._namespace.leased_topics() if patterns else set()
        topics = {topic for topic in topics if any(matches(each, topic) for each in patterns)}
        topics |= {name for name in names if routes.route(name).policy.shared}.difference(patterns)
        self._grants.lower(topics, now_us)

    def policy_reset(self, layer: str, pattern: str, *, now_us: int | None = None) -> bool:
        check_policy_pattern(pattern)
        self._namespace.reload()
        policies = Policies(self._namespace, now_us)
        fields = sources(policies.layers_of(pattern)).get(layer)
        if fields is None:
            self._advance_clocks(now_us)
            return False
        policies.change(layer, [(pattern, dict.fromkeys(fields))])
        self._lower([pattern], now_us)
        return True

    def _policy_rows(self) -> list[tuple[str, str, dict[str, Any]]]:
        return [
            *self.policies().stored_rows(),
            *own_rows(Policies(self._namespace).every()),
        ]

    # Gates

    def gate_set(
        self, name: str, gate: Gate, *, layer: Layer = "code", now_us: int | None = None
    ) -> None:
        before = self._gate_limits(name)
        self._set_gate(name, gate, layer, now_us)
        if self._namespace.shards > 1:
            limits = self._gate_limits(name)
            if limits is not None and limits != before:
                self._grants.begin(name, limits, before, now_us)

    def gate_reset(self, name: str, *, now_us: int | None = None) -> bool:
        if self._gate_limits(name) is None:
            return False
        self._reset_gate(name, now_us)
        return True

    def topic_group_set(
        self, name: str, settings: Gate, *, layer: Layer = "code", now_us: int | None = None
    ) -> None:
        self.gate_set(GROUP + name, settings, layer=layer, now_us=now_us)

    # Topics and dead letters

    def topic_purge(self, topic: str, *, now_us: int | None = None) -> int:
        shards = self._namespace.routes.shards_of(topic)
        return sum(self._purge_on(shard, topic, now_us) for shard in shards)

    def dead_redrive(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
        first_us: int = 0,
        spacing_us: int = 0,
        now_us: int | None = None,
    ) -> int:
        return self._process_dead("redrive", topic, ids, limit, first_us, spacing_us, now_us)

    def dead_drop(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
        now_us: int | None = None,
    ) -> int:
        return self._process_dead("drop", topic, ids, limit, 0, 0, now_us)

    def _process_dead(
        self,
        action: DeadAction,
        topic: str | None,
        ids: Sequence[str] | None,
        limit: int,
        first_us: int,
        spacing_us: int,
        now_us: int | None,
    ) -> int:
        """Page by page. Each message is due `spacing_us` after the one before it."""
        done = 0
        for shard, numbers in self._dead_pages(topic, ids, limit):
            while done < limit:
                most = min(self._removals.limit, limit - done)
                first = first_us + done * spacing_us
                count = self._dead_on(
                    shard, action, topic, numbers, most, first, spacing_us, now_us
                )
                done += count
                if count < most or numbers is not None:
                    break
        return done

    def _dead_pages(
        self, topic: str | None, ids: Sequence[str] | None, limit: int
    ) -> Iterator[tuple[int, Sequence[int] | None]]:
        """Shard and numbers of the messages with these ids; None: the shard's oldest."""
        if ids is None:
            every = range(self._namespace.shards)
            shards = every if topic is None else self._namespace.routes.shards_of(topic)
            yield from ((shard, None) for shard in shards)
            return
        for shard, numbers in group(self._locate(ids[:limit], topic)).items():
            yield from ((shard, page) for page in self._removals.pages(numbers))
