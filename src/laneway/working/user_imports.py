"""
Importing the user's modules: what is refused meanwhile, and what is told when that fails (the
user's own lines, nothing of ours).
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import threading
import traceback
from typing import TYPE_CHECKING

from laneway.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHERS = (
    "<frozen",
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
    os.path.dirname(importlib.__file__) + os.sep,
)
"""Where frames of an import are that are not the user's: the import system, and this package."""


class _Importing(threading.local):
    """Modules that this thread is importing for a worker."""

    def __init__(self) -> None:
        self.names: list[str] = []


_importing = _Importing()


@contextlib.contextmanager
def importing(name: str) -> Iterator[None]:
    """
    A worker imports the module: code that starts a worker at the module's top level is refused.
    """
    _importing.names.append(name)
    try:
        yield
    finally:
        _importing.names.pop()


def refuse_while_importing(call: str) -> None:
    """
    Raise UsageError where a worker or a new process is importing the module that makes this call.
    """
    # `_inheriting`: multiprocessing runs the program's main module again in a process that it has
    # spawned.
    is_main_again = getattr(multiprocessing.current_process(), "_inheriting", False)
    if _importing.names or is_main_again:
        name = _importing.names[-1] if _importing.names else "the main module"
        raise UsageError(
            f"{call}: {name} is being imported by a worker, which runs the handlers itself; put"
            ' this call, and what the program publishes, under if __name__ == "__main__":'
        )


def own_lines(error: BaseException) -> str:
    """
    Where in the user's modules it happened, as a traceback shows it; empty where that was in none.
    """
    lines = traceback.format_list(
        [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not _is_other(frame.filename)
        ]
    )
    if isinstance(error, SyntaxError):
        lines += traceback.format_exception_only(error)[:-1]
    return "".join(lines)


def own_files(error: BaseException) -> set[str]:
    """The user's files that have to do with it."""
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    if isinstance(error, SyntaxError) and error.filename is not None:
        files.add(error.filename)
    return {file for file in files if not _is_other(file) and os.path.exists(file)}


def _is_other(filename: str) -> bool:
    return filename.startswith(("<", *_OTHERS))
