"""
`Reader`: what pages read of the engine in one second. Each call is made once for all pages.

Neither the number of pages nor of viewers makes the engine work more. What a page reads has a
bound that does not depend on the number of topics.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from itertools import chain
from typing import Any, TypeVar, cast

from laneway.admin import top_topics
from laneway.admin.workers import Coverage
from laneway.engines.base import (
    FullEngine,
    LaneRate,
    Overview,
    TopicStats,
    WorkerView,
)
from laneway.history import figures, sampling
from laneway.history.records import Row
from laneway.policy import PolicyTable

T = TypeVar("T")

FRESH_SECONDS = 1.0
"""How long what was read is used."""

SELDOM_SECONDS = 10.0
"""The same for the history, which has a new row in each interval, and for dead letters."""

MAX_SELDOM = 50
"""The maximum number of answers that are kept this long."""

OLDEST_TOPICS = 50
"""
Topics that are read for what has happened since the last sample. It is at most 10 s old, and has
the 500 oldest ones; to read them again for a page would be most of its cost.
"""

LARGEST_TOPICS = 50
"""Topics with the largest backlogs that pages look at."""

COMPARED_LANES = 1000
"""Lanes whose rates are compared."""

MAX_WORKERS = 200
"""Workers that pages read."""

MAX_KEPT = 500
"""Answers that are kept of a second; a crawler could ask for any number of different ones."""


class Reader:
    """The engine's answers of one second."""

    def __init__(self, engine: FullEngine, before: Reader | None = None) -> None:
        """`before`: whose answers of `seldom` are used as long as they are fresh."""
        self.engine = engine
        self.read_at = time.monotonic()
        self._answers: dict[Hashable, Any] = {}
        self.kept: dict[Hashable, tuple[float, Any]] = before.kept if before else {}
        self._lock = threading.Lock()

    @property
    def is_fresh(self) -> bool:
        """Whether it may still be used."""
        return time.monotonic() - self.read_at < FRESH_SECONDS

    def once(self, key: Hashable, read: Callable[[], T]) -> T:
        """The answer of a call, which is made if nobody has made it."""
        try:
            found: T = self._answers[key]
        except KeyError:
            found = self._keep(key, read())
        return found

    def _keep(self, key: Hashable, answer: T) -> T:
        with self._lock:
            if key in self._answers or len(self._answers) < MAX_KEPT:
                self._answers[key] = answer
        return answer

    def now_us(self) -> int:
        """The store's clock when this second began."""
        return self.once("now", self.engine.time_us)

    def overview(self) -> Overview:
        """The totals of the namespace."""
        return self.once("overview", self.engine.overview)

    def policies(self) -> PolicyTable:
        """The policies of patterns."""
        return self.once("policies", self.engine.policies)

    def topic(self, name: str) -> TopicStats:
        """One topic."""
        return self.once(("topic", name), lambda: self.engine.topic_stats(name))

    def topics(
        self,
        order: top_topics.ListOrder,
        patterns: tuple[str, ...],
        limit: int,
        after: str | None = None,
    ) -> list[TopicStats]:
        """The first topics of an order that one of the patterns covers."""
        lists = [self._top(order, pattern, limit, after) for pattern in patterns]
        if len(lists) == 1:
            return lists[0][:limit]
        return top_topics.first_of(chain(*lists), order, self.now_us(), limit)

    def _top(
        self, order: top_topics.ListOrder, pattern: str, limit: int, after: str | None
    ) -> list[TopicStats]:
        """At least `limit` topics, if that many exist: a longer list includes the shorter ones."""
        key = "topics", order, pattern, after
        longest = self._answers.get(key)
        if longest is None or longest[0] < limit:
            found = top_topics.topics(self.engine, order, pattern=pattern, limit=limit, after=after)
            longest = self._keep(key, (limit, found))
        return cast("list[TopicStats]", longest[1])

    def largest(self) -> list[TopicStats]:
        """The topics with the largest backlogs, the largest first."""
        return self.topics("backlog", ("*",), LARGEST_TOPICS)

    def lane_rates(self) -> list[LaneRate]:
        """The delivery rates of a sample of lanes; empty for a third-party engine without them."""
        read = getattr(self.engine, "lane_rates", None)
        return self.once("lane rates", lambda: read(COMPARED_LANES)) if read is not None else []

    def workers(self) -> list[WorkerView]:
        """The first workers by id."""
        return self.once("workers", lambda: self.engine.workers(limit=MAX_WORKERS, after=""))

    def coverage(self) -> Coverage:
        """What the workers serve."""
        return self.once("coverage", lambda: Coverage(self.engine))

    def gates(self) -> list[dict[str, Any]]:
        """The gates by name."""
        return self.once("gates", self.engine.gate_list)

    def groups(self) -> list[dict[str, Any]]:
        """The topic groups that have settings, by name."""
        return self.once("groups", self.engine.topic_group_list)

    def history(self, seconds: float) -> figures.History:
        """The history of the last seconds."""

        def read() -> figures.History:
            return figures.read(
                self.engine, last=seconds, latest=self.latest(), largest=self.largest()
            )

        return self.seldom(("history", seconds), read)

    def latest(self) -> Row:
        """What has happened since the last sample of the history."""
        return self.once(
            "latest", lambda: sampling.latest_row(self.engine, most_topics=OLDEST_TOPICS)
        )

    def rows(self, seconds: float) -> list[Row]:
        """The stored rows of the history of the last seconds."""

        def read() -> list[Row]:
            latest = self.latest()
            return figures.read_rows(self.engine, seconds, latest)

        return self.seldom(("rows", seconds), read)

    def seldom(self, key: Hashable, read: Callable[[], T]) -> T:
        """As `once`, for 10 seconds: what costs more, and changes less."""
        now = time.monotonic()
        read_at, found = self.kept.get(key, (0.0, None))
        if key not in self.kept or now - read_at >= SELDOM_SECONDS:
            found = read()
            with self._lock:
                self._make_room(now)
                self.kept[key] = now, found
        return cast("T", found)

    def _make_room(self, now: float) -> None:
        if len(self.kept) >= MAX_SELDOM:
            for key, (read_at, _) in list(self.kept.items()):
                if now - read_at >= SELDOM_SECONDS:
                    del self.kept[key]
            if len(self.kept) >= MAX_SELDOM:
                self.kept.clear()
