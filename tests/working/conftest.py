"""An application with an SQLite file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from laneway import Laneway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as application:
        # Retries at once, so that no test waits for a backoff.
        application.policy("*", backoff=0)
        yield application
