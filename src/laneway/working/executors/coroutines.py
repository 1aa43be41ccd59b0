"""
Runs coroutine handlers on the event loop.

A *slot* is a task that runs one delivery after the other: a task for each delivery would cost more
than everything else that a short handler needs.
A slot opens the next one before it awaits a handler, so each delivery that waits for something has
a slot of its own.
A slot ends, and a new one continues, if a handler was stopped or left something in its context
variables: no handler sees another's.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

from laneway.working.handler import CURRENT
from laneway.working.time_limits import Interrupter, interruptible

if TYPE_CHECKING:
    from laneway.working.delivery import WorkerDelivery
    from laneway.working.executors.executor import Dispatch, Finished
    from laneway.working.middleware import HandlingMiddlewares

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

    def start(self, unit: WorkerDelivery) -> None:
        self._ready.append(unit)
        if not self._is_slot_opening:
            self._open_slot()

    def _open_slot(self) -> None:
        self._is_slot_opening = True
        slot = self._loop.create_task(self._slot(), context=self._context.copy())
        self._slots.add(slot)
        slot.add_done_callback(self._slots.discard)

    async def _slot(self) -> None:
        self._is_slot_opening = False
        task = asyncio.current_task()
        assert task is not None
        runner = _SlotRunner(task)
        slice_began = perf_counter()
        ready = self._ready
        while ready or self._has_more():
            unit = ready.popleft()
            if unit.over:
                continue
            if ready and not self._is_slot_opening:
                self._open_slot()
            unit.runner = runner
            unit.began = began = perf_counter()
            returned: Any = None
            error: BaseException | None = None
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
                returned = await (interruptible(call, runner.interrupter) if is_limited else call)
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


def _differs(clean: contextvars.Context) -> bool:
    """Whether a handler left something in its context variables."""
    try:
        return contextvars.copy_context() != clean
    except BaseException:  # noqa: BLE001  # comparing the values runs their own code
        return True


class _SlotRunner:
    """Stops the handler that a slot runs."""

    __slots__ = ("_task", "interrupter")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self.interrupter = Interrupter(task)

    def warn(self, unit: WorkerDelivery, error: Exception) -> None:
        if unit.runner is self:
            self.interrupter.throw(error)

    def stop(self, unit: WorkerDelivery, error: Exception) -> None:
        if unit.runner is self:
            self._task.cancel(str(error))
