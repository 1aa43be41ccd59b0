"""
Which shards a worker visits first: its own.

The running workers of a pool divide the shards among them by rendezvous hashing: each worker has a
score in each shard, and the shard belongs to the worker with the highest. So a topic keeps meeting
the same process, and when a worker comes or goes only its part moves. Nothing but the order of
visits depends on it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.engines.base import FullEngine

MAX_WORKERS = 500
"""
Workers of a pool that divide the shards; where there are more, nobody has shards of its own. Each
worker reads the list of all.
"""


class Locality:
    """Keeps a worker's own shards up to date; `refresh` is called in one thread."""

    def __init__(self, engine: FullEngine, pool: str, worker_id: str) -> None:
        self._engine = engine
        self._pool = pool
        self._worker_id = worker_id
        self._workers: list[str] = []

    def refresh(self) -> None:
        """Read who works in the pool, and prefer the shards that are this worker's part."""
        shards = self._engine.capabilities.shards
        if shards == 1:
            return
        listed = self._engine.workers(limit=MAX_WORKERS + 1, pool=self._pool)
        workers = [each.facts.id for each in listed if each.state == "running"]
        if workers != self._workers:
            self._workers = workers
            divides = len(listed) <= MAX_WORKERS and self._worker_id in workers
            own = own_shards(self._worker_id, workers, shards) if divides else []
            self._engine.prefer(self._pool, own)


def own_shards(worker_id: str, worker_ids: Sequence[str], shards: int) -> list[int]:
    """The shards in which this worker has the highest score of all."""
    return [
        shard
        for shard in range(shards)
        if max(worker_ids, key=lambda each: _score(each, shard)) == worker_id
    ]


def _score(worker_id: str, shard: int) -> bytes:
    return hashlib.blake2b(f"{shard} {worker_id}".encode(), digest_size=8).digest()
