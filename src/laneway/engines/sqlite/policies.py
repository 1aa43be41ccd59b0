"""Changing policies: those of patterns, which every process has in memory, and those of exact topics, a row each."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.engines.admission import topic_in_use, undefined_gate
from laneway.engines.base import BRING_IN
from laneway.engines.naming import LANE_SHAPE, lane_name
from laneway.engines.sqlite import housekeeping, views
from laneway.errors import BadPolicy, TopicInUse
from laneway.policy import PolicyBook, change_layers, is_pattern, matches, sources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.engines.sqlite.rows import Lane
    from laneway.engines.sqlite.turn import Turn
    from laneway.policy import Layers, Resolved


def change(turn: Turn, layer: str, changes: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Set checked fields of patterns and topics; returns what each sets in the layer then."""
    _refuse_undefined_gates(turn, changes)
    own = OwnPolicies(turn)
    own.load([name for name, _ in changes if not is_pattern(name)])
    patterns = [(name, fields) for name, fields in changes if is_pattern(name)]
    if patterns:
        _change_patterns(turn, layer, patterns)
    now = []
    for name, fields in changes:
        if is_pattern(name):
            now.append(sources(turn.rules.book.layers(name)).get(layer, {}))
        else:
            now.append(own.change(layer, name, fields))
    own.write()
    return now


def _refuse_undefined_gates(turn: Turn, changes: Sequence[tuple[str, dict[str, Any]]]) -> None:
    for name, fields in changes:
        gate = fields.get("gate")
        if gate is not None and turn.gate(gate) is None:
            raise BadPolicy(undefined_gate(name, gate))


def layers_of(turn: Turn, name: str) -> Layers:
    """What is set for exactly this pattern or topic."""
    return turn.rules.book.layers(name) if is_pattern(name) else turn.own_layers(turn.own_of(name))


def page(turn: Turn, after: str, limit: int) -> list[tuple[str, Layers]]:
    """Topics with a policy of their own, by name, and what they set."""
    return [(topic, json.loads(layers)) for topic, layers in turn.all("own_page", after, limit)]


# Patterns


