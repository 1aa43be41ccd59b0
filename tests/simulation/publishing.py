"""Topics with rules for publishing, publishers that repeat themselves, and calls that come late."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from laneway.message import Draft
from laneway.testing.simulation import Fleet, Publisher, Spool
from laneway.testing.simulation.publishing_checks import (
    Backlogs,
    Dedupe,
    Expiry,
    Forwarding,
    Merges,
)
from laneway.units import SECOND

CHECKS = (Backlogs, Dedupe, Expiry, Merges)

POLICIES: list[dict[str, Any]] = [
    {"merge": "first"},
    {"merge": "last"},
    {"merge": "last", "window": 2},
    {"merge": "last", "window": 1, "debounce": True, "max_wait": 5},
    {"merge": "all", "merge_limit": 3},
    {"merge": "all", "window": 3, "concurrency": 1},
    {"merge": "first", "rate": 2},
    {"ttl": 2, "rate": 1, "burst": 1},
    {"ttl": 3, "concurrency": 1, "on_expiry": "drop"},
    {"ttl": 1},
    {"dedupe": 5},
    {"dedupe": 60, "concurrency": 2},
    {"max_backlog": 5, "concurrency": 1},
    {"max_backlog": 3, "rate": 1, "burst": 1, "on_full": "drop_oldest"},
    {"max_backlog": 4, "on_full": "drop_oldest", "serial": "hold"},
]
"""Policies that no operator changes."""


class Repeater(Publisher):
    """Publishes some ids again, soon or a while later."""

    AGAIN, AT_MOST = 0.3, 30

    def _next(self) -> Draft:
        if self._number and self.clock.chance(self.AGAIN):
            first = max(1, self._number - self.AT_MOST)
            return self._draft(self.clock.random.randint(first, self._number))
        return super()._next()


def add(seed: int, fleet: Fleet) -> None:
    """Add such topics, with their checks, and let calls come late."""
    draw = random.Random(f"publishing {seed}")
    fleet.store.network.late_calls = draw.choice([0, 0, 0.02, 0.1])
    topics = [f"c.{number}" for number in range(draw.randint(1, 5))]
    for check in CHECKS:
        fleet.check(check(fleet.store, fleet.messages, topics))
    fleet.check(Forwarding(fleet.store))
    for topic in topics:
        policy = {"dead_ttl": "10d", "backoff": 1, **draw.choice(POLICIES)}
        fleet.store.apply("policy_set", "code", topic, policy)
        make = drafts(topic, policy, draw)
        kind = draw.choice([Publisher, Repeater, Repeater, Spool])
        fleet.add(kind(fleet.store, topic, make, draw.choice([0.5, 2, 5])))


def drafts(topic: str, policy: dict[str, Any], draw: random.Random) -> Callable[[int], Draft]:
    """What a publisher of the topic publishes."""
    needs_key = policy.get("merge") or policy.get("serial")
    keys = draw.choice([1, 3]) if needs_key else 0
    ttl_us = draw.choice([None, SECOND]) if "ttl" in policy else None
    delay_us = draw.choice([0, 0, SECOND // 2]) if keys == 0 else 0

    def make(number: int) -> Draft:
        key = f"k{number % keys}" if keys else None
        return Draft(topic, b"%d" % number, key=key, ttl_us=ttl_us, delay_us=delay_us)

    return make
