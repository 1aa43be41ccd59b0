"""Runs every benchmark, then compares the figures with the targets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.common import RESULTS, options, place, size
from bench.features import ALL, FEATURES

BENCHES = (
    "engine",
    "endtoend",
    "processes",
    "publish",
    "spool",
    "single",
    "topics",
    "policies",
    "groups",
    "limited",
    "adaptive",
    "backlog",
    "lifetime",
    "fairness",
    "rates",
    "latency",
    "slots",
    "others",
    "floods",
    "top",
    "lookup",
    "peers",
    "beside_postgres",
    "tasks",
    "typed",
    "workers",
    "gateway",
    "dev",
    "push",
    "dashboard",
    "features",
    "subscriptions",
)
ON_SERVERS = ("waiting", "network", "scale", "shards", "locality", "capacity", "instructions")
"""Benchmarks of servers only."""

HOURS = ("soak",)
"""Benchmarks that take an hour: only their small forms are run here."""

TARGETS: tuple[tuple[str, dict[str, object], str, float, bool], ...] = (
    # table, rows, column, target, whether more is better
    ("engine", {"operation": "put"}, "ratio", 0.5, True),
    ("engine", {"operation": "lease + settle"}, "ratio", 0.5, True),
    ("endtoend", {}, "async/s", 30_000, True),
    ("endtoend", {}, "threads/s", 20_000, True),
    ("processes", {"store": "1 file", "handler, us of CPU": 0}, "2 : 1", 1.0, True),
    ("processes", {"store": "4 files", "handler, us of CPU": 0}, "2 : 1", 1.6, True),
    ("processes", {"handler, us of CPU": 500}, "2 : 1", 1.6, True),
    (
        "publish",
        {"durability": "memory", "from": "1 thread, one at a time"},
        "median/s",
        15_000,
        True,
    ),
    ("publish", {"durability": "memory", "from": "8 threads"}, "median/s", 40_000, True),
    ("publish", {"durability": "memory", "from": "100 coroutines"}, "median/s", 40_000, True),
    ("publish", {"from": "publish_many"}, "median/s", 100_000, True),
    ("spool", {"from": "buffered publish, 1 thread"}, "median/s", 200_000, True),
    ("spool", {"from": "spooled publish, 1 thread"}, "median/s", 30_000, True),
    ("topics", {}, "times slower than 1", 5.0, False),
    ("policies", {"topics": "ratio"}, "work, ms", 2.0, False),
    ("policies", {"topics": "ratio"}, "set, ms", 2.0, False),
    ("limited", {"topics": "ratio"}, "lease 500, ms", 2.0, False),
    ("groups", {}, "ratio", 1.5, False),
    ("adaptive", {}, "ratio", 0.8, True),
    ("subscriptions", {}, "ratio", 1.2, False),
    ("fairness", {"": "quiet topics' wait p99, ms"}, "ratio", 2.0, False),
    (
        "shares",
        {"": "Jain's index, lowest of all windows with 20 deliveries each"},
        "measured",
        0.99,
        True,
    ),
    *(
        ("shares", {"": f"share of {tier}"}, "furthest off in any 2,000, points", 1.0, False)
        for tier in ("high", "mid", "low")
    ),
    ("rates", {}, "most beyond the limit in any window", 1.0, False),
    ("latency", {"after a pause of": "3 ms"}, "p50 ms", 5.0, False),
    ("slots", {"one worker": "both"}, "p99 ms", 250.0, False),
    (
        "slots",
        {"one worker": "both, webhooks in a strict tier with a reserve"},
        "p99 ms",
        50.0,
        False,
    ),
    ("slots", {"one worker": "imports alone"}, "imports running", 95.0, True),
    ("top", {"topics": "many"}, "median ms", 2.0, False),
    ("typed", {"kind": "tasks"}, "CPU : messages", 2.0, False),
    ("typed", {"kind": "tasks"}, "rate : bee-queue", 2.0, True),
    ("top", {"topics": "many, one size class"}, "median ms", 2.0, False),
    ("lookup", {"ids": "all"}, "seconds", 1.0, False),
    ("reads", {}, "median ms", 5.0, False),
    ("push", {"sender": "laneway"}, "of aiohttp's", 1.0, True),
    ("push", {"sender": "laneway"}, "of pycurl's", 0.3, True),
    ("push", {"sender": "laneway"}, "CPU µs each", 90.0, False),
    ("push_neighbors", {"bad": "one hangs, one answers 503"}, "ratio", 1.2, False),
    ("push_neighbors", {}, "slots of the hanging", 3.0, False),
    ("push_neighbors", {}, "attempts of 503", 1e-9, False),
    ("push_names", {"beside": "50 names hang"}, "ratio", 1.2, False),
    ("push_names", {"beside": "50 names hang"}, "failed", 1e-9, False),
    ("push_names", {"beside": "50 names hang"}, "breakers open", 1e-9, False),
    ("push_dead", {}, "requests", 20.0, False),
    ("push_tls", {}, "CPU ms each", 1.2, False),
    ("idle", {}, "idle worker, % of a core", 1.0, False),
    ("single", {"path": "publish", "beside": "Huey"}, "ratio", 1.0, True),
    ("single", {"path": "delay", "beside": "Huey"}, "ratio", 1.0, True),
    ("single", {"path": "apublish x100"}, "median/s", 100_000, True),
    ("single", {"path": "adelay x100"}, "median/s", 60_000, True),
    ("single", {"path": "bulk of typed tasks"}, "median/s", 150_000, True),
    *(
        ("features", {"feature": feature.name}, "ratio", 0.3 if feature is ALL else 0.5, True)
        for feature in FEATURES
    ),
)


SERVER_TARGETS: dict[tuple[str, str], float] = {
    ("publish", "1 thread, one at a time"): 8_000,
    ("latency", "3 ms"): 1.0,
    ("top", "many"): 5.0,
    ("top", "many, one size class"): 5.0,
}
"""Targets of servers that differ: by table and by the value that selects the rows."""

MORE_TARGETS: tuple[tuple[str, dict[str, object], str, float, bool], ...] = (
    ("waiting", {"idle workers": 1_000}, "server, % of a core", 5.0, False),
    ("scale", {"": "cluster of 2"}, "times one server", 1.7, True),
    ("shards", {"shards": 64}, "ratio", 0.8, True),
)


def targets(engine: str) -> Iterator[tuple[str, dict[str, object], str, float, bool]]:
    """The targets of this engine."""
    if engine == "sqlite":
        yield from TARGETS
        return
    for bench, where, column, target, more_is_better in (*TARGETS, *MORE_TARGETS):
        own = next(
            (
                SERVER_TARGETS[bench, str(value)]
                for value in where.values()
                if (bench, str(value)) in SERVER_TARGETS
            ),
            target,
        )
        yield bench, where, column, own, more_is_better


def main() -> None:
    chosen = options(__doc__ or "")
    sized = [] if size(chosen) == "full" else [f"--{size(chosen)}"]
    results = RESULTS / place(chosen)
    for old in results.glob("*.json"):
        old.unlink()  # the summary covers this run only
    benches = BENCHES if chosen.engine == "sqlite" else (*BENCHES, *ON_SERVERS)
    if size(chosen) != "full":
        benches += HOURS
    failed = [
        name
        for name in benches
        if run(
            [
                sys.executable,
                "-m",
                f"bench.{name}",
                "--seed",
                str(chosen.seed),
                "--engine",
                chosen.engine,
                *sized,
            ]
        )
    ]
    summary(results, chosen.engine)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
        sys.exit(1)


def run(command: list[str]) -> int:
    """
    Run a command and return its exit code. If this process ends first, the command receives
    SIGTERM, so that it ends its workers.
    """
    with subprocess.Popen(command) as running:
        try:
            return running.wait()
        finally:
            running.terminate()


def summary(results: Path, engine: str) -> None:
    """
    Print the figures that have a target: the worst of each, and its ratio to the target (1 or more:
    reached).
    """
    beside_peers(results / "peers.json")
    print("\nagainst the targets (1.00 or more: reached)")
    for bench, where, column, target, more_is_better in targets(engine):
        path = results / f"{bench}.json"
        rows = json.loads(path.read_text())["figures"] if path.exists() else []
        values = [
            row[column]
            for row in rows
            if all(row[name] == value for name, value in where.items()) and row[column] != "-"
        ]
        name = f"{bench}: {column}" + "".join(
            f", {value}" for value in where.values() if value != "ratio"
        )
        if not values:
            print(f"  {name:88} not measured")
            continue
        worst = min(values) if more_is_better else max(values)
        reached = worst / target if more_is_better else target / max(worst, 1e-9)
        print(f"  {name:88} {worst:12,.2f}  target {target:10,}  {min(reached, 99):6.2f}")


def beside_peers(path: Path) -> None:
    """Print Laneway's figures beside the best peer of each column."""
    rows = json.loads(path.read_text())["figures"] if path.exists() else []
    ours = next((row for row in rows if row[""].startswith("Laneway")), {})
    print("\nbeside the best peer of the same run")
    for column, value in ours.items():
        others = {
            row[""]: number(row[column])
            for row in rows
            if not row[""].startswith("Laneway") and number(row[column])
        }
        if not number(value) or not others:
            continue
        best = (min if column.endswith("ms") else max)(others, key=lambda name: others[name])
        print(f"  {column:24} {number(value):12,.1f}  {best} {others[best]:,.1f}")


def number(cell: object) -> float:
    """The number in a cell, also in one marked ~; 0 where there is none."""
    try:
        return float(str(cell).lstrip("~").replace(",", ""))
    except ValueError:
        return 0.0


if __name__ == "__main__":
    main()
