"""
Policies of exact topics: the cost of setting one when 1, 1,000 and 1,000,000 topics have one, how
many `policy_set_many` sets per second, and the size of each in the store and in this process.

`set` is the time of the call with the engine's default durability, `work` the time without the sync
to disk. Half of the topics that are set have waiting messages.
"""

from __future__ import annotations

import gc
import resource
import time

from bench.common import BODY, Store, options, pick, publish_table, seconds, spread, store
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.message import Draft

BATCH = 1_000
SETS = 100
"""Different sets of fields among all topics: equal ones are shared."""


def main() -> None:
    chosen = options(__doc__ or "")
    counts = (1, 1_000, pick(chosen, 1_000_000, 100_000, 2_000))
    sets = pick(chosen, 500, 200, 20)
    rows: list[tuple[object, ...]] = []
    repeats = []
    with store(chosen) as place:
        engine = open_engine(place.url, Settings(durability="memory"))
        engine.policy_set("code", "push.*", {"retries": 3})
        empty, before = place.size(), used()
        there = 0
        for count in counts:
            many = (count - there) / fill(engine, there, count)
            there, added = count, count - there
            work = measure(engine, count, sets)
            full = usual(place, count, sets)
            rows.append(
                (
                    count,
                    work["median"],
                    full["median"],
                    many if added > 1 else 0.0,
                    (place.size() - empty) / count,
                    (used() - before) / 1e6,
                )
            )
            repeats.append({"topics": count, "work": work, "set": full})
        engine.close()
    rows.append(("ratio", *(rows[-1][n] / rows[0][n] for n in (1, 2)), "", "", ""))  # type: ignore[operator]
    publish_table(
        "policies",
        chosen,
        (
            "topics",
            "work, ms",
            "set, ms",
            "policy_set_many/s",
            "bytes/topic",
            "process grew by, MB",
        ),
        rows,
        f"batches of {BATCH:,}, {SETS} different sets of fields; medians of {sets} single sets;"
        " ratio: the largest against 1",
        repeats=repeats,
    )


def fill(engine: FullEngine, first: int, end: int) -> float:
    """Set the policies and return the seconds; one topic in a hundred gets a message."""
    took = 0.0
    for start in range(first, end, BATCH):
        topics = range(start, min(end, start + BATCH))
        changes = [(f"push.{n}", {"rate": n % SETS + 1, "weight": 2}) for n in topics]
        took += seconds(lambda: engine.policy_set_many("code", changes))  # noqa: B023  # called at once
        engine.put([Draft(f"push.{n}", BODY) for n in topics if n % 100 == 0])
    return took


def measure(engine: FullEngine, count: int, sets: int) -> dict[str, float]:
    """Milliseconds of one call."""
    took = []
    for n in range(sets):
        topic = f"push.{(n * 50 * 7919) % count}"
        began = time.perf_counter()
        engine.policy_set("operator", topic, {"concurrency": n % 7 + 1})
        took.append((time.perf_counter() - began) * 1e3)
    return spread(took)


def usual(place: Store, count: int, sets: int) -> dict[str, float]:
    engine = open_engine(place.url, Settings())
    try:
        return measure(engine, count, sets)
    finally:
        engine.close()


def used() -> int:
    """The most bytes that this process has used."""
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
