"""
The embedded engine: SQLite files, any number of processes on one machine, nothing to install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.engines.sqlite.address import parse
from laneway.engines.sqlite.admin import SqliteEngine
from laneway.engines.sqlite.shard_engine import FilesEngine

if TYPE_CHECKING:
    from laneway.engines.base import FullEngine, Settings


def open_sqlite(url: str, settings: Settings) -> FullEngine:
    """
    Open or create the file that the URL names, or the files of a folder (`?shards=4`); `sqlite://`
    is a private store in memory.
    """
    if parse(url).is_folder(settings.namespace):
        return FilesEngine(url, settings)
    return SqliteEngine(url, settings)
