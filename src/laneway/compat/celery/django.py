"""
What a worker of a Django project needs: Django set up before its tasks are imported, and
connections looked after around each run.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "DJANGO_SETTINGS_MODULE"


def is_used() -> bool:
    """Whether this is a process of a Django project."""
    return bool(os.environ.get(VARIABLE)) and importlib.util.find_spec("django") is not None


def set_up() -> None:
    """
    Load the project's settings and applications, as `manage.py` does; nothing where there is no
    project, or that was done.
    """
    if is_used() and not importlib.import_module("django.apps").apps.ready:
        importlib.import_module("django").setup()


@contextlib.contextmanager
def around_run() -> Iterator[None]:
    """
    Let no run use a connection that the database has closed, and no worker collect the queries of
    all its runs.
    """
    if not is_used():
        yield
        return
    database: Any = importlib.import_module("django.db")
    database.reset_queries()
    database.close_old_connections()
    try:
        yield
    finally:
        database.close_old_connections()
