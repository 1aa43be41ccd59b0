"""
The embedded engine: SQLite files, any number of processes on one machine, nothing to install.
"""

from __future__ import annotations

import os

from laneway.engines.base import FullEngine, Settings
from laneway.engines.sqlite.address import parse
from laneway.engines.sqlite.engine import SqliteEngine
from laneway.errors import EngineUnavailable


def open_sqlite(url: str, settings: Settings) -> FullEngine:
    """
    Open or create the file that the URL names, or the files of a folder (`?shards=4`); `sqlite://`
    is a private store in memory.
    """
    address = parse(url)
    if address.is_folder(settings.namespace):
        from laneway.engines.sqlite.folder import FilesEngine  # noqa: PLC0415  # few stores

        return FilesEngine(url, settings)
    # `Path.is_dir` raises for a folder that may not be entered: opening explains it.
    if settings.namespace != "default" and address.path and os.path.isdir(address.path):
        raise EngineUnavailable(
            f"{address.path}: this folder has no files of namespace {settings.namespace}; say how"
            f" many to create, like sqlite:///{address.path}?shards=4, or name a file"
        )
    return SqliteEngine(url, settings)
