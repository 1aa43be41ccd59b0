"""Reading for people: topics, messages, cursors, gates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from laneway.engines.base import MessageView, TopicStats
from laneway.engines.shared import gates, size_classes
from laneway.engines.shared.naming import BUCKET, lane_name, parse_generated_id
from laneway.engines.shared.states import (
    ASLEEP,
    AT_GATE,
    DEAD,
    DELAYED,
    FULL,
    IDLE,
    PARKED,
    PAUSED,
    RUNNABLE,
)
from laneway.engines.sqlite import messages
from laneway.engines.sqlite.rows import Held, Lane, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from laneway.engines.sqlite.rows import GateState
    from laneway.engines.sqlite.transaction import Transaction

ALL = 1 << 40
_FIRST_RANK = -(1 << 20)
_PLACE_NAMES = {
    IDLE: "idle",
    RUNNABLE: "runnable",
    ASLEEP: "asleep",
    AT_GATE: "at_gate",
    FULL: "full",
    PAUSED: "paused",
}
_STATE_NAMES = {DELAYED: "delayed", PARKED: "parked", DEAD: "dead"}
_SUMMED = (
    "ready",
    "delayed",
    "parked",
    "leased",
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


class Leased:
    """Which messages are leased: read once for a call, there are never more than workers hold."""

    def __init__(self, tx: Transaction) -> None:
        held = (Held(*row) for row in tx.all("leases_all"))
        self._by_mid = {each.mid: each for each in held if not each.gone and each.empty is None}

    def of(self, mid: int) -> Held | None:
        return self._by_mid.get(mid)


# Lanes


def lanes_of(tx: Transaction, topic: str) -> list[Lane]:
    """A topic's lanes as they are (a folded topic: its bucket's)."""
    names = _lane_names(tx, topic)
    tx.load_names(names)
    return _known_lanes(tx, names)


def _lane_names(tx: Transaction, topic: str) -> list[str]:
    policy = tx.policy(topic)
    return [lane_name(policy, topic, None, n)[0] for n in range(policy.partitions)]


def _known_lanes(tx: Transaction, names: Iterable[str]) -> list[Lane]:
    return [lane for name in names if (lane := tx.find_lane(name)) is not None]


_as_list = msgspec.json.Encoder().encode


def lanes_under(tx: Transaction, pattern: str) -> Iterator[Lane]:
    """All lanes that the pattern may cover, buckets included."""
    stem = pattern.removesuffix("*")
    for low, high in (
        (BUCKET, BUCKET + "\U0010ffff"),
        (stem[:-1] if stem != pattern else stem, stem + "\U0010ffff"),
    ):
        for row in tx.all("lanes_in_range", low, high, ALL):
            yield tx.keep(row)
    if stem == pattern and (lane := tx.find_lane(pattern)) is not None:
        yield lane


def all_lanes(tx: Transaction) -> list[Lane]:
    return [tx.keep(row) for row in tx.all("lanes_all", ALL)]


def topics_in(tx: Transaction, lane: Lane) -> list[str]:
    """The topics whose messages are in a lane."""
    if lane.topic is not None:
        return [lane.topic]
    prefix = lane.rule.removesuffix("*")
    found, after = [], prefix
    while (step := tx.one("folded_topic_next", after)) is not None and step[0].startswith(prefix):
        after = step[0]
        found.append(after)
    return found


def holds(tx: Transaction, lane: Lane, topic: str) -> tuple[int, int]:
    """
    How many messages of a topic wait, and are leased, in a lane or, of a folded topic, in its
    bucket.
    """
    if lane.topic is not None:
        return lane.waiting, lane.leased
    counts = tx.all("folded_counts", topic)
    return sum(row[2] for row in counts if not row[1]), sum(row[2] for row in counts if row[1])


def topic_stats(tx: Transaction, topic: str) -> TopicStats:
    """What a topic holds and did; without its cursors."""
    return many_stats(tx, [topic])[0]


def many_stats(tx: Transaction, topics: Sequence[str]) -> list[TopicStats]:
    """Several topics: their lanes, heads and dead letters are read together."""
    tx.policies(topics)  # of all at once
    names = {topic: _lane_names(tx, topic) for topic in topics}
    tx.load_names(name for own in names.values() for name in own)
    lanes = {topic: _known_lanes(tx, own) for topic, own in names.items()}
    oldest = oldest_of(
        tx,
        [
            lane.lane
            for own in lanes.values()
            for lane in own
            if lane.ready and lane.topic is not None
        ],
    )
    dead = dict(tx.all("dead_counts", _as_list(topics)))
    return [_stats(tx, topic, lanes[topic], oldest, dead[topic]) for topic in topics]


def _stats(
    tx: Transaction, topic: str, lanes: list[Lane], oldest: Mapping[int, int], dead: int
) -> TopicStats:
    policy = tx.policy(topic)
    stats = TopicStats(topic, pool=policy.pool, tier=policy.tier, dead=dead)
    for lane in lanes:
        if lane.rest_step and lane.rest_until > tx.now:
            stats.backs_off_until_us = max(stats.backs_off_until_us or 0, lane.rest_until)
        _add_place(stats, lane)
        if lane.topic is not None:
            _add_lane(tx, stats, lane, oldest.get(lane.lane))
    if policy.buckets is not None:
        _count_folded(tx, stats)
    stats.waiting = stats.ready + stats.delayed + stats.parked
    return stats


def _add_place(stats: TopicStats, lane: Lane) -> None:
    if stats.state == "idle":
        stats.state = _PLACE_NAMES[lane.place]
        stats.wake_us = lane.wake if lane.place == ASLEEP else None


def _add_lane(tx: Transaction, stats: TopicStats, lane: Lane, oldest: int | None) -> None:
    for name in _SUMMED:
        setattr(stats, name, getattr(stats, name) + getattr(lane, name))
    stats.throttled_us += lane.throttled
    stats.rate_now += size_classes.rate(tx.now, lane.seen, lane.lately, lane.before)
    if oldest is not None:
        stats.oldest_us = oldest if stats.oldest_us is None else min(stats.oldest_us, oldest)


def oldest_of(tx: Transaction, lanes: Sequence[int]) -> dict[int, int]:
    """The since of the oldest ready message of each of these lanes that has one."""
    return {
        lane: since
        for lane, *front in tx.all("lane_fronts", _as_list(lanes))
        if (since := oldest_behind(tx, lane, *front)) is not None
    }


def oldest_behind(
    tx: Transaction, lane: int, first_rank: int | None, pos: int | None, last_rank: int | None
) -> int | None:
    """
    The same from a lane's front, see `lane_fronts`; most lanes have one rank, whose first message
    is the oldest.
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
    """The ranks that occur, by skipping from one to the next."""
    rank = _FIRST_RANK
    while (step := tx.one(query, *where, rank)) is not None:
        rank = int(step[0])
        yield rank


