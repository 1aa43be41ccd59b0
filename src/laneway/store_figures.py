"""
Figures of a store for monitoring, by policy pattern and tier, never by topic.

Their cost does not grow with the number of topics. With up to `TOPICS` topics, all are read and
every figure is exact. With more, those with the largest backlogs, the oldest messages and the
longest throttling are read. The rest of the exact totals is divided in the proportions of the last
`Walk`, which reads all topics, a few at a time. Without a walk, the pattern `(other)` has the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import msgspec

from laneway.engines.base import FullEngine, Overview, StorePart, TopicStats
from laneway.errors import LanewayError
from laneway.policy import PolicyTable

TOPICS = 500
"""Topics that are read, for each order."""

GROUPS = 200
"""The most groups of (pattern, tier, pool); the smallest are combined in `OTHER`."""

OTHER = "(other)"


COUNTED = ("waiting", "leased", "dead")
"""The fields whose exact totals the store has."""

PAGE, PAUSE = 100, 0.1
"""Topics that a walk reads at once, and seconds until the next ones."""


class Group(msgspec.Struct, kw_only=True):
    """
    The sums of the topics of one pattern, tier and pool. `oldest`: seconds; None: nothing is
    waiting, or it is unknown.
    """

    pattern: str
    tier: str
    pool: str
    waiting: int = 0
    leased: int = 0
    dead: int = 0
    oldest: float | None = None
    throttled: float = 0.0

    def add(self, stats: TopicStats, now_us: int) -> None:
        """Add a topic."""
        oldest = None if stats.oldest_us is None else (now_us - stats.oldest_us) / 1e6
        self._count(stats, stats.throttled_us / 1e6, oldest)

    def join(self, other: Group) -> None:
        """Add another group."""
        self._count(other, other.throttled, other.oldest)

    def _count(self, other: Group | TopicStats, throttled: float, oldest: float | None) -> None:
        for field in COUNTED:
            setattr(self, field, getattr(self, field) + getattr(other, field))
        self.throttled += throttled
        if oldest is not None:
            self.oldest = max(self.oldest or 0.0, oldest)


Groups = dict[tuple[str, str, str], Group]
"""Groups by pattern, tier and pool."""


class Figures(msgspec.Struct, frozen=True):
    """
    A store at one moment. `is_exact`: every topic was read, so each group is exact. `parts`: its
    files or servers.
    """

    overview: Overview
    groups: list[Group]
    is_exact: bool
    parts: list[StorePart]


def read(engine: FullEngine, walk: Walk | None = None) -> Figures:
    """
    Read the figures. `walk`: continues if there are too many topics to read them all. Raises
    EngineUnavailable.
    """
    topics, is_exact = _topics(engine)
    overview = engine.overview()
    groups = _grouped(topics, engine.policies(), overview.now_us)
    rest = (
        {}
        if is_exact
        else {
            field: max(
                0, getattr(overview, field) - sum(getattr(each, field) for each in groups.values())
            )
            for field in COUNTED
        }
    )
    if walk is not None and not is_exact:
        walk.go_on(engine)
        rest = _split(rest, groups, walk.groups)
    largest = sorted(
        groups.values(),
        key=lambda group: (-group.waiting, -(group.oldest or 0), -group.dead, group.pattern),
    )
    largest_groups, other = largest[:GROUPS], Group(pattern=OTHER, tier="", pool="")
    for group in largest[GROUPS:]:
        other.join(group)
    for field, number in rest.items():
        setattr(other, field, getattr(other, field) + number)
    return Figures(
        overview,
        [*largest_groups, other] if other.waiting or other.leased or other.dead else largest_groups,
        is_exact,
        engine.store_parts() if hasattr(engine, "store_parts") else [],
    )


def _topics(engine: FullEngine) -> tuple[list[TopicStats], bool]:
    by_name = engine.topic_list(order="name", pattern="*", limit=TOPICS + 1, after=None)
    if len(by_name) <= TOPICS:
        return by_name, True
    topics = {
        stats.topic: stats
        for order in ("backlog", "age", "throttled")
        for stats in engine.topic_list(order=order, pattern="*", limit=TOPICS)
    }
    return list(topics.values()), False


def _grouped(topics: Iterable[TopicStats], policy_table: PolicyTable, now_us: int) -> Groups:
    groups: Groups = {}
    for stats in topics:
        pattern = policy_table.pattern_of(stats.topic)
        key = (pattern, stats.tier, stats.pool)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(pattern=pattern, tier=stats.tier, pool=stats.pool)
        group.add(stats, now_us)
    return groups


def _split(rest: dict[str, int], groups: Groups, walked: Groups) -> dict[str, int]:
    """
    Divide the rest among the groups in which the walk counted more than was read. Returns what
    remains.
    """
    left = dict(rest)
    for field, number in rest.items():
        missing = {
            key: max(
                0, getattr(group, field) - (getattr(groups[key], field) if key in groups else 0)
            )
            for key, group in walked.items()
        }
        missing = {key: count for key, count in missing.items() if count}
        total = sum(missing.values())
        for key, count in missing.items():
            group = groups.setdefault(key, Group(pattern=key[0], tier=key[1], pool=key[2]))
            part = number * count // total
            setattr(group, field, getattr(group, field) + part)
            left[field] -= part
        if missing:  # the few that were rounded off
            group = groups[max(missing, key=lambda key: missing[key])]
            setattr(group, field, getattr(group, field) + left[field])
            left[field] = 0
    return left


class Walk(threading.Thread):
    """
    Reads all topics by name, `PAGE` at a time with a pause, again and again: constant work a
    second, however many topics there are.

    `groups`: the result of the last complete walk; it is as old as that walk took.
    """

    def __init__(self) -> None:
        super().__init__(name="laneway-figures", daemon=True)
        self.groups: Groups = {}
        self.walks = 0
        self._engine: FullEngine | None = None
        self._wanted = threading.Event()
        self._begun = threading.Lock()

    def go_on(self, engine: FullEngine) -> None:
        """
        Walk through this engine; the first call starts the thread. It pauses when the engine is
        unavailable or closed, until the next call.
        """
        self._engine = engine
        self._wanted.set()
        if self._begun.acquire(blocking=False):
            self.start()

    def run(self) -> None:
        """Run until the process ends; the thread is a daemon."""
        while True:
            self._wanted.wait()
            try:
                if self._engine is not None:
                    self.groups = self._walk(self._engine)
                    self.walks += 1
            except (LanewayError, OSError):
                self._engine = None
                self._wanted.clear()

    @staticmethod
    def _walk(engine: FullEngine) -> Groups:
        groups: Groups = {}
        after: str | None = None
        while True:
            page = engine.topic_list(order="name", pattern="*", limit=PAGE, after=after)
            for key, group in _grouped(page, engine.policies(), engine.overview().now_us).items():
                if key in groups:
                    groups[key].join(group)
                else:
                    groups[key] = group
            time.sleep(PAUSE)
            if len(page) < PAGE:
                return groups
            after = page[-1].topic
