"""
Copying and comparing the policies of namespaces: try them in `sandbox`, then copy them to `online`.
"""

from __future__ import annotations

import builtins
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from laneway import arguments
from laneway.awaitable import async_variant
from laneway.engines.base import Admin, FullEngine
from laneway.errors import Refused, UsageError
from laneway.policy import DISABLED, PROGRAM, Gate, Layers, is_pattern, own_rows, sources
from laneway.runtime.runtime import Application, Noun, Runtime

_Row = TypeVar("_Row")

PAGE = 1000
"""Policies that one call reads or sets."""

Difference = tuple[str, str, str, Any, Any]
"""
Layer (or "gate", "topic group"), pattern (or its name), field, value here, value there. A value is
None if it is not set.
"""


def layers_of(engine: FullEngine, pattern: str) -> Layers:
    """The fields that each layer sets for exactly this pattern or topic."""
    if is_pattern(pattern):
        return engine.policies().layers(pattern)
    return engine.policy_own(pattern)


def operator_fields(engine: FullEngine, pattern: str) -> dict[str, Any]:
    """The fields that the operator set for exactly this pattern or topic."""
    return dict(layers_of(engine, pattern).get("operator", {}))


def resume(engine: FullEngine, pattern: str) -> None:
    """
    Deliver from a topic, or from the topics of a pattern, even if another policy pauses them.

    Raises Refused, and changes nothing, if the topic's endpoint is disabled.
    """
    settings = engine.policies().why(pattern)
    if DISABLED in settings and not is_pattern(pattern):
        raise Refused(
            f"resume: {pattern} delivers nothing, because its endpoint is disabled;"
            f" `laneway endpoint enable {shlex.quote(pattern)}` sends a message as a probe, then"
            " the others"
        )
    engine.policy_set("operator", pattern, {"paused": None})
    if engine.policies().why(pattern).get("paused", (False,))[0]:
        engine.policy_set("operator", pattern, {"paused": False})


def copy(here: FullEngine, there: FullEngine) -> int:
    """Copy all gates and policies of one namespace to another. Returns the number of policies."""
    for gate in here.gate_list():
        limits = Gate(gate["rate"], gate["burst"], gate["concurrency"], max_cost=gate["max_cost"])
        there.gate_set(gate["name"], limits)
    for group in here.topic_group_list():
        there.topic_group_set(
            group["name"],
            Gate(group["rate"], group["burst"], group["concurrency"], group["weight"]),
        )
    count = set_policies(there, every_policy(here))
    copy_programs(here, there)
    return count


def every_policy(engine: Admin) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """
    All policies as (layer, pattern, fields): those of patterns, sorted, then those of single
    topics, page by page.

    The layers are "operator", "code" (set at run time) and `program:NAME` (declared by that
    program).
    """
    yield from engine.policies().source_rows()
    after: str | None = ""
    while after is not None:
        page, after = engine.policy_own_list(after, PAGE)
        yield from sorted(
            own_rows((topic, sources(layers)) for topic, layers in page), key=lambda row: row[0]
        )


def set_policies(engine: Admin, rows: Iterable[tuple[str, str, dict[str, Any]]]) -> int:
    """
    Set the policies of another store in their layers, in batches, even where later changes made
    them contradict each other. Returns their number.
    """
    count = 0
    for batch in batches(iter(rows)):
        by_layer: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for layer, pattern, fields in batch:
            by_layer.setdefault(layer, []).append((pattern, fields))
        for layer in sorted(by_layer, key=_before_others):
            engine.policy_set_many(layer, by_layer[layer], as_stored=True)
        count += len(batch)
    return count