# Cursors


def cursors(tx: Transaction, topic: str) -> dict[int, tuple[int, int]]:
    """
    Per priority: scan and done cursor. Computed from what is outstanding: an idle topic keeps
    nothing.
    """
    unseen: dict[int, int] = {}
    unfinished: dict[int, int] = {}
    for lane in lanes_of(tx, topic):
        for rank in _ranks(tx, "ready_next_rank", lane.lane):
            plain = tx.one("plain_first", lane.lane, rank)
            if plain is not None:
                _lower(unseen, rank, plain[0])
                _lower(unfinished, rank, plain[0])
        for rank in _ranks(tx, "odd_next_rank", lane.lane):
            _lower(unfinished, rank, tx.one("odd_first", lane.lane, rank)[0])
            first_unseen = tx.one("odd_first_unseen", lane.lane, rank)
            if first_unseen is not None:
                _lower(unseen, rank, first_unseen[0])
        for rank, seq in tx.all("leased_places", lane.lane):
            _lower(unfinished, rank, seq)
    last = tx.shard.seq
    return {
        priority: (unseen.get(priority, last + 1) - 1, unfinished.get(priority, last + 1) - 1)
        for priority in sorted({0, *unseen, *unfinished}, reverse=True)
    }


def _lower(found: dict[int, int], rank: int, seq: int) -> None:
    priority = -(rank >> 1)
    found[priority] = min(found.get(priority, seq), seq)


# Messages


