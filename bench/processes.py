"""
Two and four worker processes beside one: handlers that do nothing or use the processor, 1,000
topics.

SQLite: one file, which has one write lock, and four. PostgreSQL: one schema and four. Everything is
published before the workers start. One, two and four workers take turns, so that all of them meet
the same moments of the machine.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.common import (
    folder,
    go,
    line,
    options,
    pick,
    process,
    publish_table,
    spread,
    store,
    usual,
)
from laneway import Laneway, Message

WORKER = """
import sys, time
from laneway import Laneway
app = Laneway(sys.argv[1], durability=sys.argv[2])
work = int(sys.argv[3]) / 1e6
@app.handler("*")
async def handle(message):
    if work:
        until = time.perf_counter() + work
        while time.perf_counter() < until: pass
app.engine
print("ready", flush=True)
sys.stdin.readline()
began = time.time()
summary = app.run_worker(concurrency=100, burst=True)
print(began, time.time(), summary.acked, flush=True)
"""

TOPICS = 1_000
SEVERAL = {"sqlite": "4 files", "postgres": "4 schemas"}
"""By engine: a store with four locks."""


def main() -> None:
    chosen = options(__doc__ or "")
    messages = pick(chosen, 200_000, 60_000, 2_000)
    repeats = pick(chosen, 5, 3, 1)
    cases = [("one", 0)] + [("one", work) for work in pick(chosen, (20, 100, 500), (100,), ())]
    if chosen.engine in SEVERAL:
        cases.insert(1, (SEVERAL[chosen.engine], 0))
    rows, spreads = [], []
    for name, work_us in cases:
        count = messages // (10 if work_us else 1)
        found: dict[int, list[float]] = {1: [], 2: [], 4: []}
        for _ in range(repeats):
            for workers, rates in found.items():
                rates.append(run(chosen, name, count, workers, work_us))
        one, two, four = map(spread, found.values())
        single = {"sqlite": "1 file", "postgres": "1 schema"}.get(chosen.engine, "1 server")
        label = single if name == "one" else name
        spreads.append(
            {"store": label, "handler, us of CPU": work_us, "one": one, "two": two, "four": four}
        )
        rates = [each["median"] for each in (one, two, four)]
        rows.append((label, work_us, *rates, rates[1] / rates[0], rates[2] / rates[0]))
        publish_table(
            "processes",
            chosen,
            (
                "store",
                "handler, us of CPU",
                "1 process/s",
                "2 processes/s",
                "4 processes/s",
                "2 : 1",
                "4 : 1",
            ),
            rows,
            f"{messages:,} messages of 100 bytes (a tenth where handlers use the processor),"
            f" {TOPICS:,} topics, {usual(chosen)}; medians of {repeats}, taking turns",
            repeats=spreads,
        )


def run(chosen: Namespace, name: str, messages: int, workers: int, work_us: int) -> float:
    """Messages per second from the start of the first worker to the end of the last one."""
    durability = usual(chosen)
    with place(chosen, name) as url:
        app = Laneway(url, durability=durability)  # type: ignore[arg-type]
        app.publish_many(
            (Message(f"t.{n % TOPICS}", "x" * 98) for n in range(messages)), progress=False
        )
        app.close()
        return drain(url, durability, workers, messages, work_us)


@contextmanager
def place(chosen: Namespace, name: str) -> Iterator[str]:
    """The URL of an empty store."""
    if name == SEVERAL["sqlite"]:
        with folder() as path:
            yield f"sqlite:///{path}/q?shards=4"
        return
    with store(chosen, usual(chosen)) as one:
        yield one.url if name == "one" else f"{one.url}?shards=4"


def drain(url: str, durability: str, workers: int, messages: int, work_us: int) -> float:
    with ExitStack() as stack:
        started = [
            stack.enter_context(process(WORKER, url, durability, str(work_us)))
            for _ in range(workers)
        ]
        for worker in started:
            line(worker)
        for worker in started:
            go(worker)
        reports = [line(worker).split() for worker in started]
    assert sum(int(acked) for _, _, acked in reports) == messages, reports
    began = min(float(began) for began, _, _ in reports)
    time_taken = max(float(end) for _, end, _ in reports) - began
    return messages / time_taken


if __name__ == "__main__":
    main()
