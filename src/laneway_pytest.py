"""
Fixtures for pytest, by the entry point `laneway`: they need no line in conftest.py.

- `laneway_app`: a new application in memory.
- `world = laneway_world(app)` runs an application in memory, with a clock that the test moves.
- `laneway_eager(app)` runs its tasks in the caller.

Nothing is imported before a test asks for a fixture.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from laneway import Laneway
    from laneway.testing import World


@pytest.fixture
def laneway_app() -> Iterator[Laneway]:
    """A new application whose store is in memory; it is closed at the end of the test."""
    from laneway import Laneway  # noqa: PLC0415

    with Laneway("sqlite://") as app:
        yield app


@pytest.fixture
def laneway_world() -> Iterator[Callable[..., World]]:
    """`laneway_world(app)`: see `laneway.testing.virtual`."""
    from laneway.testing import virtual  # noqa: PLC0415

    with ExitStack() as stack:

        def enter(app: Laneway, **options: Any) -> World:
            return stack.enter_context(virtual(app, **options))

        yield enter


@pytest.fixture
def laneway_eager() -> Iterator[Callable[[Laneway], None]]:
    """`laneway_eager(app)`: see `laneway.testing.eager`."""
    from laneway.testing import eager  # noqa: PLC0415

    with ExitStack() as stack:
        yield lambda app: stack.enter_context(eager(app))
