"""
Runs plain functions in threads.

Threads take units from one deque.
A thread that takes one while more are waiting first wakes the next thread.
Blocking handlers get a thread each, while for short ones the running thread has emptied the
deque before the other thread gets the interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

from laneway.working.engine_priority import EnginePriority
from laneway.working.handler import CURRENT
from laneway.working.lifespan import STATES
from laneway.working.middleware import HandlingMiddlewares
from laneway.working.time_limits import raise_in_thread
from laneway.working.worker_delivery import Runner, WorkerDelivery

if TYPE_CHECKING:
    from laneway.working.executors.executor import Dispatch, Finished


log = logging.getLogger("laneway.worker")

STUCK_SECONDS = 10.0
"""How long after its handler was given up a thread that still runs is reported."""


class ThreadExecutor:
    """
    Runs functions in at most `max_threads` threads. An `Executor`.

    A thread cannot be killed: one whose handler is given up is replaced, and ends when its handler
    does.
    """

    reports_begin = False

    def __init__(
        self,
        finished: Finished,
        dispatch: Dispatch,
        middlewares: HandlingMiddlewares,
        max_threads: int,
        priority: EnginePriority,
    ) -> None:
        self.ready: deque[WorkerDelivery] = deque()
        self.priority = priority
        self.runner: Runner | None = None
        """Stops units, or None if the thread that runs the unit does."""
        self.states = STATES.get({})
        """What lifespans have made for this worker."""
        self._finished = finished
        self._dispatch = dispatch
        self._middlewares = middlewares
        self._loop = asyncio.get_running_loop()
        self._results: deque[tuple[WorkerDelivery, Any, BaseException | None]] = deque()
        self._is_collect_due = False
        self._max_threads = max_threads
        self._lock = threading.Lock()  # guards the next four; not taken for each unit
        self._idle: list[_HandlerThread] = []
        self._alive = 0
        self.is_thread_waking = False
        self.is_closed = False

    def start(self, unit: WorkerDelivery) -> None:
        self.ready.append(unit)
        if not self.is_thread_waking:
            self.wake_thread()

    async def close(self, seconds: float) -> None:
        """End the idle threads; the others end with their handlers. Does not wait."""
        del seconds
        with self._lock:
            self.is_closed = True
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.wakeup.release()

    # Called by the threads

    def wake_thread(self) -> None:
        """Wake an idle thread, or start one if there may be one more."""
        with self._lock:
            if self.is_thread_waking or self.is_closed:
                return
            if self._idle:
                self.is_thread_waking = True
                self._idle.pop().wakeup.release()
            elif self._alive < self._max_threads:
                self.is_thread_waking = True
                self._alive += 1
                _HandlerThread(self).start()

    def become_idle(self, thread: _HandlerThread) -> bool:
        """A thread found nothing to do; False: meanwhile there is something."""
        with self._lock:
            if self.is_closed or self.ready:
                return False
            self._idle.append(thread)
            return True

    def replace_thread(self, thread: _HandlerThread, unit: WorkerDelivery) -> None:
        """A thread's handler was given up: another thread may take its place. On the event loop."""
        with self._lock:
            self._alive -= 1
        if self.ready:
            self.wake_thread()
        self._loop.call_later(STUCK_SECONDS, self._report_stuck, thread, unit)

    def _report_stuck(self, thread: _HandlerThread, unit: WorkerDelivery) -> None:
        if thread.runs(unit):
            log.warning(
                "message %s in topic %s: its handler was stopped, but its thread still runs, in"
                ' addition to the worker\'s slots; use isolation="process" for a handler that can'
                " hang outside Python",
                unit.lease.id,
                unit.lease.topic,
            )

    def call(self, unit: WorkerDelivery) -> Any:
        """Call the unit's handler, inside the middlewares."""
        if not self._middlewares.has_middlewares:  # one may be added while the worker runs
            return self._call_handler(unit)
        with self._middlewares.around(unit.subject()):
            return self._call_handler(unit)
        return None  # a middleware has suppressed the handler's error

    def _call_handler(self, unit: WorkerDelivery) -> Any:
        args, kwargs = unit.arguments()
        function = unit.handler.function_of_current
        if function is None or self._middlewares.has_middlewares:
            return unit.handler.function(*args, **kwargs)
        (unit.request,) = args
        return function(unit.request)

    def report(self, unit: WorkerDelivery, returned: Any, error: BaseException | None) -> None:
        """Report the end of a unit to the event loop."""
        self._results.append((unit, returned, error))
        if not self._is_collect_due:
            self._is_collect_due = True
            # A closed loop: a handler that was given up has ended after all.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._collect)

    # On the event loop

    def _collect(self) -> None:
        self._is_collect_due = False
        results = self._results
        while results:
            self._finished(*results.popleft())
        self._dispatch()


class _HandlerThread(threading.Thread):
    """One thread. Daemonic: a handler that never ends must not keep the process alive."""

    def __init__(self, executor: ThreadExecutor) -> None:
        super().__init__(name="laneway-handler", daemon=True)
        self.wakeup = threading.Lock()
        self.wakeup.acquire()
        self._executor = executor
        # Held while an exception is raised in this thread, and while its target changes.
        self._lock = threading.Lock()
        self._unit: WorkerDelivery | None = None
        self._is_abandoned = False

    def run(self) -> None:
        executor = self._executor
        ready = executor.ready
        executor.is_thread_waking = False
        STATES.set(executor.states)
        while not self._is_abandoned:
            try:
                unit = ready.popleft()
            except IndexError:
                if executor.is_closed:
                    return
                if executor.become_idle(self):
                    self.wakeup.acquire()
                    executor.is_thread_waking = False
                continue
            executor.priority.yield_to_engine()
            if ready and not executor.is_thread_waking:
                executor.wake_thread()
            self._run_unit(unit)

    def _run_unit(self, unit: WorkerDelivery) -> None:
        if unit.over:
            return
        unit.runner = self._executor.runner or self
        self._unit = unit
        unit.began = perf_counter()
        returned: Any = None
        error: BaseException | None = None
        CURRENT.set(unit)
        try:
            try:
                returned = self._executor.call(unit)
            except BaseException as raised:  # noqa: BLE001  # also SystemExit: it is a failure of the message, not of the worker
                error = raised
            self._let_go(unit)
        except BaseException as late:  # noqa: BLE001  # an exception for the handler that was raised just after it
            error = error or late
            self._let_go(unit)
        self._executor.report(unit, returned, error)

    def _let_go(self, unit: WorkerDelivery) -> None:
        with self._lock:
            self._unit = None
            unit.runner = None
            raise_in_thread(self.ident or 0, None)

    def runs(self, unit: WorkerDelivery) -> bool:
        return self._unit is unit

    def warn(self, unit: WorkerDelivery, error: Exception) -> None:
        with self._lock:
            if self._unit is unit:
                raise_in_thread(self.ident or 0, error)

    def stop(self, unit: WorkerDelivery, error: Exception) -> None:
        """Raise the error in the handler, give it up, and let another thread take its place."""
        with self._lock:
            if self._unit is not unit:
                return
            raise_in_thread(self.ident or 0, error)
            self._is_abandoned = True
        self._executor.replace_thread(self, unit)
