"""
`app.worker()` and `app.arun_worker()`: a worker in a program with other duties, such as a web
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from laneway.errors import UsageError
from laneway.working.banner import log_banner
from laneway.working.election_threads import ElectionThreads
from laneway.working.options import EmbeddedOptions, Options, Summary
from laneway.working.user_imports import refuse_while_importing
from laneway.working.worker import STOP_SECONDS, Worker, check_handlers

if TYPE_CHECKING:
    from laneway.working.host import Application

log = logging.getLogger("laneway.worker")


class EmbeddedWorker:
    """
    A worker on the caller's event loop or in the caller's thread; it installs no signal handlers.

    `async with app.worker() as worker:` runs it during the block; leaving the block stops it in
    order and waits for its end. `await worker.arun()` and `worker.run()` return when it has been
    stopped. Used once.
    """

    def __init__(self, app: Application, options: Options) -> None:
        self._app = app
        self._options = options
        self._elections = ElectionThreads(app.elections_in_workers, options)
        self._lock = threading.Lock()  # guards the next two
        self._worker: Worker | None = None
        self._stops = 0
        self._is_used = False
        self._task: asyncio.Task[Summary] | None = None
        self._thread_id = 0
        self.ended = threading.Event()
        """Set once the worker no longer uses the engine."""
        self.stop_seconds = options.grace + 3 * STOP_SECONDS
        """The longest time from the stop to the end."""

    @classmethod
    def of(cls, app: Application, call: str, options: dict[str, Any]) -> EmbeddedWorker:
        """The worker of a call with these options. Raises UsageError."""
        return cls(app, Options.checked(call, options, EmbeddedOptions.__optional_keys__))

    def run(self) -> Summary:
        """
        Work in this thread until `stop` is called, or with `burst` until nothing is left to run
        now.

        Returns what was handled. Raises UsageError if an event loop runs in this thread.
        """
        self._use("worker.run")
        refuse_running_loop("worker.run")
        with self._running():
            try:
                return self._create().run(signals=())
            finally:
                self._elections.join()

    async def arun(self) -> Summary:
        """
        The same as `run`, on the running event loop. The first cancellation stops it in order; a
        second one stops it immediately.
        """
        self._use("arun_worker")
        return await self._arun(None)

    def stop(self) -> None:
        """
        Stop in order: running handlers may end within the grace period. Called again: stop now.

        Can be called from any thread; does not wait.
        """
        with self._lock:
            self._stops += 1
            if self._worker is not None:
                self._worker.stop()

    async def astop(self) -> Summary:
        """
        Stop in order and wait for the end; inside `async with`.

        Returns what was handled. Raises UsageError if `async with` did not start it.
        """
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
            await self._task  # raises the reason
        self._task.add_done_callback(_log_failure)
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
            # The block's own error is raised; the worker's was logged.

    async def _arun(self, ready: asyncio.Future[None] | None) -> Summary:
        with self._running():
            try:
                worker = await asyncio.get_running_loop().run_in_executor(
                    self._app.threads, self._create
                )
                return await worker.arun(
                    ready=None if ready is None else lambda: ready.set_result(None)
                )
            finally:
                await asyncio.shield(
                    asyncio.get_running_loop().run_in_executor(
                        self._app.threads, self._elections.join
                    )
                )

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Registers the worker before it opens the engine, so that `app.close` ends it too."""
        self._thread_id = threading.get_ident()
        with self._app.workers.running(self):
            try:
                yield
            finally:
                self.ended.set()

    def runs_in_this_thread(self) -> bool:
        """Whether waiting for its end in the current thread would block the worker itself."""
        return self._thread_id == threading.get_ident() and not self.ended.is_set()

    def _use(self, call: str) -> None:
        refuse_while_importing(call)
        if self._is_used:
            raise UsageError(f"{call}: a worker is used once; get another one from app.worker()")
        self._is_used = True
        check_handlers(self._app.handlers, self._elections)

    def _create(self) -> Worker:
        """Create the worker; blocks, because it opens the engine."""
        self._app.schedules.install()
        log_banner(self._app, self._options, "the program stops it")
        worker = Worker(self._app.engine, self._app.handlers, self._options, self._elections.stop)
        self._elections.start()
        with self._lock:
            self._worker = worker
            for _ in range(self._stops):
                worker.stop()
        return worker


def refuse_running_loop(call: str) -> None:
    """Raise UsageError if an event loop runs in this thread: the worker would block it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        f"{call}: an event loop runs in this thread already; use await app.arun_worker() or async"
        " with app.worker():"
    )


def _log_failure(task: asyncio.Task[Summary]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("worker failed: %s: %s", type(error).__name__, error)
