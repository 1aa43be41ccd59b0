"""The engine alone, with all policies in force, against the raw ceiling in the same run, batch by batch in turn."""

from __future__ import annotations

import random
import time
from argparse import Namespace
from pathlib import Path

from bench.ceiling import Plain, Raw
from bench.ceiling_valkey import RawServer
from bench.common import BATCH, BODY, ServerStore, folder, options, pick, publish_table, spread, store
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
            repeats = range(pick(chosen, 3, 1, 1))
            if chosen.engine != "sqlite":
                told = [measure_server(chosen, durability, topics, messages, chosen.seed + n) for n in repeats]
                rows += [server_row(durability, topics, operation, [run[operation] for run in told]) for operation in ("put", "lease + settle")]
                continue
            runs = [measure(durability, topics, messages, chosen.seed + n) for n in repeats]
            for operation in ("put", "lease + settle"):
                ours, raw, ratio, plain = ([run[operation][n] for run in runs] for n in range(4))
                found = spread(ratio)
                rows.append((durability, topics, operation, spread(ours)["median"], spread(raw)["median"], *found.values(), spread(plain)["median"]))
    if chosen.engine != "sqlite":
        publish_table(
            "engine", chosen, SERVER_COLUMNS, rows, f"{messages:,} messages of 100 bytes, batches of {BATCH}, all policies in force; side by side"
        )
        return
    publish_table(
        "engine", chosen,
        ("durability", "topics", "operation", "fairlead/s", "raw sqlite/s", "ratio min", "ratio", "ratio max", "plain queue/s"), rows,
        f"{messages:,} messages of 100 bytes, batches of {BATCH}, all policies in force; medians of runs side by side;"
        " fsync: put and settle are synced, leases follow, in all three",
    )  # fmt: skip


SERVER_COLUMNS = ("durability", "topics", "operation", "fairlead/s", "raw script/s", "ratio min", "ratio", "ratio max")


def server_row(durability: str, topics: int, operation: str, runs: list[tuple[float, float, float]]) -> tuple[object, ...]:
    ours, raw, ratio = (spread(column) for column in zip(*runs, strict=True))
    return (durability, topics, operation, ours["median"], raw["median"], *ratio.values())


def measure_server(chosen: Namespace, durability: str, topics: int, messages: int, seed: int) -> dict[str, tuple[float, float, float]]:
    """(ours, raw, their ratio) in messages a second; both on a server of their own, which the one that waits leaves idle."""
    draw = random.Random(seed)
    batches = [[draw.randrange(topics) for _ in range(BATCH)] for _ in range(messages // BATCH)]
    with store(chosen, durability) as place, store(chosen, durability) as other:
        assert isinstance(other, ServerStore)
        engine = open_engine(place.url, Settings(durability=durability))  # type: ignore[arg-type]
        engine.policy_set("code", "t.*", POLICIES)
        raw = RawServer(other.servers[0].port, durability)
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
        while min(ours, theirs) < len(batches) * BATCH:
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
            ours, theirs = ours + len(leases), theirs + len(taken) // 3
        engine.close()
        raw.close()
    count = len(batches) * BATCH
    return {
        operation: (count / spent[f"our {name}"], count / spent[f"raw {name}"], spent[f"raw {name}"] / spent[f"our {name}"])
        for operation, name in (("put", "put"), ("lease + settle", "lease"))
    }


def measure(durability: str, topics: int, messages: int, seed: int) -> dict[str, tuple[float, float, float, float]]:
    """(ours, raw, their ratio, plain) in messages a second."""
    draw = random.Random(seed)
    batches = [[draw.randrange(topics) for _ in range(BATCH)] for _ in range(messages // BATCH)]
    with folder() as place:
        engine = open_engine(f"sqlite:///{place}/ours.db", Settings(durability=durability))  # type: ignore[arg-type]
        engine.policy_set("code", "t.*", POLICIES)
        raw = Raw(Path(place) / "raw.db", durability, topics)
        plain = Plain(Path(place) / "plain.db", durability)
        spent = dict.fromkeys(("our put", "raw put", "plain put", "our lease", "raw lease", "plain lease"), 0.0)
        for batch in batches:
            drafts = [Draft(f"t.{topic}", BODY) for topic in batch]
            at = [time.perf_counter()]
            engine.put(drafts)
            at.append(time.perf_counter())
            raw.put(batch)
            at.append(time.perf_counter())
            plain.put(batch)
            at.append(time.perf_counter())
            spent["our put"] += at[1] - at[0]
            spent["raw put"] += at[2] - at[1]
            spent["plain put"] += at[3] - at[2]
        ours = theirs = plains = 0
        while min(ours, theirs, plains) < len(batches) * BATCH:
            at = [time.perf_counter()]
            leases = engine.lease(BATCH).leases
            engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
            at.append(time.perf_counter())
            taken = raw.lease()
            raw.ack(taken)
            at.append(time.perf_counter())
            simple = plain.lease()
            plain.ack(simple)
            at.append(time.perf_counter())
            if leases:
                spent["our lease"] += at[1] - at[0]
            if taken:
                spent["raw lease"] += at[2] - at[1]
            if simple:
                spent["plain lease"] += at[3] - at[2]
            ours, theirs, plains = ours + len(leases), theirs + len(taken), plains + len(simple)
        engine.close()
        raw.connection.close()
        plain.connection.close()
    count = len(batches) * BATCH
    return {
        operation: (
            count / spent[f"our {name}"],
            count / spent[f"raw {name}"],
            spent[f"raw {name}"] / spent[f"our {name}"],
            count / spent[f"plain {name}"],
        )
        for operation, name in (("put", "put"), ("lease + settle", "lease"))
    }


if __name__ == "__main__":
    main()
