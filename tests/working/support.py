"""Helpers: a worker that a test can stop, and waiting for a condition."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from laneway.units import SECOND
from laneway.working.options import Options
from laneway.working.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from laneway import Laneway, Message, Summary


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
            app.engine, app.runtime.handlers, Options.checked("run_worker", {**defaults, **options})
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


class StoppedClock:
    """A clock that stands still until it is moved; see the fixture `clock`."""

    def __init__(self) -> None:
        self.now_us = time.time_ns() // 1000

    def outlast_lease(self, app: Laneway, message: Message, seconds: float) -> None:
        """
        Let three times a message's lease of so many seconds go by: each time a part of it, and then
        the worker extends it, however long that takes. Blocks the caller's thread.
        """

        def is_extended() -> bool:
            view = app.engine.find(message.id, message.topic)
            deadline_us = view.deadline_us if view is not None else None
            assert deadline_us is not None, "the lease was lost"
            return deadline_us >= self.now_us + seconds * SECOND

        for _ in range(8):  # leases of other batches are extended a moment later: two parts fit
            self.now_us += round(0.4 * seconds * SECOND)
            until(is_extended)


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until a condition holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.01)
