"""
The cost of a lease of 500 with a rate and a concurrency limit on each of 1,000,000 topics, beside
1,000 such topics.

The clock is virtual (`now_us`) and advances by 10 ms for each lease. At the chosen rate, 500 lanes
become runnable in that time, and each delivers one message, on both sides. Delivered messages are
published again, so the backlog is constant. Measuring starts after every lane has been served once,
so that all lanes alternate between sleeping and delivering.
"""

from __future__ import annotations

import time

from bench.common import BODY, Store, options, pick, publish_table, spread, store
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement

START = 1_700_000_000_000_000
STEP_US = 10_000
LEASE = 500
WAITING = 2
"""Messages of each topic."""


def main() -> None:
    chosen = options(__doc__ or "")
    few = 1_000
    many = pick(chosen, 1_000_000, 100_000, 2_000)
    leases = pick(chosen, 400, 100, 5)
    found = []
    for topics in (few, many):
        with store(chosen) as place:
            found.append(measure(place, topics, leases))
    figures = [(lease["median"], settle["median"], size) for lease, settle, size in found]
    rows: list[tuple[object, ...]] = [
        (topics, *row) for topics, row in zip((few, many), figures, strict=True)
    ]
    rows.append(("ratio", *(b / a for a, b in zip(*figures, strict=True))))
    publish_table(
        "limited",
        chosen,
        ("topics", "lease 500, ms", "settle 500, ms", "bytes/topic"),
        rows,
        f"each with a rate and a concurrency and {WAITING} messages; medians of {leases} leases;"
        " one message a visit on both sides; memory",
        repeats=[
            {"topics": topics, "lease": lease, "settle": settle}
            for topics, (lease, settle, _) in zip((few, many), found, strict=True)
        ],
    )


def measure(
    place: Store, topics: int, leases: int
) -> tuple[dict[str, float], dict[str, float], float]:
    """(a lease and its settlement in milliseconds: min, median, max; bytes for each topic)."""
    engine = open_engine(place.url, Settings(durability="memory"))
    now = START
    engine.policy_set(
        "code",
        "*",
        {"rate": LEASE * 1_000_000 / STEP_US / topics, "burst": 1, "concurrency": 2},
        now_us=now,
    )
    for _ in range(WAITING):
        for first in range(0, topics, 1000):
            engine.put(
                [Draft(f"t.{n}", BODY) for n in range(first, min(topics, first + 1000))], now_us=now
            )
    took: list[tuple[float, float]] = []
    warm_up = -(-topics // LEASE) + 2
    for number in range(warm_up + leases):
        now += STEP_US
        at = [time.perf_counter()]
        batch = engine.lease(LEASE, now_us=now).leases
        at.append(time.perf_counter())
        engine.settle([Settlement(lease.handle, lease.fence) for lease in batch], now_us=now)
        at.append(time.perf_counter())
        engine.put([Draft(lease.topic, BODY) for lease in batch], now_us=now)
        if number >= warm_up:
            assert len({lease.topic for lease in batch}) == LEASE, (
                "one message of each of 500 topics"
            )
            took.append(((at[1] - at[0]) * 1e3, (at[2] - at[1]) * 1e3))
    engine.close()
    return spread([a for a, _ in took]), spread([b for _, b in took]), place.size() / topics


if __name__ == "__main__":
    main()
