"""How this engine finds topics, for `laneway.engines.shared.listing`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from laneway.engines.shared import fairness, listing, size_classes
from laneway.engines.shared.listing import CANDIDATES, FEW, Candidate
from laneway.engines.shared.naming import BUCKET, PARTITION
from laneway.engines.shared.recent import KINDS, rate_of
from laneway.engines.sql import recent_counts, views
from laneway.engines.sql.transaction import Transaction

_NAMES = ("lane_name_next", "folded_topic_next", "dead_topic_next")
_LAST = "\U0010ffff"


def _backlog(_transaction: Transaction, _lane: int, waiting: int, leased: int) -> float:
    return listing.backlog(waiting, leased)


def _rate(tx: Transaction, _lane: int, *counted: int) -> float:
    return size_classes.rate(tx.now, *counted)


def _age(tx: Transaction, lane: int, *front: int | None) -> float:
    oldest = views.oldest_behind(tx, lane, *front)
    return tx.now - oldest + 1 if oldest is not None else 0


def _throttled(tx: Transaction, _lane: int, counted: int, since: int, until: int) -> float:
    return counted + fairness.held_us(since, until, tx.now)


ORDERS: dict[str, Callable[..., float | None]] = {
    "backlog": _backlog,
    "age": _age,
    "rate": _rate,
    "throttled": _throttled,
}
"""
The value of a lane by the columns that `listing_statements` reads of it, by the names of
`laneway.engines.shared.listing.MEASURES`, of those that are read of lanes. The others have tables
of topics.
"""

FOLDED = ("backlog", "age")
"""Orders by which topics in a bucket are counted, too."""


class Topics:
    """What `laneway.engines.shared.listing` reads of one store."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.now_us = tx.now

    def has_something(self, topic: str) -> bool:
        (stats,) = views.many_stats(self._tx, [topic])
        own = (lane.topic == topic for lane in views.lanes_of(self._tx, topic))
        return bool(stats.waiting or stats.leased or stats.dead or any(own))

    def next_name(self, after: str) -> str | None:
        """The smallest name of three indexes."""
        return min(
            (name for query in _NAMES if (name := self._next(query, after)) is not None),
            default=None,
        )

    def _next(self, query: str, after: str) -> str | None:
        """The next topic's name in one index; a topic's partitions are one name, buckets none."""
        at = max(after, BUCKET + _LAST) if query == "lane_name_next" else after
        while (step := self._tx.one(query, at)) is not None:
            name = str(step[0]).partition(PARTITION)[0]
            if name != after:
                return name
            at = after + PARTITION + _LAST
        return None

    def recent(self, order: str, topics: Sequence[str]) -> dict[str, float]:
        kind, now_us = KINDS[order], self._tx.now
        found = recent_counts.scores(self._tx, order, topics)
        return {topic: rate_of(score, now_us, kind) for topic, score in found.items()}

    def candidates(self, order: str, pattern: str, most: int) -> Iterator[Candidate]:
        if order in KINDS or order == "dead":
            stem = pattern.removesuffix("*")
            rows = self._counted(order, stem, stem + _LAST, most)
            yield from (Candidate(topic, worth, is_exact=False) for topic, worth in rows)
            return
        worth_of = ORDERS[order]
        folded: set[str | None] = set()
        for lane, name, rule, *columns in self._lanes(order, pattern, most):
            if name.startswith(BUCKET):
                folded.add(listing.common_prefix(pattern, rule))
                continue
            worth = worth_of(self._tx, lane, *columns) or 0
            yield Candidate(rule or name, worth, is_exact=rule is None)
        for prefix in folded:
            if prefix is not None:
                yield from self._folded(order, prefix)

    def _counted(self, order: str, first: str, last: str, most: int) -> Iterable[tuple[str, float]]:
        """The first topics of an order that is counted by topic, and what is counted."""
        if order == "dead":
            looked_at = max(FEW, most) if first else most
            found = dict(self._tx.all("dead_top", looked_at, first, last, most))
            if first and len(found) < most:
                found |= self._tx.all("dead_named", first, last, most)
            return found.items()
        kind = KINDS[order]
        rows = self._tx.all("recent_top", kind.number, first, last, most)
        return [(topic, rate_of(score, self._tx.now, kind)) for topic, score in rows]

    def _lanes(self, order: str, pattern: str, most: int) -> list[tuple[Any, ...]]:
        """
        All lanes, if there are few. Otherwise the first ones of the index, and others of the
        pattern if the index has too few.
        """
        read, prefix = self._tx.all, pattern.removesuffix("*")
        if self._tx.shard.lanes <= FEW:
            lanes = read(f"{order}_few", most, prefix, prefix + _LAST, self._tx.now)
            lanes += read(f"{order}_parts", FEW, prefix, prefix + _LAST)
            return (
                lanes if not prefix else lanes + read(f"{order}_parts", FEW, BUCKET, BUCKET + _LAST)
            )
        looked_at = most if pattern == "*" else max(FEW, most)
        lanes = read(f"{order}_listed", looked_at, most, prefix, prefix + _LAST, BUCKET + _LAST)
        if len(lanes) < most:
            lanes += read(f"{order}_named", most - len(lanes), BUCKET, BUCKET + _LAST)
            lanes += read(f"{order}_named", most - len(lanes), prefix or PARTITION, prefix + _LAST)
        return list({row[0]: row for row in lanes}.values())

    def _folded(self, order: str, prefix: str) -> Iterator[Candidate]:
        """The first topics in buckets, in the order of their names."""
        if order not in FOLDED:
            return
        for topic, worth in self._tx.all(
            f"{order}_folded", prefix, prefix + _LAST, CANDIDATES, FEW
        ):
            value = worth or 0
            if order == "age":
                value = self.now_us - worth + 1 if worth is not None else 0
            yield Candidate(topic, value, is_exact=int(value) != FEW)
