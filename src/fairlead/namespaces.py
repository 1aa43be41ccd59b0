"""Bringing settings from one namespace to another: try in `sandbox`, then copy to `online`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.policy import Gate

if TYPE_CHECKING:
    from fairlead.engines.base import FullEngine

Difference = tuple[str, str, str, Any, Any]
"""Layer (or "gate"), pattern (or the gate's name), field, here, there; None: not set."""


def copy(here: FullEngine, there: FullEngine) -> int:
    """Set every gate and policy of one namespace in another; returns how many policies."""
    for gate in here.gate_list():
        there.gate_set(gate["name"], Gate(gate["rate"], gate["burst"], gate["concurrency"]))
    rows = here.policies().rows()
    for layer, pattern, fields in rows:
        there.policy_set("operator" if layer == "operator" else "code", pattern, fields)
    return len(rows)


def compare(here: FullEngine, there: FullEngine) -> list[Difference]:
    """Where the gates and policies of two namespaces differ, sorted."""
    mine, theirs = _settings(here), _settings(there)
    differing = [place for place in mine.keys() | theirs.keys() if mine.get(place) != theirs.get(place)]
    return [(*place, mine.get(place), theirs.get(place)) for place in sorted(differing)]


def _settings(engine: FullEngine) -> dict[tuple[str, str, str], Any]:
    fields = {(layer, pattern, name): value for layer, pattern, row in engine.policies().rows() for name, value in row.items()}
    gates = {("gate", gate["name"], name): gate[name] for gate in engine.gate_list() for name in ("rate", "burst", "concurrency")}
    return fields | gates
