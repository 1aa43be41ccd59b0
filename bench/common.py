"""What the benchmarks share: options, timing, tables, and the JSON beside them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

BODY = b"x" * 100
BATCH = 500
RESULTS = Path(__file__).parent / "results"
SOURCE = Path(__file__).parents[1] / "src"


def options(about: str) -> argparse.Namespace:
    """--full, --quick: smaller; --smoke: one iteration, seconds; --json FILE. Ended by SIGTERM, a benchmark still clears away what is its own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--full", action="store_true", help="the full numbers, minutes (the default)")
    parser.add_argument("--quick", action="store_true", help="smaller numbers, a minute at most")
    parser.add_argument("--smoke", action="store_true", help="once and tiny: does it still run?")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: bench/results/SIZE/NAME.json)")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.full + chosen.quick + chosen.smoke > 1:
        parser.error("--full, --quick and --smoke: name one of them")
    return chosen


def size(chosen: argparse.Namespace) -> str:
    """full, quick or smoke: each has its own results."""
    return "smoke" if chosen.smoke else "quick" if chosen.quick else "full"


def pick(chosen: argparse.Namespace, full: Any, quick: Any, smoke: Any) -> Any:
    """The value for the size that was asked for."""
    return smoke if chosen.smoke else quick if chosen.quick else full


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that goes when the benchmark does."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        yield Path(name)


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def spread(values: Sequence[float]) -> dict[str, float]:
    """Minimum, median and maximum."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": platform.platform(terse=True),
        "fairlead": version("fairlead"),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def command() -> str:
    """What was typed."""
    return " ".join(["python", "-m", f"bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]])


def commit() -> str:
    """What was measured; "" where this is no checkout."""
    told = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=SOURCE, capture_output=True, text=True, check=False)
    return told.stdout.strip()


def publish_table(
    name: str, chosen: argparse.Namespace, columns: Sequence[str], rows: Sequence[Sequence[Any]], notes: str = "", *, repeats: Any = None
) -> None:
    """Print the table and write it as JSON; there also min, median and max of what was measured repeatedly."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(column), *(len(row[n]) for row in cells)) if cells else len(column) for n, column in enumerate(columns)]
    print(f"\n{name}" + (f" ({notes})" if notes else ""))
    for line in (list(columns), *cells):
        print("  " + "  ".join(cell.rjust(width) if n else cell.ljust(width) for n, (cell, width) in enumerate(zip(line, widths, strict=True))))
    bench = Path(sys.argv[0]).stem
    path = chosen.json or RESULTS / size(chosen) / f"{name}.json"
    if chosen.json and name != bench:
        path = path.with_stem(f"{path.stem}-{name}")  # its second table
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = [dict(zip(columns, row, strict=True)) for row in rows]
    told = {"bench": name, "command": command(), "size": size(chosen), "seed": chosen.seed, "machine": machine(), "notes": notes, "figures": figures}
    if repeats is not None:
        told["repeats"] = repeats
    path.write_text(json.dumps(told, indent=1))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process of this Python that runs a program text; ended with the block, however that ends."""
    started = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()


def line(started: subprocess.Popen[str]) -> str:
    """The next line that it prints. Raises RuntimeError where it ended."""
    assert started.stdout is not None
    told = started.stdout.readline()
    if not told:
        raise RuntimeError(f"a worker ended with {started.wait()}; what it said stands above")
    return told


def go(started: subprocess.Popen[str]) -> None:
    """Let a process that waits for a line begin."""
    assert started.stdin is not None
    started.stdin.write("go\n")
    started.stdin.flush()
