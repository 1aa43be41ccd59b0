"""Source files of the program and when they were changed, for restarts in development."""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from collections.abc import Iterable
from importlib.machinery import all_suffixes

_MODULE_SUFFIXES = tuple(all_suffixes())


def source_states(others: Iterable[str] = ()) -> dict[str, float]:
    """
    By path: the states of the sources of all loaded modules, and of other files with their folders,
    where a module may be added.
    """
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return states_of(
        path
        for path in [*paths, *others, *map(os.path.dirname, others)]
        if path and not path.startswith(sys.base_prefix)
    )


def states_of(paths: Iterable[str]) -> dict[str, float]:
    """
    By path, without missing files: a number that differs once the source differs. It is a file's
    modification time, or a checksum of the names of a folder's modules and packages. Other files,
    a store for example, come and go in it without a change of the program.
    """
    states: dict[str, float] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            states[path] = _names_in(path) if os.path.isdir(path) else os.stat(path).st_mtime
    return states


def as_at_start(states: dict[str, float], began: float) -> dict[str, float]:
    """
    The states, with `began` for sources that changed after the worker began to read them: these
    count as changed later, because the worker may have read the old text.
    """
    return {
        path: began if state > began and path.endswith(".py") else state
        for path, state in states.items()
    }


def _names_in(folder: str) -> float:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if _is_importable(entry))
    return zlib.crc32(os.fsencode("/".join(names)))


def _is_importable(entry: os.DirEntry[str]) -> bool:
    module, _, _ = entry.name.partition(".")
    if not module.isidentifier():
        return False
    return entry.name.endswith(_MODULE_SUFFIXES) or (
        entry.name == module != "__pycache__" and entry.is_dir()
    )
