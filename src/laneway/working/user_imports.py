"""
Imports of the user's modules: calls that are refused meanwhile, and the user's lines of a traceback
if an import fails.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import threading
import traceback
from collections.abc import Iterator

from laneway.errors import UsageError

_NOT_THE_USERS = (
    "<frozen",
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
    os.path.dirname(importlib.__file__) + os.sep,
)
"""Where files are that are not the user's: the import system and this package."""


class _Importing(threading.local):
    """The modules that this thread is importing for a worker."""

    def __init__(self) -> None:
        self.names: list[str] = []


_importing = _Importing()


@contextlib.contextmanager
def importing(name: str) -> Iterator[None]:
    """
    A worker imports the module in this block; its top level may not start a worker.
    """
    _importing.names.append(name)
    try:
        yield
    finally:
        _importing.names.pop()


def refuse_while_importing(call: str) -> None:
    """
    Raise UsageError if this call is made at the top level of a module that a worker, or a new
    process, is importing.
    """
    # `_inheriting`: multiprocessing runs the main module again in a process that it has spawned.
    is_main_again = getattr(multiprocessing.current_process(), "_inheriting", False)
    if _importing.names or is_main_again:
        name = _importing.names[-1] if _importing.names else "the main module"
        raise UsageError(
            f"{call}: {name} is being imported by a worker, which runs the handlers itself; put"
            ' this call, and what the program publishes, under if __name__ == "__main__":'
        )


def own_lines(error: BaseException) -> str:
    """
    The lines of an error's traceback that are in the user's modules; empty if none are.
    """
    lines = traceback.format_list(
        [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not _is_not_the_users(frame.filename)
        ]
    )
    if isinstance(error, SyntaxError):
        lines += traceback.format_exception_only(error)[:-1]
    return "".join(lines)


def own_files(error: BaseException) -> set[str]:
    """The user's files in an error's traceback."""
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    if isinstance(error, SyntaxError) and error.filename is not None:
        files.add(error.filename)
    return {file for file in files if not _is_not_the_users(file) and os.path.exists(file)}


def _is_not_the_users(filename: str) -> bool:
    return filename.startswith(("<", *_NOT_THE_USERS))
