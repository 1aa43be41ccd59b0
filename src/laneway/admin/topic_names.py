"""Finding a topic by a part of its name that people know, as `acme` of `push.acme`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laneway.engines.base import TopicStats
    from laneway.policy import PolicyTable

MOST_PATTERNS = 50
"""Patterns of policies whose star is replaced by what is searched."""


def beginnings(policies: PolicyTable) -> list[str]:
    """What stands before the star of policies' patterns, of the first ones."""
    patterns = {pattern for _, pattern, _ in policies.rows() if pattern.endswith(".*")}
    return [pattern[:-1] for pattern in sorted(patterns)[:MOST_PATTERNS]]


def is_known(stats: TopicStats) -> bool:
    """Whether the store has something of the topic, or remembers that it had."""
    return bool(stats.published or stats.waiting or stats.leased or stats.dead)
