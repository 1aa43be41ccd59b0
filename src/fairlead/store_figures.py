"""
Figures of a store for monitoring, by policy pattern and tier, never by topic.

Their cost does not grow with the number of topics. Up to `TOPICS` topics are looked at: all of them while there are no
more, and every figure is exact. Among more, the topics with the largest backlogs, the oldest messages and the longest
throttling are attributed to their patterns, and the pattern `(other)` holds the rest of the exact totals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlead.policy import is_pattern

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.engines.base import Overview, TopicStats

TOPICS = 500
"""Topics that are looked at, for each order."""

GROUPS = 200
"""Most groups of (pattern, tier, pool); the smallest go into `OTHER`."""

OTHER = "(other)"


class Group(msgspec.Struct, kw_only=True):
    """What the topics of one pattern, tier and pool hold together. `oldest`: seconds; None: nothing waits, or it is not known."""

    pattern: str
    tier: str
    pool: str
    waiting: int = 0
    leased: int = 0
    dead: int = 0
    oldest: float | None = None
    throttled: float = 0.0

    def add(self, stats: TopicStats, now_us: int) -> None:
        """Count a topic in."""
        self.waiting += stats.waiting
        self.leased += stats.leased
        self.dead += stats.dead
        self.throttled += stats.throttled_us / 1e6
        if stats.oldest_us is not None:
            self.oldest = max(self.oldest or 0.0, (now_us - stats.oldest_us) / 1e6)

    def join(self, other: Group) -> None:
        """Take over what another group holds."""
        self.waiting += other.waiting
        self.leased += other.leased
        self.dead += other.dead
        self.throttled += other.throttled
        if other.oldest is not None:
            self.oldest = max(self.oldest or 0.0, other.oldest)


class Figures(msgspec.Struct, frozen=True):
    """A store at one moment. `is_exact`: every topic was looked at, so that each group is exact."""

    overview: Overview
    groups: list[Group]
    is_exact: bool


def read(app: Fairlead) -> Figures:
    """Read the figures. Raises EngineUnavailable."""
    engine = app.engine
    found, is_exact = _topics(app)
    book = engine.policies()
    overview = engine.overview()
    groups: dict[tuple[str, str, str], Group] = {}
    for stats in found:
        pattern = next((name for name in book.covering(stats.topic) if is_pattern(name)), "*")
        key = (pattern, stats.tier, stats.pool)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(pattern=pattern, tier=stats.tier, pool=stats.pool)
        group.add(stats, overview.now_us)
    largest = sorted(groups.values(), key=lambda group: (-group.waiting, -(group.oldest or 0), -group.dead, group.pattern))
    kept, other = largest[:GROUPS], Group(pattern=OTHER, tier="", pool="")
    for group in largest[GROUPS:]:
        other.join(group)
    if not is_exact:
        _add_the_rest(other, overview, largest)
    return Figures(overview, [*kept, other] if other.waiting or other.leased or other.dead else kept, is_exact)


def _topics(app: Fairlead) -> tuple[list[TopicStats], bool]:
    engine = app.engine
    by_name = engine.topic_list(order="name", pattern="*", limit=TOPICS + 1, after=None)
    if len(by_name) <= TOPICS:
        return by_name, True
    found = {stats.topic: stats for order in ("backlog", "age", "throttled") for stats in engine.topic_list(order=order, pattern="*", limit=TOPICS)}
    return list(found.values()), False


def _add_the_rest(other: Group, overview: Overview, groups: list[Group]) -> None:
    """What the totals hold beyond the topics that were looked at; these were read a moment earlier."""
    other.waiting += max(0, overview.waiting - sum(group.waiting for group in groups))
    other.leased += max(0, overview.leased - sum(group.leased for group in groups))
    other.dead += max(0, overview.dead - sum(group.dead for group in groups))
