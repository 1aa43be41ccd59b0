"""Every benchmark, one after the other; a summary beside the targets at the end."""

from __future__ import annotations

import json
import subprocess
import sys

from bench.common import RESULTS, options

BENCHES = ("engine", "endtoend", "publish", "topics", "limited", "backlog", "lifetime", "fairness", "rates", "latency", "peers")


def main() -> None:
    chosen = options(__doc__ or "")
    size = ["--smoke"] if chosen.smoke else ["--quick"] if chosen.quick else []
    failed = [
        name for name in BENCHES if subprocess.run([sys.executable, "-m", f"bench.{name}", "--seed", str(chosen.seed), *size], check=False).returncode
    ]
    summary()
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
        sys.exit(1)


def summary() -> None:
    """The figures that have a target, as ratios of it: 1 or more is reached."""
    print("\nagainst the targets (1.00 or more: reached)")
    for bench, column, target, higher in (
        ("engine", "ratio", 0.5, True),
        ("endtoend", "async/s", 30_000, True),
        ("endtoend", "threads/s", 20_000, True),
        ("endtoend", "2 : 1", 1.6, True),
        ("endtoend", "publish_many/s", 100_000, True),
        ("topics", "times slower than 1", 5.0, False),
        ("limited", "lease 500, ms", 2.0, False),
        ("latency", "p50 ms", 5.0, False),
        ("latency", "idle worker, % of a core", 1.0, False),
        ("fairness", "ratio", 2.0, False),
        ("rates", "error, %", 1.0, False),
    ):
        path = RESULTS / f"{bench}.json"
        if not path.exists():
            continue
        values = [row[column] for row in json.loads(path.read_text())["figures"]]
        values = values[-1:] if bench == "limited" else values
        worst = min(values) if higher else max(values)
        reached = worst / target if higher else target / max(worst, 1e-9)
        print(f"  {bench:10} {column:28} worst {worst:12,.2f}  target {target:10,}  {reached:.2f}")


if __name__ == "__main__":
    main()
