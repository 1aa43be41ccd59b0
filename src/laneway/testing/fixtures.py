"""
Fixtures of pytest: `pytest_plugins = ["laneway.testing.fixtures"]` in conftest.py.

`laneway_world` makes of an application one in memory, under a clock of its own: `world =
laneway_world(app)`. `laneway_eager` makes its tasks run where they are called:
`laneway_eager(app)`. Both end with the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from laneway.testing.virtual import eager, virtual

if TYPE_CHECKING:
    from laneway.app import Laneway
    from laneway.testing.virtual import World


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
