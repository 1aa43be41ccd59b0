"""
The workers of a namespace: one row each, which every heartbeat replaces.

These transactions are not those of the queue: they are not synced, they leave the caches of this
process valid, and wake nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from laneway.engines.shared import presence

if TYPE_CHECKING:
    from laneway.engines.base import WorkerFacts, WorkerView
    from laneway.engines.sql.store import Store

_dumps = msgspec.json.Encoder().encode


def beat(
    store: Store, facts: WorkerFacts, dead_after_us: int, listed_us: int, clock_us: int
) -> int:
    """Store a heartbeat, and forget workers whose time is over; returns the store's time."""
    row = (dead_after_us, listed_us, presence.encode(facts).decode())
    with store.writing(durable=False, changes_queue=False) as connection:
        (stored_now,) = connection.one("shard_now")
        now = max(clock_us, int(stored_now))
        connection.run("workers_forget", now)
        pools = _dumps(facts.pools).decode()
        connection.run("worker_beat", facts.id, pools, now, *row)
    return now


def leave(store: Store, worker_id: str) -> None:
    """Delete a worker's row."""
    with store.writing(durable=False, changes_queue=False) as connection:
        connection.run("worker_leave", worker_id)


def workers(
    store: Store, limit: int, after: str, pool: str | None, clock_us: int
) -> list[WorkerView]:
    """The workers of this file in the order of their ids."""
    with store.reading() as connection:
        (stored_now,) = connection.one("shard_now")
        now = max(clock_us, int(stored_now))
        rows = connection.all("workers_list", after, now, pool, limit)
    return [presence.view(facts, started, beat_, dead, now) for facts, started, beat_, dead in rows]
