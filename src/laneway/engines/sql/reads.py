"""
Reads for administration over the stores of a namespace, one or several: what each has, put
together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import chain
from typing import Any

from laneway.engines.base import (
    Explanation,
    HeldState,
    LaneRate,
    MessageView,
    Overview,
    Tallies,
    TopicOrder,
    TopicStats,
)
from laneway.engines.sharded.splitting import group
from laneway.engines.shared import gates, listing as shared_listing, views as shared
from laneway.engines.shared.listing import Candidate
from laneway.engines.shared.tallies import together
from laneway.engines.sql import explaining, listing, views
from laneway.engines.sql.transaction import Transaction

_COUNTS = (
    *("waiting", "ready", "delayed", "parked", "leased", "dead", "bytes"),
    *("published", "delivered", "done", "retried", "died", "merged", "expired", "removed"),
    *("throttled_us", "rate_now"),
)
"""What the parts of a topic add up to."""


class Reads(ABC):
    """The part of `laneway.engines.base.Admin` that reads several stores as it reads one."""

    @abstractmethod
    def _view(self, now_us: int | None = None) -> View:
        """A view of all stores."""

    @abstractmethod
    def _policy_rows(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(layer, pattern or topic, fields) of all policies."""

    def tallies(self, *, now_us: int | None = None) -> Tallies:
        with self._view(now_us) as view:
            books = [tx.tallies for tx in view.transactions]
            return together(
                view.now,
                [book.since_us for book in books],
                chain.from_iterable(book.all() for book in books),
                chain.from_iterable(book.waits() for book in books),
            )

    def gate_list(self) -> list[dict[str, Any]]:
        with self._view() as view:
            return gates.of_gates(view.gates())

    def topic_group_list(self) -> list[dict[str, Any]]:
        with self._view() as view:
            return gates.of_groups(view.gates())

    def topic_stats(self, topic: str, *, now_us: int | None = None) -> TopicStats:
        with self._view(now_us) as view:
            (stats,) = view.many_stats([topic])
            stats.cursors = view.cursors(topic)
            return stats

    def topic_list(
        self,
        *,
        order: TopicOrder = "name",
        pattern: str = "*",
        limit: int = 20,
        after: str | None = None,
        now_us: int | None = None,
    ) -> list[TopicStats]:
        with self._view(now_us) as view:
            return shared_listing.topics(_Topics(view), order, pattern, limit, after)

    def topic_peek(
        self,
        topic: str,
        *,
        limit: int = 10,
        state: HeldState | None = None,
        now_us: int | None = None,
    ) -> list[MessageView]:
        with self._view(now_us) as view:
            return view.peek(topic, limit, state)

    def lane_rates(self, limit: int, *, now_us: int | None = None) -> list[LaneRate]:
        with self._view(now_us) as view:
            each = -(-limit // len(view.transactions))
            return [rate for tx in view.transactions for rate in views.lane_rates(tx, each)]

    def delayed_counts(
        self, topic: str, until_us: Sequence[int], *, now_us: int | None = None
    ) -> list[int]:
        with self._view(now_us) as view:
            transactions = view.of_topic(topic)
            times = [at for tx in transactions for at in views.delayed_times(tx, topic)]
        return shared.counted_by_end(times, until_us)

    def cursors(self, topic: str) -> dict[int, tuple[int, int]]:
        with self._view() as view:
            return view.cursors(topic)

    def _explained(
        self, shards: Iterable[int], message_id: str, topic: str | None, now_us: int | None
    ) -> Explanation:
        """What the first of these shards that knows the message explains."""
        with self._view(now_us) as view:
            every = view.transactions
            answers = [explaining.explain(every[n], message_id, topic, every) for n in shards]
        return min(answers, key=lambda answer: answer.state == "unknown")

    def overview(self, *, now_us: int | None = None) -> Overview:
        with self._view(now_us) as view:
            return view.overview()

    def snapshot(self, *, now_us: int | None = None) -> dict[str, Any]:
        policies = self._policy_rows()
        with self._view(now_us) as view:
            parts = [views.all_messages(tx) for tx in view.transactions]
            found = sorted((each for part in parts for each in part), key=lambda each: each.seq)
            lanes = (lane for tx in view.transactions for lane in views.all_lanes(tx))
            names = {lane.topic for lane in lanes if lane.topic is not None}
            topics = sorted(names.union(each.topic for each in found))
            return shared.snapshot(
                view.now,
                totals=view.overview(),
                topics=dict(zip(topics, view.many_stats(topics), strict=True)),
                messages=found,
                gates=view.gates(),
                policies=policies,
            )


class View(ExitStack):
    """
    One read transaction on each store. `shards_of`: the shards that a topic's messages are in.
    """

    def __init__(
        self,
        stores: Iterable[AbstractContextManager[Transaction]],
        shards_of: Callable[[str], Sequence[int]],
    ) -> None:
        super().__init__()
        self.shards_of = shards_of
        self.transactions = [self.enter_context(store) for store in stores]
        self.now = max(tx.now for tx in self.transactions)

    def of_topic(self, topic: str) -> list[Transaction]:
        """The shards that the topic's messages are in."""
        return [self.transactions[n] for n in self.shards_of(topic)]

    # Topics

    def many_stats(self, topics: Sequence[str]) -> list[TopicStats]:
        """Counts and states of topics, without cursors; those of one shard are read together."""
        found: dict[str, TopicStats] = {}
        by_shard = group((shard, topic) for topic in topics for shard in self.shards_of(topic))
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

    def peek(self, topic: str, limit: int, state: HeldState | None) -> list[MessageView]:
        """The first messages: ready in their order, then parked, then delayed by due time."""
        rows = [
            (tx, row)
            for tx in self.of_topic(topic)
            for row in views.peek_rows(tx, topic, limit, state)
        ]
        order = views.by_since if state == "leased" else views.peek_order
        rows.sort(key=lambda each: order(each[1]))
        leased = {id(tx): views.leased(tx) for tx in self.of_topic(topic) if state == "leased"}
        for tx, row in rows[:limit]:
            views.prefetch(tx, [row])
        found = (views.message_view(tx, row, leased.get(id(tx), {})) for tx, row in rows[:limit])
        return [view for view in found if view is not None]

    # The namespace

    def gates(self) -> list[dict[str, Any]]:
        """Each gate's limits, and what they hold back in all shards."""
        return shared.gates(
            gates.view(
                gate.name,
                gate.whole,
                tat=gate.tat,
                owes=gate.owes,
                leased=gate.leased,
                waiting=min(gate.waiting, shared.COUNTED),
                now_us=tx.now,
            )
            for tx in self.transactions
            for gate in map(tx.cached_gate, tx.all("gates"))
        )

    def overview(self) -> Overview:
        """The namespace's totals."""
        tier_queues = [each for tx in self.transactions for each in views.tier_queue_counts(tx)]
        whole = shared.overview(
            self.now,
            [tx.shard for tx in self.transactions],
            shared.tier_stats(tier_queues, self.transactions[0].rules.tiers),
        )
        whole.last_number = max(tx.shard.seq - _first_number(tx) for tx in self.transactions)
        return whole


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

    def __init__(self, view: View) -> None:
        self._view = view
        self._sources = [listing.Topics(tx) for tx in view.transactions]
        self.now_us = view.now

    def stats(self, topics: Sequence[str]) -> list[TopicStats]:
        return self._view.many_stats(topics)

    def has_something(self, topic: str) -> bool:
        return any(self._sources[n].has_something(topic) for n in self._view.shards_of(topic))

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
