"""How this engine finds topics, for `laneway.engines.shared.listing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway.engines.shared import listing, size_classes
from laneway.engines.shared.listing import CANDIDATES, FEW, LEASED, Candidate
from laneway.engines.shared.naming import BUCKET, PARTITION
from laneway.engines.shared.recent import KINDS, rate_of
from laneway.engines.sqlite import recent_counts, views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from laneway.engines.base import TopicStats
    from laneway.engines.sqlite.transaction import Transaction

_NAMES = ("lane_name_next", "folded_topic_next", "dead_topic_next")
_LAST = "\U0010ffff"

# Each statement names its index, and limits its rows before it joins: otherwise SQLite's planner
# sorts a million lanes, because it has no statistics of a partial index.

_LISTED = """
SELECT l.lane, l.name, l.rule, {columns}
  FROM (SELECT lane AS number FROM lane INDEXED BY lane_{index} WHERE {index} IS NOT NULL
         ORDER BY {index} {way} LIMIT ?1) first
 CROSS JOIN lane l ON l.lane = first.number
 WHERE (l.name >= ?3 AND l.name < ?4) OR l.name < ?5
 LIMIT ?2"""

_NAMED = """
SELECT l.lane, l.name, l.rule, {columns} FROM lane l WHERE l.name >= ?2 AND l.name < ?3 LIMIT ?1"""

# Few lanes: those that are a whole topic are sorted here, the others are all read.
_FEW = """
SELECT l.lane, l.name, l.rule, {columns} FROM lane l
 WHERE l.name >= ?2 AND l.name < ?3 AND l.rule IS NULL AND ?4 > 0
 ORDER BY {sort}, l.name LIMIT ?1"""

_PARTS = """
SELECT l.lane, l.name, l.rule, {columns} FROM lane l
 WHERE l.name >= ?2 AND l.name < ?3 AND l.rule IS NOT NULL LIMIT ?1"""

_FOLDED = """
WITH RECURSIVE found (topic) AS (
    SELECT (SELECT topic FROM message WHERE topic > ?1 AND topic < ?2 ORDER BY topic LIMIT 1)
    UNION ALL
    SELECT (SELECT topic FROM message WHERE topic > found.topic AND topic < ?2
             ORDER BY topic LIMIT 1)
      FROM found WHERE found.topic IS NOT NULL
     LIMIT ?3
)
SELECT found.topic, (
    SELECT {worth} FROM (
        SELECT m.since FROM message m
         WHERE m.topic = found.topic AND ({states})
         LIMIT ?4))
  FROM found WHERE found.topic IS NOT NULL"""


class _Order:
    """
    The statements of one top list.

    `index`: the column of `lane` with the size classes, which also names the index. `columns`: what
    is read of a lane; `worth`: the lane's value computed from them, and `sort`: the same in SQL
    (?4: the time). `folded`: for a topic in a bucket, the aggregate over its messages' `since`, and
    the condition on the messages; None: buckets do not count this by topic.
    """

    def __init__(
        self,
        index: str,
        way: str,
        columns: str,
        worth: Callable[..., float | None],
        sort: str,
        folded: tuple[str, str] | None = None,
    ) -> None:
        self.listed = _LISTED.format(index=index, way=way, columns=columns)
        self.named = _NAMED.format(columns=columns)
        self.few = _FEW.format(columns=columns, sort=sort)
        self.parts = _PARTS.format(columns=columns)
        self.folded = (
            _FOLDED.format(worth=folded[0], states=folded[1]) if folded is not None else None
        )
        self.worth = worth


_READY = """m.state = 0 AND EXISTS (
    SELECT 1 FROM ready r
     WHERE r.lane = m.lane AND r.rank = m.rank AND r.seq = m.seq
       AND r.pos = CASE WHEN m.rank & 1 THEN m.since ELSE -m.seq END)"""
"""Condition: the message is in `ready`, so it is not leased; leases have no index by message."""

_FRONT = ", ".join(
    f"(SELECT {column} FROM ready r WHERE r.lane = l.lane ORDER BY {order} LIMIT 1) AS {name}"
    for name, column, order in (
        ("first_rank", "r.rank", "r.rank"),
        ("pos", "r.pos", "r.rank, r.pos"),
        ("last_rank", "r.rank", "r.rank DESC"),
    )
)
_BY_FRONT = """CASE WHEN first_rank = last_rank AND first_rank & 1 THEN pos
            WHEN first_rank IS NULL THEN 1 << 62 ELSE -(1 << 62) END"""
"""For lanes with several ranks the oldest message is searched afterwards."""

_WAITING = "l.ready + l.delayed + l.parked"
_BACKLOG = f"{_WAITING} + min(l.leased, {LEASED}) / {2.0 * LEASED}"  # as `listing.backlog`
_THROTTLED = "coalesce(json_extract(l.more, '$[5]'), 0)"
_RATE = f"""CASE WHEN ?4 - l.seen >= {2 * size_classes.WINDOW_US} THEN 0
        WHEN ?4 - l.seen >= {size_classes.WINDOW_US} THEN 1.0 * l.lately
                                                    * ({2 * size_classes.WINDOW_US} - ?4 + l.seen)
        ELSE 1.0 * l.before * ({size_classes.WINDOW_US} - ?4 + l.seen)
             + 1.0 * l.lately * {size_classes.WINDOW_US} END DESC"""
"""As `size_classes.rate`, but for a factor."""


def _as_it_is(_transaction: Transaction, _lane: int, number: int) -> float:
    return number


def _backlog(_transaction: Transaction, _lane: int, waiting: int, leased: int) -> float:
    return listing.backlog(waiting, leased)


def _rate(tx: Transaction, _lane: int, *counted: int) -> float:
    return size_classes.rate(tx.now, *counted)


def _age(tx: Transaction, lane: int, *front: int | None) -> float:
    oldest = views.oldest_behind(tx, lane, *front)
    return tx.now - oldest + 1 if oldest is not None else 0


ORDERS = {
    "backlog": _Order(
        "big",
        "DESC",
        f"{_WAITING}, l.leased",
        _backlog,
        f"{_BACKLOG} DESC",
        folded=("count(*)", f"m.state IN (1, 2) OR {_READY}"),
    ),
    "age": _Order("old", "ASC", _FRONT, _age, _BY_FRONT, folded=("min(since)", _READY)),
    "rate": _Order("busy", "DESC", "l.seen, l.lately, l.before", _rate, _RATE),
    "throttled": _Order("slow", "DESC", _THROTTLED, _as_it_is, f"{_THROTTLED} DESC"),
}
"""
By the names of `laneway.engines.shared.listing.MEASURES`, of those that are read of lanes. The
others have tables of topics.
"""


def topics(
    tx: Transaction, order: str, pattern: str, limit: int, after: str | None
) -> list[TopicStats]:
    """Topics of the pattern in the order asked for."""
    return listing.topics(Topics(tx), order, pattern, limit, after)


class Topics:
    """What `laneway.engines.shared.listing` reads of one file."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.now_us = tx.now

    def stats(self, topics: Sequence[str]) -> list[TopicStats]:
        return views.many_stats(self._tx, topics)

    def has_something(self, topic: str) -> bool:
        stats = views.topic_stats(self._tx, topic)
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
        entry = ORDERS[order]
        folded: set[str | None] = set()
        for lane, name, rule, *columns in self._lanes(entry, pattern, most):
            if name.startswith(BUCKET):
                folded.add(listing.common_prefix(pattern, rule))
                continue
            worth = entry.worth(self._tx, lane, *columns) or 0
            yield Candidate(rule or name, worth, is_exact=rule is None)
        for prefix in folded:
            if prefix is not None:
                yield from self._folded(order, entry, prefix)

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

    def _lanes(self, entry: _Order, pattern: str, most: int) -> list[tuple[Any, ...]]:
        """
        All lanes, if there are few. Otherwise the first ones of the index, and others of the
        pattern if the index has too few.
        """
        prefix = pattern.removesuffix("*")
        if self._tx.shard.lanes <= FEW:
            lanes = self._read(entry.few, most, prefix, prefix + _LAST, self._tx.now)
            lanes += self._read(entry.parts, FEW, prefix, prefix + _LAST)
            return (
                lanes
                if not prefix
                else lanes + self._read(entry.parts, FEW, BUCKET, BUCKET + _LAST)
            )
        looked_at = most if pattern == "*" else max(FEW, most)
        lanes = self._read(entry.listed, looked_at, most, prefix, prefix + _LAST, BUCKET + _LAST)
        if len(lanes) < most:
            lanes += self._read(entry.named, most - len(lanes), BUCKET, BUCKET + _LAST)
            lanes += self._read(entry.named, most - len(lanes), prefix or PARTITION, prefix + _LAST)
        return list({row[0]: row for row in lanes}.values())

    def _read(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._tx.connection.execute(statement, values).fetchall()

    def _folded(self, order: str, entry: _Order, prefix: str) -> Iterator[Candidate]:
        """The first topics in buckets, in the order of their names."""
        if entry.folded is None:
            return
        for topic, worth in self._read(entry.folded, prefix, prefix + _LAST, CANDIDATES, FEW):
            value = worth or 0
            if order == "age":
                value = self.now_us - worth + 1 if worth is not None else 0
            yield Candidate(topic, value, is_exact=value != FEW)
