"""
End to end through the public API: bulk publishing, then one worker or two, with handlers that do
nothing.
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
work = int(sys.argv[4]) / 1e6
def busy():
    until = time.perf_counter() + work
    while time.perf_counter() < until: pass
if sys.argv[2] == "busy":
    @app.handler("*")
    async def something(message): busy()
elif sys.argv[2] == "async":
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
            for kind, workers in (("async", 1), ("thread", 1), ("async", 2)):
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
                    drained["async", 2],
                    drained["async", 2] / drained["async", 1],
                )
            )
    publish_busy(chosen, messages // 15, repeats)
    publish_table(
        "endtoend",
        chosen,
        (
            "durability",
            "topics",
            "publish_many/s",
            "async/s",
            "threads/s",
            "2 processes/s",
            "2 : 1",
        ),
        rows,
        f"{messages:,} messages of 100 bytes, handlers that do nothing; medians of {repeats}",
        repeats=spreads,
    )


def publish_busy(chosen: Namespace, messages: int, repeats: int) -> None:
    """
    What a second process adds when handlers use the processor: a store of one file has one writer,
    and each process runs its handlers on a core of its own.
    """
    rows = []
    for work_us in (20, 100, 500):
        one, two = (
            spread(
                [
                    run(chosen, "fsync", 1_000, messages, "busy", count, work_us=work_us)[1]
                    for _ in range(repeats)
                ]
            )["median"]
            for count in (1, 2)
        )
        rows.append((work_us, one, two, two / one))
    publish_table(
        "processes",
        chosen,
        ("handler, us of CPU", "1 process/s", "2 processes/s", "2 : 1"),
        rows,
        f"{messages:,} messages, 1,000 topics, fsync",
    )


def run(
    chosen: Namespace,
    durability: str,
    topics: int,
    messages: int,
    kind: str,
    workers: int,
    *,
    work_us: int = 0,
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
        return published, drain(url, durability, kind, workers, messages, work_us=work_us)


def drain(
    url: str, durability: str, kind: str, workers: int, messages: int, *, work_us: int = 0
) -> float:
    """Messages per second from the start of the first worker to the end of the last one."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(process(WORKER, url, kind, durability, str(work_us)))
            for _ in range(workers)
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
