"""Reads for people: the facts about topics, messages, cursors and gates, for `shared.views`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from laneway.engines.base import (
    MAX_DELAYED_COUNTED,
    HeldState,
    IdState,
    LaneRate,
    MessageView,
    TopicStats,
)
from laneway.engines.sharded.splitting import pages
from laneway.engines.shared import adaptive, size_classes, views as shared
from laneway.engines.shared.adaptive import Share
from laneway.engines.shared.naming import BUCKET, lane_names, parse_generated_id
from laneway.engines.shared.states import (
    DEAD,
    DELAYED,
    PARKED,
    RUNNABLE,
    STATE_NAMES,
)
from laneway.engines.sql import leases, messages
from laneway.engines.sql.rows import Held, Lane, Row
from laneway.engines.sql.transaction import Transaction
from laneway.engines.sql.wanted import ALL_RANKS
from laneway.policy import Resolved
from laneway.topic_groups import TOPIC

ALL = 1 << 40

IDS_AT_ONCE = 5_000
"""Ids that one statement looks up."""

_ASIDE = (PARKED, DELAYED)
_STATES = {name: state for state, name in STATE_NAMES.items()}


def leased(tx: Transaction) -> dict[int, Held]:
    """The leases by message, read once for a call: there are no more than workers hold."""
    leases = (Held(*row) for row in tx.all("leases_all"))
    return {each.mid: each for each in leases if not each.gone and each.empty is None}


# Lanes


def lanes_of(tx: Transaction, topic: str) -> list[Lane]:
    """The existing lanes of a topic; of a folded topic, its bucket."""
    return tx.lanes_named(lane_names(tx.policy(topic), topic))


def lanes_under(tx: Transaction, pattern: str) -> Iterator[Lane]:
    """All lanes that the pattern may cover, and all buckets."""
    stem = pattern.removesuffix("*")
    for low, high in (
        (BUCKET, BUCKET + "\U0010ffff"),
        (stem[:-1] if stem != pattern else stem, stem + "\U0010ffff"),
    ):
        for row in tx.all("lanes_in_range", low, high, ALL):
            yield tx.cached_lane(row)
    if stem == pattern and (lane := tx.find_lane(pattern)) is not None:
        yield lane


def all_lanes(tx: Transaction) -> list[Lane]:
    return [tx.cached_lane(row) for row in tx.all("lanes_all", ALL)]


def topics_in(tx: Transaction, lane: Lane) -> list[str]:
    if lane.topic is not None:
        return [lane.topic]
    prefix = lane.rule.removesuffix("*")
    topics, after = [], prefix
    while (step := tx.one("folded_topic_next", after)) is not None and step[0].startswith(prefix):
        after = step[0]
        topics.append(after)
    return topics


def holds(tx: Transaction, lane: Lane, topic: str) -> tuple[int, int]:
    """How many messages of the topic wait in the lane, and how many are leased."""
    if lane.topic is not None:
        return lane.waiting, lane.leased
    counts = tx.all("folded_counts", topic)
    return sum(row[2] for row in counts if not row[1]), sum(row[2] for row in counts if row[1])


def many_stats(tx: Transaction, topics: Sequence[str]) -> list[TopicStats]:
    """
    Counts and states of topics, without cursors; lanes, oldest and dead letters are read together.
    """
    tx.policies(topics)  # caches them, with few statements
    names = {topic: lane_names(tx.policy(topic), topic) for topic in topics}
    tx.load_names(name for own in names.values() for name in own)
    lanes = {topic: tx.lanes_named(own) for topic, own in names.items()}
    oldest = oldest_of(
        tx,
        [
            lane.lane
            for own in lanes.values()
            for lane in own
            if lane.ready and lane.topic is not None
        ],
    )
    dead = dict(tx.all("dead_counts", tx.array(topics)))
    return [_stats(tx, topic, lanes[topic], oldest, dead[topic]) for topic in topics]


def _stats(
    tx: Transaction, topic: str, lanes: list[Lane], oldest: Mapping[int, int], dead: int
) -> TopicStats:
    policy = tx.policy(topic)
    stats = shared.empty_topic(topic, policy, dead)
    for lane in lanes:
        shared.add_lane(stats, lane, policy, tx.now, is_bucket=lane.topic is None)
        if lane.topic is not None:
            shared.add_oldest(stats, oldest.get(lane.lane))
    if lanes:
        stats.limit = stats.limit or shared_limit(topic, policy, [tx])
    if policy.buckets is not None:
        _count_folded(tx, stats)
    return shared.finish_topic(stats)


def shared_limit(topic: str, policy: Resolved, stores: Sequence[Transaction]) -> int | None:
    """The limit that the topic's partitions in these stores share, if it adapts."""
    shares = shares_of(topic, policy, stores)
    return adaptive.limit_of_all(shares) if shares else None


def shares_of(topic: str, policy: Resolved, stores: Sequence[Transaction]) -> list[Share]:
    """What each of these stores has of that limit."""
    if policy.shared is None or policy.shared.least is None:
        return []
    states = [tx.gate(TOPIC + topic) for tx in stores]
    shares = [state.share for state in states if state is not None]
    return [share for share in shares if share is not None]


