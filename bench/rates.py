"""How exactly rates hold, from 1 to 10,000 a second, with two workers on one file."""

from __future__ import annotations

from argparse import Namespace
from contextlib import ExitStack

from bench.common import go, line, options, pick, process, publish_table, store
from fairlead import Fairlead, Message

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
while (left := until - time.time()) > 0:
    batch = engine.lease(500)
    if batch.leases:
        taken.append((batch.now_us, len(batch.leases)))
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
    rows = [measure(chosen, rate, span) for rate in pick(chosen, (1, 10, 100, 1_000, 10_000), (10, 1_000, 10_000), (100,))]
    publish_table(
        "rates", chosen, ("rate/s", "delivered/s", "error, %", "most beyond the limit in any window"), rows,
        f"in {span:g} s from {SETTLE_IN:g} s after the start on, {WORKERS} workers; limit of a window: rate x its length + burst",
    )  # fmt: skip


def measure(chosen: Namespace, rate: int, span: float) -> tuple[float, ...]:
    """(rate, delivered a second, error in percent, worst excess in any window)."""
    burst = max(1, rate // 20)
    with store(chosen) as place, ExitStack() as stack:
        url = place.url
        with Fairlead(url, durability="memory") as app:
            app.policy("a", rate=rate, burst=burst)
            app.publish_many((Message("a", n) for n in range(int(rate * (span + SETTLE_IN) * 1.5) + burst + 10)), progress=False)
        workers = [stack.enter_context(process(WORKER, url, str(span + SETTLE_IN + 0.2))) for _ in range(WORKERS)]
        for worker in workers:
            line(worker)
        for worker in workers:
            go(worker)
        told = [pair.split(":") for worker in workers for pair in line(worker).split()]
    taken = sorted((int(at) / 1e6, int(count)) for at, count in told)
    first = taken[0][0] + SETTLE_IN
    steady = sum(count for at, count in taken if first <= at < first + span) / span
    return rate, steady, (steady / rate - 1) * 100, excess(taken, rate, burst)


def excess(taken: list[tuple[float, int]], rate: int, burst: int) -> float:
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
