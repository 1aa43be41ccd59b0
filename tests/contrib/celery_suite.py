"""
Celery's own integration tests with this transport and result backend.

A plugin of pytest for `python -m tests.contrib.compare celery`. Tests that need "a redis backend"
run with Laneway's, too, on each store. `test_chord_on_error` and two more read keys and channels of
Redis's backend.
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
        return f"redis:{self.partition(':')[2]}".startswith(prefix, *bounds)


def pytest_collection_modifyitems() -> None:
    """Let no test skip because of its result backend."""
    conftest = sys.modules["t.integration.conftest"]
    conftest.TEST_BACKEND = _Url(conftest.TEST_BACKEND)  # type: ignore[attr-defined]
