"""
Coroutine handlers on the event loop.

A *slot* is a task that runs one delivery after the other, since a task of its own costs more than
all else that a short handler needs. A slot starts the next one before it awaits, so as many run at
once as there are deliveries that wait. It ends, and a fresh one goes on, when a handler was stopped
or left something in its context variables: no handler sees another's.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

from laneway.working.handler import DELIVERY
from laneway.working.time_limits import Interrupter, interruptible

if TYPE_CHECKING:
    from collections.abc import Callable

    from laneway.working.delivery import WorkerDelivery
    from laneway.working.middleware import HandlingMiddlewares

TURN_SECONDS = 0.005
"""How long a slot goes on before the event loop has its turn."""


class AsyncExecutor:
    """Runs coroutine handlers; `finished` is told what each returned or raised."""

    def __init__(
        self,
        finished: Callable[[WorkerDelivery, Any, BaseException | None], None],
        middlewares: HandlingMiddlewares,
    ) -> None:
        self._finished = finished
        self._middlewares = middlewares if middlewares.has_middlewares else None
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._ready: deque[WorkerDelivery] = deque()
        self._slots: set[asyncio.Task[None]] = set()
        self._coming = False

    def start(self, delivery: WorkerDelivery) -> None:
        self._ready.append(delivery)
        if not self._coming:
            self._open_slot()

    def _open_slot(self) -> None:
        self._coming = True
        slot = self._loop.create_task(self._slot(), context=self._context.copy())
        self._slots.add(slot)
        slot.add_done_callback(self._slots.discard)

    async def _slot(self) -> None:
        self._coming = False
        task = asyncio.current_task()
        assert task is not None
        running = _Running(task)
        turn = perf_counter()
        ready = self._ready
        while ready:
            delivery = ready.popleft()
            if delivery.over:
                continue
            if ready and not self._coming:
                self._open_slot()
            delivery.runner = running
            delivery.began = began = perf_counter()
            returned: Any = None
            error: BaseException | None = None
            DELIVERY.set(delivery.lease if delivery.parts is None else delivery.log_subject)
            clean = (
                contextvars.copy_context()
            )  # taken each time: comparing with the same context costs next to nothing
            try:
                args, kwargs = delivery.arguments()
                call = (
                    delivery.handler.function(*args, **kwargs)
                    if self._middlewares is None
                    else self._surrounded(delivery, args, kwargs)
                )
                is_limited = delivery.timers is not None and delivery.limits[1] is not None
                returned = await (interruptible(call, running.interrupter) if is_limited else call)
            except BaseException as raised:  # noqa: BLE001  # also SystemExit: it is a failure of the message, not of the worker
                error = raised
            is_spent = (
                task.cancelling() > 0
                or _differs(clean)
                or (error is not None and issubclass(type(error), GeneratorExit))
            )
            delivery.runner = None
            self._finished(delivery, returned, error)
            if is_spent:
                break
            if began - turn > TURN_SECONDS:
                await asyncio.sleep(0)
                turn = perf_counter()
        if ready and not self._coming:
            self._open_slot()

    async def _surrounded(
        self, delivery: WorkerDelivery, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        assert self._middlewares is not None
        with self._middlewares.around(delivery.subject()):
            return await delivery.handler.function(*args, **kwargs)

    async def close(self, seconds: float) -> None:
        """Cancel what still runs, and wait so long at most for it to end."""
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
    except BaseException:  # noqa: BLE001  # their values are compared, whose own code may raise
        return True


class _Running:
    """Stops the handler that a slot runs."""

    __slots__ = ("_task", "interrupter")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task
        self.interrupter = Interrupter(task)

    def warn(self, delivery: WorkerDelivery, error: Exception) -> None:
        if delivery.runner is self:
            self.interrupter.throw(error)

    def stop(self, delivery: WorkerDelivery, error: Exception) -> None:
        if delivery.runner is self:
            self._task.cancel(str(error))
