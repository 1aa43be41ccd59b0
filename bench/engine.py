"""The engine alone, with all policies in force, against the raw ceiling in the same run, batch by batch in turn."""

from __future__ import annotations

import random
import time
from pathlib import Path

from bench.ceiling import Raw
from bench.common import BATCH, BODY, folder, options, pick, publish_table, spread
from fairlead.engines import open_engine
from fairlead.engines.base import Settings
from fairlead.message import Draft, Settlement

POLICIES = {"rate": 1_000_000, "burst": 1_000_000, "concurrency": 1_000_000, "weight": 2, "tier": "high", "retries": 5, "lease": 60}
"""Every limit is looked at at every visit, and holds nothing back: what is measured is the cost of looking."""


def main() -> None:
    chosen = options(__doc__ or "")
    messages = pick(chosen, 300_000, 100_000, 2_000)
    rows = []
    for durability in ("memory", "fsync"):
        for topics in pick(chosen, (1, 1_000, 100_000), (1, 1_000, 100_000), (1, 100)):
            runs = [measure(durability, topics, messages, chosen.seed + n) for n in range(pick(chosen, 3, 1, 1))]
            for operation in ("put", "lease + settle"):
                ours, raw, ratio = ([run[operation][n] for run in runs] for n in range(3))
                found = spread(ratio)
                rows.append((durability, topics, operation, spread(ours)["median"], spread(raw)["median"], *found.values()))
    publish_table(
        "engine", chosen, ("durability", "topics", "operation", "fairlead/s", "raw sqlite/s", "ratio min", "ratio", "ratio max"), rows,
        f"{messages:,} messages of 100 bytes, batches of {BATCH}, all policies in force; medians of runs side by side",
    )  # fmt: skip


def measure(durability: str, topics: int, messages: int, seed: int) -> dict[str, tuple[float, float, float]]:
    """(ours, raw, ratio) in messages a second."""
    draw = random.Random(seed)
    batches = [[draw.randrange(topics) for _ in range(BATCH)] for _ in range(messages // BATCH)]
    with folder() as place:
        engine = open_engine(f"sqlite:///{place}/ours.db", Settings(durability=durability))  # type: ignore[arg-type]
        engine.policy_set("code", "t.*", POLICIES)
        raw = Raw(Path(place) / "raw.db", durability, topics)
        spent = dict.fromkeys(("our put", "raw put", "our lease", "raw lease"), 0.0)
        for batch in batches:
            drafts = [Draft(f"t.{topic}", BODY) for topic in batch]
            at = [time.perf_counter()]
            engine.put(drafts)
            at.append(time.perf_counter())
            raw.put(batch)
            at.append(time.perf_counter())
            spent["our put"] += at[1] - at[0]
            spent["raw put"] += at[2] - at[1]
        ours = theirs = 0
        while ours < len(batches) * BATCH or theirs < len(batches) * BATCH:
            at = [time.perf_counter()]
            leases = engine.lease(BATCH).leases
            engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
            at.append(time.perf_counter())
            taken = raw.lease()
            raw.ack(taken)
            at.append(time.perf_counter())
            if leases:
                spent["our lease"] += at[1] - at[0]
            if taken:
                spent["raw lease"] += at[2] - at[1]
            ours, theirs = ours + len(leases), theirs + len(taken)
        engine.close()
        raw.connection.close()
    count = len(batches) * BATCH
    return {
        "put": (count / spent["our put"], count / spent["raw put"], spent["raw put"] / spent["our put"]),
        "lease + settle": (count / spent["our lease"], count / spent["raw lease"], spent["raw lease"] / spent["our lease"]),
    }


if __name__ == "__main__":
    main()
