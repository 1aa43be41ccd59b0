"""How exactly rates hold with the default burst, from 1 to 10,000 per second, with two workers."""

from __future__ import annotations

from argparse import Namespace
from contextlib import ExitStack

from bench.common import go, line, options, pick, process, publish_table, store
from laneway import Laneway, Message
from laneway.policy import default_burst

WORKERS = 2
WORKER = """
import sys, time
from collections import Counter
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Settlement
engine = open_engine(sys.argv[1], Settings(durability="memory"))
print("ready", flush=True)
sys.stdin.readline()
until = time.time() + float(sys.argv[2])
taken = []
while (left := until - time.time()) > 0:
    batch = engine.lease(500)
    if batch.leases:
        # An engine may divide a call: each lease says itself when it began, for all are 60 s long.
        taken.extend(Counter(lease.deadline_us - 60_000_000 for lease in batch.leases).items())
        engine.settle([Settlement(lease.handle, lease.fence) for lease in batch.leases])
    else:
        engine.wait(left)
print(" ".join(f"{at}:{count}" for at, count in taken), flush=True)
"""
SETTLE_IN = 1.0
"""Seconds after the first delivery, with its burst, from which on the rate is measured."""


def main() -> None:
    chosen = options(__doc__ or "")
    span = pick(chosen, 20.0, 4.0, 1.0)
    rates = pick(
        chosen, (1, 5, 10, 20, 25, 39, 40, 100, 1_000, 10_000), (10, 25, 39, 1_000, 10_000), (100,)
    )
    cases = [(rate, 1) for rate in rates] + pick(chosen, [(100, 4), (1_000, 16)], [(100, 4)], [])
    rows = [measure(chosen, rate, partitions, span) for rate, partitions in cases]
    publish_table(
        "rates",
        chosen,
        (
            "rate/s",
            "partitions",
            "delivered/s",
            "short, %",
            "over, %",
            "most beyond the limit in any window",
            "lost to late visits, %",
        ),
        rows,
        f"in {span:g} s from {SETTLE_IN:g} s after the start on, {WORKERS} workers; limit of a"
        " window: rate x its length + burst; lost to late visits: permits that came while the"
        " burst was full, because no worker came within 50 ms",
    )


def measure(chosen: Namespace, rate: int, partitions: int, span: float) -> tuple[float, ...]:
    """One row of the table."""
    burst = default_burst(rate)
    with store(chosen) as place, ExitStack() as stack:
        url = place.url
        with Laneway(url, durability="memory") as app:
            app.policy("a", rate=rate, partitions=partitions)
            count = int(rate * (span + SETTLE_IN) * 1.5 + burst) + 10 * partitions
            app.publish_many((Message("a", n) for n in range(count)), progress=False)
        workers = [
            stack.enter_context(process(WORKER, url, str(span + SETTLE_IN + 0.2)))
            for _ in range(WORKERS)
        ]
        for worker in workers:
            line(worker)
        for worker in workers:
            go(worker)
        pairs = [pair.split(":") for worker in workers for pair in line(worker).split()]
    taken = sorted((int(at) / 1e6, int(count)) for at, count in pairs)
    first = taken[0][0] + SETTLE_IN
    steady = sum(count for at, count in taken if first <= at < first + span) / span
    error = (steady / rate - 1) * 100
    late = lateness([each for each in taken if first <= each[0] < first + span], rate) / span * 100
    return (
        rate,
        partitions,
        steady,
        max(0.0, -error),
        max(0.0, error),
        excess(taken, rate, burst),
        late,
    )


def lateness(taken: list[tuple[float, int]], rate: int) -> float:
    """Seconds in which the burst was full: permits that no worker took then are lost."""
    full_at, lost = taken[0][0] if taken else 0.0, 0.0
    for at, count in taken:
        lost += max(0.0, at - full_at)
        full_at = max(at, full_at) + count / rate
    return lost


def excess(taken: list[tuple[float, int]], rate: int, burst: float) -> float:
    """How many deliveries the worst window has beyond its rate and burst; 0 if none has."""
    worst = best = float("-inf")
    before = 0
    for at, count in taken:
        best = max(best, rate * at - before)  # a window that begins here
        before += count
        worst = max(worst, before - rate * at + best - burst)
    return max(0.0, worst)


if __name__ == "__main__":
    main()
