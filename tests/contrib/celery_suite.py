"""
Celery's own integration tests with this transport and result backend.

Get a source archive of Celery, take its package away (`mv celery celery_source`), start a Valkey on
port 6379 of this machine, and run in the folder, first without and then with the last two lines:

    REDIS_HOST=127.0.0.1 PYTHONPATH=.:<laneway>/src:<laneway>/tests/contrib python -m pytest \
        -p celery.contrib.pytest -p no:randomly -p no:xdist -o addopts= -o filterwarnings= \
        t/integration/test_canvas.py t/integration/test_tasks.py t/integration/test_inspect.py \
        -p celery_suite

with TEST_BROKER and TEST_BACKEND `redis://127.0.0.1`, then `laneway+redis://127.0.0.1`. Tests that
need "a redis backend" run with Laneway's, too. `test_chord_on_error` reads keys of Redis's backend.
"""

from __future__ import annotations

import sys

import laneway.contrib.kombu

__all__ = ["laneway"]


class _Url(str):
    """A URL that tests take for Redis's."""

    __slots__ = ()

    def startswith(  # type: ignore[override]
        self, prefix: str | tuple[str, ...], *bounds: int
    ) -> bool:
        return self.removeprefix("laneway+").startswith(prefix, *bounds)


def pytest_collection_modifyitems() -> None:
    """Let no test skip because of its result backend."""
    conftest = sys.modules["t.integration.conftest"]
    conftest.TEST_BACKEND = _Url(conftest.TEST_BACKEND)  # type: ignore[attr-defined]
