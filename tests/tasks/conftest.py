"""An application on an engine, and a worker of its own in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from laneway import Laneway
from laneway.working.options import Options
from laneway.working.worker import Worker
from tests.conformance.valkey_setups import server

MakeApp = Callable[..., Laneway]


@pytest.fixture(params=["sqlite", "valkey", "valkey, shards"])
def make_app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeApp]:
    """Several of one test share a store; `one` names another engine."""
    namespace = uuid4().hex
    urls = {
        "sqlite": f"sqlite:///{tmp_path}/jobs.db",
        "valkey": "{}?shards=1",
        "valkey, shards": "{}?shards=4",
    }
    apps: list[Laneway] = []

    def make(**settings: object) -> Laneway:
        url = urls[request.param]
        apps.append(
            Laneway(
                url.format(server().url) if "{}" in url else url,
                namespace=namespace,
                **settings,  # type: ignore[arg-type]
            )
        )
        return apps[-1]

    yield make
    for app in apps:
        app.close()


@contextmanager
def working(app: Laneway, concurrency: int = 20) -> Iterator[None]:
    """A worker in a thread, as long as the block lasts."""
    worker = Worker(app.engine, app.runtime.handlers, Options(concurrency=concurrency, grace=0.2))
    thread = threading.Thread(target=worker.run, kwargs={"signals": ()})
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(60)
        assert not thread.is_alive()
