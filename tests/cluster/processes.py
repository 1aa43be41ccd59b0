"""Programs of the tests in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from laneway.engines.sqlite.address import parse, path_of
from laneway.units import SECOND

if TYPE_CHECKING:
    from laneway.engines.base import FullEngine


@contextmanager
def process_of(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program with pipes, which is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def files_of(url: str, namespace: str = "default") -> list[Path]:
    """The files of a namespace in a SQLite store; none for another engine."""
    if not url.startswith("sqlite:///"):
        return []
    folder = parse(url).path
    if folder is not None and folder.is_dir():
        return sorted(folder.glob(f"{namespace}.*.db"))
    file = path_of(url, namespace)
    return [Path(file)] if file else []


def later(engine: FullEngine, seconds: float) -> None:
    """
    Move the store's clock forward, where it then stands still: leases and terms end that nobody
    extends meanwhile.
    """
    engine.tick(now_us=engine.time_us() + round(seconds * SECOND))
