"""The tiers of the namespace: a setting, read again when the policies are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.engines.base import BRING_IN
from laneway.engines.sqlite import housekeeping
from laneway.tiers import TierLayers, moves_lanes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from laneway.engines.base import Settings
    from laneway.engines.sqlite.turn import Turn
    from laneway.policy import Layer
    from laneway.tiers import Tier


def declare(turn: Turn, settings: Settings) -> None:
    """The program opened the store with these tiers."""
    _write(turn, turn.rules.tier_layers.declare(settings.tiers, settings.default_tier, lambda tier: _named_by(turn, tier)))


def change(turn: Turn, layer: Layer, changes: Mapping[str, Tier | None]) -> None:
    """Add, change and remove tiers of a layer."""
    _write(turn, turn.rules.tier_layers.change(layer, changes, lambda tier: _named_by(turn, tier)))


def reset(turn: Turn, name: str | None) -> bool:
    """Remove what the operator set; whether there was anything."""
    layers = turn.rules.tier_layers
    after = layers.reset(name, lambda tier: _named_by(turn, tier))
    _write(turn, after)
    return after is not layers


def _write(turn: Turn, after: TierLayers) -> None:
    """Other processes read it with the policies: at the beginning of their next call."""
    rules = turn.rules
    before = rules.tier_layers
    if after is before:
        return
    turn.run("setting_write", "tiers", after.json().decode())
    turn.shard.policy_version += 1
    rules.version = turn.shard.policy_version
    moves = moves_lanes(before.in_force(), after.in_force())
    rules.set_tiers(after)
    if moves:
        turn.run("sweep_begin", "*")
        housekeeping.sweep(turn, BRING_IN)


def _named_by(turn: Turn, tier: str) -> str | None:
    """A policy that names the tier: of a pattern (these are in memory), or of topics of their own (by an index)."""
    for _, pattern, fields in turn.rules.book.rows():
        if fields.get("tier") == tier:
            return pattern
    for layer in ("code", "operator"):
        found = turn.one(f"own_set_with_{layer}_tier", tier)
        if found is not None:
            topic = turn.one("own_topic_of", found[0])
            return str(topic[0]) if topic is not None else f"of {found[1]:,} topics of their own"
    return None
