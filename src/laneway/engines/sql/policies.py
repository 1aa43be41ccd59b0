"""
Changes of policies: of patterns, which every process caches, and of exact topics, each with a row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.engines.base import HOUSEKEEPING_LIMIT
from laneway.engines.shared.naming import lane_names
from laneway.engines.shared.policy_changes import (
    changes_lanes,
    may_change_lanes,
    refuse_undefined_gates,
    topic_in_use,
)
from laneway.engines.sql import housekeeping, views
from laneway.engines.sql.rows import Lane, to_sorted_json
from laneway.engines.sql.transaction import Transaction
from laneway.policy import (
    Gate,
    Layer,
    Layers,
    PolicyTable,
    Resolved,
    change_layers,
    is_pattern,
    matches,
    sources,
)
from laneway.subscriptions import base_of
from laneway.topic_groups import GROUP

if TYPE_CHECKING:
    from laneway.engines.sharded.namespace import PolicyChange


def change(
    tx: Transaction,
    layer: str,
    changes: Sequence[tuple[str, dict[str, Any]]],
    *,
    as_stored: bool = False,
) -> list[dict[str, Any]]:
    """
    Set checked fields of patterns and topics; returns the fields of each in the layer. `as_stored`:
    see `Admin.policy_set_many`.
    """
    refuse_undefined_gates(changes, lambda gate: tx.gate(gate) is not None)
    own = OwnPolicies(tx, as_stored=as_stored)
    own.load([name for name, _ in changes if not is_pattern(name)])
    patterns = [(name, fields) for name, fields in changes if is_pattern(name)]
    if patterns:
        _change_patterns(tx, layer, patterns, as_stored=as_stored)
    set_fields = []
    for name, fields in changes:
        if is_pattern(name):
            set_fields.append(sources(tx.rules.policy_table.layers(name)).get(layer, {}))
        else:
            set_fields.append(own.change(layer, name, fields))
    own.write()
    return set_fields


def layers_of(tx: Transaction, name: str) -> Layers:
    """The layers of exactly this pattern or topic."""
    return (
        tx.rules.policy_table.layers(name) if is_pattern(name) else tx.own_layers(tx.own_of(name))
    )


def page(tx: Transaction, after: str, limit: int) -> list[tuple[str, Layers]]:
    return [(topic, json.loads(layers)) for topic, layers in tx.all("own_page", after, limit)]


def set_gate(tx: Transaction, name: str, gate: Gate, layer: Layer) -> None:
    """Set the limits of a gate in a layer; the operator's precede."""
    state = tx.ensure_gate(name)
    text = msgspec.json.encode(gate).decode()
    if layer == "operator":
        state.operator = text
    else:
        state.code = text
    state.set_limits()
    state.rebase(tx.now)
    if name.startswith(GROUP):
        tx.groups.set_up(name.removeprefix(GROUP), state.whole)


def reset_gate(tx: Transaction, name: str) -> bool:
    """Forget what a gate owes. Returns whether it exists."""
    state = tx.gate(name)
    if state is None:
        return False
    state.reset()
    tx.touch_gate(state)
    return True


# Patterns


def _change_patterns(
    tx: Transaction,
    layer: str,
    changes: Sequence[tuple[str, dict[str, Any]]],
    *,
    as_stored: bool,
) -> None:
    """Change patterns; all are checked together, as they will be."""
    rules = tx.rules
    before = rules.policy_table.copy()
    for pattern, fields in changes:
        rules.policy_table.put(layer, pattern, fields)
    rows = rules.policy_table.differences(before)
    changed = list(dict.fromkeys(pattern for _, pattern, _ in rows))
    if not changed:
        return
    rules.changed()
    for name in sorted(
        {name for pattern in changed for name in rules.policy_table.names_under(pattern)}
    ):
        rules.policy_table.check(name, as_stored=as_stored)
    for pattern in changed:
        if may_change_lanes([each for each in changes if each[0] == pattern]):
            _refuse_moves(tx, pattern, before)
        housekeeping.begin_sweep(tx, base_of(pattern))
    for row_layer, pattern, stored in rows:
        if stored is None:
            tx.run("policy_delete", row_layer, pattern)
        else:
            tx.run("policy_write", row_layer, pattern, json.dumps(stored))
    tx.shard.policy_version += 1
    rules.version = tx.shard.policy_version
    housekeeping.sweep(tx, HOUSEKEEPING_LIMIT)


