"""
Runs coroutine handlers on the event loop.

A *slot* is a task that runs one delivery after the other: a task for each delivery would cost more
than everything else that a short handler needs.
A slot opens the next one before it awaits a handler, so each delivery that waits for something has
a slot of its own.
One slot that has nothing to run *parks*: the next delivery continues it, which is less than half of
the work of a new task, and needs no iteration of the event loop.
A slot ends, and a new one continues, if a handler was stopped or left something in its context
variables: no handler sees another's.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from laneway.working.handler import CURRENT
from laneway.working.middleware import HandlingMiddlewares
from laneway.working.time_limits import interruptible
from laneway.working.worker_delivery import WorkerDelivery

if TYPE_CHECKING:
    from laneway.working.executors.executor import Dispatch, Finished

SLICE_SECONDS = 0.005
"""How long a slot runs handlers that never wait before other tasks of the event loop may run."""


class AsyncExecutor:
    """Runs coroutine handlers. An `Executor`."""

    reports_begin = False

    def __init__(
        self, finished: Finished, dispatch: Dispatch, middlewares: HandlingMiddlewares
    ) -> None:
        self._finished = finished
        self._dispatch = dispatch
        self._middlewares = middlewares if middlewares.has_middlewares else None
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._ready: deque[WorkerDelivery] = deque()
        self._slots: set[asyncio.Task[None]] = set()
        self._is_slot_opening = False
        self._parking = _Parking(self._loop)
        self.starts_at_once = False
        """Whether the caller calls `start_now` after `start`."""

    def start(self, unit: WorkerDelivery) -> None:
        self._ready.append(unit)
        if not self._is_slot_opening:
            self._open_slot()

    def start_now(self) -> None:
        """
        Begin what was started since `starts_at_once` was set, before this returns if a slot is
        parked. Not inside a task.
        """
        self.starts_at_once = False
        if self._is_slot_opening:
            self._parking.leave()

    def _open_slot(self) -> None:
        self._is_slot_opening = True
        if self._parking.is_taken:
            if not self.starts_at_once:
                self._loop.call_soon(self._parking.leave)
            return
        slot = self._loop.create_task(self._slot(), context=self._context.copy())
        self._slots.add(slot)
        slot.add_done_callback(self._slots.discard)

    async def _slot(self) -> None:
        self._is_slot_opening = False
        task = asyncio.current_task()
        assert task is not None
        runner = _SlotRunner(task)
        unit: Any
        returned: Any
        error: BaseException | None
        clean: Any
        slice_began = perf_counter()
        ready = self._ready
        while True:
            if not (ready or self._has_more()):
                if self._parking.is_taken:
                    break
                # Nothing of the last message is kept meanwhile.
                unit = call = args = kwargs = returned = error = clean = None
                CURRENT.set(None)
                try:
                    await self._parking
                except asyncio.CancelledError:
                    break
                finally:
                    self._is_slot_opening = False
                slice_began = perf_counter()
                continue
            unit = ready.popleft()
            if unit.over:
                continue
            if ready and not self._is_slot_opening:
                self._open_slot()
            unit.runner = runner
            unit.began = began = perf_counter()
            returned = error = None
            CURRENT.set(unit)
            # Taken each time: comparing with the same context costs next to nothing.
            clean = contextvars.copy_context()
            try:
                args, kwargs = unit.arguments()
                if self._middlewares is not None:
                    call = self._call_inside_middlewares(unit, args, kwargs)
                elif (function := unit.handler.function_of_current) is not None:
                    (unit.request,) = args
                    call = function(unit.request)
                else:
                    call = unit.handler.function(*args, **kwargs)
                is_limited = unit.timers is not None and unit.limits[1] is not None
                returned = await (interruptible(call, runner.take) if is_limited else call)
            except BaseException as raised:  # noqa: BLE001  # also SystemExit: it is a failure of the message, not of the worker
                error = raised
            is_spent = (
                task.cancelling() > 0
                or _differs(clean)
                or (error is not None and issubclass(type(error), GeneratorExit))
            )
            unit.runner = None
            self._finished(unit, returned, error)
            if is_spent:
                break
            if began - slice_began > SLICE_SECONDS:
                await asyncio.sleep(0)
                slice_began = perf_counter()
        if (ready or self._has_more()) and not self._is_slot_opening:
            self._open_slot()

    def _has_more(self) -> bool:
        """Nothing is ready: whether something is after the next dispatch."""
        self._dispatch()
        return bool(self._ready)

    async def _call_inside_middlewares(
        self, unit: WorkerDelivery, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        assert self._middlewares is not None
        with self._middlewares.around(unit.subject()):
            return await unit.handler.function(*args, **kwargs)

    async def close(self, seconds: float) -> None:
        """Cancel what still runs, and wait for that at most `seconds`; 0: do not wait."""
        self._ready.clear()
        slots = list(self._slots)
        for slot in slots:
            slot.cancel()
        if slots:
            await asyncio.wait(slots, timeout=seconds)


class _Parking:
    """
    What a parked slot awaits: a future as far as its task needs one, which continues the task when
    it is told to instead of an iteration later.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False
        self._continue: Callable[[_Parking], object] | None = None
        self._context: contextvars.Context
        self.is_taken = False
        """Whether a slot is parked here."""

    def __await__(self) -> Generator[_Parking, None, None]:
        self.is_taken = self._asyncio_future_blocking = True
        yield self

    def leave(self) -> None:
        """Continue the slot; not inside a task."""
        slot, self._continue = self._continue, None
        if slot is not None:
            self.is_taken = False
            self._context.run(slot, self)

    # What its task calls

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(
        self, callback: Callable[[_Parking], object], *, context: contextvars.Context
    ) -> None:
        self._continue, self._context = callback, context

    def cancel(self, msg: object = None) -> bool:
        del msg
        self._loop.call_soon(self.leave)
        return False  # the task cancels itself when it continues

    def result(self) -> None:
        pass


def _differs(clean: contextvars.Context) -> bool:
    """Whether a handler left something in its context variables."""
    try:
        return contextvars.copy_context() != clean
    except BaseException:  # noqa: BLE001  # comparing the values runs their own code
        return True


class _SlotRunner:
    """Stops the handler that a slot runs."""

    __slots__ = ("_error", "task")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self._error: Exception | None = None

    def warn(self, unit: WorkerDelivery, error: Exception) -> None:
        if unit.runner is self:
            self._error = error
            self.task.cancel()

    def take(self) -> Exception | None:
        """The error of `warn` behind a cancellation, or None if it has another cause."""
        error, self._error = self._error, None
        if error is not None:
            self.task.uncancel()
        return error

    def stop(self, unit: WorkerDelivery, error: Exception) -> None:
        if unit.runner is self:
            self.task.cancel(str(error))
