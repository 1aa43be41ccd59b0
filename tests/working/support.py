"""Helpers: a worker that a test can stop, and waiting for a condition."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from laneway.working.options import Options
from laneway.working.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from laneway import Laneway, Summary


class Running:
    """A worker in a thread; it stops at the end of the block."""

    def __init__(self, app: Laneway, **options: object) -> None:
        defaults = {
            "concurrency": 10,
            "pool": "default",
            "topics": None,
            "grace": 5,
            "processes": 1,
            "burst": False,
            "reload": False,
        }
        self.worker = Worker(
            app.engine, app.handlers, Options.checked("run_worker", {**defaults, **options})
        )
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
        self._thread.join(60)
        assert not self._thread.is_alive(), "the worker did not end"
        assert self.summary is not None
        return self.summary

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until a condition holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.01)
