"""Telling what is wrong with a module of the user's that cannot be imported: his own lines, and nothing of how we came there."""

from __future__ import annotations

import importlib
import os
import traceback

_OTHERS = ("<frozen", os.path.dirname(os.path.dirname(__file__)) + os.sep, os.path.dirname(importlib.__file__) + os.sep)
"""Where frames of an import are that are not the user's: the import system, and this package."""


def own_lines(error: BaseException) -> str:
    """Where in the user's modules it happened, as a traceback shows it; empty where that was in none."""
    lines = traceback.format_list([frame for frame in traceback.extract_tb(error.__traceback__) if not _is_other(frame.filename)])
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
