"""Tallies of several shards, added up."""

from __future__ import annotations

from collections.abc import Iterable

from laneway.engines.base.history import WAIT_BOUNDS_US, Tallies, Tally, WaitCounts

COUNTERS = Tally.__struct_fields__[2:]
"""The fields of a tally that are numbers."""

WAIT_CLASSES = len(WAIT_BOUNDS_US) + 1


def together(
    now_us: int, since: Iterable[int], tallies: Iterable[Tally], waits: Iterable[WaitCounts]
) -> Tallies:
    """
    The tallies of a namespace, from those of its shards, in the order of tier and pattern.

    `since`: when each shard began to count; 0: it has counted nothing.
    """
    cells: dict[tuple[str, str], Tally] = {}
    for each in tallies:
        cell = cells.setdefault((each.tier, each.pattern), Tally(each.tier, each.pattern))
        for name in COUNTERS:
            setattr(cell, name, getattr(cell, name) + getattr(each, name))
    by_tier: dict[str, WaitCounts] = {}
    for count in waits:
        whole = by_tier.setdefault(
            count.tier, WaitCounts(count.tier, [0] * WAIT_CLASSES, [0] * WAIT_CLASSES)
        )
        whole.noisy = [a + b for a, b in zip(whole.noisy, count.noisy, strict=True)]
        whole.others = [a + b for a, b in zip(whole.others, count.others, strict=True)]
    return Tallies(
        now_us,
        min((each for each in since if each), default=now_us),
        [cells[key] for key in sorted(cells)],
        [by_tier[tier] for tier in sorted(by_tier)],
    )
