"""
`app.worker()` and `app.arun_worker()`: a worker inside a program that does other things too, such
as a web server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from laneway.errors import UsageError
from laneway.working.banner import tell_banner
from laneway.working.user_imports import refuse_while_importing
from laneway.working.worker import STOP_SECONDS, Worker, check_handlers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from laneway.working.host import Application
    from laneway.working.options import Options, Summary
    from laneway.working.worker_registry import WorkerRegistry

log = logging.getLogger("laneway.worker")


class EmbeddedWorker:
    """
    A worker on the caller's event loop, or in the caller's thread. It never touches signals.

    `async with app.worker() as worker:` runs it during the block; leaving the block stops it in
    order and waits for its end. `await worker.arun()` and `worker.run()` return when it was
    stopped. Used once.
    """

    def __init__(self, app: Application, options: Options, registry: WorkerRegistry) -> None:
        self._app = app
        self._options = options
        self._registry = registry
        self._lock = threading.Lock()  # guards the next two
        self._worker: Worker | None = None
        self._stops = 0
        self._is_used = False
        self._task: asyncio.Task[Summary] | None = None
        self._thread = 0
        self.ended = threading.Event()
        """Set once it uses the engine no more."""
        self.stop_seconds = options.grace + 3 * STOP_SECONDS
        """Longest time from the stop to the end."""

    def run(self) -> Summary:
        """
        Work in this thread until `stop` is called, or with `burst` until nothing is left to run
        now. Raises UsageError.
        """
        self._use("worker.run")
        refuse_running_loop("worker.run")
        with self._running():
            return self._make().run(signals=())

    async def arun(self) -> Summary:
        """
        As `run`, on the running event loop. Cancelled, it stops in order; cancelled again, at once.
        """
        self._use("arun_worker")
        return await self._arun(None)

    def stop(self) -> None:
        """
        Stop in order: running handlers may end within the grace; called again, at once. From any
        thread; does not wait.
        """
        with self._lock:
            self._stops += 1
            if self._worker is not None:
                self._worker.stop()

    async def astop(self) -> Summary:
        """Stop in order and wait for the end; inside `async with`. Returns what was handled."""
        if self._task is None:
            raise UsageError("astop: the worker was not started by async with; stop() ends it")
        self.stop()
        return await self._task

    async def __aenter__(self) -> EmbeddedWorker:
        self._use("worker")
        ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._arun(ready), name="laneway-worker")
        await asyncio.wait((ready, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await self._task  # raises why it could not start
        self._task.add_done_callback(_tell_failure)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self.stop()
        try:
            await self._task
        except Exception:
            if error is None:
                raise
            # The block's own error goes on; the worker's was logged.

    async def _arun(self, ready: asyncio.Future[None] | None) -> Summary:
        with self._running():
            worker = await asyncio.get_running_loop().run_in_executor(self._app.threads, self._make)
            return await worker.arun(
                ready=None if ready is None else lambda: ready.set_result(None)
            )

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """From before it opens the engine, so that a `close` meanwhile ends it too."""
        self._thread = threading.get_ident()
        with self._registry.running(self):
            try:
                yield
            finally:
                self.ended.set()

    def runs_in_this_thread(self) -> bool:
        """Whether waiting for its end here would block it."""
        return self._thread == threading.get_ident() and not self.ended.is_set()

    def _use(self, call: str) -> None:
        refuse_while_importing(call)
        if self._is_used:
            raise UsageError(f"{call}: a worker is used once; get another one from app.worker()")
        self._is_used = True
        check_handlers(self._app.handlers)

    def _make(self) -> Worker:
        """Opens the engine, so not on an event loop."""
        self._app.install_schedules()
        tell_banner(self._app, self._options, "the program stops it")
        worker = Worker(self._app.engine, self._app.handlers, self._options)
        with self._lock:
            self._worker = worker
            for _ in range(self._stops):
                worker.stop()
        return worker


def refuse_running_loop(call: str) -> None:
    """Raise UsageError where this thread runs an event loop, which the worker would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        f"{call}: an event loop runs in this thread already; use await app.arun_worker() or async"
        " with app.worker():"
    )


def _tell_failure(task: asyncio.Task[Summary]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the worker has ended by an error: %s: %s", type(error).__name__, error)
