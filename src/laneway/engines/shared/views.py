"""
What people see of topics, messages and the namespace, from the facts that an engine read.

An engine reads its lanes, counters and messages in its own way, and its records have the attributes
of the protocols here. What they add up to is the same in every engine.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from laneway.engines.base import MessageView, Overview, TierStats, TopicStats
from laneway.engines.shared import adaptive, fairness, size_classes
from laneway.engines.shared.adaptive import Flow
from laneway.engines.shared.states import ASLEEP, PLACE_NAMES, STATE_NAMES
from laneway.policy import Resolved
from laneway.tiers import Tiers
from laneway.topic_groups import group_of

MOST_RANKS = 1000
"""
The most ranks of a lane that a view looks at, the highest priority first. A priority has two: that
of its messages at the front, and that of the others.
"""

COUNTED = 1000
"""Lanes are counted up to here for people; more is "1,000+"."""

_TOTALS = (
    "waiting",
    "leased",
    "dead",
    "bytes",
    "published",
    "delivered",
    "done",
    "retried",
    "died",
    "merged",
    "expired",
    "removed",
)
_LANE_TOTALS = (
    "ready",
    "delayed",
    "parked",
    *(name for name in _TOTALS if name not in ("waiting", "dead")),
)


def counted_by_end(times: Iterable[int], until_us: Sequence[int]) -> list[int]:
    """How many of these times are before each end, and not before the one ahead of it."""
    counts = [0] * (len(until_us) + 1)
    for at in times:
        counts[bisect.bisect_right(until_us, at)] += 1
    return counts


class LaneFacts(Protocol):
    """What is read of a lane; besides, the counts that `TopicStats` has under the same names."""

    place: int
    back_off_step: int
    back_off_until: int
    throttled: int
    held_since: int
    held_until: int
    seen: int
    lately: int
    before: int

    @property
    def flow(self) -> Flow | None:
        """What it knows of its destination, if its concurrency adapts."""

    @property
    def wake(self) -> int | None:
        """When the lane, where it is asleep, has to be placed again."""


class CounterFacts(Protocol):
    """What is read of a shard's counters; besides, the counts of `Overview`."""

    lanes: int
    seq: int


class MessageFacts(Protocol):
    """What is read of a message."""

    state: int
    body: bytes
    seq: int
    published: int
    since: int
    attempts: int
    deliveries: int

    @property
    def priority(self) -> int:
        """As it was published."""


# Topics


def empty_topic(topic: str, policy: Resolved, dead: int) -> TopicStats:
    """A topic of which no lane was read yet; `dead`: its dead letters."""
    group = group_of(policy.group, policy.buckets_pattern or topic)
    return TopicStats(topic, pool=policy.pool, tier=policy.tier, group=group, dead=dead)


def add_lane(
    stats: TopicStats, lane: LaneFacts, policy: Resolved, now_us: int, *, is_bucket: bool
) -> None:
    """
    Add one of the topic's lanes, which have this policy. Of a bucket, which other topics share,
    only the place counts; the engine counts the topic's messages in it.
    """
    if lane.back_off_step and lane.back_off_until > now_us:
        stats.backs_off_until_us = max(stats.backs_off_until_us or 0, lane.back_off_until)
    if stats.state == "idle":
        stats.state = PLACE_NAMES[lane.place]
        stats.wake_us = lane.wake if lane.place == ASLEEP else None
    if is_bucket:
        return
    for name in _LANE_TOTALS:
        setattr(stats, name, getattr(stats, name) + getattr(lane, name))
    if policy.lane_adapts:
        bounds = policy.min_concurrency, policy.max_concurrency
        stats.limit = (stats.limit or 0) + adaptive.limit_of(lane.flow, *bounds)
    stats.throttled_us += throttled_us(lane, now_us)
    stats.rate_now += size_classes.rate(now_us, lane.seen, lane.lately, lane.before)


def throttled_us(lane: LaneFacts, now_us: int) -> int:
    """For how long a rate has held its ready messages back."""
    return lane.throttled + fairness.held_us(lane.held_since, lane.held_until, now_us)


def add_oldest(stats: TopicStats, since_us: int | None) -> None:
    """Add the since of a lane's oldest ready message; None: it has none."""
    if since_us is not None:
        stats.oldest_us = since_us if stats.oldest_us is None else min(stats.oldest_us, since_us)


def finish_topic(stats: TopicStats) -> TopicStats:
    """All lanes were added."""
    stats.waiting = stats.ready + stats.delayed + stats.parked
    return stats


