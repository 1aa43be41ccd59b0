"""
Removal: purge and delete of a topic, cancelling a message, dropping and redriving dead letters.
And what else operators do to messages that wait: ready now, dead, and a topic that backs off.

Each call removes at most a page, so that other processes do not wait long for the write lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from laneway.engines.base import (
    ABORT,
    UNTIL_SIGNALLED_US,
    CancelAnswer,
    MoveAnswer,
    MoveTarget,
    result_name,
)
from laneway.engines.shared.states import DEAD, DELAYED, PARKED, RETENTION_ENDS
from laneway.engines.sql import backlog_limits, leases, message_ends, messages, settling, views
from laneway.engines.sql.rows import Held, Lane, Row
from laneway.engines.sql.transaction import Transaction

PAGE, PAGE_BYTES = 1000, 16 << 20
"""Most messages, leases and ids that one transaction removes, and how many bytes, about."""

LOADED = 50
"""Messages that are read together when their leases are ended, or dead letters dropped."""


def purge(tx: Transaction, topic: str, last: int) -> tuple[int, bool]:
    """
    Remove a page of waiting messages with sequence numbers up to `last`, but no end notice, because
    others wait for what it reports. Returns how many, and whether there may be more.
    """
    removed, most = 0, _page(views.lanes_of(tx, topic))
    waiting = _to_purge(tx, topic, most)
    backlog_limits.load(tx, [row.mid for _, row in waiting if row.key is not None])
    _load_extras(tx, [row for _, row in waiting])
    for lane, listed in waiting:
        # When a message was removed, the next one of its key may be ready now: read the row again.
        row = tx.messages.get(listed.mid) if listed.key is not None else listed
        if row is not None and row.seq <= last:
            message_ends.message_ended(tx, row, topic, "cancelled")
            messages.remove_waiting(tx, lane, row, topic)
            removed += 1
            if removed == most:
                break
    for lane in views.lanes_of(tx, topic):
        tx.place(lane)
    return removed, removed == most


def _page(lanes: Sequence[Lane]) -> int:
    """How many of the messages that wait in these lanes are a page, by their mean size."""
    waiting, size = sum(lane.waiting for lane in lanes), sum(lane.bytes for lane in lanes)
    return max(1, min(PAGE, PAGE_BYTES * waiting // max(size, 1)))


def _to_purge(tx: Transaction, topic: str, most: int) -> list[tuple[Lane, Row]]:
    """The first messages that wait, without end notices, which come first."""
    looked = most
    while True:
        waiting = _waiting(tx, topic, looked)
        found = [each for each in waiting if not message_ends.is_end_notice(each[1].headers)]
        if len(found) >= most or len(waiting) < looked:
            return found
        looked *= 2


def _waiting(tx: Transaction, topic: str, most: int) -> list[tuple[Lane, Row]]:
    if tx.policy(topic).buckets is not None:
        rows = [Row(*row) for row in tx.all("folded_any", topic, most)]
        return [(tx.lane(row.lane), row) for row in rows]
    waiting: list[tuple[Lane, Row]] = []
    for lane in views.lanes_of(tx, topic):
        # Parked messages first: else each removed head would only make the next one ready.
        for state in (PARKED, DELAYED):
            waiting += [(lane, Row(*row)) for row in tx.all("aside_any", lane.lane, state, most)]
        if len(waiting) < most:
            waiting += [(lane, Row(*row)) for row in tx.all("ready_list", lane.lane, most)]
    return waiting


class Deletion:
    """
    The deletion of a topic after its purge: dead letters, leases, known ids, counters. Each step is
    a transaction that removes at most a page of each.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.removed = 0
        """Dead letters and leases."""
        self.is_over = False
        self._after = 0
        self._last: int | None = None
        """The fences of the leases that are left: behind one, up to the last one of the start."""

    def step(self, tx: Transaction) -> None:
        """Remove the next page."""
        topic = self.topic
        self._last = tx.last_fence() if self._last is None else self._last
        letters = oldest_dead(tx, topic, PAGE)
        dropped = drop_dead(tx, letters, PAGE_BYTES)
        self.removed += dropped
        if dropped == PAGE or dropped < len(letters) or self._end_leases(tx, self._last):
            return
        if PAGE in (tx.change(name, topic, PAGE) for name in _KNOWN_OF_TOPIC):
            return
        for lane in views.lanes_of(tx, topic):
            if lane.topic is not None and not (lane.waiting or lane.leased):
                tx.forget_keys([lane.lane])
                tx.forget(lane)
            else:  # a bucket, or notices that messages of the topic have ended wait in it
                tx.place(lane)
        self.is_over = True

    def _end_leases(self, tx: Transaction, last: int) -> bool:
        """End the next leases; returns whether there may be more."""
        lanes = views.lanes_of(tx, self.topic)
        numbers = tx.array([lane.lane for lane in lanes])
        page = [Held(*row) for row in tx.all("leases_of_lanes", numbers, self._after, last, PAGE)]
        size = 0
        for n, held in enumerate(page):
            if n % LOADED == 0:
                if size > PAGE_BYTES:
                    break
                settling.load_expired(tx, page[n : n + LOADED])
            row = tx.messages.get(held.mid)
            size += len(row.body) if row is not None else 0
            self.removed += _end_lease(tx, tx.lane(held.lane), held, self.topic)
            self._after = held.fence
        for lane in lanes:
            tx.place(lane)
        return bool(page) and (len(page) == PAGE or self._after < page[-1].fence)


