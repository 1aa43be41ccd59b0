"""Workers of a namespace: `beat.lua` writes their records, which are read here."""

from __future__ import annotations

from collections.abc import Sequence

from laneway.engines.base import PING, WorkerFacts, WorkerView
from laneway.engines.sharded.presence import ShardedCoordination
from laneway.engines.sharded.splitting import pages
from laneway.engines.shared import presence
from laneway.engines.valkey.namespace import Namespace

PAGE = 500
"""Records that are read at once."""

TIME, HEAD = 7, 21
"""Bytes of a time, and of the three at the head of a record: started, beat, dead."""


class ValkeyCoordination(ShardedCoordination):
    """`laneway.engines.base.Coordination` on servers."""

    _space: Namespace

    def _beat_on(
        self, shard: int, facts: WorkerFacts, dead_after_us: int, listed_us: int, now_us: int | None
    ) -> int:
        arguments = (facts.id, dead_after_us, listed_us, presence.encode(facts))
        return int(self._space.run("beat", shard, now_us, *arguments, repeatable=True))

    def _leave_on(self, shard: int, worker_id: str) -> None:
        space = self._space
        space.server.read(
            shard,
            [
                ("HDEL", space.key(shard, "workers"), worker_id),
                ("ZREM", space.key(shard, "workers_until"), worker_id),
            ],
        )

    def _workers_on(
        self, shard: int, limit: int, after: str, pool: str | None, now_us: int | None
    ) -> list[WorkerView]:
        counters, clock_us = self._space.counters(shard)
        now = max(counters.now, clock_us if now_us is None else now_us)
        ids = self._space.read(shard, "ZRANGE", "workers_until", f"({now}", "+inf", "BYSCORE")
        ids = sorted(worker_id for worker_id in ids if worker_id.decode() > after)
        found: list[WorkerView] = []
        for page in pages(ids, min(PAGE, limit)):
            for record in self._space.read(shard, "HMGET", "workers", *page):
                if record is not None:
                    worker = _view(record, now)
                    if pool is None or pool in worker.facts.pools:
                        found.append(worker)
            if len(found) >= limit:
                break
        return found[:limit]

    def ping(self, worker_ids: Sequence[str]) -> None:
        for page in pages(worker_ids, PAGE):
            self._space.publish_results(PING, [PING + worker_id for worker_id in page])


def _view(record: bytes, now_us: int) -> WorkerView:
    started, beat, dead = (int.from_bytes(record[at : at + TIME]) for at in range(0, HEAD, TIME))
    return presence.view(record[HEAD:], started, beat, dead, now_us)
