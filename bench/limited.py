"""
A rate and a concurrency limit on each of 1,000,000 topics, against 1,000 such topics: what a lease of 500 costs.

The clock is virtual (`now_us`), and moves by 10 ms a lease: 500 lanes come up in each, and each gives one message, on both sides. The lanes
cycle between sleeping and delivering.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from bench.common import BODY, folder, options, pick, publish_table
from fairlead.engines import open_engine
from fairlead.engines.base import Settings
from fairlead.message import Draft, Settlement

START = 1_700_000_000_000_000
STEP_US = 10_000
LEASE = 500


def main() -> None:
    chosen = options(__doc__ or "")
    many = pick(chosen, 1_000_000, 100_000, 2_000)
    leases = pick(chosen, 400, 100, 5)
    with folder() as place:
        few_cost, few_bytes = measure(Path(place) / "few.db", 1_000, leases)
        many_cost, many_bytes = measure(Path(place) / "many.db", many, leases)
    rows = [(1_000, *few_cost, few_bytes), (many, *many_cost, many_bytes), ("ratio", *(b / a for a, b in zip(few_cost, many_cost, strict=True)), 1.0)]
    publish_table(
        "limited", chosen, ("topics", "lease 500, ms", "settle 500, ms", "bytes/message"), rows,
        "each with a rate and a concurrency; medians; one message a visit on both sides",
    )  # fmt: skip


def measure(path: Path, topics: int, leases: int) -> tuple[tuple[float, float], float]:
    """((lease, settle) in milliseconds, bytes a message)."""
    engine = open_engine(f"sqlite:///{path}", Settings(durability="memory"))
    now = START
    engine.policy_set("code", "*", {"rate": LEASE * 1_000_000 / STEP_US / topics, "burst": 1, "concurrency": 2}, now_us=now)
    each = max(2, LEASE * leases // topics + 2)
    for _ in range(each):
        for first in range(0, topics, 1000):
            engine.put([Draft(f"t.{n}", BODY) for n in range(first, min(topics, first + 1000))], now_us=now)
    took: list[tuple[float, float]] = []
    for _ in range(leases):
        now += STEP_US
        at = [time.perf_counter()]
        batch = engine.lease(LEASE, now_us=now).leases
        at.append(time.perf_counter())
        engine.settle([Settlement(lease.handle, lease.fence) for lease in batch], now_us=now)
        at.append(time.perf_counter())
        if len(batch) == LEASE:
            assert len({lease.topic for lease in batch}) == LEASE, "one message a visit"
            took.append(((at[1] - at[0]) * 1e3, (at[2] - at[1]) * 1e3))
    assert len(took) >= leases // 2, "the lanes were to come up evenly"
    engine.close()
    return (statistics.median(a for a, _ in took), statistics.median(b for _, b in took)), path.stat().st_size / (topics * each)


if __name__ == "__main__":
    main()
