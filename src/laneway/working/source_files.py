"""Source files of the program and when they were changed, for restarts in development."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def modification_times(others: Iterable[str] = ()) -> dict[str, float]:
    """
    By path: modification times of all loaded modules, and of other files with their folders, where
    a file may be added.
    """
    times: dict[str, float] = {}
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    for path in [*paths, *others, *map(os.path.dirname, others)]:
        if path and not path.startswith(sys.base_prefix):
            with contextlib.suppress(OSError):
                times[path] = os.stat(path).st_mtime
    return times


def as_at_start(times: dict[str, float], began: float) -> dict[str, float]:
    """
    Modification times, with `began` for sources that changed after the worker began to read them:
    these count as changed later, because the worker may have read the old text.
    """
    return {
        path: began if modified > began and path.endswith(".py") else modified
        for path, modified in times.items()
    }
