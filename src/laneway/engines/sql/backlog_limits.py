"""
Backlog limits of a put, and what it drops where the oldest messages make room. The rule is
docs/specification.md, "Backlog limits".

For example, 100 topics with `max_backlog=1000` and `on_full="drop_oldest"` are full, and a put has
5 messages for each of them. The first 5 places of all these topics are read together, then the
messages there in one statement. Each new message drops the first one of its topic, and gets a place
among those that the next one may drop.

Why this is correct. While a put decides, the place of a waiting message changes only when another
one joins it, and it gets the new place then, as new messages do. A place counts only if its message
still stands there. What was not read stands behind `Backlog.end`: if nothing is left up to there,
the places are read again.

A dropped head of a serial key holds its key until the put ends, so what comes meanwhile is parked,
and one statement then reads who is next for all keys. Which message is dropped does not depend on
that: parked messages are dropped in the same order as ready ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, nsmallest

from laneway.engines.shared.naming import lane_names
from laneway.engines.shared.refusals import DROPPED, full
from laneway.engines.shared.states import DEAD
from laneway.engines.sql import key_limits, message_ends, messages
from laneway.engines.sql.backlog import Backlog, Place
from laneway.engines.sql.rows import Lane, Row
from laneway.engines.sql.store import Read
from laneway.engines.sql.transaction import Transaction
from laneway.engines.sql.wanted import ALL_RANKS
from laneway.message import Draft
from laneway.policy import Resolved

EVERY, TOPIC, NAMESPACE = slice(4), slice(2), slice(2, 4)
"""Which of the four limits count: those of the topic and of the namespace, by count and size."""

MOST_PLACES, MOST_BYTES = 1_000, 16 << 20
"""
Places of a topic that are read together, and bytes of the bodies that are read with them. Messages
beyond that are read one by one.
"""

LARGE, MOST_COUNTED = 500, 100
"""
A bucket counts a topic from this number of messages on, and at most this number of topics, because
the counts are a part of its row.
"""

_Amounts = tuple[int, int, int, int]
"""Of what the four limits count, in `_UNITS`."""

_UNITS = "messages", "bytes", "messages", "bytes"


def read(tx: Transaction, limited: Sequence[tuple[Draft, Resolved]]) -> None:
    """
    Read what the limits of these messages, each with its policy, need: how much of their
    topics waits, and what they will probably drop.
    """
    for draft, policy in limited:
        backlog = tx.backlogs.get(draft.topic)
        if backlog is None:
            lanes = lane_names(policy, draft.topic)
            backlog = tx.backlogs[draft.topic] = Backlog(draft.topic, policy, lanes)
        if draft.id is None or not messages.is_known(tx, draft.topic, draft.id):
            backlog.expected += 1
            backlog.expected_bytes += len(draft.body)
    backlogs = list(tx.backlogs.values())
    tx.load_names(name for backlog in backlogs for name in backlog.lanes)
    folded = [
        backlog
        for backlog in backlogs
        if backlog.policy.buckets is not None and _may_be_full(tx, backlog)
    ]
    _count(tx, folded)
    count = sum(backlog.expected for backlog in backlogs)
    size = sum(backlog.expected_bytes for backlog in backlogs)
    dropping = []
    for backlog in backlogs:
        over = _exceeded(tx, backlog, (backlog.expected, backlog.expected_bytes, count, size))
        if over is not None and over[-1] == "drop_oldest":
            dropping.append(backlog)
    if dropping:
        _read_places(tx, dropping)


def _count(tx: Transaction, backlogs: Sequence[Backlog]) -> None:
    """
    Count what waits of these topics in their buckets. Large topics are counted once: from then on
    their bucket counts them, so that a put into a full one does not read all of its messages.
    """
    uncounted = []
    for backlog, lane in ((each, lane) for each in backlogs for lane in tx.lanes_named(each.lanes)):
        counts = lane.folded.get(backlog.topic) if lane.folded is not None else None
        if counts is None:
            uncounted.append((backlog, lane))
        else:
            backlog.resize(*counts)
    pages = tx.pages([("topic_waiting", lane.lane, backlog.topic) for backlog, lane in uncounted])
    for (backlog, lane), [counts] in zip(uncounted, pages, strict=True):
        count, size = map(int, counts)
        backlog.resize(count, size)
        if count >= LARGE and len(lane.folded or ()) < MOST_COUNTED:
            lane.folded = {**(lane.folded or {}), backlog.topic: [count, size]}
            tx.touch(lane)


def _may_be_full(tx: Transaction, backlog: Backlog) -> bool:
    """
    Whether a topic's messages have to be counted: all topics of its bucket together would be above
    its limits.
    """
    lanes, policy = tx.lanes_named(backlog.lanes), backlog.policy
    count = sum(lane.waiting for lane in lanes) + backlog.expected
    size = sum(lane.bytes for lane in lanes) + backlog.expected_bytes
    return not (
        (policy.max_backlog is None or count <= policy.max_backlog)
        and (policy.max_backlog_bytes is None or size <= policy.max_backlog_bytes)
    )


def _waiting(tx: Transaction, backlog: Backlog) -> tuple[int, int]:
    """How many messages of a topic wait, and their bytes."""
    if backlog.policy.buckets is not None:
        return backlog.folded, backlog.folded_bytes
    lanes = tx.lanes_named(backlog.lanes)
    return sum(lane.waiting for lane in lanes), sum(lane.bytes for lane in lanes)


def _exceeded(
    tx: Transaction, backlog: Backlog, coming: _Amounts, which: slice = EVERY
) -> tuple[int, int, int, str, str, str] | None:
    """
    The first limit that these amounts would exceed: what it is, how much waits, how much comes,
    whose it is, the unit, and `on_full`.
    """
    policy, rules, shard = backlog.policy, tx.rules, tx.shard
    most = policy.max_backlog, policy.max_backlog_bytes, rules.max_backlog, rules.max_backlog_bytes
    waiting = *_waiting(tx, backlog), shard.waiting, shard.bytes
    for n in range(4)[which]:
        limit = most[n]
        if limit is not None and waiting[n] + coming[n] > limit:
            whose = f"topic {backlog.topic}" if n < 2 else "the namespace"
            on_full = policy.on_full if n < 2 else rules.on_full
            return limit, waiting[n], coming[n], whose, _UNITS[n], on_full
    return None


def make_room(
    tx: Transaction, draft: Draft, arrivals: dict[str, Lane] | None, which: slice = EVERY
) -> str | None:
    """
    Check the backlog limits of the topic and the namespace, and drop the oldest messages where the
    policy says so. Their lanes are added to `arrivals`, by name; without it, they are dropped
    later. Returns why there is no room, or None if there is, or if the call drops no more.
    """
    backlog, size, spare = tx.backlogs[draft.topic], len(draft.body), tx.spare_drops + 1
    while (over := _exceeded(tx, backlog, (1, size, 1, size), which)) is not None:
        most, waiting, needed, whose, unit, on_full = over
        # A message that is larger than the limit by itself would drop all others in vain. One that
        # is only copied has no backlog of its own.
        drops = on_full == "drop_oldest" and needed <= most and which is not NAMESPACE
        if drops and (arrivals is None or not spare):
            return None
        if not drops or arrivals is None or not _drop_oldest(tx, backlog, arrivals):
            return full(whose, waiting, unit, most)
        spare -= 1
        tx.spare_drops = min(tx.spare_drops, spare)
    return None


def _drop_oldest(tx: Transaction, backlog: Backlog, arrivals: dict[str, Lane]) -> bool:
    """Drop the oldest message of the lowest priority; False: none may be dropped."""
    row = _first(tx, backlog)
    if row is None:
        return False
    lane = tx.lane(row.lane)
    arrivals[lane.name] = tx.ensure_lane(lane.name, lane.rule)
    messages.take_out(tx, lane, row)
    if row.serial:
        _leave_key(tx, backlog, lane, row)
    lane.removed += 1
    tx.shard.removed += 1
    messages.bury(tx, lane, row, DROPPED, None)
    return True


def _leave_key(tx: Transaction, backlog: Backlog, lane: Lane, row: Row) -> None:
    """
    A dropped message leaves its serial key. If it is the head, and others may be parked behind it,
    it holds the key until the end of the put.
    """
    key = row.line or ""
    if lane.parked and (head := tx.serial_keys.get(lane.lane, key)) and head[0] == row.mid:
        tx.serial_keys.hold(lane.lane, key, row.mid)
        backlog.freed.append((lane, key))
    else:
        messages.free_key(tx, lane, key, row.mid)


def end(tx: Transaction) -> None:
    """The first parked messages take the places of the heads that were dropped."""
    freed = [each for backlog in tx.backlogs.values() for each in backlog.freed]
    messages.free_held_keys(tx, freed)


def _first(tx: Transaction, backlog: Backlog) -> Row | None:
    """The message to drop first, or None if none may be dropped."""
    while True:
        places, end = backlog.places, backlog.end
        while places and (end is None or places[0] <= end):
            place = places[0]
            row = tx.messages.get(place.mid)
            if (
                row is not None
                and row.state != DEAD
                and Place.of(row) == place
                and not message_ends.is_end_notice(row.headers)
                and not (row.serial and messages.holds_key(tx, tx.lane(row.lane), row))
            ):
                return row
            heappop(places)
        if backlog.is_read and end is None:
            return None
        backlog.expected *= 2
        _read_places(tx, [backlog])


class _Order:
    """The messages of a lane, or of a topic in a bucket, in the order in which they are dropped."""

    def __init__(self, source: Lane | str, most: int) -> None:
        self.places: list[Place] = []
        self.end: Place | None = None
        """The last one that was read, or None if all were."""
        self._source, self._most = source, most
        self._below = ALL_RANKS[1]
        """Smaller ranks were not read."""

    def read(self) -> Read:
        """The statement that reads the next ones: of a lane, all of one priority."""
        source, most = self._source, self._most - len(self.places)
        if isinstance(source, str):
            return "victims_in_bucket", source, self._below, most
        return "victims", source.lane, self._below, most, *source.place_below(self._below)

    def add(
        self,
        tx: Transaction,
        page: Sequence[tuple[int | None, int | None, int, int, int, int | None]],
    ) -> bool:
        """Add those that were read. Returns whether there may be more, and more are wanted."""
        front = page[-1][1] if page else None
        if front is None:
            self.end = None
            return False
        self._below, first = front, page[0][-1]
        if (
            first is not None
            and isinstance(self._source, Lane)
            and self._source.begin_rank_at(front + 1, first)
        ):
            tx.touch(self._source)
        self.places += [
            Place(-(rank >> 1), since, seq, mid)
            for mid, rank, since, seq, *_ in page
            if mid is not None and rank is not None
        ]
        self.end = self.places[-1] if self.places else None
        return len(self.places) < self._most


def _read_places(tx: Transaction, backlogs: Sequence[Backlog]) -> None:
    """Read the first places of these topics, and what it takes to drop the messages there."""
    orders: dict[Backlog, list[_Order]] = {}
    for backlog in backlogs:
        most = backlog.expected = min(backlog.expected, MOST_PLACES)
        orders[backlog] = (
            [_Order(backlog.topic, most)]
            if backlog.policy.buckets is not None
            else [_Order(lane, most) for lane in tx.lanes_named(backlog.lanes)]
        )
    unread = [order for its in orders.values() for order in its]
    sizes: dict[int, int] = {}
    while unread:
        pages = tx.pages([order.read() for order in unread])
        sizes.update((mid, size) for page in pages for mid, *_, size, _ in page)
        unread = [order for order, page in zip(unread, pages, strict=True) if order.add(tx, page)]
    mids: list[int] = []
    left = MOST_BYTES
    for backlog, its in orders.items():
        places = [place for order in its for place in order.places]
        backlog.set_places(places, min((order.end for order in its if order.end), default=None))
        for place in nsmallest(backlog.expected, places):
            left -= sizes[place.mid]
            if left >= 0:
                mids.append(place.mid)
    load(tx, mids)


def load(tx: Transaction, mids: Sequence[int]) -> None:
    """Read these waiting messages, and what it takes to drop them."""
    tx.messages.load(mids)
    rows = [row for mid in mids if (row := tx.messages.get(mid)) is not None]
    if merging := [(row.lane, row.mkey) for row in rows if row.mkey is not None]:
        tx.merge_keys.load(merging)
    lines = [(row, (row.lane, line)) for row in rows if (line := row.line) is not None]
    tx.serial_keys.load(line for row, line in lines if row.serial)
    if limited := [line for row, line in lines if not row.serial and tx.lane(row.lane).parked]:
        key_limits.load(tx, limited)
