"""An application that a test creates is current in that test only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from laneway.compat.celery import current


@pytest.fixture(autouse=True)
def current_in_this_test_only() -> Iterator[None]:
    applications, shared = list(current.applications), list(current.shared)
    yield
    current.applications[:], current.shared[:] = applications, shared
