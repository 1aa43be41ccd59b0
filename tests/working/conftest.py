"""An application on a file of its own, and a worker that a test can stop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from fairlead import Fairlead
from fairlead.working.options import Options
from fairlead.working.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fairlead import Summary


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Fairlead]:
    with Fairlead(f"sqlite:///{tmp_path}/fairlead.db", durability="memory") as made:
        # Retries at once, so that no test waits for a backoff.
        made.policy("*", backoff=0)
        yield made


class Running:
    """A worker in a thread."""

    def __init__(self, app: Fairlead, **options: object) -> None:
        defaults = {"concurrency": 10, "pool": "default", "topics": None, "grace": 5, "processes": 1, "burst": False, "reload": False}
        self.worker = Worker(app.engine, app.handlers, Options.checked(**{**defaults, **options}))  # type: ignore[arg-type]
        self.summary: Summary | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.summary = self.worker.run()

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def stop(self) -> None:
        self.worker.stop()

    def join(self) -> Summary:
        self._thread.join(20)
        assert not self._thread.is_alive(), "the worker did not end"
        assert self.summary is not None
        return self.summary

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()
