"""
Fixtures for pytest: put `pytest_plugins = ["laneway.testing.fixtures"]` into conftest.py.

- `world = laneway_world(app)` runs the application in memory, with a clock that the test moves.
- `laneway_eager(app)` runs its tasks in the caller.

Both end with the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from laneway.app import Laneway
from laneway.testing.virtual import World, eager, virtual


@pytest.fixture
def laneway_world() -> Iterator[Callable[[Laneway], World]]:
    """`laneway_world(app)`: see `laneway.testing.virtual`."""
    with ExitStack() as stack:
        yield lambda app, **options: stack.enter_context(virtual(app, **options))


@pytest.fixture
def laneway_eager() -> Iterator[Callable[[Laneway], None]]:
    """`laneway_eager(app)`: see `laneway.testing.eager`."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(eager(app))