def set_many(engine: Admin, policies: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
    """
    Set the policies of many topics in the code's layer, in batches. Returns their number.

    Raises BadPolicy, which names the topic; its notes give the number of policies that were set
    before.
    """
    count = 0
    for batch in batches(iter(policies)):
        try:
            engine.policy_set_many("code", batch)
        except Exception as error:
            error.add_note(f"policy_many: {count:,} policies of earlier batches were set")
            raise
        count += len(batch)
    return count


def _before_others(layer: str) -> int:
    """
    The order of layers: programs first, since later and operators' policies may depend on theirs.
    """
    return 0 if layer.startswith(PROGRAM) else 1 if layer == "code" else 2


def copy_programs(here: Admin, there: Admin) -> None:
    """Copy the records of the programs that own the policies."""
    known = there.programs()
    for name, record in here.programs().items():
        there.program_swap(name, known.get(name), record)


def batches(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    """The rows in lists of `PAGE`."""
    while batch := list(islice(rows, PAGE)):
        yield batch


def _in_force(engine: Admin) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The effective rows of the operator's and of the code's layer."""
    yield from engine.policies().rows()
    after: str | None = ""
    while after is not None:
        page, after = engine.policy_own_list(after, PAGE)
        yield from (row for row in own_rows(page) if row[0] in ("operator", "code"))


def compare(here: FullEngine, there: FullEngine) -> list[Difference]:
    """The differences between the gates and policies of two namespaces, sorted."""
    mine, theirs = _settings(here), _settings(there)
    differing = [
        place for place in mine.keys() | theirs.keys() if mine.get(place) != theirs.get(place)
    ]
    return [(*place, mine.get(place), theirs.get(place)) for place in sorted(differing)]


def _settings(engine: FullEngine) -> dict[tuple[str, str, str], Any]:
    fields = {
        (layer, pattern, name): value
        for layer, pattern, row in _in_force(engine)
        for name, value in row.items()
    }
    gates = {
        ("gate", gate["name"], name): gate[name]
        for gate in engine.gate_list()
        for name in ("rate", "burst", "concurrency", "max_cost")
    }
    groups = {
        ("topic group", group["name"], name): group[name]
        for group in engine.topic_group_list()
        for name in ("weight", "rate", "burst", "concurrency")
    }
    return fields | gates | groups


class Policies(Noun):
    """The policies and gates in the store: `app.policies`. `Laneway.policy` sets them."""

    def copy(self, to: Application) -> int:
        """
        Copy all policies and gates to another application's namespace. Returns the number of
        policies.
        """
        return copy(self._runtime.engine, _engine_of("policies.copy", to))

    def compare(self, other: Application) -> list[Difference]:
        """
        Compare the policies and gates with those of another application's namespace. Returns the
        differences as (layer, pattern, field, here, there), sorted.
        """
        return compare(self._runtime.engine, _engine_of("policies.compare", other))

    acopy = async_variant(copy)
    acompare = async_variant(compare)


class Gates(Noun):
    """The gates in the store: `app.gates`. `Laneway.gate` sets one."""

    def reset(self, name: str) -> bool:
        """
        Open a gate that owes permits, for example after a message with a high cost: its full burst
        is available again. Leases are kept. Returns False if the gate is not defined.
        """
        return self._runtime.engine.gate_reset(arguments.name("gates.reset", "the name", name))

    areset = async_variant(reset)


class TopicGroups(Noun):
    """The topic groups that have settings: `app.topic_groups`. `Laneway.topic_group` sets one."""

    def list(self) -> builtins.list[dict[str, Any]]:
        """
        List them by name: dicts with `name`, `weight`, `rate` (per second), `burst`, `concurrency`,
        `leased`, `next_permit_us` and `waiting` (topics that wait for its limits).
        """
        return self._runtime.engine.topic_group_list()

    alist = async_variant(list)


def _engine_of(call: str, other: object) -> FullEngine:
    runtime = getattr(other, "runtime", None)
    if not isinstance(runtime, Runtime):
        raise UsageError(
            f"{call}: expected a Laneway application of the other namespace, got {other!r:.80}"
        )
    return runtime.engine
