"""The checks of the doctor that read the tables: whether they agree with each other."""

from __future__ import annotations

from laneway.engines.base import Check
from laneway.engines.shared.doctor import disagreement, finding, unhandled
from laneway.engines.shared.states import DEAD, DELAYED, PARKED, READY
from laneway.engines.sql import key_limits, messages, views
from laneway.engines.sql.rows import ANY_RANK, NO_RANK, Lane
from laneway.engines.sql.transaction import Transaction

MOST = 100_000
"""Most findings of one kind that one run repairs."""


def check_parts(tx: Transaction, *, repair: bool) -> list[Check]:
    """Whether messages, orders, leases, counts and totals agree; `repair`: make them agree."""
    tx.write_rows()  # this transaction may have leased messages of the inbox
    checks = [_lane_cache(tx)]
    for check in CHECKS:
        tx.flush()  # the checks read what is stored
        checks.append(check(tx, repair=repair))
    checks.append(unhandled_topics(tx))
    if repair:
        for lane in views.all_lanes(tx):
            tx.place(lane)
    return checks


def unhandled_topics(tx: Transaction) -> Check:
    """Whether a handler is missing for topics with messages."""
    return unhandled(tx.one("check_unhandled")[0])


def _lane_cache(tx: Transaction) -> Check:
    """Whether the lanes that this process caches are those of the store; wrong ones are dropped."""
    wrong = 0
    for row in tx.all("lanes_all", views.ALL):
        cached = tx.lane_cache.lanes.get(row[0])
        if (
            cached is not None
            and cached.placing() + cached.classes() + cached.counts()
            != (read := Lane(*row)).placing() + read.classes() + read.counts()
        ):
            wrong += 1
            tx.lane_cache.drop(cached)
    return finding("cache", wrong, "lanes cached wrongly by this process, repaired", repair=False)


def _entries_without_message(tx: Transaction, *, repair: bool = False) -> Check:
    orphans = tx.all("check_ready_orphans", MOST)
    if repair:
        tx.run_many("ready_delete", orphans)
    return disagreement("order", len(orphans), repair=repair)


def _messages_nowhere(tx: Transaction, *, repair: bool = False) -> Check:
    lost = tx.all("check_lost_messages", MOST)
    if repair:
        for (mid,) in lost:
            _restore(tx, mid)
    return disagreement("messages", len(lost), repair=repair)


def _restore(tx: Transaction, mid: int) -> None:
    row = tx.messages.get(mid)
    if row is None:
        return
    known = tx.one("lane_by_number", row.lane)
    if row.state == DEAD:
        (
            messages.bury(
                tx, tx.cached_lane(known), row, "found by the doctor without its reason", None
            )
            if known
            else messages.delete(tx, row)
        )
        return
    if known is None:
        topic = row.topic or "laneway.recovered"
        policy = tx.policy(topic)
        name, rule = tx.lane_of(policy, topic, None, row.seq)
        row.lane = tx.ensure_lane(name, rule).lane
    lane = tx.lane(row.lane)
    if row.state == DELAYED and known is not None:
        tx.timers.expect(row.lane, row.since)
        return
    if row.state == PARKED and row.serial:
        tx.parked.delete(row.lane, row.line, row.rank, row.pos, row.seq)
    row.state, lane.folded = READY, None
    messages.arrive(tx, lane, row)
    tx.messages.save(row)


def _leases_without_end(tx: Transaction, *, repair: bool = False) -> Check:
    endless = tx.all("check_leases", MOST)
    if repair:
        tx.expect_lease_end(tx.now)
        tx.run_many("lease_end_insert", [(tx.now, fence, fence) for (fence,) in endless])
    return disagreement("leases", len(endless), repair=repair)


def _lane_counts(tx: Transaction, *, repair: bool = False) -> Check:
    wrong = tx.all("check_lane_counts", MOST)
    if repair:
        for number, ready, delayed, parked, leased in wrong:
            lane = tx.lane(number)
            lane.ready, lane.delayed, lane.parked, lane.leased = ready, delayed, parked, leased
            lane.folded = None  # to be counted again
            tx.touch(lane)
    return disagreement("counts", len(wrong), repair=repair)


def _key_counts(tx: Transaction, *, repair: bool = False) -> Check:
    wrong = tx.all("check_key_states", MOST)
    if repair:
        for number, key, leased, parked in wrong:
            key_limits.recount(tx, number, key, leased, parked)
    return disagreement("keys", len(wrong), repair=repair)


def _totals(tx: Transaction, *, repair: bool = False) -> Check:
    waiting, size, leased, dead, lanes = tx.one("check_totals")
    shard = tx.shard
    wrong = sum(
        now != then
        for now, then in (
            (waiting, shard.waiting),
            (size, shard.bytes),
            (leased, shard.leased),
            (dead, shard.dead),
            (lanes, shard.lanes),
        )
    )
    if repair:
        shard.waiting, shard.bytes, shard.leased, shard.dead, shard.lanes = (
            waiting,
            size,
            leased,
            dead,
            lanes,
        )
    letters = tx.all("check_dead_counts", MOST)
    if repair:
        tx.run_many("dead_count_add", letters)
        tx.run("dead_count_forget")
    return disagreement("totals", wrong + len(letters), repair=repair)


def _group_counts(tx: Transaction, *, repair: bool = False) -> Check:
    """Whether groups count their lanes, and those that can deliver, as the lanes are."""
    wrong = tx.all("check_group_counts", MOST)
    if repair:
        tx.groups.load(number for number, *_ in wrong)
        for number, *counts in wrong:
            tx.groups.recount(tx.groups.get(number), *counts)
    return disagreement("groups", len(wrong), repair=repair)


def _positions(tx: Transaction, *, repair: bool = False) -> Check:
    """Whether each order is read from its first entry, or from before it."""
    lanes = tx.all("check_first_places", MOST)
    (others,) = tx.one("check_first_times")
    if repair:
        for (number,) in lanes:
            lane = tx.lane(number)
            lane.first_rank, lane.ranks = NO_RANK, [ANY_RANK]
            tx.touch(lane)
    if repair and others:
        shard = tx.shard
        shard.first_event = shard.first_end = shard.first_timer = shard.first_asleep = 0
        shard.first_idle = shard.first_wake = shard.first_sweep = 0
        tx.run("gate_entries_begin")
        tx.run("serial_keys_begin", NO_RANK)
        tx.run("key_states_begin", NO_RANK)
        for number in tx.tier_queues:
            tx.begins_at(number, 0, 0)
            tx.begins_at(number, 0, 0, of_groups=True)
            tx.tier_queues[number].first_gate_vt = 0
        numbers = [number for number, *_ in tx.all("groups_all")]
        tx.groups.load(numbers)
        for number in numbers:
            tx.begins_at(-number, 0, 0)
    return disagreement("positions", len(lanes) + others, repair=repair)


def _tallies(tx: Transaction, *, repair: bool = False) -> Check:
    """Whether the tallies together count as many waiting messages as there are."""
    wrong = sum(tally.waiting for tally in tx.tallies.all()) - tx.one("check_totals")[0]
    if wrong and repair:
        tx.tallies.refill(tx)
    return disagreement("history", abs(wrong), repair=repair)


CHECKS = (
    _entries_without_message,
    _messages_nowhere,
    _leases_without_end,
    _lane_counts,
    _key_counts,
    _totals,
    _group_counts,
    _positions,
    _tallies,
)
"""Whether the tables of a store agree with each other."""
