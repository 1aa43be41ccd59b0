"""
The heartbeats of 10,000 workers: what they cost the store, and the plain path beside them.

One process sends the heartbeats of so many workers, each every 3 s, evenly spread. Meanwhile
another one puts, leases and settles plain messages, 100 at a time over 100 topics. The figures are
beside those of the same run without heartbeats; the rounds alternate.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from contextlib import closing
from statistics import median

from bench.common import (
    ServerStore,
    Store,
    go,
    line,
    options,
    pick,
    process,
    publish_table,
    store,
    usual,
)
from laneway.engines import open_engine
from laneway.engines.base import Settings

INTERVAL = 3.0
"""Seconds between two heartbeats of a worker."""

LIBRARY = """
import os, sys, time
from laneway.engines import open_engine
from laneway.engines.base import RunningMessage, Settings, WorkerFacts
from laneway.message import Draft, Settlement

def facts(number):
    return WorkerFacts(
        id=f"web{number % 100}.example.org-{number}-a1b2c3", host=f"web{number % 100}.example.org",
        pid=number, program="shop", version="2026.11.1", laneway="0.1.0", pools=["default"],
        patterns=["laneway.ended", "laneway.open", "mail.*", "orders.*", "push.*"],
        concurrency=100, busy=number % 100, leased=number % 200,
        oldest=RunningMessage("push.acme", "5fe6b1-660d86208ba4", time.time_ns() // 1000),
        loop_lag=0.002)
"""

BEATS = (
    LIBRARY
    + """
url, durability, workers, interval = *sys.argv[1:3], int(sys.argv[3]), float(sys.argv[4])
engine = open_engine(url, Settings(durability=durability))
print("ready", flush=True)
sys.stdin.readline()
def beat(number):
    engine.beat(facts(number), dead_after_us=9_000_000, listed_us=20_000_000)
for number in range(workers):
    beat(number)
print("listed", flush=True)
sys.stdin.readline()
seconds, took, number = float(sys.argv[5]), [], 0
began, cpu = time.perf_counter(), time.process_time()
while (now := time.perf_counter()) < began + seconds:
    due = began + number * interval / workers
    if due > now:
        time.sleep(due - now)
        now = time.perf_counter()
    beat(number % workers)
    took.append(time.perf_counter() - now)
    number += 1
took.sort()
print(number / seconds, took[len(took) // 2] * 1e3, took[int(len(took) * 0.99)] * 1e3,
      time.process_time() - cpu, flush=True)
"""
)

PLAIN = (
    LIBRARY
    + """
url, durability, seconds = *sys.argv[1:3], float(sys.argv[3])
engine = open_engine(url, Settings(durability=durability))
drafts = [Draft(f"t.{n}", b"x" * 100) for n in range(100)]
print("ready", flush=True)
sys.stdin.readline()
count, began = 0, time.perf_counter()
while time.perf_counter() < began + seconds:
    engine.put(drafts)
    leases = engine.lease(100).leases
    engine.settle([Settlement(each.handle, each.fence) for each in leases])
    count += len(leases)
print(count / (time.perf_counter() - began), flush=True)
"""
)


def main() -> None:
    chosen = options(__doc__ or "")
    numbers = pick(chosen, (10, 1_000, 10_000), (1_000, 10_000), (10,))
    seconds = pick(chosen, 9.0, 6.0, 0.5)
    rounds = pick(chosen, 3, 1, 1)
    plain: list[float] = []
    measured: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for _ in range(rounds):
        with store(chosen, usual(chosen)) as place:
            plain.append(beside(chosen, place, seconds))
        for workers in numbers:
            with store(chosen, usual(chosen)) as place:
                measured[workers].append(with_heartbeats(chosen, place, workers, seconds))
    rows: list[tuple[object, ...]] = [(0, "-", "-", "-", "-", "-", max(plain), 1.0)]
    for workers, runs in measured.items():
        figures = [median(column) for column in zip(*runs, strict=True)]
        best = max(run[-1] for run in runs)
        rows.append((workers, *figures[:-1], best, best / max(plain)))
    load = "processes, % of a core" if chosen.engine == "sqlite" else "server, % of a core"
    publish_table(
        "workers",
        chosen,
        (
            "workers",
            "heartbeats/s",
            "p50 ms",
            "p99 ms",
            load,
            "list of 1,000, ms",
            "plain messages/s",
            "plain : without",
        ),
        rows,
        f"{os.cpu_count()} cores; the load is of the heartbeats alone; the plain path's best of"
        f" {rounds} rounds",
    )


def beside(chosen: argparse.Namespace, place: Store, seconds: float) -> float:
    """Plain messages a second."""
    with process(PLAIN, place.url, usual(chosen), str(seconds)) as worker:
        line(worker)
        go(worker)
        return float(line(worker))


def with_heartbeats(
    chosen: argparse.Namespace, place: Store, workers: int, seconds: float
) -> tuple[float, ...]:
    """
    The heartbeats' figures without other load, the time of a list, and plain messages a second
    beside heartbeats.
    """
    arguments = (place.url, usual(chosen), str(workers), str(INTERVAL), str(seconds))
    with process(BEATS, *arguments) as beats:
        line(beats)
        go(beats)
        line(beats)
        before = place.cpu() if isinstance(place, ServerStore) else 0.0
        go(beats)
        rate, p50, p99, own = map(float, line(beats).split())
    cpu = place.cpu() - before if isinstance(place, ServerStore) else own
    with closing(open_engine(place.url, Settings())) as engine:
        began = time.perf_counter()
        engine.workers(limit=1_000)
        listed = (time.perf_counter() - began) * 1e3
    with process(BEATS, *arguments) as beats:
        line(beats)
        go(beats)
        line(beats)
        go(beats)
        plain = beside(chosen, place, seconds / 2)
    return rate, p50, p99, cpu / seconds * 100, listed, plain


if __name__ == "__main__":
    main()
