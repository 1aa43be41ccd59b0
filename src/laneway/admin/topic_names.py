"""Find a topic by a part of its name, such as `acme` for `push.acme`."""

from __future__ import annotations

from laneway.engines.base import TopicStats
from laneway.policy import PolicyTable

MOST_PATTERNS = 50
"""Policy patterns whose star is replaced by the search text."""


def beginnings(policies: PolicyTable) -> list[str]:
    """The texts before the star in the first policy patterns."""
    patterns = {pattern for _, pattern, _ in policies.rows() if pattern.endswith(".*")}
    return [pattern[:-1] for pattern in sorted(patterns)[:MOST_PATTERNS]]


def is_known(stats: TopicStats) -> bool:
    """Whether the store holds data of the topic, or remembers that it did."""
    return bool(stats.published or stats.waiting or stats.leased or stats.dead)
