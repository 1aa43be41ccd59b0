"""How exactly rates hold with the default burst, from 1 to 10,000 a second, with two workers."""

from __future__ import annotations

from argparse import Namespace
from contextlib import ExitStack

from bench.common import go, line, options, pick, process, publish_table, store
from fairlead import Fairlead, Message
from fairlead.policy import default_burst

WORKERS = 2
WORKER = """
import sys, time
from fairlead.engines import open_engine
from fairlead.engines.base import Settings
from fairlead.message import Settlement
engine = open_engine(sys.argv[1], Settings(durability="memory"))
print("ready", flush=True)
sys.stdin.readline()
until = time.time() + float(sys.argv[2])
taken = []
due = None
while (left := until - time.time()) > 0:
    batch = engine.lease(500)
    is_late = due is not None and batch.now_us > due + 50_000
    due = None
    if batch.leases:
        taken.append((batch.now_us, len(batch.leases), int(is_late)))
        engine.settle([Settlement(lease.handle, lease.fence) for lease in batch.leases])
    else:
        due = batch.next_wake_us
        engine.wait(left)
print(" ".join(f"{at}:{count}:{late}" for at, count, late in taken), flush=True)
"""
SETTLE_IN = 1.0
"""Seconds after the first delivery, with its burst, from which on the rate is measured."""


def main() -> None:
    chosen = options(__doc__ or "")
    span = pick(chosen, 20.0, 4.0, 1.0)
    rates = pick(chosen, (1, 5, 10, 20, 25, 39, 40, 100, 1_000, 10_000), (10, 25, 39, 1_000, 10_000), (100,))
    cases = [(rate, 1) for rate in rates] + pick(chosen, [(100, 4), (1_000, 16)], [(100, 4)], [])
    rows = [measure(chosen, rate, partitions, span) for rate, partitions in cases]
    publish_table(
        "rates", chosen,
        ("rate/s", "partitions", "delivered/s", "short, %", "over, %", "most beyond the limit in any window", "visits over 50 ms late"), rows,
        f"in {span:g} s from {SETTLE_IN:g} s after the start on, {WORKERS} workers; limit of a window: rate x its length + burst; "
        "a visit over 50 ms late is the machine's: its permits may be lost",
    )  # fmt: skip


def measure(chosen: Namespace, rate: int, partitions: int, span: float) -> tuple[float, ...]:
    """One row of the table."""
    burst = partitions * default_burst(rate / partitions)
    with store(chosen) as place, ExitStack() as stack:
        url = place.url
        with Fairlead(url, durability="memory") as app:
            app.policy("a", rate=rate, partitions=partitions)
            count = int(rate * (span + SETTLE_IN) * 1.5 + burst) + 10 * partitions
            app.publish_many((Message("a", n) for n in range(count)), progress=False)
        workers = [stack.enter_context(process(WORKER, url, str(span + SETTLE_IN + 0.2))) for _ in range(WORKERS)]
        for worker in workers:
            line(worker)
        for worker in workers:
            go(worker)
        told = [pair.split(":") for worker in workers for pair in line(worker).split()]
    taken = sorted((int(at) / 1e6, int(count)) for at, count, _ in told)
    late = sum(int(visit[2]) for visit in told)
    first = taken[0][0] + SETTLE_IN
    steady = sum(count for at, count in taken if first <= at < first + span) / span
    error = (steady / rate - 1) * 100
    return rate, partitions, steady, max(0.0, -error), max(0.0, error), excess(taken, rate, burst), late


def excess(taken: list[tuple[float, int]], rate: int, burst: float) -> float:
    """By how much the worst of all windows goes beyond what rate and burst allow in it; 0: none does."""
    worst = best = float("-inf")
    before = 0
    for at, count in taken:
        best = max(best, rate * at - before)  # a window that begins here
        before += count
        worst = max(worst, before - rate * at + best - burst)
    return max(0.0, worst)


if __name__ == "__main__":
    main()
