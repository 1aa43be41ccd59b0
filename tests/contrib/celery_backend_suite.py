"""
Celery's own tests of result backends with this one.

A plugin of pytest for `python -m tests.contrib.compare celery-backends`; BACKEND is the URL.

The tests of stores of keys and values run with the backend of the URL instead of a dict. Tests of
what a backend without a store raises are left out.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest
from celery.app.backends import by_url

from laneway.contrib.kombu import apps

WITHOUT_STORE = "test_KeyValueStoreBackend_interface"
REPLACED = ("__init__", "get", "_set_with_state", "mget", "delete")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Celery checks that a test leaves no thread."""
    apps.close_all()
    for thread in threading.enumerate():
        if thread.name.startswith("laneway"):
            thread.join()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the backends of the tests be those of the URL."""
    tests = sys.modules["t.unit.backends.test_base"]
    of_url, url = by_url(os.environ["BACKEND"])

    class Backend(of_url):  # type: ignore[misc, valid-type]
        """A backend of the URL, which is made as that of the tests."""

        def __init__(self, app: Any, *args: Any, **options: Any) -> None:
            super().__init__(*args, app=app, url=url, **options)

    for name in ("KVBackend", "CompressingKVBackend"):
        added = {
            key: value
            for key, value in vars(getattr(tests, name)).items()
            if key not in REPLACED and not key.startswith("__")
        }
        setattr(tests, name, type(name, (Backend,), added))
    left_out = [item for item in items if WITHOUT_STORE in item.nodeid]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
