"""The hot path of engines on a SQL database. Administration is in `admin.py`."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import msgspec

from laneway.engines.base import (
    BY_OPERATOR,
    CHANGED,
    HOUSEKEEPING_LIMIT,
    PING,
    CancelAnswer,
    Capabilities,
    MoveAnswer,
    MoveTarget,
    Settings,
    WorkerFacts,
    WorkerView,
    WorkListener,
    housekeeping_of_lease,
)
from laneway.engines.sharded.splitting import partial_call
from laneway.engines.shared import presence
from laneway.engines.shared.body_sizes import LEASE_BYTES, BodySizes
from laneway.engines.shared.explaining import CLOCK_SLACK_US
from laneway.engines.sql import (
    forwarding,
    housekeeping,
    leases as leases_,
    leasing,
    purging,
    putting,
    recent_counts,
    results,
    settling,
    tiers as tier_changes,
    views,
)
from laneway.engines.sql.inbox import Inbox
from laneway.engines.sql.lane_cache import LaneCache
from laneway.engines.sql.rivalry import Rivalry
from laneway.engines.sql.rows import NONE, to_json
from laneway.engines.sql.store import Connection, Outdated, Place, Read, Store
from laneway.engines.sql.transaction import Rules, Transaction
from laneway.engines.sql.wakeup import Waits, Wakeup, take_back
from laneway.engines.sql.wanted import ALL_RANKS, Only, Wanted
from laneway.message import (
    Batch,
    Draft,
    ProgressReport,
    Receipt,
    Settlement,
    SettlementAnswer,
    StoredResult,
)
from laneway.tiers import TierLayers, Tiers
from laneway.units import SECOND

log = logging.getLogger("laneway.engine")

WARN_EVERY = 60.0
"""Seconds between two warnings about the clock."""

COLD_READS = (
    ("shard_read",),
    ("tier_queues",),
    ("inbox_read",),
    ("inbox_lanes",),
    ("lane_last",),
    ("group_any",),
)
"""What a transaction reads first if others have written since the last one of this object."""

PLACE = "place"
"""The setting of a store that is one of several of its namespace."""


class SqlQueue(Waits):
    """The queue on one store: put, lease, settle, results, waiting."""

    capabilities: Capabilities
    durability: str

    def __init__(
        self, url: str, settings: Settings, place: Place, store: Store, wakeup: Wakeup
    ) -> None:
        self.url = url
        self.namespace = settings.namespace
        self._store = store
        self._wakeup = wakeup
        self._lane_cache = LaneCache()
        self._rivalry = Rivalry()
        self._bodies = BodySizes()
        self._failed = 0
        """Of `store.failed`: how many it has taken into account."""
        self._closed = False
        self._warned = -WARN_EVERY
        self._forgot_us = 0
        """Up to when workers that are no longer listed were forgotten by this object."""
        try:
            self.place = place = self._join(place)
            self._first_number, self._number_unit = place.first_number, place.number_unit
            self._rules = Rules(self._read_tiers(settings), settings.random or random.random, place)
            self.limit_backlog(settings)
            self._inbox = Inbox(store, self._rules, self._lane_cache, wakeup, self.nonce)
            self._declare_tiers(settings)
        except BaseException:
            store.close()
            raise

    # Opening

    def _join(self, place: Place) -> Place:
        """Take a new store's place in its namespace, or check that an old one has it."""
        raise NotImplementedError

    def setting(self, name: str) -> str | None:
        with self._store.reading() as connection:
            row = connection.one("setting_read", name)
        return str(row[0]) if row is not None else None

    @property
    def nonce(self) -> str:
        """The first part of generated ids."""
        with self._store.reading() as connection:
            return str(connection.one("nonce_read")[0])

    def _read_tiers(self, settings: Settings) -> TierLayers:
        """The stored tiers; the program's, if it creates the store."""
        with self._store.writing(durable=True) as connection:
            stored = connection.one("setting_read", "tiers")
            if stored is not None:
                return TierLayers.read(stored[0])
            created = TierLayers.new(settings.tiers, settings.default_tier)
            connection.run("setting_write", "tiers", created.json().decode())
            return created

    def _declare_tiers(self, settings: Settings) -> None:
        layers = self._rules.tier_layers
        if layers.declare(settings.tiers, settings.default_tier, lambda _: None) is not layers:
            with self.transaction(None, durable=True) as tx:
                tier_changes.declare(tx, settings)

    @property
    def tiers(self) -> Tiers:
        return self._rules.tiers

    def limit_backlog(self, settings: Settings) -> None:
        """The backlog limits of the namespace: those of the program that declared some last."""
        limits = (settings.max_backlog, settings.max_backlog_bytes, settings.on_full)
        with self._store.writing(durable=True) as connection:
            if limits[0] is not None or limits[1] is not None:
                connection.run("setting_write", "limits", msgspec.json.encode(limits).decode())
            stored = connection.one("setting_read", "limits")
        if stored is not None:
            self._rules.max_backlog, self._rules.max_backlog_bytes, self._rules.on_full = (
                msgspec.json.decode(stored[0])
            )

    # Transactions

    @contextmanager
    def transaction(
        self,
        now_us: int | None,
        *,
        durable: bool = True,
        reads: Callable[[LaneCache], Iterable[Read]] | None = None,
        cold_reads: Callable[[], Iterable[Read]] = tuple,
    ) -> Iterator[Transaction]:
        """
        `reads`: what it reads besides `housekeeping.due`, unless others have written. `cold_reads`:
        what it reads besides `COLD_READS` if they have.
        """
        store, lane_cache = self._store, self._lane_cache
        with store.lock:
            store.refuse_nested()  # before the cache of the transaction around it is cleared
            try:
                asked = self._first_reads(reads, cold_reads)
                with store.writing(durable=durable, syncs=False, reads=asked) as connection:
                    tx = self._begun(connection, now_us, reads, cold_reads)
                    asleep = tx.shard.first_asleep
                    yield tx
                    if tx.end_notices:
                        putting.put(tx, tx.end_notices)
                    tx.flush()
                    self._foresee(tx, asleep)
                lane_cache.committed(store.commits)
            except BaseException:
                self._forget()
                raise
            commit = store.written
        store.confirm(commit)
        shard, pools = self.place.shard, tx.pools_to_notify
        for pool in pools:
            self._wakeup.notify(pool, has_arrivals=tx.has_arrivals, shard=shard)
        for pool in tx.pools_with_more - pools:
            self._wakeup.notify(pool, only_one=True, shard=shard)
        if tx.changed_results:
            self._wakeup.notify_results(tx.changed_results)
        if durable:  # now: the workers that were notified begin meanwhile
            store.sync(commit)

    def _forget(self) -> None:
        """What was read or written may have been rolled back."""
        self._rules.invalidate()
        self._lane_cache.clear()

    def _begun(
        self,
        connection: Connection,
        now_us: int | None,
        reads: Callable[[LaneCache], Iterable[Read]] | None,
        cold_reads: Callable[[], Iterable[Read]],
    ) -> Transaction:
        """The transaction that this connection has begun, see `transaction` and `_first_reads`."""
        store, lane_cache = self._store, self._lane_cache
        if store.failed != self._failed:
            self._failed = store.failed
            self._forget()
        lane_cache.check(connection, store.commits)
        if lane_cache.was_cold:
            for read in (*COLD_READS, *cold_reads()):
                connection.prefetch(*read)
        clock = store.clock() if now_us is None else now_us
        tx = Transaction(connection, self._rules, clock, lane_cache)
        if not lane_cache.is_inbox_empty:
            self._inbox.empty(tx)
            lane_cache.is_inbox_empty = True
        if now_us is None:
            tx.min_number = self._first_number + tx.now // self._number_unit
            self._look_at_clock(tx.now - clock)
        if reads is not None:
            for read in (*reads(lane_cache), housekeeping.due(tx.shard)):
                tx.prefetch(*read)
        return tx

    def _first_reads(
        self,
        reads: Callable[[LaneCache], Iterable[Read]] | None,
        cold_reads: Callable[[], Iterable[Read]],
    ) -> tuple[Read, ...]:
        """What a transaction reads first, as far as this is known before it begins."""
        cache = self._lane_cache
        if cache.shard is None or (cache.was_cold and reads is None):
            return (*COLD_READS, *cold_reads())
        if reads is not None:  # a lease: others have often put what it finds
            cache.reads_lanes, cache.has_been_cold = cache.has_been_cold, False
            return (*COLD_READS, *reads(cache), housekeeping.due(cache.shard))
        return () if cache.is_inbox_empty else (("inbox_read",),)

    @contextmanager
    def view(self, now_us: int | None = None) -> Iterator[Transaction]:
        """Reads what all transactions before have left, the inbox included."""
        with self._store.reading() as connection:
            is_empty = connection.one("inbox_has_any") is None
            if is_empty:
                yield self._reader(connection, now_us)
                return
        self._empty_inbox()
        with self._store.reading() as connection:
            yield self._reader(connection, now_us)

    def _empty_inbox(self) -> None:
        """Put its messages into their lanes, as every transaction does."""
        with self.transaction(0, durable=False):
            pass

    def _reader(self, connection: Connection, now_us: int | None) -> Transaction:
        return Transaction(
            connection, self._rules, self._store.clock() if now_us is None else now_us
        )

    def _look_at_clock(self, behind: int) -> None:
        """
        Warn if the machine's clock was set back: the store's time never goes back, so it stands
        still until the clock has caught up. `behind`: by how much the clock is, in microseconds.
        """
        if behind > CLOCK_SLACK_US and time.monotonic() - self._warned >= WARN_EVERY:
            self._warned = time.monotonic()
            log.warning(
                "%s: this machine's clock is %.0f s behind the store's time, which stops until"
                " the clock has caught up: delays, rates and leases wait, nothing is lost; was"
                " the clock set back?",
                self._store.name,
                behind / SECOND,
            )

    # The hot path

    def put(self, drafts: Sequence[Draft], *, now_us: int | None = None) -> list[Receipt]:
        if not drafts:
            return []
        self._store.refuse_without_room(drafts)
        if len(drafts) == 1 and (receipt := self._put_in_inbox(drafts[0], now_us)) is not None:
            return [receipt]
        is_inbox_full = self._inbox.is_full
        receipts = self._put(drafts, now_us)
        while len(receipts) < len(drafts):
            with partial_call(is_first=False):
                receipts += self._put(drafts[len(receipts) :], now_us)
        if is_inbox_full:
            self._store.checkpoint()
        return receipts

    def _put(self, drafts: Sequence[Draft], now_us: int | None) -> list[Receipt]:
        """Put messages; only the first ones, where they have many copies."""
        cold_reads = partial(putting.reads, drafts)
        with self.transaction(now_us, durable=True, cold_reads=cold_reads) as tx:
            receipts = putting.put(tx, drafts, is_whole=False)
            if tx.has_due_later:
                self._notify_soon(tx)
        return receipts

    def forward(
        self, drafts: Sequence[Draft], *, spool: str, batch: str, now_us: int | None = None
    ) -> list[Receipt]:
        self._store.refuse_without_room(drafts)
        with self.transaction(now_us, durable=True) as tx:
            receipts = forwarding.forward(tx, drafts, spool, batch)
            if tx.has_due_later:
                self._notify_soon(tx)
        return receipts

    def _put_in_inbox(self, draft: Draft, now_us: int | None) -> Receipt | None:
        """Put one message into the inbox; None: it does not belong there, or the inbox is full."""
        inbox = self._inbox
        with self._store.lock:
            now = self._store.clock() if now_us is None else now_us
            least = self._first_number
            if now_us is None:
                least += now // self._number_unit
            message_id = inbox.put(draft, now, least, may_lease=now_us is None)
            if message_id is None:
                return None
            not_sent = inbox.not_sent
            if inbox.has_arrivals:
                pool = self._rules.of(draft.topic).pool
                self._wakeup.notify(pool, has_arrivals=True, shard=self.place.shard)
            commit = self._store.written
        if not_sent is not None:
            take_back(self.settle, not_sent)
        self._store.sync(commit)
        return Receipt(message_id, draft.topic)

    def lease(
        self,
        n: int,
        *,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        startable: int | None = None,
        record_start: bool = False,
        only: Sequence[str] | None = None,
        without: Sequence[str] | None = None,
        tiers: Sequence[str] | None = None,
        max_lease_us: int | None = None,
        priorities: tuple[int, int] | None = None,
        holder: str | None = None,
        now_us: int | None = None,
    ) -> Batch:
        wanted = Wanted.of(only, without, tiers, priorities)
        left = HOUSEKEEPING_LIMIT
        while True:
            left -= housekeeping_of_lease(n)
            batch, goes_on = self._lease(
                n,
                pool,
                topics,
                startable,
                record_start=record_start,
                wanted=wanted,
                max_lease_us=max_lease_us,
                holder=holder,
                now_us=now_us,
            )
            is_behind = left > 0 and batch.next_wake_us == batch.now_us
            if batch.leases or not (goes_on or is_behind):
                return batch

    def _lease(
        self,
        n: int,
        pool: str,
        topics: Sequence[str] | None,
        startable: int | None,
        *,
        record_start: bool,
        wanted: Wanted | None,
        max_lease_us: int | None,
        holder: str | None,
        now_us: int | None,
    ) -> tuple[Batch, bool]:
        """
        Lease in one transaction. Also answers whether another one has to go on where this one has
        ended, because keys at their limits have parked much.
        """
        reads = partial(leasing.reads, pool=pool, room=n)
        with self.transaction(now_us, durable=False, reads=reads if topics is None else None) as tx:
            found = tx.shard.delivered
            asked, n = n, min(n, self._bodies.within(LEASE_BYTES))
            is_sweeping = tx.shard.first_sweep != NONE
            housekeeping.run(tx, HOUSEKEEPING_LIMIT if is_sweeping else housekeeping_of_lease(n))
            tx.flush_departures()
            startable = n if startable is None else startable
            filter_ = Only.of(wanted, tx)
            leases, withheld, goes_on = leasing.lease(
                tx,
                n,
                pool,
                topics,
                startable,
                record_start=record_start,
                only=filter_,
                max_lease_us=max_lease_us,
                holder=holder,
            )
            goes_on |= len(leases) == n < asked
            wake = tx.now if goes_on else None

            def on_wake(at: int | None) -> None:
                nonlocal wake
                wake = tx.now if goes_on else at
                is_full = len(leases) == n or (
                    len(leases) >= startable and wake is not None and wake < self._soon(tx)
                )  # else this worker has a free slot for what is due soon, and looks then
                if withheld or (leases and is_full):
                    tx.pools_with_more.add(pool)

            tx.on_wake = on_wake
        leasing.decode_headers(leases)
        self._bodies.note(leases)
        large = self._rivalry.measure(found, tx.shard.delivered, self._store.waited)
        large |= self._store.prefers_large_leases
        if filter_ is None:
            return Batch(leases, tx.now, wake, prefers_large_leases=large), goes_on
        return (
            Batch(leases, tx.now, wake, filter_.passed_over, filter_.goes_on, large),
            goes_on,
        )

    def syncing_later(self) -> AbstractContextManager[None]:
        """See `base.SyncsLater`."""
        return self._store.syncing_later()

    def sync_now(self) -> None:
        """Inside `syncing_later`: wait until what was done in it so far is on disk."""
        self._store.sync_now()

    def start(self, leases: Sequence[tuple[int, int]], *, now_us: int | None = None) -> list[bool]:
        with self.transaction(now_us, durable=True) as tx:
            return leases_.start(tx, leases)

    def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        publish: Mapping[int, Sequence[Draft]] | None = None,
        now_us: int | None = None,
    ) -> list[SettlementAnswer]:
        if not settlements:
            return []
        try:
            return self._settle(settlements, publish or {}, now_us)
        except Outdated:
            return self._settle(
                settlements, publish or {}, now_us
            )  # what was remembered of these leases is forgotten now

    def _settle(
        self,
        settlements: Sequence[Settlement],
        publish: Mapping[int, Sequence[Draft]],
        now_us: int | None,
    ) -> list[SettlementAnswer]:
        cold_reads = partial(settling.reads, self._lane_cache, settlements)
        with self.transaction(now_us, durable=True, cold_reads=cold_reads) as tx:
            answers = settling.settle(tx, settlements, publish)
            if any(settlement.action != "ack" for settlement in settlements):
                self._notify_soon(tx)
        return answers

    def report_progress(
        self, reports: Sequence[ProgressReport], *, now_us: int | None = None
    ) -> list[bool]:
        # A later report replaces that of a handler; what is stored from outside is a value.
        durable = any(not report.fence for report in reports)
        with self.transaction(now_us, durable=durable) as tx:
            return results.report_progress(tx, reports)

    def results(
        self, ids: Sequence[tuple[str, str | None]], *, now_us: int | None = None
    ) -> list[StoredResult]:
        with self.view(now_us) as tx:
            return results.read(tx, ids)

    def delete_result(self, message_id: str, topic: str | None = None) -> None:
        with self.transaction(None, durable=True) as tx:
            tx.run("kept_delete", *results.with_topics(tx, [(message_id, topic)])[0])

    def cancel(
        self, message_id: str, topic: str | None = None, *, now_us: int | None = None
    ) -> CancelAnswer:
        with self.transaction(now_us, durable=True) as tx:
            return purging.cancel(tx, message_id, topic)

    def message_move(
        self,
        message_id: str,
        topic: str | None = None,
        *,
        to: MoveTarget,
        reason: str = BY_OPERATOR,
        now_us: int | None = None,
    ) -> MoveAnswer:
        with self.transaction(now_us, durable=True) as tx:
            return purging.move(tx, message_id, topic, to, reason)

    def topic_back_off(self, topic: str, by_us: int, *, now_us: int | None = None) -> int:
        with self.transaction(now_us, durable=True) as tx:
            return purging.back_off(tx, topic, by_us)

    def on_end(self, message_id: str, topic: str | None, follower: bytes) -> bytes | None:
        with self.transaction(None, durable=True) as tx:
            return results.on_end(tx, message_id, topic, follower)

    def watch_topic(self, topic: str, seconds: float, *, now_us: int | None = None) -> list[str]:
        with self.transaction(now_us, durable=False) as tx:
            busy = [lane for lane in views.lanes_of(tx, topic) if lane.waiting or lane.leased]
            for lane in busy:
                lane.watched_until = tx.now + round(seconds * SECOND)
                tx.touch(lane)
            return [CHANGED + lane.name for lane in busy]

    def extend(
        self, leases: Sequence[tuple[int, int]], by_us: int, *, now_us: int | None = None
    ) -> list[bool]:
        with self.transaction(now_us, durable=False) as tx:
            return leases_.extend(tx, leases, by_us)

    def tick(self, *, budget: int = HOUSEKEEPING_LIMIT, now_us: int | None = None) -> int | None:
        with self.transaction(now_us, durable=False) as tx:
            housekeeping.run(tx, budget)
            recent_counts.forget(tx)
            tx.write_rows()
            return housekeeping.next_wake(tx)

    def work_listener(
        self,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        *,
        max_lease_us: int | None = None,
    ) -> WorkListener:
        return self._wakeup.work_listener(pool, topics, max_lease_us=max_lease_us)

    # Workers: these transactions are not the queue's: not synced, and the caches stay valid

    def beat(
        self, facts: WorkerFacts, *, dead_after_us: int, listed_us: int, now_us: int | None = None
    ) -> int:
        with self._store.writing(durable=False, changes_queue=False) as connection:
            now = self._later(connection, now_us)
            connection.run("workers_forget", self._forgot_us, now)
            connection.run(
                "worker_beat",
                facts.id,
                to_json(facts.pools).decode(),
                now,
                now,
                now + dead_after_us,
                now + listed_us,
                presence.encode(facts).decode(),
            )
        self._forgot_us = now
        return now

    def _later(self, connection: Connection, now_us: int | None) -> int:
        """The time: the store's, if the clock is behind it."""
        now = self._store.clock() if now_us is None else now_us
        return max(now, int(connection.one("shard_now")[0]))

    def leave(self, worker_id: str) -> None:
        with self._store.writing(durable=False, changes_queue=False) as connection:
            connection.run("worker_leave", worker_id)

    def workers(
        self,
        *,
        limit: int = 1000,
        after: str = "",
        pool: str | None = None,
        now_us: int | None = None,
    ) -> list[WorkerView]:
        with self._store.reading() as connection:
            now = self._later(connection, now_us)
            rows = connection.all("workers_list", after, now, pool, limit)
        return [presence.view(row, started, beat, dead, now) for row, started, beat, dead in rows]

    def prefer(self, pool: str, shards: Collection[int]) -> None:
        """There is one shard."""

    def ping(self, worker_ids: Sequence[str]) -> None:
        self._wakeup.notify_results([PING + worker_id for worker_id in worker_ids])

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._store.close()
            with self._store.lock:
                self._wakeup.forget_workers()
            self._wakeup.interrupt()  # last: a wait that begins after it finds the store closed

    # Waking

    def _notify_soon(self, tx: Transaction) -> None:
        """Notify all pools if something is due before idle workers look again."""
        tx.on_wake = partial(self._notify_of, tx)

    def _foresee(self, tx: Transaction, asleep: int) -> None:
        """Read for `on_wake`, or notify of a lane that wakes sooner than others, at `asleep`."""
        if tx.on_wake is not None:
            housekeeping.next_wake_after(tx, tx.on_wake)
        elif tx.first_asleep < asleep or asleep <= tx.now:
            self._notify_of(tx, tx.first_asleep)

    def _soon(self, tx: Transaction) -> int:
        """Before this time some idle workers will not have looked again."""
        return tx.now + round(self._wakeup.look_again * SECOND)

    def _notify_of(self, tx: Transaction, wake: int | None) -> None:
        if wake is not None and wake < self._soon(tx):
            tx.pools_to_notify.update(tier_queue.pool for tier_queue in tx.tier_queues.values())

    def has_work(self, pool: str, topics: Sequence[str] | None) -> float:
        """In how many seconds a pool may have something to lease; 0: it has now."""
        with self.view() as tx:
            if self._is_runnable(tx, pool, topics):
                return 0.0
            wake = housekeeping.next_wake(tx)
        return (wake - tx.now) / SECOND if wake is not None else float("inf")

    def _is_runnable(self, tx: Transaction, pool: str, topics: Sequence[str] | None) -> bool:
        if topics is None:
            return any(
                tier_queue.pool == pool
                and tx.one(
                    "tier_queue_has_work",
                    tier_queue.number,
                    tier_queue.first_vt,
                    tier_queue.first_lane,
                    tier_queue.first_group_vt,
                    tier_queue.first_gate_vt,
                )[0]
                for tier_queue in tx.tier_queues.values()
            )
        for topic in topics:
            for lane in views.lanes_of(tx, topic):
                if tx.tier_queue_of(lane).pool != pool or not leasing.can_deliver(tx, lane):
                    continue
                if (
                    lane.topic is not None
                    or tx.one("folded_keys", topic, *ALL_RANKS, 1, 0) is not None
                ):
                    return True
        return False
