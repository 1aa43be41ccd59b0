"""
Live figures of a namespace: rates are the change of the engine's counters between two overviews.

`laneway top` and the demo show them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from laneway import Laneway, Stats
from laneway.admin.top_topics import ListOrder
from laneway.admin.workers import Coverage
from laneway.engines.base import Overview
from laneway.printable import escaped, redacted

COUNTERS = ("published", "delivered", "done", "retried", "died")
"""The counters that are shown as rates."""

SHORTEST = 1e-3
"""Seconds between two overviews are at least this many, so that a rate is finite."""


def seconds_between(before: Overview, now: Overview) -> float:
    """Seconds of the store's clock between two overviews."""
    return max((now.now_us - before.now_us) / 1e6, SHORTEST)


def rate_between(before: Overview, now: Overview, counter: str) -> float:
    """How much a counter grew per second; 0 where it starts over because the store is new."""
    change: int = getattr(now, counter) - getattr(before, counter)
    return max(0.0, change / seconds_between(before, now))


def delivered_between(before: Overview, now: Overview) -> list[int]:
    """Deliveries between two overviews for each tier of `now`, in its order."""
    earlier = {(tier.pool, tier.tier): tier.delivered for tier in before.tiers}
    return [max(0, tier.delivered - earlier.get((tier.pool, tier.tier), 0)) for tier in now.tiers]


class Look(msgspec.Struct):
    """The namespace at one moment, with the overview before it."""

    url: str
    namespace: str
    order: ListOrder
    before: Overview
    now: Overview
    topics: list[Stats]
    workers: int
    """How many run."""
    busy: int
    """Handlers that run in them, as of their last heartbeats."""
    slots: int
    """Handlers that could run in them."""
    unserved_pools: list[str]
    """Pools that have runnable messages now, and no worker."""

    @property
    def seconds(self) -> float:
        """Seconds between the two overviews."""
        return seconds_between(self.before, self.now)

    def rate(self, counter: str) -> float:
        """How much a counter grew per second."""
        return rate_between(self.before, self.now, counter)

    def delivered(self) -> list[int]:
        """Deliveries since the overview before, for each tier."""
        return delivered_between(self.before, self.now)

    def as_dict(self) -> dict[str, Any]:
        """All of it for JSON."""
        return {
            "url": self.url,
            "namespace": self.namespace,
            "seconds": round(self.seconds, 3),
            "per_second": {counter: round(self.rate(counter), 1) for counter in COUNTERS},
            "overview": self.now,
            "topics": self.topics,
            "workers": {"count": self.workers, "busy": self.busy, "slots": self.slots},
            "unserved_pools": self.unserved_pools,
        }


def look(app: Laneway, before: Overview, order: ListOrder, limit: int) -> Look:
    """Read the overview and the first `limit` topics by `order`; the URL's password is hidden."""
    now = app.engine.overview()
    coverage = Coverage(app.engine)
    return Look(
        escaped(redacted(app.url)),
        app.namespace,
        order,
        before,
        now,
        app.topics(order=order, limit=limit),
        coverage.count,
        coverage.busy,
        coverage.concurrency,
        coverage.unserved_pools(now, app.engine.topic_list(order="backlog", limit=limit)),
    )
