"""What a file of the engine and the files beside it use, and what the disk has left."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from laneway.engines.base import StorePart


def of_file(path: str | None) -> list[StorePart]:
    """The file at a path, and the delivery log beside it if there is one; None: in memory."""
    began = time.perf_counter()
    if path is None:
        return [StorePart(name="memory", what=_SQLITE, shards=1, used=0)]
    file = Path(path)
    free = None
    with suppress(OSError):  # the disk is away; other calls say so
        free = shutil.disk_usage(file.parent).free
    part = StorePart(
        name=file.name,
        what=_SQLITE,
        shards=1,
        used=_bytes(file) or 0,
        free=free,
        log=_bytes(Path(f"{path}-wal")),
        seconds=time.perf_counter() - began,
    )
    beside = Path(f"{path}-log")
    used = _bytes(beside)
    if used is None:
        return [part]
    log = _bytes(Path(f"{beside}-wal"))
    return [
        part,
        StorePart(name=beside.name, what="delivery log", shards=0, used=used, free=free, log=log),
    ]


_SQLITE = f"SQLite {sqlite3.sqlite_version}"


def _bytes(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None
