"""The tiers of the namespace: a setting, read again when the policies are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.engines.base import HOUSEKEEPING_LIMIT
from laneway.engines.sqlite import housekeeping
from laneway.tiers import TierLayers, moves_lanes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from laneway.engines.base import Settings
    from laneway.engines.sqlite.transaction import Transaction
    from laneway.policy import Layer
    from laneway.tiers import Tier


def declare(tx: Transaction, settings: Settings) -> None:
    """The program opened the store with these tiers."""
    _write(
        tx,
        tx.rules.tier_layers.declare(
            settings.tiers, settings.default_tier, lambda tier: _named_by(tx, tier)
        ),
    )


def change(tx: Transaction, layer: Layer, changes: Mapping[str, Tier | None]) -> None:
    """Add, change and remove tiers of a layer."""
    _write(tx, tx.rules.tier_layers.change(layer, changes, lambda tier: _named_by(tx, tier)))


def reset(tx: Transaction, name: str | None) -> bool:
    """Remove what the operator set; whether there was anything."""
    layers = tx.rules.tier_layers
    after = layers.reset(name, lambda tier: _named_by(tx, tier))
    _write(tx, after)
    return after is not layers


def _write(tx: Transaction, after: TierLayers) -> None:
    """Other processes read it with the policies: at the beginning of their next call."""
    rules = tx.rules
    before = rules.tier_layers
    if after is before:
        return
    tx.run("setting_write", "tiers", after.json().decode())
    tx.shard.policy_version += 1
    rules.version = tx.shard.policy_version
    moves = moves_lanes(before.in_force(), after.in_force())
    rules.set_tiers(after)
    if moves:
        tx.run("sweep_begin", "*")
        housekeeping.sweep(tx, HOUSEKEEPING_LIMIT)


def _named_by(tx: Transaction, tier: str) -> str | None:
    """
    A policy that names the tier: of a pattern (these are in memory), or of topics of their own (by
    an index).
    """
    for _, pattern, fields in tx.rules.book.rows():
        if fields.get("tier") == tier:
            return pattern
    for layer in ("code", "operator"):
        found = tx.one(f"own_set_with_{layer}_tier", tier)
        if found is not None:
            topic = tx.one("own_topic_of", found[0])
            return str(topic[0]) if topic is not None else f"of {found[1]:,} topics of their own"
    return None