class Cursors:
    """
    The scan and done cursor of each priority, from the sequence numbers that are outstanding.

    Nothing is stored for cursors: an idle topic costs nothing. Each needs only the lowest numbers.
    """

    def __init__(self) -> None:
        self._undelivered: dict[int, int] = {}
        self._unfinished: dict[int, int] = {}

    def add(self, priority: int, seq: int, *, was_delivered: bool) -> None:
        """A message that is not finished."""
        self._unfinished[priority] = min(self._unfinished.get(priority, seq), seq)
        if not was_delivered:
            self._undelivered[priority] = min(self._undelivered.get(priority, seq), seq)

    def below(self, last: int) -> dict[int, tuple[int, int]]:
        """By priority, the highest first; `last`: the last sequence number that was assigned."""
        return {
            priority: (
                self._undelivered.get(priority, last + 1) - 1,
                self._unfinished.get(priority, last + 1) - 1,
            )
            for priority in sorted({0, *self._undelivered, *self._unfinished}, reverse=True)
        }


# Messages


def message(
    facts: MessageFacts,
    *,
    id: str,  # noqa: A002  # as `MessageView` calls it
    topic: str,
    key: str | None,
    headers: dict[str, str] | None,
    expires_us: int | None,
    suspect: bool,
    parts: Sequence[bytes] | None,
    history: list[dict[str, Any]],
) -> MessageView:
    """A message without a lease. `parts`: the bodies that were merged into it, if it collects."""
    return MessageView(
        id=id,
        topic=topic,
        state=STATE_NAMES[facts.state],
        body=facts.body,
        key=key,
        priority=facts.priority,
        headers=headers,
        seq=facts.seq,
        published_us=facts.published,
        since_us=facts.since,
        expires_us=expires_us,
        attempts=facts.attempts,
        deliveries=facts.deliveries,
        suspect=suspect,
        bodies=[facts.body, *parts] if parts is not None else None,
        history=history,
    )


def set_lease(
    view: MessageView,
    *,
    handle: int,
    fence: int,
    leased_us: int,
    deadline_us: int,
    holder: str | None,
) -> None:
    """The message is leased: the delivery that is under way counts."""
    view.state = "leased"
    view.handle, view.fence = handle, fence
    view.leased_us, view.deadline_us, view.holder = leased_us, deadline_us, holder
    view.deliveries += 1


# The namespace


def tier_stats(tier_queues: Iterable[tuple[str, str, int, int]], tiers: Tiers) -> list[TierStats]:
    """Of (pool, tier, delivered, runnable lanes) of each tier queue; several shards add up."""
    added: dict[tuple[str, str], TierStats] = {}
    for pool, tier, delivered, runnable in tier_queues:
        share = tiers[tier].share if tier in tiers else 0
        stats = added.setdefault((pool, tier), TierStats(pool, tier, share))
        stats.delivered += delivered
        stats.runnable = min(stats.runnable + runnable, COUNTED)
    return list(added.values())


def gates(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The view of each gate, from its views on all shards: leases and waiting lanes add up."""
    merged: dict[str, dict[str, Any]] = {}
    for part in parts:
        gate = merged.setdefault(part["name"], part)
        if gate is not part:
            for field in ("leased", "waiting"):
                gate[field] += part[field]
    return [merged[name] for name in sorted(merged)]


def overview(now_us: int, shards: Sequence[CounterFacts], tiers: list[TierStats]) -> Overview:
    """The namespace's totals."""
    whole = Overview(
        now_us=now_us,
        topics=sum(counters.lanes for counters in shards),
        last_number=max(counters.seq for counters in shards),
        tiers=tiers,
    )
    for name in _TOTALS:
        setattr(whole, name, sum(getattr(counters, name) for counters in shards))
    return whole


def snapshot(
    now_us: int,
    *,
    totals: Overview,
    topics: Mapping[str, TopicStats],
    messages: Iterable[MessageView],
    gates: list[dict[str, Any]],
    policies: Iterable[tuple[str, str, dict[str, Any]]],
) -> dict[str, Any]:
    """Everything that the namespace holds, as `Admin.snapshot` answers it."""
    return {
        "now_us": now_us,
        "totals": msgspec.structs.asdict(totals),
        "topics": {name: msgspec.structs.asdict(stats) for name, stats in topics.items()},
        "messages": [msgspec.structs.asdict(view) for view in messages],
        "gates": gates,
        "policies": sorted(policies, key=lambda row: row[:2]),
    }
