"""
Changes of the tiers, which are a setting; it is read together with the policies.

For example, a program declares `high` (6), `mid` (3) and `low` (1), and `mid` as the default. The
operator sets `low` to 2: no lane moves, and the next lease of 11 is divided 6, 3 and 2. Then the
operator removes `low`. While a policy names it, that is refused. Otherwise its lanes belong to
`mid`: the first 1,000 lanes of the store are placed again in this call, the others in the
housekeeping of later calls.

Why this is correct. The version of the policies changes with the tiers, so each process reads them
again before its next call decides. A lane is placed from scratch, so it does not matter when it
moves, or how often.
"""

from __future__ import annotations

from collections.abc import Mapping

from laneway.engines.base import HOUSEKEEPING_LIMIT, Settings
from laneway.engines.sql import housekeeping
from laneway.engines.sql.transaction import Transaction
from laneway.policy import Layer
from laneway.tiers import Tier, TierLayers, moves_lanes


def declare(tx: Transaction, settings: Settings) -> None:
    """Apply the tiers that the program declared when it opened the store."""
    write(
        tx,
        tx.rules.tier_layers.declare(
            settings.tiers, settings.default_tier, lambda tier: _named_by(tx, tier)
        ),
    )


def change(tx: Transaction, layer: Layer, changes: Mapping[str, Tier | None]) -> None:
    """Add, change and remove tiers of a layer."""
    write(tx, tx.rules.tier_layers.change(layer, changes, lambda tier: _named_by(tx, tier)))


def reset(tx: Transaction, name: str | None) -> bool:
    """Remove what the operator set; answers whether there was anything."""
    layers = tx.rules.tier_layers
    after = layers.reset(name, lambda tier: _named_by(tx, tier))
    write(tx, after)
    return after is not layers


def write(tx: Transaction, after: TierLayers) -> None:
    """Write the tiers; other processes read them at the beginning of their next call."""
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
        housekeeping.begin_sweep(tx, "*")
        housekeeping.sweep(tx, HOUSEKEEPING_LIMIT)


def own_count(tx: Transaction, tier: str) -> int:
    """How many topics' own policies name the tier, as far as one set of fields shows it."""
    sets = (tx.one(f"own_set_with_{layer}_tier", tier) for layer in ("code", "operator"))
    return max((int(own_set[1]) for own_set in sets if own_set is not None), default=0)


def _named_by(tx: Transaction, tier: str) -> str | None:
    """A policy that names the tier: that of a pattern, or an own policy, found by an index."""
    for _, pattern, fields in tx.rules.policy_table.rows():
        if fields.get("tier") == tier:
            return pattern
    for layer in ("code", "operator"):
        own_set = tx.one(f"own_set_with_{layer}_tier", tier)
        if own_set is not None:
            number, topics = own_set
            topic = tx.one("own_topic_of", number)
            return str(topic[0]) if topic is not None else f"of {topics:,} topics of their own"
    return None