_KNOWN_OF_TOPIC = ("idents_delete_topic", "edges_delete_topic")
"""Statements that delete known ids and merge windows of a topic."""


def _end_lease(tx: Transaction, lane: Lane, held: Held, topic: str) -> int:
    """
    Remove a leased message. Its lease stays, marked, so that settle answers "gone". An end notice
    waits again instead.
    """
    row = tx.messages.get(held.mid)
    if (
        held.gone
        or (row is not None and messages.topic_of(row, lane) != topic)
        or (row is None and lane.topic is None)
    ):
        return 0
    if row is not None and message_ends.is_end_notice(row.headers):
        settling.give_back(tx, lane, held, row)
        return 0
    tx.run("lease_gone", held.fence)
    leases.release_slots(tx, lane, held, tx.now - held.granted)
    if row is not None:
        message_ends.message_ended(tx, row, topic, "cancelled")
        messages.remove_ended(tx, lane, row, topic)
    else:
        message_ends.finished_message_ended(tx, held.mid, "cancelled")
        messages.free_key(tx, lane, held.empty or None, held.mid)
    return 1


# One message


def cancel(tx: Transaction, message_id: str, topic: str | None) -> CancelAnswer:
    """Cancel a message that waits, abort one that is leased; answers what was done."""
    row = messages.find(tx, message_id, topic)
    if row is None:
        return "unknown"
    if row.state == DEAD:
        return "dead"
    lane = tx.lane(row.lane)
    its_topic = messages.topic_of(row, lane)
    held = leases.of_message(tx, row)
    message_ends.message_ended(tx, row, its_topic, "cancelled")
    if held is None:
        messages.remove_waiting(tx, lane, row, its_topic)
        tx.place(lane)
        return "cancelled"
    tx.run("leases_delete", tx.array([held.fence]))
    tx.lane_cache.leases.pop(held.fence, None)
    leases.release_slots(tx, lane, held, tx.now - held.granted)
    messages.remove_ended(tx, lane, row, its_topic)
    tx.place(lane)
    tx.changed_results.append(ABORT + result_name(tx.id_of(row), its_topic))
    return "aborted"


# Dead letters


Letter = tuple[int, str, int]
"""A dead letter: message, topic, end of its retention."""


def dead_letters(
    tx: Transaction, topic: str | None, ids: Sequence[str] | None, limit: int
) -> list[Letter]:
    """The dead letters with these ids; None: the oldest."""
    if ids is None:
        return oldest_dead(tx, topic, limit)
    rows = (messages.find(tx, message_id, topic) for message_id in ids[:limit])
    return dead_by_number(tx, [row.mid for row in rows if row is not None])


def dead_by_number(tx: Transaction, mids: Iterable[int]) -> list[Letter]:
    """The dead letters among these messages."""
    letters = ((mid, tx.dead_letters.get(mid)) for mid in dict.fromkeys(mids))
    return [(mid, letter[0], letter[2]) for mid, letter in letters if letter is not None]


def oldest_dead(tx: Transaction, topic: str | None, limit: int) -> list[Letter]:
    listed = (
        tx.all("dead_list", 0, limit) if topic is None else tx.all("dead_list_of", topic, 0, limit)
    )
    return [(row[1], row[2], row[4]) for row in listed]


