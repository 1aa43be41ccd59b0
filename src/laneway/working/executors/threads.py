"""
Plain functions in threads.

Threads take deliveries from one deque. A thread that takes one while more are waiting wakes the
next thread first, so that blocking handlers get a thread each, while for short ones the running
thread has emptied the deque before the other gets the interpreter.
"""

from __future__ import annotations

import threading
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

from laneway.working.handler import DELIVERY
from laneway.working.time_limits import raise_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from laneway.working.delivery import WorkerDelivery
    from laneway.working.engine_priority import EnginePriority

    Call = Callable[[WorkerDelivery], Any]


class ThreadExecutor:
    """
    Runs functions in at most `most` threads; `ring` is called, from a thread, when there is
    something to `collect`.

    A thread cannot be killed: one whose handler is given up is replaced, and ends when its handler
    does.
    """

    def __init__(
        self, most: int, call: Call, notify: Callable[[], None], pause: EnginePriority
    ) -> None:
        self.call = call
        self.pause = pause
        self.ready: deque[WorkerDelivery] = deque()
        self.results: deque[tuple[WorkerDelivery, Any, BaseException | None]] = deque()
        self.notify = notify
        self._most = most
        self._lock = threading.Lock()  # guards the next four; not taken per delivery
        self._idle: list[_Runner] = []
        self._alive = 0
        self.coming = False
        self._closed = False

    def start(self, delivery: WorkerDelivery) -> None:
        self.ready.append(delivery)
        if not self.coming:
            self.wake_one()

    def wake_one(self) -> None:
        """Bring one more thread to the deque, if there is one to bring."""
        with self._lock:
            if self.coming or self._closed:
                return
            if self._idle:
                self.coming = True
                self._idle.pop().wakeup.release()
            elif self._alive < self._most:
                self.coming = True
                self._alive += 1
                _Runner(self).start()

    def rest(self, runner: _Runner) -> bool:
        """A thread found nothing to do; False: there is something after all."""
        with self._lock:
            if self._closed or self.ready:
                return False
            self._idle.append(runner)
            return True

    def give_up(self) -> None:
        """A thread's handler was given up: another may take its place."""
        with self._lock:
            self._alive -= 1
        if self.ready:
            self.wake_one()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End the idle threads; the others end with their handlers."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for runner in idle:
            runner.wakeup.release()


class _Runner(threading.Thread):
    """One thread. Daemonic: a handler that never ends must not keep the process."""

    def __init__(self, executor: ThreadExecutor) -> None:
        super().__init__(name="laneway-handler", daemon=True)
        self.wakeup = threading.Lock()
        self.wakeup.acquire()
        self._executor = executor
        self._lock = (
            threading.Lock()
        )  # held while an exception is aimed at the thread, and while its target changes
        self._work: WorkerDelivery | None = None
        self._abandoned = False

    def run(self) -> None:
        executor = self._executor
        ready = executor.ready
        executor.coming = False
        while not self._abandoned:
            try:
                delivery = ready.popleft()
            except IndexError:
                if executor.closed:
                    return
                if executor.rest(self):
                    self.wakeup.acquire()
                    executor.coming = False
                continue
            executor.pause.respect()
            if ready and not executor.coming:
                executor.wake_one()
            self._run_one(delivery)

    def _run_one(self, delivery: WorkerDelivery) -> None:
        if delivery.over:
            return
        delivery.runner = self
        self._work = delivery
        delivery.began = perf_counter()
        returned: Any = None
        error: BaseException | None = None
        DELIVERY.set(delivery.log_subject)
        try:
            try:
                returned = self._executor.call(delivery)
            except BaseException as raised:  # noqa: BLE001  # also SystemExit: it is a failure of the message, not of the worker
                error = raised
            self._let_go(delivery)
        except BaseException as late:  # noqa: BLE001  # an exception aimed at the handler that came just after it
            error = error or late
            self._let_go(delivery)
        executor = self._executor
        executor.results.append((delivery, returned, error))
        executor.notify()

    def _let_go(self, delivery: WorkerDelivery) -> None:
        with self._lock:
            self._work = None
            delivery.runner = None
            raise_in_thread(self.ident or 0, None)

    def warn(self, delivery: WorkerDelivery, error: Exception) -> None:
        with self._lock:
            if self._work is delivery:
                raise_in_thread(self.ident or 0, error)

    def stop(self, delivery: WorkerDelivery, error: Exception) -> None:
        """Tell the handler, give it up, and let another thread take the place of this one."""
        with self._lock:
            if self._work is not delivery:
                return
            raise_in_thread(self.ident or 0, error)
            self._abandoned = True
        self._executor.give_up()
