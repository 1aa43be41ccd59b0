"""
Django projects: a worker sets Django up before it imports tasks, and closes stale database
connections around each run.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

VARIABLE = "DJANGO_SETTINGS_MODULE"


def is_used() -> bool:
    """Whether this process belongs to a Django project."""
    return bool(os.environ.get(VARIABLE)) and importlib.util.find_spec("django") is not None


def set_up() -> None:
    """
    Load the project's settings and applications, and check them, as `manage.py` does. The checks
    import all URLs, so tasks in the modules of views are found. Does nothing outside a project.
    """
    if not is_used():
        return
    if not importlib.import_module("django.apps").apps.ready:
        importlib.import_module("django").setup()
    if not os.environ.get("CELERY_SKIP_CHECKS"):
        importlib.import_module("django.core.checks").run_checks()


@contextlib.contextmanager
def around_run() -> Iterator[None]:
    """
    Keep a run from using a connection that the database has closed, and from adding to the list of
    queries that DEBUG keeps.
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
