"""
A deep backlog: publishing into it, leasing from it, listing it, and changing a policy.

`--messages` and `--topics` are for `make scale`. The first row is a small backlog, to which the
others are compared. Messages are measured by processor time of client and server, because a run
takes hours, in which the machine may do other things.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from bench.common import BATCH, BODY, options, pick, publish_table, store
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--messages", type=float, help="how many messages wait in the end")
        parser.add_argument("--topics", type=float, default=10_000, help="over how many topics")

    chosen = options(__doc__ or "", more)
    depth = int(chosen.messages or pick(chosen, 10_000_000, 1_000_000, 5_000))
    topics = int(chosen.topics)
    rounds = pick(chosen, 40, 40, 1)
    rows: list[tuple[object, ...]] = []
    with store(chosen) as place:
        engine = open_engine(place.url, Settings(durability="memory"))
        steps = [max(depth // 100, 2 * rounds * BATCH), *[depth // 5] * 5]
        small, put_so_far = 0.0, 0
        for step in steps:
            began = time.process_time() + place.cpu()
            for first in range(put_so_far, put_so_far + step, BATCH):
                engine.put([Draft(f"t.{n % topics}", BODY) for n in range(first, first + BATCH)])
            put_so_far += step
            put = (time.process_time() + place.cpu() - began) / step * 1e6
            began = time.process_time() + place.cpu()
            for _ in range(rounds):
                leases = engine.lease(BATCH).leases
                engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
            head = (time.process_time() + place.cpu() - began) / (rounds * BATCH) * 1e6
            small = small or head
            looks = [
                milliseconds(lambda: engine.topic_list(order="backlog", limit=20)),
                milliseconds(lambda: engine.topic_stats("t.5")),
                milliseconds(lambda: engine.topic_peek("t.5")),
                milliseconds(engine.overview),
                milliseconds(lambda: engine.explain("t.5")),
                milliseconds(lambda: engine.policy_set("code", "t.*", {"retries": 10 + len(rows)})),
            ]
            waiting = engine.overview().waiting
            rows.append((waiting, put, head, head / small, *looks, place.size() / waiting))
        engine.close()
    publish_table(
        "backlog",
        chosen,
        (
            "waiting",
            "put, µs",
            "lease + settle, µs",
            "times a small backlog",
            "top 20, ms",
            "stats, ms",
            "peek, ms",
            "overview, ms",
            "explain, ms",
            "policy, ms",
            "bytes/message",
        ),
        rows,
        f"{topics:,} topics, durability memory; lease + settle: {rounds * BATCH:,} at that depth;"
        " policy: a change of a pattern that all topics match",
    )


def milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    main()
