"""`fairlead bench`: what this machine does."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click

from fairlead.cli.session import json_option, print_json, table

BATCH = 500


@click.command()
@click.option("--messages", type=click.IntRange(1_000, 10_000_000), default=100_000, show_default=True)
@click.option("--topics", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--durability", type=click.Choice(["fsync", "memory"]), default="fsync", show_default=True)
@json_option
def bench(*, messages: int, topics: int, durability: str, as_json: bool) -> None:
    """Measure the engine on this machine: put, lease and settle in batches, in a file of its own. The full benchmarks are `make bench`."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        figures = measure(Path(folder) / "bench.db", messages, topics, durability)
    if as_json:
        print_json({"messages": messages, "topics": topics, "durability": durability, "per_second": figures})
    else:
        table(("operation", "messages/s"), [(name, round(number)) for name, number in figures.items()], empty="")


def measure(path: Path, messages: int, topics: int, durability: str) -> dict[str, float]:
    """Messages a second of each operation."""
    from fairlead.engines import open_engine
    from fairlead.engines.base import Settings
    from fairlead.message import Draft, Settlement

    engine = open_engine(f"sqlite:///{path}", Settings(durability=durability))  # type: ignore[arg-type]  # one of the choices above
    body = b"x" * 100
    began = time.perf_counter()
    for first in range(0, messages, BATCH):
        engine.put([Draft(f"bench.{n % topics}", body) for n in range(first, min(first + BATCH, messages))])
    put = time.perf_counter() - began
    lease = settle = 0.0
    done = 0
    while done < messages:
        began = time.perf_counter()
        leases = engine.lease(BATCH).leases
        between = time.perf_counter()
        engine.settle([Settlement(each.handle, each.fence) for each in leases])
        settle += time.perf_counter() - between
        lease += between - began
        done += len(leases)
    engine.close()
    return {"put": messages / put, "lease": messages / lease, "settle": messages / settle, "lease + settle": messages / (lease + settle)}