def oldest_of(tx: Transaction, lanes: Sequence[int]) -> dict[int, int]:
    """By lane: the since of its oldest ready message, if it has one."""
    return {
        lane: since
        for lane, *front in tx.all("lane_fronts", tx.array(lanes))
        if (since := oldest_behind(tx, lane, *front)) is not None
    }


def oldest_behind(
    tx: Transaction, lane: int, first_rank: int | None, pos: int | None, last_rank: int | None
) -> int | None:
    """
    The since of a lane's oldest ready message, from its front (see `lane_fronts`): most lanes have
    one rank, whose first message is the oldest.
    """
    if first_rank == last_rank and (first_rank is None or first_rank & 1):
        return pos
    ranks = _ranks(tx, "ready_next_rank", lane)
    oldest = [
        tx.one("ready_oldest" if rank & 1 else "ready_oldest_at_front", lane, rank)
        for rank in ranks
    ]
    return min((since for (since,) in oldest), default=None)


def _count_folded(tx: Transaction, stats: TopicStats) -> None:
    for state, is_leased, count, size, since in tx.all("folded_counts", stats.topic):
        if is_leased:
            stats.leased += count
            continue
        stats.bytes += size
        if state == DELAYED:
            stats.delayed += count
        elif state == PARKED:
            stats.parked += count
        else:
            stats.ready += count
            stats.oldest_us = since


def _ranks(tx: Transaction, query: str, *where: int) -> Iterator[int]:
    """The ranks that occur, found by skipping from one to the next; the first `MOST_RANKS`."""
    rank = ALL_RANKS[0]
    for _ in range(shared.MOST_RANKS):
        step = tx.one(query, *where, rank)
        if step is None:
            return
        rank = int(step[0])
        yield rank


# Cursors


def add_outstanding(tx: Transaction, topic: str, outstanding: shared.Cursors, first: int) -> None:
    """Add the topic's messages that are not finished; their numbers count from `first`."""
    for lane in lanes_of(tx, topic):
        for rank in _ranks(tx, "ready_next_rank", lane.lane):
            plain = tx.one("plain_first", lane.lane, rank)
            if plain is not None:
                outstanding.add(-(rank >> 1), plain[0] - first, was_delivered=False)
        if lane.parked:
            for rank in _ranks(tx, "aside_next_rank", lane.lane, PARKED):
                parked = tx.one("parked_first", lane.lane, rank)
                if parked is not None:
                    outstanding.add(-(rank >> 1), parked[0] - first, was_delivered=False)
        for rank in _ranks(tx, "odd_next_rank", lane.lane):
            (lowest,) = tx.one("odd_first", lane.lane, rank)
            outstanding.add(-(rank >> 1), lowest - first, was_delivered=True)
            undelivered = tx.one("odd_first_unseen", lane.lane, rank)
            if undelivered is not None:
                outstanding.add(-(rank >> 1), undelivered[0] - first, was_delivered=False)
        for rank, seq in tx.all("leased_places", lane.lane):
            outstanding.add(-(rank >> 1), seq - first, was_delivered=True)


# Messages


def prefetch(tx: Transaction, rows: Iterable[Row | None]) -> None:
    """Ask for what the views of these messages read."""
    for row in rows:
        if row is not None:
            tx.prefetch("note_read", row.mid)
            if row.parts:
                tx.prefetch("parts_read", row.mid)


def message_view(
    tx: Transaction, row: Row, leases_by_mid: Mapping[int, Held] | None = None
) -> MessageView | None:
    """A message as administration sees it. `leases_by_mid`: all leases, if they were read."""
    if row.state == DEAD:
        dead = tx.one("dead_read", row.mid)
        return dead_view(tx, dead) if dead is not None else None
    held = leases.of_message(tx, row) if leases_by_mid is None else leases_by_mid.get(row.mid)
    view = _view(tx, row, messages.topic_of(row, tx.lane(row.lane)))
    if held is not None:
        shared.set_lease(
            view,
            handle=held.mid,
            fence=held.fence,
            leased_us=held.granted,
            deadline_us=held.deadline,
            holder=held.holder,
        )
    return view


def all_messages(tx: Transaction) -> list[MessageView]:
    held = leased(tx)
    rows = [Row(*row) for row in tx.all("messages_all")]
    return [view for row in rows if (view := message_view(tx, row, held)) is not None]


def dead_view(tx: Transaction, dead: tuple[Any, ...]) -> MessageView | None:
    """A dead letter, from its row of `dead`."""
    _, mid, topic, died, _, reason, error = dead
    row = tx.messages.get(mid)
    if row is None:
        return None
    view = _view(tx, row, topic)
    view.reason, view.error, view.died_us = reason, error, died
    return view


def _view(tx: Transaction, row: Row, topic: str) -> MessageView:
    extra = tx.one("note_read", row.mid)
    return shared.message(
        row,
        id=tx.id_of(row),
        topic=topic,
        key=row.key,
        headers=msgspec.json.decode(row.headers) if row.headers else None,
        expires_us=row.expires,
        suspect=bool(row.suspect),
        parts=[body for _, body in tx.all("parts_read", row.mid)] if row.parts else None,
        history=msgspec.json.decode(extra[2]) if extra is not None else [],
    )


