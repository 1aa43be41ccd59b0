"""
One worker process: the event loop's side.

The way of a message: the courier's thread leases it, `arrived` puts it into the buffer, `_dispatch`
begins it in an executor as soon as a slot is free, `_finished` judges how it ended, and the courier
settles it with all others that ended meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, cast

from laneway import codec, texts
from laneway import signals as signals_
from laneway.errors import JobCancelled, LeaseLost, Reject, UnknownHandler, UsageError
from laneway.message import Settlement
from laneway.working.abort_listener import AbortListener
from laneway.working.buffer import Buffer
from laneway.working.child_processes import CannotStart
from laneway.working.delivery import WorkerDelivery
from laneway.working.engine_priority import EnginePriority
from laneway.working.engine_thread import EngineThread
from laneway.working.executors.aio import AsyncExecutor
from laneway.working.executors.processes import ProcessCaller, template_for
from laneway.working.executors.threads import ThreadExecutor
from laneway.working.middleware import EngineWithHooks, HookThread
from laneway.working.outcome import (
    dead_letter_for_fault,
    release,
    settlement_for,
    unawaited_coroutine,
)
from laneway.working.outcome_log import OutcomeLog
from laneway.working.time_limits import SoftTimeLimit, TimeLimit, WorkerStopped
from laneway.working.unhandled_warnings import UnhandledWarnings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from laneway.engines.base import FullEngine
    from laneway.message import Lease
    from laneway.working.buffer import HandlerQueue
    from laneway.working.handler import Handler, Handlers
    from laneway.working.health_server import HealthServer
    from laneway.working.options import Options, Summary

log = logging.getLogger("laneway.worker")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

PUT_OFF_US = 1_000_000
"""
How long a message stays away whose handler is at its own limit in this worker with enough more
waiting.
"""

TRIAL_SECONDS = 1.0
"""How long a suspect runs alone before others are begun beside it."""

ALONE_SECONDS = 30.0
"""
How long one runs alone that has failed or lost its worker before: so long, too, it waits for others
to end.
"""

CANCEL_SECONDS = 2.0
"""How long cancelled tasks may take to end when the worker does."""

STOP_SECONDS = 10.0
"""How long the last settlements may take."""


def check_handlers(handlers: Handlers) -> None:
    """Raises UsageError where there are none."""
    if not len(handlers):
        raise UsageError(
            "run_worker: the application has no handlers; register one with @app.handler or"
            " @app.task"
        )


class Worker:
    """Handles messages with an application's handlers until it is told to stop. Used once."""

    def __init__(self, engine: FullEngine, handlers: Handlers, options: Options) -> None:
        check_handlers(handlers)
        self._engine = engine
        self._handlers = handlers
        self._options = options
        self._buffer = Buffer(options.concurrency, keeps_all=options.burst)
        self._running: set[WorkerDelivery] = set()
        self._suspects: list[tuple[int, int, WorkerDelivery]] = []
        """
        A heap of suspects, the fewest attempts first: who has never been tried waits for no one who
        may kill this process.
        """
        self._is_counted = options.max_messages is not None
        self._begun = 0
        self._on_trial: WorkerDelivery | None = None
        self._alone_from: float | None = None
        """Until then the next suspect, who has to be alone, waits for others to end."""
        self._pause = EnginePriority(embedded=engine.capabilities.embedded)
        self._flush_is_due = False
        self._collect_is_due = False
        self._keeps_slots = False
        self._unhandled = UnhandledWarnings()
        self._stops = 0
        self._failure: BaseException | None = None
        self._thread = 0
        self._is_started = False
        self._owns_loop = False  # whoever owns it ends the tasks that are left
        self.ended = threading.Event()
        """Set once it uses the engine no more."""
        self.stop_seconds = options.grace + 3 * STOP_SECONDS
        """Longest time from the stop to the end."""
        self._middlewares = handlers.middlewares
        self._hooks = (
            HookThread(self._middlewares, self._caught_up) if self._middlewares.has_hooks else None
        )
        self._lines: OutcomeLog

    # Life

    def run(self, signals: Sequence[int] = STOP_SIGNALS) -> Summary:
        """
        Work until told to stop, or with `burst` until nothing is left. Raises what makes working
        impossible.
        """
        loop = asyncio.new_event_loop()
        self._owns_loop = True
        try:
            return _complete(loop, loop.create_task(self.arun(signals)))
        finally:
            loop.run_until_complete(end_tasks())
            loop.close()

    async def arun(
        self, signals: Sequence[int] = (), ready: Callable[[], None] | None = None
    ) -> Summary:
        """
        As `run`, on the running event loop; `signals` stop it, where this is the main thread.
        `ready` is called when it has started.

        Cancelled, it stops in order; cancelled again, at once.
        """
        self._thread = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        self._change = asyncio.Event()  # a stop was asked for, or the last handler has ended
        health = self._open_health()  # first: the port may be taken
        self._aio = AsyncExecutor(self._finished, self._middlewares)
        self._children = ProcessCaller(self._child_began, template_for(self._handlers))
        self._threads = ThreadExecutor(
            self._options.concurrency, self._call, self._notify, self._pause
        )
        self._engine_thread = EngineThread(self._told_engine(), self._options, self, self._pause)
        self._lines = OutcomeLog(
            self._engine, self._loop, with_tracebacks=_shows_tracebacks(self._options)
        )
        is_cancelled = False
        began = time.monotonic()
        try:
            aborts = await self._loop.run_in_executor(
                None, AbortListener, self._engine, self.aborted
            )
            with self._signals(signals), contextlib.closing(aborts):
                self._engine_thread.start()
                aborts.start()
                self._is_started = True
                signals_.worker_ready.send(self)
                log.info(
                    "worker %d is ready: pool %s, %d at once",
                    os.getpid(),
                    self._options.pool,
                    self._options.concurrency,
                )
                if ready is not None:
                    ready()
                try:
                    await self._until(lambda: self._stops > 0)
                except asyncio.CancelledError:
                    is_cancelled = True
                    self._stops += 1
                signals_.worker_shutdown.send(self)
                is_cancelled |= await self._to_the_end(self._shut_down())
        finally:
            if health is not None:
                await self._loop.run_in_executor(None, health.close)
            self.ended.set()
        self._lines.close()
        log.info(
            "worker %d stopped after %.1f s: %s",
            os.getpid(),
            time.monotonic() - began,
            self._engine_thread.summary.in_words(),
        )
        if self._failure is not None:
            raise self._failure
        if is_cancelled:
            raise asyncio.CancelledError
        return self._engine_thread.summary

    def _open_health(self) -> HealthServer | None:
        options = self._options
        if options.health_port is None:
            return None
        from laneway.working.health_server import (  # noqa: PLC0415
            HealthServer,
        )  # it imports a server that most workers do not need

        made = HealthServer(
            options.health_address,
            options.health_port,
            call_soon=self._loop.call_soon_threadsafe,
            is_alive=lambda: not self._is_started or self._engine_thread.is_alive(),
            is_serving=lambda: self._is_started and not self._stops,
            ask_store=self._engine.overview,
        )
        made.start()
        return made

    async def _to_the_end(self, stopping: Coroutine[Any, Any, None]) -> bool:
        """
        Await it also where the caller is cancelled meanwhile, which stops the worker at once.
        Returns whether that was so.
        """
        task = self._loop.create_task(stopping)
        is_cancelled = False
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                is_cancelled = True
                self._stop()
        task.result()
        return is_cancelled

    def runs_in_this_thread(self) -> bool:
        """Whether waiting for its end here would block it."""
        return self._thread == threading.get_ident() and not self.ended.is_set()

    def _told_engine(self) -> FullEngine:
        if self._hooks is None:
            return self._engine
        self._hooks.start()
        return cast("FullEngine", EngineWithHooks(self._engine, self._hooks))

    def stop(self) -> None:
        """
        Stop in order: finish what runs within the grace; called again, at once. From any thread.
        """
        loop = getattr(self, "_loop", None)
        if loop is None:
            self._stops += 1  # before it has begun
        else:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stops += 1
        self._change.set()

    @contextlib.contextmanager
    def _signals(self, signals: Sequence[int]) -> Iterator[None]:
        caught = []
        for number in signals:
            # Only the main thread may; elsewhere, `stop` is the way.
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                self._loop.add_signal_handler(number, self._stop)
                caught.append(number)
        try:
            yield
        finally:
            for number in caught:
                self._loop.remove_signal_handler(number)

    async def _until(self, condition: Callable[[], bool], seconds: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    self._change.clear()
                    await self._change.wait()

    async def _shut_down(self) -> None:
        self._engine_thread.stop_leasing()
        self._release_unbegun()
        if self._failure is not None:
            self._give_up_unstarted()
        if self._stops == 1 and self._running:
            running = len(self._running)
            handlers = "1 handler" if running == 1 else f"{running:,} handlers"
            log.info(
                "stopping: %s may go on for %g s; stop again to end them now",
                handlers,
                self._options.grace,
            )
            await self._until(lambda: not self._running or self._stops > 1, self._options.grace)
        stopped = WorkerStopped("the worker is stopped")
        for unit in list(self._running):
            self._give_up(
                unit,
                stopped,
                [
                    release(part, begun=True)
                    for part in unit.parts or [unit]
                    if part is unit or not part.over
                ],
            )
        await self._loop.run_in_executor(None, self._engine_thread.end, STOP_SECONDS)
        if self._engine_thread.settlements:  # of leases that were on their way when it ended
            await self._loop.run_in_executor(None, self._engine_thread.settle_rest)
        if self._hooks is not None:
            await self._loop.run_in_executor(None, self._hooks.end, STOP_SECONDS)
        await self._aio.close(0 if self._owns_loop else CANCEL_SECONDS)
        self._threads.close()
        self._children.close()

    def _release_unbegun(self) -> None:
        for delivery in [*self._buffer.drain(), *(delivery for _, _, delivery in self._suspects)]:
            if not delivery.is_gone():
                delivery.over = True
                self._settle(release(delivery, begun=False))

    def _give_up_unstarted(self) -> None:
        """
        Suspects that wait for their start to be recorded: the engine thread, which would do that,
        has ended.
        """
        for unit in list(self._engine_thread.starts):
            if not unit.over:
                settlements = [
                    release(part, begun=False)
                    for part in unit.parts or [unit]
                    if part is unit or not part.over
                ]
                self._give_up(unit, WorkerStopped("the worker is stopped"), settlements)

    # What the courier brings; called from its thread

    def store_time(self, now_us: int) -> None:
        self._handlers.store_time(now_us)

    def find(self, lease: Lease) -> Handler | None:
        try:
            return self._handlers.find(lease)
        except BaseException as error:  # noqa: BLE001  # it may import code; this message has no handler here, others have
            log.warning(
                "message %s in %s: its handler cannot be found: %s",
                lease.id,
                lease.topic,
                texts.of(error, texts.MAX_REASON),
            )
            return None

    def coverage(self) -> list[str] | None:
        return self._handlers.coverage()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def arrived(self, deliveries: list[WorkerDelivery]) -> None:
        self._loop.call_soon_threadsafe(self._take_in, deliveries)

    def unhandled(self, leases: list[Lease]) -> None:
        self._loop.call_soon_threadsafe(self._put_back_unhandled, leases)

    def started(self, deliveries: list[WorkerDelivery]) -> None:
        self._loop.call_soon_threadsafe(self._begin_started, deliveries)

    def refused(self, refused: list[tuple[WorkerDelivery, Exception]]) -> None:
        self._loop.call_soon_threadsafe(self._refuse_suspects, refused)

    def lost(self, deliveries: list[WorkerDelivery]) -> None:
        self._loop.call_soon_threadsafe(self._let_go_of, deliveries)

    def aborted(self, ids: set[str]) -> None:
        with contextlib.suppress(RuntimeError):  # the worker has ended
            self._loop.call_soon_threadsafe(self._abort, ids)

    def told(self, settlement: Settlement, answer: str) -> None:
        self._lines.settled(settlement, answer)

    def drained(self) -> None:
        self.stop()

    def failed(self, error: BaseException) -> None:
        self._failure = error
        self.stop()

    # On the loop

    def _take_in(self, deliveries: list[WorkerDelivery]) -> None:
        if self._stops:
            for delivery in deliveries:
                self._settle(release(delivery, begun=False))
            return
        for delivery in deliveries:
            if delivery.lease.suspect:
                self._suspect(delivery)
            elif not self._buffer.add(delivery):
                delivery.over = True
                self._settle(release(delivery, begun=False, delay_us=PUT_OFF_US))
        self._dispatch()

    def _put_back_unhandled(self, leases: list[Lease]) -> None:
        self._unhandled.warn(leases)
        for lease in leases:
            error = UnknownHandler("no worker had a handler for it within on_unhandled")
            self._lines.expect(lease, error, 0)  # a line if it becomes a dead letter
            if self._hooks is not None:
                self._hooks.expect(lease, error)
            self._settle(Settlement(lease.handle, lease.fence, "unhandled"))

    def _dispatch(self) -> None:
        """Begin what can be begun now."""
        if self._suspects or self._engine_thread.pauses:
            self._look_at_suspects()
        self._begin_others()

    def _look_at_suspects(self) -> None:
        self._try_suspect()
        if not self._suspects and self._on_trial is None:
            self._alone_from = None
            self._engine_thread.resume()

    def _begin_others(self) -> None:
        """All but suspects; beside one on its trial nothing is begun."""
        most, running, buffer = self._options.concurrency, self._running, self._buffer
        if self._on_trial is not None or self._alone_from is not None:
            return  # its end comes back here
        if self._is_counted:
            most = min(most, len(running) + self._left())
        if self._hooks is not None and self._hooks.asks_to_wait():
            return  # it calls _caught_up
        while True:
            if len(running) < most - buffer.kept and (queue := buffer.next_queue()) is not None:
                delivery = queue.pop()
            elif (
                buffer.kept
                and len(running) < most
                and (queue := buffer.newcomers_queue()) is not None
            ):
                delivery = queue.pop_newcomer()
            else:
                break
            if delivery.is_gone():
                continue
            if queue.handler.batch is not None:
                self._begin_batch(queue, delivery)
            else:
                queue.running += 1
                running.add(delivery)
                self._execute(delivery)
        if buffer.kept and not self._keeps_slots:
            self._keeps_slots = True
            self._loop.call_later(buffer.seconds_kept(), self._look_at_kept)

    def _look_at_kept(self) -> None:
        """Slots were kept for newcomers: unless there were any since, the others may have them."""
        if left := self._buffer.seconds_kept():
            self._loop.call_later(left, self._look_at_kept)
        else:
            self._keeps_slots = False
            self._dispatch()

    def _caught_up(self) -> None:
        """Hooks were behind and are no longer; called from their thread."""
        with contextlib.suppress(RuntimeError):  # the worker has ended
            self._loop.call_soon_threadsafe(self._dispatch)

    def _left(self) -> int:
        """How many more may begin before the worker ends."""
        most = self._options.max_messages
        return self._options.concurrency if most is None else max(0, most - self._begun)

    def _suspect(self, delivery: WorkerDelivery) -> None:
        heapq.heappush(self._suspects, (delivery.lease.attempt, delivery.lease.fence, delivery))

    def _try_suspect(self) -> None:
        """
        Begin the next message whose lease ran out before: its start is recorded first, so that
        killing this process is an attempt of its own. One at a time, and the next when it has ended
        or run for a while, so that no other is charged.
        """
        while (
            self._suspects
            and self._on_trial is None
            and len(self._running) < self._options.concurrency
            and self._left()
        ):
            attempt, _, delivery = self._suspects[0]
            if delivery.is_gone():
                heapq.heappop(self._suspects)
                continue
            queue = self._buffer.queue(delivery.handler)
            if queue.running >= queue.most or (attempt > 1 and not self._is_alone()):
                return
            heapq.heappop(self._suspects)
            unit = self._batch_of([delivery]) if delivery.handler.batch is not None else delivery
            if unit is not None:
                queue.running += 1
                self._running.add(unit)
                self._on_trial = unit
                self._engine_thread.starts.append(unit)
                self._flush_soon()

    def _is_alone(self) -> bool:
        """
        Whether one may begin that killed its worker perhaps more than once: nothing else runs, or
        has not ended for long. What was leased and has not begun goes back: it should not wait for
        the lease's end if this process dies.
        """
        self._engine_thread.pauses = True
        now = self._loop.time()
        if self._alone_from is None and self._running:
            self._alone_from = now + ALONE_SECONDS
            self._loop.call_later(ALONE_SECONDS, self._dispatch)
        if self._running and self._alone_from is not None and now < self._alone_from:
            return False
        self._alone_from = None
        for delivery in self._buffer.drain():
            if not delivery.is_gone():
                delivery.over = True
                self._settle(release(delivery, begun=False))
        return True

    def _begin_started(self, units: list[WorkerDelivery]) -> None:
        for unit in units:
            if not unit.over:
                if unit.handler.kind != "process":  # a child has to start first
                    self._time_trial(unit)
                self._execute(unit)

    def _time_trial(self, unit: WorkerDelivery) -> None:
        self._loop.call_later(
            TRIAL_SECONDS if unit.lease.attempt == 1 else ALONE_SECONDS, self._end_trial, unit
        )

    def _refuse_suspects(self, refused: list[tuple[WorkerDelivery, Exception]]) -> None:
        for unit, error in refused:
            if not unit.over:
                self._end(unit)
                self._conclude(unit, error, 0)
        self._dispatch()

    def _end_trial(self, unit: WorkerDelivery) -> None:
        """
        It has ended, or runs for so long that others may begin: those first that are no suspects.
        """
        if self._on_trial is unit:
            self._on_trial = None
            self._engine_thread.resume()
            if not unit.over:
                self._begin_others()
            self._loop.call_soon(self._dispatch)

    def _begin_batch(self, queue: HandlerQueue, first: WorkerDelivery) -> None:
        deliveries = [first]
        while queue.count and len(deliveries) < (queue.handler.batch or 1):
            delivery = queue.pop()
            if not delivery.is_gone():
                deliveries.append(delivery)
        unit = self._batch_of(deliveries)
        if unit is not None:
            queue.running += 1
            self._running.add(unit)
            self._execute(unit)

    def _batch_of(self, deliveries: list[WorkerDelivery]) -> WorkerDelivery | None:
        """
        One call for several deliveries; those whose body cannot be read are refused by themselves.
        """
        parts: list[WorkerDelivery] = []
        messages: list[Any] = []
        for delivery in deliveries:
            try:
                (message,), _ = delivery.handler.arguments(delivery.lease)
            except BaseException as error:  # noqa: BLE001  # Reject, or whatever reading the body raises
                delivery.over = True
                self._conclude(delivery, error, 0)
            else:
                parts.append(delivery)
                messages.append(message)
        return WorkerDelivery.batch_of(parts, messages) if parts else None

    def _execute(self, unit: WorkerDelivery) -> None:
        handler = unit.handler
        self._begun += 1
        if (
            handler.has_time_limit or unit.lease.headers is not None
        ) and handler.kind != "process":  # a child has to start first
            limits = unit.limits
            if limits != (None, None):
                self._set_timers(unit, *limits)
        if handler.kind == "async":
            self._aio.start(unit)
        else:
            self._threads.start(unit)

    def _call(self, unit: WorkerDelivery) -> Any:
        """Run a plain function; in a thread."""
        if not self._middlewares.has_middlewares:
            return self._call_handler(unit)
        with self._middlewares.around(unit.subject()):
            return self._call_handler(unit)
        return None  # a middleware has taken the handler's error upon itself

    def _call_handler(self, unit: WorkerDelivery) -> Any:
        if unit.handler.kind == "process":
            return self._children.call(unit)
        args, kwargs = unit.arguments()
        return unit.handler.function(*args, **kwargs)

    def _child_began(self, unit: WorkerDelivery) -> None:
        """A child has begun to run it; called from a thread."""
        unit.began = time.perf_counter()
        if unit.limits != (None, None) or self._on_trial is unit:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._set_timers_of_child, unit)

    def _set_timers_of_child(self, unit: WorkerDelivery) -> None:
        if unit.over:
            return
        if unit.limits != (None, None):
            self._set_timers(unit, *unit.limits)
        if self._on_trial is unit:
            self._time_trial(unit)

    def _notify(self) -> None:
        """A thread has a result; called from it."""
        if not self._collect_is_due:
            self._collect_is_due = True
            with contextlib.suppress(
                RuntimeError
            ):  # the loop is closed: a handler that was given up has ended after all
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._collect_is_due = False
        results = self._threads.results
        while results:
            self._finished(*results.popleft())

    def _finished(self, unit: WorkerDelivery, returned: Any, error: BaseException | None) -> None:
        if unit.over:
            return
        if (
            type(error) is CannotStart and unit.handler.kind == "process"
        ):  # not isinstance: it asks the error's own `__class__`
            self._give_up(
                unit,
                error,
                [
                    release(part, begun=False)
                    for part in unit.parts or [unit]
                    if part is unit or not part.over
                ],
            )
            self.failed(error)
            return
        self._end(unit)
        cost_us = int((time.perf_counter() - unit.began) * 1_000_000)
        if (
            error is None
            and returned is None
            and unit.parts is None
            and unit.handler.adds_nothing
            and self._hooks is None
        ):
            self._ack(unit, cost_us)  # most of them: the short way
        elif unit.parts is None:
            if returned is not None and error is None:
                error = unawaited_coroutine(unit.handler.name, returned)
            self._conclude(unit, error, cost_us, returned)
        else:
            for part, outcome in unit.outcomes(returned, error):
                if not part.over:
                    part.over = True
                    self._conclude(part, outcome, cost_us // len(unit.parts))
        self._dispatch()

    def _end(self, unit: WorkerDelivery) -> None:
        unit.over = True
        self._running.discard(unit)
        if self._on_trial is unit:
            self._end_trial(unit)
        self._buffer.queue(unit.handler).running -= 1
        if unit.timers is not None:
            for timer in unit.timers:
                timer.cancel()
        if self._is_counted and not self._left() and not self._running and not self._stops:
            self._stop()
        if self._stops and not self._running:
            self._change.set()

    # Stopping handlers

    def _set_timers(self, unit: WorkerDelivery, limit: float | None, soft: float | None) -> None:
        unit.timers = []
        if limit is not None:
            unit.timers.append(self._loop.call_later(limit, self._time_is_over, unit, limit))
        if soft is not None and unit.handler.kind != "process":  # a child watches its own
            unit.timers.append(self._loop.call_later(soft, self._warn, unit, soft))

    def _warn(self, unit: WorkerDelivery, soft: float) -> None:
        if unit.runner is not None:
            unit.runner.warn(unit, SoftTimeLimit(f"the handler has run for {soft:g} s"))

    def _time_is_over(self, unit: WorkerDelivery, limit: float) -> None:
        error = TimeLimit(f"the handler was stopped after its time limit of {limit:g} s")
        cost_us = int(limit * 1_000_000)
        parts = [part for part in unit.parts or [unit] if part is unit or not part.over]
        for part in parts:
            self._tell(part, error, cost_us)
        self._give_up(unit, error, [self._ended(part, error, cost_us, None)[0] for part in parts])
        self._dispatch()

    def _abort(self, ids: set[str]) -> None:
        """Messages were cancelled from outside while they are here."""
        held = self._engine_thread.held
        deliveries = [
            delivery
            for delivery in list(held.values())
            if delivery is not None and delivery.lease.id in ids
        ]
        for delivery in deliveries:
            held.pop(delivery.lease.fence, None)
        self._let_go_of(deliveries, is_cancelled=True)

    def _let_go_of(self, deliveries: list[WorkerDelivery], *, is_cancelled: bool = False) -> None:
        """
        Leases were lost: somebody else may have the messages now, or nobody is to have them any
        more.
        """
        for delivery in deliveries:
            if delivery.over:
                continue
            unit = delivery.whole or delivery
            error: Exception
            if is_cancelled:
                log.info(
                    "message %s in %s: cancelled; its handler is stopped",
                    delivery.lease.id,
                    delivery.lease.topic,
                )
                error = JobCancelled(f"job {delivery.lease.id}: cancelled while it ran")
            else:
                log.warning(
                    "message %s in %s: the lease was lost; its handler is stopped",
                    delivery.lease.id,
                    delivery.lease.topic,
                )
                error = LeaseLost(
                    f"message {delivery.lease.id}: the lease (fence {delivery.lease.fence})"
                    " has ended",
                    delivery.lease.id,
                    delivery.lease.fence,
                )
            delivery.over = True
            if unit in self._running and all(part.over for part in unit.parts or ()):
                self._give_up(unit, error, [])
        self._dispatch()

    def _give_up(
        self, unit: WorkerDelivery, error: Exception, settlements: list[Settlement]
    ) -> None:
        """End a handler from outside; what it does from here on changes nothing."""
        self._end(unit)
        for part in unit.parts or ():
            part.over = True
        for settlement in settlements:
            self._settle(settlement)
        if unit.handler.kind == "process":
            self._children.kill(unit)
        elif unit.runner is not None:
            unit.runner.stop(unit, error)

    # Settling

    def _ack(self, delivery: WorkerDelivery, cost_us: int) -> None:
        """As `_conclude` of a handler that returned nothing, of which nothing is kept."""
        lines = self._lines
        lines.count += 1
        if lines.is_open:
            lines.succeeded(delivery.lease, cost_us)
        self._settle(
            Settlement(delivery.lease.handle, delivery.lease.fence, "ack", cost_us=cost_us)
        )

    def _conclude(
        self,
        delivery: WorkerDelivery,
        error: BaseException | None,
        cost_us: int,
        returned: Any = None,
    ) -> None:
        settlement, error = self._ended(delivery, error, cost_us, returned)
        if error is not None or self._hooks is not None:
            self._tell(delivery, error, cost_us)
        else:
            self._lines.count += 1
            if self._lines.is_open:
                self._lines.succeeded(delivery.lease, cost_us)
        self._settle(settlement)

    def _ended(
        self, delivery: WorkerDelivery, error: BaseException | None, cost_us: int, returned: Any
    ) -> tuple[Settlement, BaseException | None]:
        """
        How its lease ends, and the error, also where what it returned is one.

        Never raises: a lease without a settlement would keep its slot, and be prolonged for ever.
        """
        try:
            settlement, error = self._settlement_for(delivery, error, cost_us, returned)
        except BaseException as fault:  # noqa: BLE001  # the code of what was returned or raised runs here
            self._engine_thread.follow.pop(delivery.lease.fence, None)
            settlement = dead_letter_for_fault(delivery, error, fault, cost_us)
            error = Reject(settlement.reason or "") if error is None else error
        return codec.checked(settlement), error

    def _settlement_for(
        self, delivery: WorkerDelivery, error: BaseException | None, cost_us: int, returned: Any
    ) -> tuple[Settlement, BaseException | None]:
        """As `_ended`, with what its handler's kind adds to the settlement."""
        settlement = settlement_for(delivery, error, cost_us)
        try:
            follow = delivery.handler.concluded(delivery.lease, returned, error, settlement)
        except Reject as refusal:
            error, settlement = refusal, settlement_for(delivery, refusal, cost_us)
            follow = delivery.handler.concluded(delivery.lease, None, refusal, settlement)
        if follow:
            self._engine_thread.follow[settlement.fence] = follow
        return settlement, error

    def _tell(self, delivery: WorkerDelivery, error: BaseException | None, cost_us: int) -> None:
        """The log, and whoever wants to know what comes of it."""
        if error is not None:
            self._lines.expect(delivery.lease, error, cost_us)
        else:
            self._lines.count += 1
            if self._lines.is_open:
                self._lines.succeeded(delivery.lease, cost_us)
        if self._hooks is not None:
            self._hooks.expect(delivery.lease, error)

    def _settle(self, settlement: Settlement) -> None:
        self._engine_thread.settlements.append(settlement)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """At the end of a turn: all that ended in it is settled together."""
        self._flush_is_due = False
        self._engine_thread.go.set()


def _shows_tracebacks(options: Options) -> bool:
    """Of every failure, also of those that are tried again: where a person watches."""
    return sys.stderr.isatty() if options.traceback is None else options.traceback


def _complete(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Summary]) -> Summary:
    """Run the task to its end, also where a handler stops the loop."""
    while True:
        try:
            return loop.run_until_complete(task)
        except RuntimeError:
            if task.done():
                raise
            log.warning(
                "a handler stopped the event loop; the worker goes on (use worker.stop() to end it)"
            )


async def end_tasks() -> None:
    """
    Cancel what handlers left behind. Unlike `asyncio.run`, does not wait for ever for what will not
    be cancelled.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        _, stubborn = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        for task in stubborn:
            log.warning("left behind, because it ignores its cancellation: %r", task)
    await asyncio.get_running_loop().shutdown_asyncgens()