def find(tx: Transaction, message_id: str, topic: str | None) -> Row | None:
    """A message by its id: one of our making names its row, one of the user's is looked up."""
    if topic is None:
        found = tx.one("ident_anywhere", message_id)
        mid = found[1] if found is not None else None
    else:
        found = tx.one("ident_read", message_id, topic)
        mid = found[0] if found is not None else None
    if mid is None:
        made = parse_generated_id(tx.shard.nonce, message_id)
        if made is None:
            return None
        its_topic = messages.made_topic(tx, made)
        if its_topic is None or topic not in (None, its_topic):
            return None
        mid = made
    return messages.read(tx, mid)


def state_of(tx: Transaction, topic: str, message_id: str, leased: Leased) -> str:
    """unknown, waiting, leased, finished or dead."""
    row = find(tx, message_id, topic)
    if row is None:
        known = tx.one("ident_read", message_id, topic)
        if known is None or (known[1] is not None and known[1] <= tx.now):
            return "unknown"
        return "finished"
    if row.state == DEAD:
        return "dead"
    return "leased" if leased.of(row.mid) is not None else "waiting"


def message_view(tx: Transaction, row: Row, leased: Leased) -> MessageView | None:
    """A message as people see it."""
    held = leased.of(row.mid)
    if row.state == DEAD:
        found = tx.one("dead_read", row.mid)
        return dead_view(tx, found) if found is not None else None
    lane = tx.lane(row.lane)
    view = _view(
        tx,
        row,
        messages.topic_of(row, lane),
        "leased" if held is not None else _STATE_NAMES.get(row.state, "ready"),
    )
    if held is not None:
        view.fence, view.deadline_us, view.deliveries = (
            held.fence,
            held.deadline,
            row.deliveries + 1,
        )
    return view


def dead_view(tx: Transaction, dead: tuple[Any, ...]) -> MessageView | None:
    """A dead letter, from its row of `dead`."""
    _, mid, topic, died, _, reason, error = dead
    row = messages.read(tx, mid)
    if row is None:
        return None
    view = _view(tx, row, topic, "dead")
    view.reason, view.error, view.died_us = reason, error, died
    return view


def _view(tx: Transaction, row: Row, topic: str, state: str) -> MessageView:
    note = tx.one("note_read", row.mid)
    bodies = [row.body, *(body for _, body in tx.all("parts_read", row.mid))] if row.parts else None
    return MessageView(
        id=messages.id_of(tx, row),
        topic=topic,
        state=state,
        body=row.body,
        key=row.key,
        priority=row.priority,
        headers=msgspec.json.decode(row.headers) if row.headers else None,
        seq=row.seq,
        published_us=row.published,
        since_us=row.since,
        expires_us=row.expires,
        attempts=row.attempts,
        deliveries=row.deliveries,
        suspect=bool(row.suspect),
        bodies=bodies,
        history=msgspec.json.decode(note[2]) if note is not None else [],
    )


def peek(tx: Transaction, topic: str, limit: int) -> list[MessageView]:
    """Ready ones in order, then the parked, then the delayed by due time."""
    policy = tx.policy(topic)
    rows: list[Row] = []
    if policy.buckets is not None:
        rows = [Row(*row) for row in tx.all("folded_list", topic, limit)]
    else:
        lanes = lanes_of(tx, topic)
        ready = [Row(*row) for lane in lanes for row in tx.all("ready_list", lane.lane, limit)]
        rows = sorted(ready, key=lambda row: (row.rank, row.pos, row.seq))
        for state in (PARKED, DELAYED):
            if len(rows) < limit:
                aside = [
                    Row(*row)
                    for lane in lanes
                    for row in tx.all("aside_list", lane.lane, state, limit)
                ]
                rows += sorted(aside, key=lambda row: (row.since, row.seq))
    leased = Leased(tx)
    return [view for row in rows[:limit] if (view := message_view(tx, row, leased)) is not None]


def gate_view(tx: Transaction, gate: GateState, counted: int) -> dict[str, Any]:
    """A gate's limits and what they hold back."""
    return gates.view(
        gate.name,
        gate.limits,
        tat=gate.tat,
        leased=gate.leased,
        waiting=tx.one("gate_lanes", gate.name, counted)[0],
        now_us=tx.now,
    )
