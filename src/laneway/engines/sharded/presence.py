"""Coordination over the shards of one namespace: a worker's row is on the shard of its id."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection

from laneway.engines.base import WorkerFacts, WorkerView
from laneway.engines.sharded.namespace import ShardedNamespace
from laneway.engines.sharded.visits import Visits


class ShardedCoordination(ABC):
    """`laneway.engines.base.Coordination` over several shards, but for `ping`."""

    _namespace: ShardedNamespace
    _visits: Visits

    @abstractmethod
    def _beat_on(
        self, shard: int, facts: WorkerFacts, dead_after_us: int, listed_us: int, now_us: int | None
    ) -> int: ...

    @abstractmethod
    def _leave_on(self, shard: int, worker_id: str) -> None: ...

    @abstractmethod
    def _workers_on(
        self, shard: int, limit: int, after: str, pool: str | None, now_us: int | None
    ) -> list[WorkerView]: ...

    def beat(
        self, facts: WorkerFacts, *, dead_after_us: int, listed_us: int, now_us: int | None = None
    ) -> int:
        return self._beat_on(self._home_of(facts.id), facts, dead_after_us, listed_us, now_us)

    def leave(self, worker_id: str) -> None:
        self._leave_on(self._home_of(worker_id), worker_id)

    def workers(
        self,
        *,
        limit: int = 1000,
        after: str = "",
        pool: str | None = None,
        now_us: int | None = None,
    ) -> list[WorkerView]:
        found: list[WorkerView] = []
        for shard in range(self._namespace.shards):
            found += self._workers_on(shard, limit, after, pool, now_us)
        return sorted(found, key=lambda worker: worker.facts.id)[:limit]

    def prefer(self, pool: str, shards: Collection[int]) -> None:
        self._visits.prefer(pool, shards)

    def _home_of(self, worker_id: str) -> int:
        return zlib.crc32(worker_id.encode()) % self._namespace.shards
