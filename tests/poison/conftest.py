"""An application on each engine, in a world of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from fairlead import Fairlead
from tests.conformance.forms import server

ENGINES = ["sqlite", "valkey"]


def url_of(engine: str, folder: Path) -> str:
    return f"sqlite:///{folder}/poison.db" if engine == "sqlite" else f"{server().url}?shards=1"


@pytest.fixture(params=ENGINES)
def make_app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Fairlead]]:
    made: list[Fairlead] = []

    def make(**settings: object) -> Fairlead:
        settings = {"namespace": uuid4().hex, "durability": "memory", **settings}
        made.append(Fairlead(url_of(request.param, tmp_path), **settings))  # type: ignore[arg-type]
        made[-1].policy("*", backoff=0, retries=1)
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(make_app: Callable[..., Fairlead]) -> Fairlead:
    return make_app()
