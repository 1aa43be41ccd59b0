"""
The statements of top lists, for `listing`: by the order's name and what they read.

Each has {columns} of a lane, which `listing.ORDERS` turns into the lane's value.
"""

from __future__ import annotations

from laneway.engines.shared.listing import LEASED
from laneway.engines.shared.size_classes import WINDOW_US

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
         LIMIT ?4)) {more}
  FROM found WHERE found.topic IS NOT NULL"""


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
# `throttled`, `held_since` and `held_until` in `rows.MORE`
_COUNTED, _SINCE, _UNTIL = (f"coalesce(json_extract(l.more, '$[{at}]'), 0)" for at in (5, 13, 14))
_RATE = f"""CASE WHEN ?4 - l.seen >= {2 * WINDOW_US} THEN 0
        WHEN ?4 - l.seen >= {WINDOW_US} THEN 1.0 * l.lately
                                                    * ({2 * WINDOW_US} - ?4 + l.seen)
        ELSE 1.0 * l.before * ({WINDOW_US} - ?4 + l.seen)
             + 1.0 * l.lately * {WINDOW_US} END DESC"""
"""As `size_classes.rate`, but for a factor."""

_ORDERS = (
    # order, class (a column of `lane`, which also names the index), way, columns, sort
    ("backlog", "big", "DESC", f"{_WAITING}, l.leased", f"{_BACKLOG} DESC"),
    ("age", "old", "ASC", _FRONT, _BY_FRONT),
    ("rate", "busy", "DESC", "l.seen, l.lately, l.before", _RATE),
    (
        *("throttled", "slow", "DESC", f"{_COUNTED}, {_SINCE}, {_UNTIL}"),
        f"{_COUNTED} + max(0, min(?4, {_UNTIL}) - {_SINCE}) DESC",
    ),
)
_KINDS = {"listed": _LISTED, "named": _NAMED, "few": _FEW, "parts": _PARTS}

STATEMENTS = {
    f"{order}_{kind}": text.format(index=index, way=way, columns=columns, sort=sort)
    for order, index, way, columns, sort in _ORDERS
    for kind, text in _KINDS.items()
} | {  # for a topic in a bucket, over its messages; buckets do not count others by topic
    "backlog_folded": _FOLDED.format(
        worth="count(*)",
        states=f"m.state IN (1, 2) OR {_READY}",
        more=f"""+ (
    SELECT count(*) FROM (
        SELECT 1 FROM message m WHERE m.topic = found.topic AND m.state < 3 LIMIT ?4)
    ) / {2.0 * LEASED}""",  # topics with as many waiting messages: as their leases
    ),
    "age_folded": _FOLDED.format(worth="min(since)", states=_READY, more=""),
}
