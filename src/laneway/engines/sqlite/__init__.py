"""
The embedded engine: one SQLite file, any number of processes on one machine, nothing to install.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.engines.sqlite.admin import SqliteEngine

if TYPE_CHECKING:
    from laneway.engines.base import FullEngine, Settings


def open_sqlite(url: str, settings: Settings) -> FullEngine:
    """Open or create the file that the URL names; `sqlite://` is a private store in memory."""
    return SqliteEngine(url, settings)
