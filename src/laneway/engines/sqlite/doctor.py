"""
The checks of the doctor: whether the file is intact, and whether its tables agree with each other.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

from laneway.engines.base import Check, DoctorStep
from laneway.engines.shared.doctor import disagreement, finding, unhandled
from laneway.engines.shared.states import DEAD, LEASES_END, READY
from laneway.engines.sqlite import key_limits, messages, views
from laneway.engines.sqlite.rows import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from laneway.engines.sqlite.connection import Connection
    from laneway.engines.sqlite.store import Store
    from laneway.engines.sqlite.transaction import Transaction

MOST = 100_000
"""Most findings of one kind that one run repairs."""

SLICE_SECONDS = 0.02
"""So long a check in steps reads, before it pauses as long."""

OPERATIONS = 20_000
"""Operations of SQLite's virtual machine after which a statement looks at the clock: under 2 ms."""


def check_file(store: Store) -> list[Check]:
    """SQLite's own check of the file."""
    with store.reading() as connection:
        return [_file(connection)]


def _file(connection: Connection) -> Check:
    answers = [str(row[0]) for row in connection.execute("PRAGMA quick_check(10)")]
    is_intact = answers == ["ok"]
    return Check(
        "file",
        is_intact,
        "intact" if is_intact else "; ".join(answers),
        "" if is_intact else "restore a copy, or `sqlite3 FILE .recover`",
    )


def check_parts(tx: Transaction, *, repair: bool) -> list[Check]:
    """Whether messages, orders, leases, counts and totals agree; `repair`: make them agree."""
    tx.write_rows()  # this transaction may have leased messages of the inbox
    checks = [_lane_cache(tx)]
    for check in _CHECKS:
        tx.flush()  # the checks read what is stored
        checks.append(check(tx, repair=repair))
    checks.append(_unhandled(tx))
    if repair:
        for lane in views.all_lanes(tx):
            tx.place(lane)
    return checks


def check_steps(
    store: Store,
    reader: Callable[[Connection], Transaction],
    pause: Callable[[float], object],
) -> Iterator[DoctorStep]:
    """
    Check a file through a connection of its own, so that the one of all other calls stays free.
    Each check reads one snapshot: then the write-ahead log never has to wait long for a reader.
    """
    total = len(_CHECKS) + 2
    with closing(store.open_reader()) as connection:
        slices = _Slices(pause)
        connection.set_progress_handler(slices.look, OPERATIONS)
        checks: list[Check] = []
        for check in (lambda _: _file(connection), *_CHECKS, _unhandled):
            connection.execute("BEGIN")
            try:
                checks.append(check(reader(connection)))
            except sqlite3.Error as error:
                if slices.has_ended:
                    return
                raise store.explain(error) from error
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            done = len(checks)
            yield DoctorStep(done, total, checks if done == total else [])


class _Slices:
    """Lets a long statement pause as long as it works."""

    def __init__(self, pause: Callable[[float], object]) -> None:
        self._pause = pause
        self._began = time.monotonic()
        self.has_ended = False

    def look(self) -> bool:
        """SQLite calls it while a statement runs; True ends the statement."""
        if time.monotonic() - self._began > SLICE_SECONDS:
            self.has_ended = bool(self._pause(SLICE_SECONDS))
            self._began = time.monotonic()
        return self.has_ended


def _unhandled(tx: Transaction) -> Check:
    return unhandled(tx.one("check_unhandled")[0])


def _lane_cache(tx: Transaction) -> Check:
    """Whether the lanes that this process caches are those of the file; wrong ones are dropped."""
    wrong = 0
    for row in tx.all("lanes_all", views.ALL):
        cached = tx.lane_cache.lanes.get(row[0])
        if (
            cached is not None
            and cached.index_columns() + cached.counts()
            != (read := Lane(*row)).index_columns() + read.counts()
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
    row = messages.read(tx, mid)
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
    row.state = READY
    messages.arrive(tx, lane, row)
    tx.messages.save(row)


def _leases_without_end(tx: Transaction, *, repair: bool = False) -> Check:
    endless = tx.all("check_leases", MOST)
    if repair:
        tx.run_many("event_insert", [(tx.now, LEASES_END, fence, fence) for (fence,) in endless])
    return disagreement("leases", len(endless), repair=repair)


def _lane_counts(tx: Transaction, *, repair: bool = False) -> Check:
    wrong = tx.all("check_lane_counts", MOST)
    if repair:
        for number, ready, delayed, parked, leased in wrong:
            lane = tx.lane(number)
            lane.ready, lane.delayed, lane.parked, lane.leased = ready, delayed, parked, leased
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


def _tallies(tx: Transaction, *, repair: bool = False) -> Check:
    """Whether the tallies together count as many waiting messages as there are."""
    wrong = sum(tally.waiting for tally in tx.tallies.all()) - tx.one("check_totals")[0]
    if wrong and repair:
        tx.tallies.refill(tx)
    return disagreement("history", abs(wrong), repair=repair)


_CHECKS = (
    _entries_without_message,
    _messages_nowhere,
    _leases_without_end,
    _lane_counts,
    _key_counts,
    _totals,
    _group_counts,
    _tallies,
)
"""Whether the tables of a file agree with each other."""