def write_all(tx: Transaction, change: PolicyChange) -> None:
    """
    Replace the policies that all stores of a namespace have: those of patterns, and shared ones of
    topics. Raises TopicInUse.
    """
    rules = tx.rules
    before = rules.policy_table.copy()
    rows = change.policy_table.differences(before)
    changed = list(dict.fromkeys(name for _, name, _ in rows))
    old = {
        name: before.resolve_own(name, tx.own_layers(tx.own_of(name)))
        if tx.own_of(name)
        else before.resolve(name)
        for name in changed
        if not is_pattern(name)
    }
    rules.policy_table.load(change.policy_table.stored_rows())
    rules.changed()
    own = OwnPolicies(tx)
    for name in changed:
        if is_pattern(name):
            if change.may_change_lanes:
                _refuse_moves(tx, name, before)
            housekeeping.begin_sweep(tx, base_of(name))
        else:
            own.share(name, old[name], may_change_lanes=change.may_change_lanes)
    for layer, name, stored in rows:
        if stored is None:
            tx.run("policy_delete", layer, name)
        else:
            tx.run("policy_write", layer, name, json.dumps(stored))
    tx.shard.policy_version = rules.version = change.new_version
    housekeeping.sweep(tx, HOUSEKEEPING_LIMIT)


def _refuse_moves(tx: Transaction, pattern: str, before: PolicyTable) -> None:
    """Raise TopicInUse if a topic under the pattern is not empty and would get other lanes."""
    for lane in views.lanes_under(tx, base_of(pattern)):
        for topic in views.topics_in(tx, lane):
            if not matches(pattern, topic):
                continue
            own = tx.own_layers(tx.own_of(topic)) if tx.shard.own else {}
            old = before.resolve_own(topic, own) if own else before.resolve(topic)
            _refuse_move(tx, pattern, topic, lane, old, tx.policy(topic))


def _refuse_move(
    tx: Transaction, name: str, topic: str, lane: Lane, old: Resolved, new: Resolved
) -> None:
    if changes_lanes(old, new):
        waiting, leased = views.holds(tx, lane, topic)
        if waiting or leased:
            raise topic_in_use(name, topic, waiting, leased)


# Exact topics


def _has_one_lane(policy: Resolved) -> bool:
    return policy.partitions == 1 and policy.buckets is None


