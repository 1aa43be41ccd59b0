"""
The inbox: plain messages that were put one at a time and are not in their lanes yet.

A put changes four pages: those of the message, its place in the lane's order, the lane and the
shard. For one message by itself that is most of the work, and most of what is written to the disk.
So such a message becomes a row of one table, by one statement that is a transaction of its own.

Nothing else sees the inbox: every other transaction begins with `empty`, which puts the messages
into their lanes, and a view is preceded by such a transaction. All changes of policies, clocks and
counters are such transactions too, so a message has the place that it would have had at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from laneway.engines.shared.naming import generated_id
from laneway.engines.sqlite import putting
from laneway.engines.sqlite.rows import rank_of
from laneway.engines.sqlite.statements import SQL

if TYPE_CHECKING:
    from laneway.engines.sqlite.lane_cache import LaneCache
    from laneway.engines.sqlite.store import Store
    from laneway.engines.sqlite.transaction import Rules, Transaction
    from laneway.message import Draft

MOST_ROWS = 250
"""
Messages that one process leaves in the inbox; the next one empties it. More would be hardly cheaper
by message, but delay that transaction by more than 2 ms.
"""

MOST_BYTES = 2_000
"""Larger bodies are put at once: they would be written twice."""

_dumps = msgspec.json.Encoder().encode


class Inbox:
    """Puts plain messages into the inbox of a file; use it only under the store's lock."""

    def __init__(self, store: Store, rules: Rules, lane_cache: LaneCache) -> None:
        self._store = store
        self._rules = rules
        self._lane_cache = lane_cache
        self._nonce = ""
        self._rows = 0
        """How many messages this process has put into it since it saw the inbox empty."""
        self._first = 0
        """The inbox's first message when this process last put one."""
        self._topics: set[str] = set()
        """The topics of this process's messages since then."""
        self.has_arrivals = False
        """Whether the message just put is the first that waits in its topic."""

    @property
    def is_full(self) -> bool:
        """Whether the next message has to empty it."""
        return self._rows >= MOST_ROWS

    def put(self, draft: Draft, now_us: int, least: int) -> str | None:
        """
        Put a message, durably. Its number will be above `least`. Returns its id; None: it does not
        belong here, or the inbox is full.
        """
        rules = self._rules
        policy = rules.of(draft.topic)
        if (
            self.is_full
            or len(draft.body) > min(MOST_BYTES, policy.max_body)
            or rules.has_backlog_limit
            or not putting.is_plain(draft, policy)
        ):
            return None
        headers = _dumps(draft.headers).decode() if draft.headers else ""
        rank = rank_of(draft.priority, at_front=False)
        row = (least, now_us, draft.topic, rank, headers, draft.body, rules.version)
        if not self._nonce:
            with self._store.reading() as connection:
                self._nonce = connection.execute(SQL["nonce_read"]).fetchone()[0]
        # First: an exception may come after the commit, like KeyboardInterrupt.
        self._lane_cache.is_inbox_empty = False
        answer = self._store.run_durably(SQL["inbox_put"], row)
        if not answer:
            return None
        ((mid, first, has_ready),) = answer
        self._rows += 1
        if first != self._first:
            self._first = first
            self._topics.clear()
        self.has_arrivals = not has_ready and draft.topic not in self._topics
        self._topics.add(draft.topic)
        return generated_id(self._nonce, mid)

    def empty(self, tx: Transaction) -> None:
        """Put its messages into their lanes, at the beginning of a transaction."""
        self._rows = 0
        rows = tx.all("inbox_read")
        if rows:
            putting.put_from_inbox(tx, rows)
            tx.run("inbox_clear")
            tx.write_rows()  # what follows may read the lanes from their table
            # The process that put a message has notified the pool.
            tx.pools_to_notify.clear()
            tx.has_arrivals = False
