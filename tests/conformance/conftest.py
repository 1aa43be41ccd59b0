"""The engines on which the suite and the histories run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.testing.conformance.conftest import driver
from tests.conformance.valkey_setups import URLS, open_setup

__all__ = ["driver"]

ENGINES: dict[str, Callable[[Path, Settings], FullEngine]] = {
    "sqlite file": lambda folder, settings: open_engine(f"sqlite:///{folder}/q.db", settings),
    "sqlite memory": lambda folder, settings: open_engine("sqlite://", settings),
    **{name: partial(open_setup, name) for name in URLS},
}
"""Add a line for another engine."""


@pytest.fixture(params=list(ENGINES))
def make_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Settings], FullEngine]:
    number = iter(range(100))

    def make(settings: Settings) -> FullEngine:
        folder = tmp_path / str(next(number))
        folder.mkdir()
        return ENGINES[request.param](folder, settings)

    return make
