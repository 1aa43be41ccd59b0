"""
The workers that an application runs in this process: closing the application ends them first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from laneway.errors import UsageError
from laneway.working.handler import fields

if TYPE_CHECKING:

    class Stoppable(Protocol):
        """What the registry needs of a worker."""

        ended: threading.Event
        stop_seconds: float

        def stop(self) -> None: ...
        def runs_in_this_thread(self) -> bool: ...


log = logging.getLogger("laneway.worker")


class WorkerRegistry:
    """Belongs to one application. A forked child has none of its parent's workers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: set[Stoppable] = set()
        self._pid = os.getpid()

    @contextlib.contextmanager
    def running(self, worker: Stoppable) -> Iterator[None]:
        """The worker runs in this block."""
        self._forget_workers_of_parent()
        with self._lock:
            self._workers.add(worker)
        try:
            yield
        finally:
            with self._lock:
                self._workers.discard(worker)

    def end_all(self, call: str) -> None:
        """
        Stop all workers in order and wait for their end.

        `call`: the caller's name for errors and logs.
        Raises UsageError if waiting would block a worker itself.
        """
        self._forget_workers_of_parent()
        with self._lock:
            workers = list(self._workers)
        if workers and fields():
            raise UsageError(
                f"{call}: a handler cannot close the application that runs it; stop the worker"
                " instead"
            )
        if any(worker.runs_in_this_thread() for worker in workers):
            raise UsageError(
                f"{call}: a worker of this application runs on this event loop; await"
                f" app.a{call}(), or stop the worker first"
            )
        for worker in workers:
            worker.stop()
        for worker in workers:
            if not worker.ended.wait(worker.stop_seconds):
                log.warning(
                    "%s: a worker has not ended after %g s; closing its engine",
                    call,
                    worker.stop_seconds,
                )

    def _forget_workers_of_parent(self) -> None:
        if self._pid != os.getpid():
            self._lock, self._workers, self._pid = threading.Lock(), set(), os.getpid()


# Functions that are called when a worker of this process has started, and when one stops


Hook = Callable[[object], object]

STARTED: list[Hook] = []
STOPS: list[Hook] = []


def call_hooks(hooks: list[Hook], worker: object) -> None:
    """Call all of them; an error is logged and changes nothing."""
    for hook in list(hooks):
        try:
            hook(worker)
        except Exception:
            log.exception("the hook %r of a worker failed", hook)
