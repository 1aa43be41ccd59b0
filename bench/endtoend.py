"""
End to end through the public API: bulk publishing, then one worker, with handlers that do nothing.
"""

from __future__ import annotations

import time
from argparse import Namespace
from contextlib import ExitStack

from bench.common import go, line, options, pick, process, publish_table, spread, store
from laneway import Laneway, Message

WORKER = """
import sys, time
from laneway import Laneway
app = Laneway(sys.argv[1], durability=sys.argv[3])
if sys.argv[2] == "async":
    @app.handler("*")
    async def nothing(message): pass
else:
    @app.handler("*")
    def nothing(message): pass
app.engine
print("ready", flush=True)
sys.stdin.readline()
began = time.time()
summary = app.run_worker(concurrency=100, burst=True)
print(began, time.time(), summary.acked, flush=True)
"""


def main() -> None:
    chosen = options(__doc__ or "")
    messages = pick(chosen, 300_000, 100_000, 2_000)
    repeats = pick(chosen, 3, 1, 1)
    rows = []
    spreads = []
    for durability in ("fsync", "memory"):
        for topics in pick(chosen, (1, 1_000), (1_000,), (10,)):
            published, drained = [], {}
            for kind, workers in (("async", 1), ("thread", 1)):
                runs = [
                    run(chosen, durability, topics, messages, kind, workers) for _ in range(repeats)
                ]
                published += [rate for rate, _ in runs]
                found = spread([rate for _, rate in runs])
                drained[kind, workers] = found["median"]
                spreads.append(
                    {
                        "durability": durability,
                        "topics": topics,
                        "handlers": kind,
                        "processes": workers,
                        "drained/s": found,
                    }
                )
            rows.append(
                (
                    durability,
                    topics,
                    spread(published)["median"],
                    drained["async", 1],
                    drained["thread", 1],
                )
            )
    publish_table(
        "endtoend",
        chosen,
        (
            "durability",
            "topics",
            "publish_many/s",
            "async/s",
            "threads/s",
        ),
        rows,
        f"{messages:,} messages of 100 bytes, handlers that do nothing; medians of {repeats}",
        repeats=spreads,
    )


def run(
    chosen: Namespace,
    durability: str,
    topics: int,
    messages: int,
    kind: str,
    workers: int,
) -> tuple[float, float]:
    """Measure one case: (messages published per second, drained per second)."""
    with store(chosen, durability) as place:
        url = place.url
        app = Laneway(url, durability=durability)  # type: ignore[arg-type]
        began = time.perf_counter()
        app.publish_many(
            (Message(f"t.{n % topics}", "x" * 98) for n in range(messages)), progress=False
        )
        published = messages / (time.perf_counter() - began)
        app.close()
        return published, drain(url, durability, kind, workers, messages)


def drain(url: str, durability: str, kind: str, workers: int, messages: int) -> float:
    """Messages per second from the start of the first worker to the end of the last one."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(process(WORKER, url, kind, durability)) for _ in range(workers)
        ]
        for worker in started:
            line(worker)
        for worker in started:
            go(worker)
        reports = [line(worker).split() for worker in started]
    assert sum(int(acked) for _, _, acked in reports) == messages, reports
    return messages / (
        max(float(end) for _, end, _ in reports) - min(float(began) for began, _, _ in reports)
    )


if __name__ == "__main__":
    main()
