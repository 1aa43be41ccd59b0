"""A deep backlog: publishing into it, leasing from it, and listing it."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.common import BATCH, BODY, options, pick, publish_table, store
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement


def main() -> None:
    chosen = options(__doc__ or "")
    depth = pick(chosen, 10_000_000, 1_000_000, 5_000)
    rounds = pick(chosen, 40, 40, 1)
    rows: list[tuple[object, ...]] = []
    with store(chosen) as place:
        engine = open_engine(place.url, Settings(durability="memory"))
        step = depth // 5
        for _ in range(5):
            began = time.perf_counter()
            for first in range(0, step, BATCH):
                engine.put([Draft(f"t.{n % 10_000}", BODY) for n in range(first, first + BATCH)])
            put = step / (time.perf_counter() - began)
            began = time.perf_counter()
            for _ in range(rounds):
                leases = engine.lease(BATCH).leases
                engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
            head = rounds * BATCH / (time.perf_counter() - began)
            looks = [
                milliseconds(lambda: engine.topic_list(order="backlog", limit=20)),
                milliseconds(lambda: engine.topic_stats("t.5")),
                milliseconds(lambda: engine.topic_peek("t.5")),
                milliseconds(engine.overview),
            ]
            waiting = engine.overview().waiting
            rows.append((waiting, put, head, *looks, place.size() / waiting))
        engine.close()
    publish_table(
        "backlog",
        chosen,
        (
            "waiting",
            "put/s",
            "lease + settle/s",
            "top 20, ms",
            "stats, ms",
            "peek, ms",
            "overview, ms",
            "bytes/message",
        ),
        rows,
        f"10,000 topics, durability memory; put: the last {step:,}; lease + settle:"
        f" {rounds * BATCH:,} at that depth",
    )


def milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    main()
