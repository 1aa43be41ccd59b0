"""`laneway bench`: measure this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

import laneway
from laneway.cli.fleet import costs, measuring
from laneway.cli.session import REFUSED, exit_with, json_option, print_json, say, table
from laneway.testing.servers import NoServer

SIZES = ("full", "quick", "smoke")
MEASURED = {"full": (1.0, 5), "quick": (1.0, 2), "smoke": (0.01, 1)}
"""The scale and the rounds of a measurement of costs."""


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--size",
    type=click.Choice(SIZES),
    default="quick",
    show_default=True,
    help="How much is measured.",
)
@click.option(
    "--costs",
    "path",
    type=click.Path(dir_okay=False),
    help="Write the costs of operations to this file, for `laneway capacity --costs`.",
)
@click.option(
    "--engine",
    type=click.Choice(["sqlite", "valkey", "postgres"]),
    default="sqlite",
    show_default=True,
    help="The engine whose costs are measured; a server is started for it.",
)
@json_option
def bench(
    names: tuple[str, ...], *, size: str, path: str | None, engine: str, as_json: bool
) -> None:
    """
    Measure this machine. In the repository, run its benchmarks: all, or those named. Elsewhere, or
    with --costs or --json, measure what operations cost: processor time of client and server, bytes
    and round trips, on Linux. That takes minutes.
    """
    repository = _repository()
    if names and (path is not None or as_json):
        raise click.UsageError(f"{', '.join(names)}: --costs and --json take no names")
    if names and repository is None:
        raise click.UsageError(
            f"{', '.join(names)}: benchmarks are not installed with the package; run this in the"
            " repository"
        )
    if repository is None or path is not None or as_json:
        _costs(path, engine, size, as_json=as_json)
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


def _costs(path: str | None, engine: str, size: str, *, as_json: bool) -> None:
    """Measure the costs of an engine, print them, and add them to the file."""
    if path is not None and Path(path).exists():
        costs.load(path)  # a file that cannot be used is an error before the measurement
    if sys.platform != "linux":
        exit_with("the costs of operations can only be measured on Linux", REFUSED)
    name = Path(path).name if path is not None else "FILE"
    command = f"laneway bench --costs {name} --engine {engine} --size {size}"
    scale, rounds = MEASURED[size]
    try:
        found = measuring.measure(engine, command, scale=scale, rounds=rounds)
    except NoServer as error:
        exit_with(str(error), REFUSED)
    if path is not None:
        costs.save(path, engine, found)
    if as_json:
        print_json(found)
        return
    work = costs.works(batch=measuring.BATCH, shards=1, topics=1_000, depth=10)
    say(
        f"{engine}: microseconds of processor time for a message of {found.body_bytes} bytes, in"
        f" batches of {measuring.BATCH} over 1,000 topics"
    )
    table(
        ("operation", *costs.SIDES),
        [
            (name, *(f"{found.microseconds(side, name, work[name]):.1f}" for side in costs.SIDES))
            for name in costs.OPERATIONS
        ],
        empty="",
    )