def _change_patterns(turn: Turn, layer: str, changes: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """All of them are checked as they are together then."""
    rules = turn.rules
    before = PolicyBook(rules.tiers)
    before.load(rules.book.stored_rows())
    for pattern, fields in changes:
        rules.book.put(layer, pattern, fields)
    changed = [pattern for pattern, _ in dict(changes).items() if rules.book.layers(pattern) != before.layers(pattern)]
    if not changed:
        return
    rules.changed()
    for name in sorted({name for pattern in changed for name in rules.book.names_under(pattern)}):
        rules.book.check(name)
    for pattern in changed:
        if any(not fields.keys().isdisjoint(LANE_SHAPE) for name, fields in changes if name == pattern):
            _refuse_moves(turn, pattern, before)
        now = rules.book.layers(pattern)
        for gone in before.layers(pattern).keys() - now.keys():
            turn.run("policy_delete", gone, pattern)
        for where, fields in now.items():
            turn.run("policy_write", where, pattern, json.dumps(fields))
        turn.run("sweep_begin", pattern)
    turn.shard.policy_version += 1
    rules.version = turn.shard.policy_version
    housekeeping.sweep(turn, BRING_IN)


def _refuse_moves(turn: Turn, pattern: str, before: PolicyBook) -> None:
    """Messages that wait in a lane stay there: where a topic's lanes would change, it has to be empty."""
    for lane in views.lanes_under(turn, pattern):
        for topic in views.topics_in(turn, lane):
            if not matches(pattern, topic):
                continue
            own = turn.own_layers(turn.own_of(topic)) if turn.shard.own else {}
            old = before.resolve_own(topic, own) if own else before.resolve(topic)
            _refuse_move(turn, pattern, topic, lane, old, turn.policy(topic))


def _refuse_move(turn: Turn, name: str, topic: str, lane: Lane, old: Resolved, new: Resolved) -> None:
    if any(getattr(old, field) != getattr(new, field) for field in LANE_SHAPE):
        waiting, leased = views.holds(turn, lane, topic)
        if waiting or leased:
            raise TopicInUse(topic_in_use(name, topic, waiting, leased))


# Exact topics

_dumps = msgspec.json.Encoder(order="sorted").encode


def _has_one_lane(policy: Resolved) -> bool:
    return policy.partitions == 1 and policy.buckets is None


class OwnPolicies:
    """
    Changes the policies of exact topics, and writes them together.

    Of each: its row, the set that it refers to, and its lanes. Nothing else is touched: no version grows, and no other process learns of it
    but by the lane.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._rows: dict[str, int] = {}
        self._uses: Counter[int] = Counter()
        self._numbers: dict[str, int] = {}
        self._checked: dict[tuple[tuple[str, ...], str], Resolved] = {}

    def load(self, topics: Sequence[str]) -> None:
        """Read at once what will be changed."""
        if topics:
            self._turn.load_own(dict.fromkeys(topics))

    def change(self, layer: str, topic: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Set fields of one topic. Raises BadPolicy, TopicInUse."""
        turn = self._turn
        before = turn.own_of(topic)
        stood = turn.own_layers(before)
        layers = change_layers(topic, stood, layer, fields)
        if layers != stood:
            self._set(topic, before, layers)
        return sources(layers).get(layer, {})

    def _set(self, topic: str, before: int, layers: Layers) -> None:
        turn = self._turn
        text = _dumps(layers).decode()
        old, new = turn.policy(topic), self._check(topic, layers, text)
        own = self._number(text, layers) if layers else 0
        turn.shard.own += bool(own) - bool(before)
        self._rows[topic] = own
        self._uses[before] -= 1
        self._uses[own] += 1
        turn.memory.own[topic] = own
        if turn.find_lane(topic) is not None or not (_has_one_lane(old) and _has_one_lane(new)):
            self._change_lanes(topic, own, old, new)

    def _change_lanes(self, topic: str, own: int, old: Resolved, new: Resolved) -> None:
        turn = self._turn
        lanes = self._lanes(topic, old)
        for lane in lanes:
            _refuse_move(turn, topic, topic, lane, old, new)
        for lane in {lane.lane: lane for lane in (*lanes, *self._lanes(topic, new))}.values():
            if lane.topic is not None:
                lane.own = own
                if not lane.is_new:
                    turn.run("lane_own", own, lane.lane)
        for lane in self._lanes(topic, new, spare=False):
            turn.place(lane)

    def _check(self, topic: str, layers: Layers, text: str) -> Resolved:
        """What holds then; equal sets under the same patterns are checked once."""
        book = self._turn.rules.book
        key = (book.covering(topic), text)
        found = self._checked.get(key)
        if found is None:
            found = self._checked[key] = book.check(topic, layers)
        return found

    def _lanes(self, topic: str, policy: Resolved, *, spare: bool = True) -> list[Lane]:
        """Those that the policy gives the topic; with `spare` also one of its name, which may be left from before."""
        turn = self._turn
        names = [lane_name(policy, topic, None, n)[0] for n in range(policy.partitions)]
        if spare and topic not in names:
            names.append(topic)
        turn.load_names(names)
        return [lane for name in names if (lane := turn.find_lane(name)) is not None]

    def _number(self, text: str, layers: Layers) -> int:
        found = self._numbers.get(text)
        if found is None:
            row = self._turn.one("own_set_find", text) or self._turn.one("own_set_insert", text)
            found = self._numbers[text] = int(row[0])
            self._turn.rules.know_set(found, layers)
        return found

    def write(self) -> None:
        """Write all rows."""
        turn = self._turn
        turn.run_many("own_write", [(topic, own) for topic, own in self._rows.items() if own])
        turn.run_many("own_delete", [(topic,) for topic, own in self._rows.items() if not own])
        turn.run_many("own_set_use", [(uses, own) for own, uses in self._uses.items() if own and uses])
        turn.run_many("own_set_forget", [(own,) for own, uses in self._uses.items() if own and uses < 0])
        self._rows.clear()
        self._uses.clear()
        self._numbers.clear()
        self._checked.clear()
