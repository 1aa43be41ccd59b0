"""
The inbox: messages that were put one at a time and are not in their lanes yet.

A put changes four pages: those of the message, its place in the lane's order, the lane and the
shard. For one message by itself that is most of the work, and most of what is written to the disk.
So such a message becomes a row of one table, by one statement that is a transaction of its own.

If a worker sleeps and nothing else waits, the same statement leases the message to that worker: the
row has the fence, and `wakeup` sends the lease to the worker, which needs no call of its own. If
the sender dies before it sends, the message waits until that lease ends.

Nothing else sees the inbox: every other transaction begins with `empty`, which puts the messages
into their lanes, and a view is preceded by such a transaction. All changes of policies, clocks and
counters are such transactions too, so a message has the place that it would have had at once.
"""

from __future__ import annotations

import time

from laneway.engines.base import SIGNALS_HEADER
from laneway.engines.shared.naming import generated_id
from laneway.engines.sql import leasing, putting
from laneway.engines.sql.lane_cache import LaneCache
from laneway.engines.sql.rows import rank_of, to_json
from laneway.engines.sql.store import Store
from laneway.engines.sql.transaction import Rules, Transaction
from laneway.engines.sql.wakeup import SENT_LEASE_SECONDS, Wakeup
from laneway.headers import COST
from laneway.message import Draft, Lease
from laneway.policy import Resolved
from laneway.units import SECOND

MOST_ROWS = 250
"""
Messages that one process leaves in the inbox; the next one empties it. More would be hardly cheaper
by message, but delay that transaction by more than 2 ms.
"""

MOST_BYTES = 2_000
"""Larger bodies are put at once: they would be written twice."""

PAUSE_SECONDS = 0.001
"""
How long after a message the next one is leased to a sleeping worker: in a stream of messages the
worker leases several at once.
"""


class Inbox:
    """Puts messages into the inbox of a store; use it only under the store's lock."""

    def __init__(
        self,
        store: Store,
        rules: Rules,
        lane_cache: LaneCache,
        wakeup: Wakeup,
        nonce: str,
    ) -> None:
        self._store = store
        self._wakeup = wakeup
        self._rules = rules
        self._lane_cache = lane_cache
        self._nonce = nonce
        self._rows = 0
        """How many messages this process has put into it since it saw the inbox empty."""
        self._first = 0
        """The inbox's first message when this process last put one."""
        self._topics: set[str] = set()
        """The topics of this process's messages since then."""
        self.has_arrivals = False
        """Whether the message just put is the first that waits in its topic."""
        self._put_at = 0.0
        self.not_sent: Lease | None = None
        """The lease of the message just put, if its worker did not receive it."""

    @property
    def is_full(self) -> bool:
        """Whether the next message has to empty it."""
        return self._rows >= MOST_ROWS

    def put(self, draft: Draft, now_us: int, least: int, *, may_lease: bool) -> str | None:
        """
        Put a message, durably. Its number will be above `least`. `may_lease`: lease it to a worker
        that sleeps. Returns its id; None: it does not belong here, or the inbox is full.
        """
        rules = self._rules
        policy = rules.of(draft.topic)
        if (
            self.is_full
            or len(draft.body) > min(MOST_BYTES, policy.max_body)
            or rules.has_backlog_limit
            or not _needs_no_decision(draft, policy)
        ):
            return None
        headers = to_json(draft.headers).decode() if draft.headers else ""
        rank = rank_of(draft.priority, at_front=False)
        row = (least, now_us, draft.topic, rank, headers, draft.body, rules.version)
        put_before, self._put_at, self.not_sent = self._put_at, time.monotonic(), None
        worker = lease = None
        if (
            may_lease
            and self._store.sends_leases
            and self._put_at > put_before + PAUSE_SECONDS
            and _has_no_limits(policy)
        ):
            worker = self._wakeup.find_worker(policy.pool)
        if worker is not None:
            lease = Lease(
                0,  # with the fence and the rest of the id when the message has been put
                0,
                self._nonce,
                draft.topic,
                draft.body,
                now_us + policy.lease,
                priority=draft.priority,
                headers=draft.headers,
                published_us=now_us,
            )
        # First: an exception may come after the commit, like KeyboardInterrupt.
        self._lane_cache.is_inbox_empty = False
        offer = self._wakeup.offer(worker, lease)
        answer = self._store.run_durably("inbox_put", *row, *offer)
        if not answer:
            return None
        ((mid, first, has_ready, fence),) = answer
        message_id = generated_id(self._nonce, mid)
        self._rows += 1
        self.has_arrivals = False
        if lease is not None and fence is not None:
            lease.handle, lease.fence, lease.id = mid, fence, message_id
            if not self._wakeup.send_lease(worker, lease, self._put_at):
                self.not_sent = lease
                self._wakeup.forget_workers()
            return message_id
        if first != self._first:
            self._first = first
            self._topics.clear()
        self.has_arrivals = not has_ready and draft.topic not in self._topics
        self._topics.add(draft.topic)
        return message_id

    def empty(self, tx: Transaction) -> None:
        """Put its messages into their lanes, at the beginning of a transaction."""
        self._rows = 0
        rows = tx.all("inbox_read")
        if rows:
            numbers = putting.put_from_inbox(tx, rows)
            tx.run("inbox_clear")
            tx.write_rows()  # what follows may read the lanes from their table
            for row, number in zip(rows, numbers, strict=True):
                if row[-1] is not None and row[0] == number:
                    self._lease(tx, row)
            # The process that put a message has notified the pool.
            tx.pools_to_notify.clear()
            tx.has_arrivals = False

    @staticmethod
    def _lease(tx: Transaction, row: tuple[int, int, str, int, str, bytes, int]) -> None:
        """Lease a message that was leased while it was in the inbox, as of then."""
        mid, published, topic, _, _, _, fence = row
        lane = tx.find_lane(topic)
        assert lane is not None
        now, tx.now = tx.now, max(tx.shard.now, published)
        leasing.lease_one(tx, lane, mid, fence, round(SENT_LEASE_SECONDS * SECOND))
        tx.now = now


def _needs_no_decision(draft: Draft, policy: Resolved) -> bool:
    """Whether the message is appended to its topic's one lane, whatever else is stored."""
    return (
        policy.appends
        and draft.key is None
        and draft.id is None
        and not (draft.headers and (SIGNALS_HEADER in draft.headers or COST in draft.headers))
        and not (draft.delay_us or draft.sticky or draft.at_front)
        and draft.at_us is None
        and draft.ttl_us is None
        and draft.signal is None
    )


def _has_no_limits(policy: Resolved) -> bool:
    """Whether a message of the topic may be leased as soon as nothing waits before it."""
    return not (
        policy.limited
        or policy.paused
        or policy.delivery == "at_most_once"
        or policy.group is not None  # which may have limits
    )
