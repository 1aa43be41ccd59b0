"""Reads for people over the shards of a namespace: what each shard has, put together."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Any

from laneway.engines.sharded import shard_views
from laneway.engines.sharded.splitting import group
from laneway.engines.shared import listing as shared_listing
from laneway.engines.shared import views as shared
from laneway.engines.shared.tallies import together
from laneway.engines.sql import listing, views

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from laneway.engines.base import HeldState, LaneRate, MessageView, Overview, Tallies, TopicStats
    from laneway.engines.shared.listing import Candidate
    from laneway.engines.sql.shard_namespace import ShardsOfNamespace
    from laneway.engines.sql.transaction import Transaction

_COUNTS = (
    *("waiting", "ready", "delayed", "parked", "leased", "dead", "bytes"),
    *("published", "delivered", "done", "retried", "died", "merged", "expired", "removed"),
    *("throttled_us", "rate_now"),
)
"""What the parts of a topic add up to."""


class ShardsView(ExitStack):
    """One read transaction on each shard."""

    def __init__(self, namespace: ShardsOfNamespace, now_us: int | None = None) -> None:
        super().__init__()
        namespace.refresh()
        self.namespace = namespace
        self.transactions = [self.enter_context(store.view(now_us)) for store in namespace.stores]
        self.now = max(tx.now for tx in self.transactions)

    def of_topic(self, topic: str) -> list[Transaction]:
        """The shards that the topic's messages are in."""
        return [self.transactions[n] for n in self.namespace.routes.shards_of(topic)]

    # Topics

    def topic_stats(self, topic: str) -> TopicStats:
        """A topic's counts and state, without its cursors."""
        return self.many_stats([topic])[0]

    def many_stats(self, topics: Sequence[str]) -> list[TopicStats]:
        """The same of several topics; those of one shard are read together."""
        shards_of = self.namespace.routes.shards_of
        found: dict[str, TopicStats] = {}
        by_shard = group((shard, topic) for topic in topics for shard in shards_of(topic))
        for shard, those in sorted(by_shard.items()):
            for stats in views.many_stats(self.transactions[shard], those):
                known = found.setdefault(stats.topic, stats)
                if known is not stats:
                    _add(known, stats)
        for stats in found.values():
            self._add_limit(stats)
        return [found[topic] for topic in topics]

    def _add_limit(self, stats: TopicStats) -> None:
        """The partitions of a topic in all shards share one limit, if it adapts."""
        shards = self.of_topic(stats.topic)
        if stats.limit is not None and len(shards) > 1:
            policy = shards[0].policy(stats.topic)
            stats.limit = views.shared_limit(stats.topic, policy, shards) or stats.limit

    def cursors(self, topic: str) -> dict[int, tuple[int, int]]:
        """By priority: the scan and the done cursor; each shard counts its messages by itself."""
        outstanding = shared.Cursors()
        last = 0
        for tx in self.of_topic(topic):
            first = _first_number(tx)
            views.add_outstanding(tx, topic, outstanding, first)
            last = max(last, tx.shard.seq - first)
        return outstanding.below(last)

    def delayed_counts(self, topic: str, until_us: Sequence[int]) -> list[int]:
        """The delayed messages of a topic in all shards, counted by due time."""
        times = [at for tx in self.of_topic(topic) for at in views.delayed_times(tx, topic)]
        return shared.counted_by_end(times, until_us)

    def peek(self, topic: str, limit: int, state: HeldState | None) -> list[MessageView]:
        """The first messages: ready in their order, then parked, then delayed by due time."""
        rows = [
            (tx, row)
            for tx in self.of_topic(topic)
            for row in views.peek_rows(tx, topic, limit, state)
        ]
        order = views.by_since if state == "leased" else views.peek_order
        rows.sort(key=lambda each: order(each[1]))
        leased = {id(tx): views.Leased(tx) for tx in self.of_topic(topic)}
        found = (views.message_view(tx, row, leased[id(tx)]) for tx, row in rows[:limit])
        return [view for view in found if view is not None]

    def topics(self, order: str, pattern: str, limit: int, after: str | None) -> list[TopicStats]:
        return shared_listing.topics(_Topics(self), order, pattern, limit, after)

    def lane_rates(self, limit: int) -> list[LaneRate]:
        """The rates of lanes that can deliver; of each shard as many lanes."""
        each = -(-limit // len(self.transactions))
        return [rate for tx in self.transactions for rate in views.lane_rates(tx, each)]

    # The namespace

    def gates(self) -> list[dict[str, Any]]:
        """Each gate's limits, and what they hold back in all shards."""
        return shard_views.gates(
            views.gate_view(tx, tx.cached_gate(row))
            for tx in self.transactions
            for row in tx.all("gates")
        )

    def overview(self) -> Overview:
        """The namespace's totals."""
        tier_queues = [each for tx in self.transactions for each in views.tier_queue_counts(tx)]
        whole = shared.overview(
            self.now,
            [tx.shard for tx in self.transactions],
            shared.tier_stats(tier_queues, self.namespace.tiers),
        )
        whole.last_number = max(tx.shard.seq - _first_number(tx) for tx in self.transactions)
        return whole

    def tallies(self) -> Tallies:
        """What was counted in all shards."""
        books = [tx.tallies for tx in self.transactions]
        return together(
            self.now,
            [book.since_us for book in books],
            chain.from_iterable(book.all() for book in books),
            chain.from_iterable(book.waits() for book in books),
        )


def _first_number(tx: Transaction) -> int:
    return tx.rules.place.first_number if tx.rules.place is not None else 0


def _add(stats: TopicStats, part: TopicStats) -> None:
    """Add what another shard has of the topic."""
    for name in _COUNTS:
        setattr(stats, name, getattr(stats, name) + getattr(part, name))
    if stats.state == "idle":
        stats.state, stats.wake_us = part.state, part.wake_us
    shared.add_oldest(stats, part.oldest_us)
    if stats.limit is None:
        stats.limit = part.limit
    if part.backs_off_until_us is not None:
        stats.backs_off_until_us = max(stats.backs_off_until_us or 0, part.backs_off_until_us)


class _Topics:
    """What `laneway.engines.shared.listing` reads, from all shards."""

    def __init__(self, view: ShardsView) -> None:
        self._view = view
        self._sources = [listing.Topics(tx) for tx in view.transactions]
        self.now_us = view.now

    def stats(self, topics: Sequence[str]) -> list[TopicStats]:
        return self._view.many_stats(topics)

    def has_something(self, topic: str) -> bool:
        shards = self._view.namespace.routes.shards_of(topic)
        return any(self._sources[shard].has_something(topic) for shard in shards)

    def next_name(self, after: str) -> str | None:
        names = (source.next_name(after) for source in self._sources)
        return min((name for name in names if name is not None), default=None)

    def recent(self, order: str, topics: Sequence[str]) -> dict[str, float]:
        found: dict[str, float] = {}
        for source in self._sources:
            for topic, rate in source.recent(order, topics).items():
                found[topic] = found.get(topic, 0.0) + rate
        return found

    def candidates(self, order: str, pattern: str, most: int) -> Iterable[Candidate]:
        candidates: Iterator[Iterable[Candidate]] = (
            source.candidates(order, pattern, most) for source in self._sources
        )
        return chain.from_iterable(candidates)
