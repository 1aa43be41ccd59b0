"""
RQ's own tests with Laneway's queue and workers.

A plugin of pytest for `python -m tests.contrib.compare rq`.

It replaces the classes that the tests import; RQ's internals keep their own, as in a
program that changes the class of its workers.
"""

from __future__ import annotations

import pytest
import rq
import rq.worker

from laneway.contrib import rq as ours

CLASSES = {
    getattr(module, name): getattr(ours, name)
    for module, names in (
        (rq, ("Queue", "Worker", "SimpleWorker", "SpawnWorker")),
        (rq.worker, ("RoundRobinWorker", "RandomWorker")),
    )
    for name in names
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Replace the classes in the modules of tests."""
    for module in {item.getparent(pytest.Module).obj for item in items}:  # type: ignore[union-attr]
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value in CLASSES:
                setattr(module, name, CLASSES[value])