def redrive(tx: Transaction, letters: Sequence[Letter], *, first: int, spacing_us: int) -> int:
    """
    Put dead letters back into their topics, with new sequence numbers and no attempts. The first is
    due at `first`, the others `spacing_us` apart.
    """
    _load(tx, letters)
    back: list[tuple[Lane, Row]] = []
    for n, (mid, its_topic, until) in enumerate(letters):
        row = tx.messages.get(mid)
        if row is None:
            continue
        tx.events.delete(until, RETENTION_ENDS, mid)
        tx.dead_letters.delete(mid)
        tx.shard.dead -= 1
        tx.letters[its_topic] = tx.letters.get(its_topic, 0) - 1
        message_ends.message_revived(tx, row, its_topic)
        back.append((_put_back(tx, row, its_topic, first + n * spacing_us), row))
    tx.run_many("note_reset", [(row.mid,) for _, row in back])
    messages.load_parked(tx, [(lane.lane, row.line or "") for lane, row in back if row.serial])
    tx.merge_keys.load((lane.lane, row.mkey) for lane, row in back if row.mkey is not None)
    for lane, row in back:
        messages.begin_waiting_again(tx, lane, row)
    for lane in {lane.lane: lane for lane, _ in back}.values():
        tx.place(lane)
    return len(letters)


def _load(tx: Transaction, letters: Sequence[Letter]) -> None:
    """Read what removes these dead letters, all of one table in one statement."""
    mids = [mid for mid, *_ in letters]
    tx.messages.load(mids)
    tx.dead_letters.load((mid,) for mid in mids)
    _load_extras(tx, [row for mid in mids if (row := tx.messages.get(mid)) is not None])


def _load_extras(tx: Transaction, rows: Sequence[Row]) -> None:
    """Read the further bodies of these messages, and the ids that joined them."""
    tx.parts.load(row.mid for row in rows if row.parts)
    tx.idents.load_joined(row.mid for row in rows if row.joined)


def _put_back(tx: Transaction, row: Row, topic: str, since: int) -> Lane:
    """The lane of a dead letter that will wait there again, as a message that arrives."""
    policy, its_topic = tx.policy(topic), row.topic
    row.seq = tx.next_seq()
    if row.since == UNTIL_SIGNALLED_US:  # it does not wait for signals any more
        tx.run("came_delete", row.mid)
    row.since = since
    row.attempts = row.suspect = 0
    row.odd = 1
    row.expires = since + policy.ttl if policy.ttl is not None else None
    spread_by = (
        row.key.encode() if row.key is not None else row.body if row.mkey is not None else None
    )
    lane = tx.ensure_lane(*tx.lane_of(policy, topic, spread_by, row.seq))
    row.lane = lane.lane
    # The topic may have been folded into a bucket, or unfolded, since the message died.
    row.topic = topic if lane.topic is None else None
    if row.topic != its_topic:
        tx.run("message_topic", row.topic, row.mid)
    return lane


def drop_dead(tx: Transaction, letters: Sequence[Letter], max_bytes: int | None = None) -> int:
    """Returns how many were dropped: the first ones, until their bodies exceed `max_bytes`."""
    size, at_once = 0, LOADED if max_bytes is not None else max(len(letters), 1)
    for first in range(0, len(letters), at_once):
        if max_bytes is not None and size > max_bytes:
            return first
        page = letters[first : first + at_once]
        _load(tx, page)
        for mid, _, _ in page:
            row = tx.messages.get(mid)
            size += len(row.body) if row is not None else 0
            messages.delete_dead(tx, mid)
    return len(letters)


def move(
    tx: Transaction, message_id: str, topic: str | None, to: MoveTarget, reason: str
) -> MoveAnswer:
    """Make a delayed message ready now, or a waiting one a dead letter."""
    row = messages.find(tx, message_id, topic)
    if row is None:
        return "unknown"
    if row.state == DEAD:
        return "dead"
    if leases.of_message(tx, row) is not None:
        return "leased"
    if to == "ready" and (row.state != DELAYED or row.since == UNTIL_SIGNALLED_US):
        return "waiting"
    lane = tx.lane(row.lane)
    messages.take_out(tx, lane, row)
    if to == "dead":
        settling.die(tx, lane, row, reason, None)
    else:
        row.since = min(row.since, tx.now)
        messages.begin_waiting_again(tx, lane, row)
    tx.place(lane)
    return "moved"


def back_off(tx: Transaction, topic: str, by_us: int) -> int:
    """Let the lanes of a topic back off; 0: end that. Returns how many lanes there are."""
    lanes = views.lanes_of(tx, topic)
    for lane in lanes:
        lane.back_off_step, lane.back_off_fence = by_us, tx.shard.fence
        lane.back_off_until = tx.now + by_us if by_us else 0
        tx.touch(lane)
        tx.place(lane)
    return len(lanes)