def peek_order(row: Row) -> tuple[int, ...]:
    """The key by which `peek_rows` sorts."""
    if row.state in _ASIDE:
        return (1 + _ASIDE.index(row.state), row.since, row.seq)
    return (0, row.rank, row.pos, row.seq)


def by_since(row: Row) -> tuple[int, int]:
    """The key by which leased messages are sorted."""
    return row.since, row.seq


def peek_rows(tx: Transaction, topic: str, limit: int, only: HeldState | None = None) -> list[Row]:
    """The first messages of a topic. `only`: of this state."""
    if only == "leased":
        return _leased_rows(tx, topic, limit)
    rows: list[Row] = []
    if tx.policy(topic).buckets is not None:
        found = (
            tx.all("folded_list", topic, limit)
            if only is None
            else tx.all("folded_list_of", topic, _STATES[only], limit)
        )
        rows = [Row(*row) for row in found]
    else:
        lanes = lanes_of(tx, topic)
        if only in (None, "ready"):
            ready = [Row(*row) for lane in lanes for row in tx.all("ready_list", lane.lane, limit)]
            rows = sorted(ready, key=peek_order)
        for state in _ASIDE:
            if len(rows) < limit and only in (None, STATE_NAMES[state]):
                aside = [
                    Row(*row)
                    for lane in lanes
                    for row in tx.all("aside_list", lane.lane, state, limit)
                ]
                rows += sorted(aside, key=peek_order)
    return rows[:limit]


def _leased_rows(tx: Transaction, topic: str, limit: int) -> list[Row]:
    """The leased messages of a topic; there are no more than workers hold."""
    rows = []
    for lane in lanes_of(tx, topic):
        leases_here = [Held(*found) for found in tx.all("leased_in_lane", lane.lane)]
        mids = [held.mid for held in leases_here if not held.gone and held.empty is None]
        tx.messages.load(mids)
        for mid in mids:
            row = tx.messages.get(mid)
            if row is not None and messages.topic_of(row, lane) == topic:
                rows.append(row)
    return sorted(rows, key=by_since)[:limit]


def delayed_times(tx: Transaction, topic: str) -> list[int]:
    """When delayed messages of a topic are due; of each lane, `MAX_DELAYED_COUNTED`."""
    if tx.policy(topic).buckets is not None:
        return [since for (since,) in tx.all("folded_delayed", topic, MAX_DELAYED_COUNTED)]
    return [
        since
        for lane in lanes_of(tx, topic)
        if lane.delayed
        for (since,) in tx.all("aside_delayed", lane.lane, MAX_DELAYED_COUNTED)
    ]


def tier_queue_counts(tx: Transaction) -> list[tuple[str, str, int, int]]:
    """(pool, tier, delivered, runnable lanes) of each tier queue."""
    return [
        (
            each.pool,
            each.tier,
            each.delivered,
            tx.one("tier_queue_runnable", each.number, shared.COUNTED)[0],
        )
        for each in tx.tier_queues.values()
    ]


def lane_rates(tx: Transaction, limit: int) -> list[LaneRate]:
    """The rates of lanes that can deliver, of so many with the largest backlogs."""
    lanes = tx.all("lane_rates_big", limit)
    if len(lanes) < limit:
        lanes += tx.all("lane_rates_small", limit - len(lanes))
    runnable = [(number, counts) for number, place, *counts in lanes if place == RUNNABLE]
    tx.groups.load({-number for number, _ in runnable if number < 0})
    tiers = {number: tx.tier_queue_at(number).tier for number in {each[0] for each in runnable}}
    return [
        LaneRate(tiers[number], size_classes.rate(tx.now, *counts)) for number, counts in runnable
    ]


# Ids


def lookup(tx: Transaction, topic: str, ids: Sequence[str]) -> dict[str, IdState]:
    """The state of each id: unknown, waiting, leased, finished or dead."""
    states: dict[str, IdState] = dict.fromkeys(ids, "unknown")
    for page in pages(list(states), IDS_AT_ONCE):
        of_messages: set[str] = set()
        for message_id, mid, until, stored, waits in tx.all("ident_states", topic, tx.array(page)):
            if stored is not None:
                states[message_id] = _state(stored, waits=waits)
            elif until is None or until > tx.now:
                states[message_id] = "finished"
            if mid is not None:
                of_messages.add(message_id)
        generated = {
            mid: message_id
            for message_id in page
            if message_id not in of_messages
            and (mid := parse_generated_id(tx.shard.nonce, message_id)) is not None
        }
        found = tx.all("generated_states", tx.array(list(generated))) if generated else ()
        for mid, stored, lane, its_topic, waits in found:
            if topic == (its_topic if its_topic is not None else tx.lane(lane).topic):
                states[generated[mid]] = _state(stored, waits=waits)
    return states


def _state(stored: int, *, waits: bool) -> IdState:
    if stored == DEAD:
        return "dead"
    return "waiting" if waits else "leased"
