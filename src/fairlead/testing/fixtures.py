"""
Fixtures of pytest: `pytest_plugins = ["fairlead.testing.fixtures"]` in conftest.py.

`fairlead_world` makes of an application one in memory, under a clock of its own: `world = fairlead_world(app)`. `fairlead_eager` makes its tasks
run where they are called: `fairlead_eager(app)`. Both end with the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from fairlead.testing.virtual import eager, virtual

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.testing.virtual import World


@pytest.fixture
def fairlead_world() -> Iterator[Callable[[Fairlead], World]]:
    """`fairlead_world(app)`: see `fairlead.testing.virtual`."""
    with ExitStack() as stack:
        yield lambda app, **options: stack.enter_context(virtual(app, **options))


@pytest.fixture
def fairlead_eager() -> Iterator[Callable[[Fairlead], None]]:
    """`fairlead_eager(app)`: see `fairlead.testing.eager`."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(eager(app))