class OwnPolicies:
    """
    Changes the policies of exact topics, and writes them together.

    Each topic has a row with the number of a set, and its lanes have the same number; topics with
    equal policies share a set. No version grows: other processes learn of a change by the lanes.
    """

    def __init__(self, tx: Transaction, *, as_stored: bool = False) -> None:
        self._tx = tx
        self._as_stored = as_stored
        self._rows: dict[str, int] = {}
        self._uses: Counter[int] = Counter()
        self._numbers: dict[str, int] = {}
        self._checked: dict[tuple[tuple[str, ...], str, str], Resolved] = {}

    def load(self, topics: Sequence[str]) -> None:
        """Read the own policies of these topics together."""
        if topics:
            self._tx.load_own(dict.fromkeys(topics))

    def change(self, layer: str, topic: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Set fields of one topic. Raises BadPolicy, TopicInUse."""
        tx = self._tx
        before = tx.own_of(topic)
        stored = tx.own_layers(before)
        layers = change_layers(topic, stored, layer, fields)
        if layers != stored:
            self._set(topic, before, layers)
        return sources(layers).get(layer, {})

    def replace(self, topic: str, layers: Layers) -> None:
        """
        Replace all layers of one topic. Where its policy is shared, they count once it no longer
        is.
        """
        tx = self._tx
        before = tx.stored_own_of(topic)
        if not tx.is_shared(topic):
            self._set(topic, before, layers)
            return
        own = self._number(to_sorted_json(layers).decode(), layers) if layers else 0
        self._write_later(topic, before, own)

    def stored(self, topic: str) -> Layers:
        """The layers that are stored, whether they count or not."""
        return self._tx.own_layers(self._tx.stored_own_of(topic))

    def share(self, topic: str, old: Resolved, *, may_change_lanes: bool) -> None:
        """
        A topic's shared policy has changed; its policy was `old`. `may_change_lanes`: raise
        TopicInUse if the topic is not empty and gets other lanes.
        """
        tx = self._tx
        tx.lane_cache.own.pop(topic, None)
        own = 0 if tx.is_shared(topic) else tx.stored_own_of(topic)
        if own:
            new = tx.rules.resolve_own(topic, own, tx.own_layers(own))
        else:
            new = tx.rules.of(topic)
        tx.lane_cache.own[topic] = own
        self._change_lanes(topic, own, old, new, refuse=may_change_lanes)

    def _set(self, topic: str, before: int, layers: Layers) -> None:
        tx = self._tx
        text = to_sorted_json(layers).decode()
        old, new = tx.policy(topic), self._check(topic, layers, text)
        own = self._number(text, layers) if layers else 0
        self._write_later(topic, before, own)
        tx.lane_cache.own[topic] = own
        if tx.find_lane(topic) is not None or not (_has_one_lane(old) and _has_one_lane(new)):
            self._change_lanes(topic, own, old, new)

    def _write_later(self, topic: str, before: int, own: int) -> None:
        self._tx.shard.own += bool(own) - bool(before)
        self._rows[topic] = own
        self._uses[before] -= 1
        self._uses[own] += 1

    def _change_lanes(
        self, topic: str, own: int, old: Resolved, new: Resolved, *, refuse: bool = True
    ) -> None:
        tx = self._tx
        lanes = self._lanes(topic, old)
        for lane in lanes if refuse else ():
            _refuse_move(tx, topic, topic, lane, old, new)
        for lane in {lane.lane: lane for lane in (*lanes, *self._lanes(topic, new))}.values():
            if lane.topic is not None:
                lane.own, lane.tally = own, None
                if not lane.is_new:
                    tx.run("lane_own", own, lane.lane)
        for lane in self._lanes(topic, new, spare=False):
            tx.place(lane)

    def _check(self, topic: str, layers: Layers, text: str) -> Resolved:
        """The policy after the change; equal sets under the same patterns are checked once."""
        policy_table = self._tx.rules.policy_table
        key = (policy_table.covering(topic), policy_table.copy_kind(topic), text)
        policy = self._checked.get(key)
        if policy is None:
            policy = self._checked[key] = policy_table.check(
                topic, layers, as_stored=self._as_stored
            )
        return policy

    def _lanes(self, topic: str, policy: Resolved, *, spare: bool = True) -> list[Lane]:
        """
        The existing lanes of the topic under this policy; with `spare` also the lane of its name,
        which may be from a time without partitions.
        """
        names = lane_names(policy, topic)
        if spare and topic not in names:
            names.append(topic)
        return self._tx.lanes_named(names)

    def _number(self, text: str, layers: Layers) -> int:
        """The number of a set, which is inserted if it is new."""
        number = self._numbers.get(text)
        if number is None:
            row = self._tx.one("own_set_find", text) or self._tx.one("own_set_insert", text)
            number = self._numbers[text] = int(row[0])
            self._tx.rules.cache_set(number, layers)
        return number

    def write(self) -> None:
        """Write the changed rows, and delete sets that no topic uses any more."""
        tx = self._tx
        tx.run_many("own_write", [(topic, own) for topic, own in self._rows.items() if own])
        tx.run_many("own_delete", [(topic,) for topic, own in self._rows.items() if not own])
        tx.run_many(
            "own_set_use", [(uses, own) for own, uses in self._uses.items() if own and uses]
        )
        tx.run_many(
            "own_set_forget", [(own,) for own, uses in self._uses.items() if own and uses < 0]
        )
        self._rows.clear()
        self._uses.clear()
        self._numbers.clear()
        self._checked.clear()
