"""
Planned changes of policies: what is refused, what differs, and which topics would change lanes.

An engine reads and writes the policies in its own way, and asks here what a change means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from laneway.errors import BadPolicy, TopicInUse
from laneway.policy import Layer, Resolved, check_changes, gate_names

Changes = Sequence[tuple[str, Mapping[str, Any]]]
"""(pattern or topic, its fields; None removes a field)"""

LANE_SHAPE = ("partitions", "buckets", "buckets_pattern")
"""
The fields of a policy that decide which lane a message goes to. They change only while the topic is
empty, because messages that wait in a lane stay in it.
"""


def refuse_undefined_gates(changes: Changes, is_defined: Callable[[str], bool]) -> None:
    """Raise BadPolicy where a policy names a gate that nobody defined."""
    patterns: dict[str, str] = {}
    for pattern, fields in changes:
        for gate in gate_names(fields.get("gate")):
            patterns.setdefault(gate, pattern)
    for gate, pattern in patterns.items():
        if not is_defined(gate):
            raise BadPolicy(
                f'policy {pattern}: gate "{gate}" is not defined; define it first:'
                f' app.gate("{gate}", rate=…, concurrency=…), or on the command line:'
                f" laneway gate set '{gate}' --rate … --concurrency …"
            )


def may_change_lanes(changes: Changes) -> bool:
    """Whether one of these changes can decide which lane messages go to."""
    return any(not fields.keys().isdisjoint(LANE_SHAPE) for _, fields in changes)


def changes_lanes(before: Resolved, after: Resolved) -> bool:
    """Whether a topic with these policies gets other lanes."""
    return any(getattr(before, field) != getattr(after, field) for field in LANE_SHAPE)


def topic_in_use(pattern: str, topic: str, waiting: int, leased: int) -> TopicInUse:
    """The refusal of a change that would give other lanes to a topic that is not empty."""
    return TopicInUse(
        f"policy {pattern}: partitions and buckets change only while a topic is empty, and {topic}"
        f" holds {waiting} waiting and {leased} leased; drain or purge it first"
    )


class PolicyChanges(ABC):
    """The part of `laneway.engines.base.Admin` that checks changes of policies."""

    @abstractmethod
    def _change_policies(
        self,
        layer: str,
        changes: Sequence[tuple[str, dict[str, Any]]],
        now_us: int | None,
        *,
        as_stored: bool,
    ) -> list[dict[str, Any]]:
        """Set checked fields, None removes one; what each sets in the layer then."""

    def policy_set(
        self, layer: Layer, pattern: str, fields: Mapping[str, Any], *, now_us: int | None = None
    ) -> dict[str, Any]:
        """Set fields of a pattern or topic. Returns what it sets in the layer then."""
        return self.policy_set_many(layer, [(pattern, fields)], now_us=now_us)[0]

    def policy_set_many(
        self,
        layer: str,
        changes: Sequence[tuple[str, Mapping[str, Any]]],
        *,
        as_stored: bool = False,
        now_us: int | None = None,
    ) -> list[dict[str, Any]]:
        """Set fields of several patterns and topics: all, or none if one is refused."""
        checked = check_changes(changes)
        if not checked:
            return []
        return self._change_policies(layer, checked, now_us, as_stored=as_stored)
