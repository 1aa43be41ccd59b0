"""`laneway bench`: measure this machine."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

import laneway
from laneway.cli.session import json_option, print_json, say, table

BATCH = 500
MESSAGES, TOPICS, DURABILITY = 100_000, 1_000, "fsync"
SIZES = ("full", "quick", "smoke")


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--size",
    type=click.Choice(SIZES),
    default="quick",
    show_default=True,
    help="The size of the repository's benchmarks.",
)
@click.option(
    "--small", is_flag=True, help="Run only the small measurement, also in the repository."
)
@click.option(
    "--messages",
    type=click.IntRange(1_000, 10_000_000),
    help=f"Messages of the small measurement.  [default: {MESSAGES:,}]",
)
@click.option(
    "--topics",
    type=click.IntRange(1),
    help=f"Topics of the small measurement.  [default: {TOPICS:,}]",
)
@click.option(
    "--durability",
    type=click.Choice(["fsync", "memory"]),
    help=f"Durability of the small measurement.  [default: {DURABILITY}]",
)
@json_option
def bench(
    names: tuple[str, ...],
    *,
    size: str,
    small: bool,
    messages: int | None,
    topics: int | None,
    durability: str | None,
    as_json: bool,
) -> None:
    """
    Measure this machine. In the repository, run its benchmarks: all, or those named. Elsewhere, or
    with --json or an option of the small measurement, run that.

    The small measurement is the engine alone: put, lease and settle in batches, in a temporary
    file.
    """
    wants_small = (
        small or as_json or messages is not None or topics is not None or durability is not None
    )
    repository = _repository()
    if names and (wants_small or repository is None):
        why = (
            "that takes no names"
            if wants_small
            else "they are not installed with the package; run this in the repository"
        )
        raise click.UsageError(
            f"{', '.join(names)}: "
            + (f"the small measurement was asked for, and {why}" if wants_small else why)
        )
    if repository is None or wants_small:
        _small(messages or MESSAGES, topics or TOPICS, durability or DURABILITY, as_json=as_json)
    else:
        _of_repository(repository, names, size)


def _repository() -> Path | None:
    """The repository that this package runs from, if it has the benchmarks."""
    root = Path(laneway.__file__).parents[2]
    return root if (root / "bench" / "all.py").is_file() else None


def _of_repository(root: Path, names: tuple[str, ...], size: str) -> None:
    known = sorted(
        path.stem
        for path in (root / "bench").glob("*.py")
        if path.stem not in ("__init__", "all", "common")
    )
    for name in names:
        if name not in known:
            raise click.UsageError(f'there is no benchmark "{name}"; there are: {", ".join(known)}')
    sizing = [] if size == "full" else [f"--{size}"]
    codes = [
        subprocess.run(  # noqa: S603
            [sys.executable, "-m", f"bench.{name}", *sizing], cwd=root, check=False
        ).returncode
        for name in names or ("all",)
    ]  # our own
    sys.exit(max(codes))


def _small(messages: int, topics: int, durability: str, *, as_json: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="laneway-bench-") as folder:
        figures = measure(Path(folder) / "bench.db", messages, topics, durability)
    if as_json:
        print_json(
            {
                "messages": messages,
                "topics": topics,
                "durability": durability,
                "per_second": figures,
            }
        )
    else:
        say(
            f"{messages:,} messages over {topics:,} topics, durability {durability}, batches of"
            f" {BATCH}, the engine alone"
        )
        table(
            ("operation", "messages/s"),
            [(name, round(number)) for name, number in figures.items()],
            empty="",
        )


def measure(path: Path, messages: int, topics: int, durability: str) -> dict[str, float]:
    """Messages per second of each operation."""
    from laneway.engines import open_engine
    from laneway.engines.base import Settings
    from laneway.message import Draft, Settlement

    engine = open_engine(f"sqlite:///{path}", Settings(durability=durability))  # type: ignore[arg-type]  # one of the choices above
    body = b"x" * 100
    began = time.perf_counter()
    for first in range(0, messages, BATCH):
        engine.put(
            [Draft(f"bench.{n % topics}", body) for n in range(first, min(first + BATCH, messages))]
        )
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
    return {
        "put": messages / put,
        "lease": messages / lease,
        "settle": messages / settle,
        "lease + settle": messages / (lease + settle),
    }
