"""
The worker's side of the event loop: it begins handlers and decides how deliveries end.

The life of a message in a worker:

1. The engine thread leases it and looks up its handler.
2. `leased` brings it to the event loop and into the buffer.
3. `dispatch` begins it in an executor as soon as a slot is free.
4. The executor calls the handler and reports what it returned or raised to `_finished`.
5. `_finished` turns that into a settlement.
6. The engine thread settles it, together with all others that ended meanwhile.

    leased ──> buffered ───────────────────> running ──> over ──> settled
       │           │                            │          ↑
       │           └─ lease expired: dropped    │          │ handler returned or raised
       └─ suspect: start recorded, on trial ────┘          │ time limit, lease lost, worker stops:
                                                             over immediately, then handler stopped

A *unit* is what one call of a handler gets: one delivery, or a batch of deliveries.
Everything here runs on the event loop unless its docstring names another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from laneway import codec
from laneway.engines.base import FullEngine, result_name
from laneway.engines.base.wakeup import ReadableListener
from laneway.errors import JobCancelled, LeaseLost, Reject, UnknownHandler, UsageError
from laneway.message import Lease, Settlement
from laneway.working import worker_registry
from laneway.working.buffer import Buffer, HandlerQueue
from laneway.working.child_processes import CannotStart
from laneway.working.election_threads import ElectionThreads
from laneway.working.engine_priority import EnginePriority
from laneway.working.engine_thread import MAX_PREFETCH, EngineThread
from laneway.working.event_loop import CANCEL_SECONDS, cancel_tasks, caught, run_to_end
from laneway.working.executors.coroutines import AsyncExecutor
from laneway.working.executors.processes import ProcessExecutor, fork_server_for
from laneway.working.executors.threads import ThreadExecutor
from laneway.working.handler import Handler, Handlers, SideWorkers
from laneway.working.heartbeat import Heartbeat
from laneway.working.history_thread import HistoryThread
from laneway.working.hook_thread import HookThread
from laneway.working.lifespan import STATES, States
from laneway.working.notification_thread import NotificationThread
from laneway.working.options import Options, Summary
from laneway.working.outcome import (
    dead_letter_for_fault,
    release,
    settlement_for,
    work_not_done,
)
from laneway.working.outcome_log import OutcomeLog, UnhandledWarnings
from laneway.working.reserves import Reserves
from laneway.working.standby_renewal import StandbyRenewal
from laneway.working.suspect_trials import SuspectTrials
from laneway.working.time_limits import SoftTimeLimit, TimeLimit, WorkerStopped
from laneway.working.worker_delivery import WorkerDelivery

if TYPE_CHECKING:
    from laneway.working.executors.executor import Executor, MakeExecutor, TopicExecutor
    from laneway.working.health_server import HealthServer

log = logging.getLogger("laneway.worker")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

PUT_OFF_US = 1_000_000
"""
How long a message is delayed whose handler is at its own limit in this worker with enough more
messages waiting; another worker may take it then.
"""

STOP_SECONDS = 10.0
"""How long the last settlements may take; leases that are not settled by then expire."""


def check_handlers(handlers: Handlers, elections: ElectionThreads) -> None:
    """Raise UsageError if a worker would have nothing to do: no handlers, and no elections."""
    if not len(handlers) and not elections:
        raise UsageError(
            "run_worker: the application has no handlers; register one with @app.handler or"
            " @app.task"
        )


class Worker:
    """
    Handles messages with an application's handlers until it is stopped. Used once.

    Without handlers it leases nothing, and the store does not know it: its process runs elections.
    """

    _takes_samples = True
    """Whether it takes samples for the history."""

    _has_side_workers = True
    """Whether workers for exclusive and failover subscriptions run along with it."""

    _keeps_leases = True
    """Whether another process keeps its leases while a handler holds the interpreter."""

    def __init__(
        self,
        engine: FullEngine,
        handlers: Handlers,
        options: Options,
        stopping: Callable[[], None] | None = None,
    ) -> None:
        """`stopping` is called when the worker begins to stop; it must not block."""
        options = msgspec.structs.replace(options, topics=handlers.topics_for(options))
        self._stopping = stopping
        self._engine = self._leasing_engine = engine
        """The second one is the engine thread's."""
        self._handlers = handlers
        self._options = options
        self._buffer = Buffer(options.concurrency, accepts_all=options.burst)
        reserves_some = engine.capabilities.reserves and options.topics is None
        self._reserves = Reserves(
            options.concurrency, handlers.covering_patterns() if reserves_some else ()
        )
        self._running: set[WorkerDelivery] = set()
        """Units that have a slot."""
        self._has_max_messages = options.max_messages is not None
        self._begun_count = 0
        self._priority = EnginePriority(embedded=engine.capabilities.embedded)
        self._is_flush_due = False
        self._watched_file = -1
        """The file that tells of arrivals; -1: the event loop watches none."""
        self._is_reservation_timed = False
        self._unhandled = UnhandledWarnings()
        self._stop_count = 0
        self._failure: BaseException | None = None
        self._thread_id = 0
        self._is_started = False
        self._owns_loop = False  # the owner of the event loop cancels the tasks that are left
        self.ended = threading.Event()
        """Set once the worker no longer uses the engine."""
        self.stop_seconds = options.grace + 3 * STOP_SECONDS
        """The longest time from the stop to the end."""
        self._middlewares = handlers.middlewares
        self._hooks = (
            HookThread(self._middlewares, self._hooks_caught_up)
            if self._middlewares.has_hooks
            else None
        )
        self._executors: dict[str, Executor] = {}
        """By the handler's kind."""
        self._topic_executors: dict[str, TopicExecutor] = {}
        self._outcome_log: OutcomeLog
        self._side_workers: SideWorkers | None = None
        self._is_drained = False

    # Start and stop

    def run(
        self, signals: Sequence[int] = STOP_SIGNALS, ready: Callable[[], None] | None = None
    ) -> Summary:
        """
        Work until stopped, or with `burst` until nothing is left to run now.

        `signals` stop it; `ready` is called when it has started. Returns what was handled. Raises
        what makes working impossible.
        """
        loop = asyncio.new_event_loop()
        self._owns_loop = True
        try:
            return run_to_end(loop, loop.create_task(self.arun(signals, ready)))
        finally:
            loop.run_until_complete(cancel_tasks())
            loop.close()

    async def arun(
        self, signals: Sequence[int] = (), ready: Callable[[], None] | None = None
    ) -> Summary:
        """
        As `run`, on the running event loop; `signals` stop it if this is the main thread.

        `ready` is called when it has started. The first cancellation stops it in order; a second
        one stops it immediately.
        """
        self._thread_id = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        self._change = asyncio.Event()  # a stop was requested, or the last handler has ended
        health = self._open_health_server()  # first: the port may be taken
        states: States = {}
        outer = STATES.set(states)
        self._create_executors()
        STATES.reset(outer)
        if self._hooks is not None:
            self._hooks.start()
        self._engine_thread = EngineThread(
            self._leasing_engine,
            self._options,
            self._handlers,
            self,
            self._priority,
            self._reserves,
            self._create_standby(),
            self._hooks,
        )
        self._heartbeat = Heartbeat(
            self._engine,
            self._handlers,
            self._engine_thread,
            self._running,
            self.stop,
        )
        self._history = HistoryThread(self._engine, self._handlers.alarms)
        for executor in self._topic_executors.values():
            self._engine_thread.prefetch_seconds = max(
                self._engine_thread.prefetch_seconds, executor.prefetch_seconds
            )
        self._trials = SuspectTrials(self, self._engine_thread, self._loop)
        traceback = self._options.traceback
        self._outcome_log = OutcomeLog(
            self._engine,
            self._loop,
            with_tracebacks=sys.stderr.isatty() if traceback is None else traceback,
        )
        began = time.monotonic()
        try:
            notifications = await self._loop.run_in_executor(
                None, NotificationThread, self._engine, self.aborted, self._pinged
            )
            with caught(signals, self._stop), contextlib.closing(notifications):
                notifications.start()
                async with self._handlers.lifespans.entered(states):
                    is_cancelled = await self._run_until_stopped(ready)
        finally:
            self._stop_watching()
            if health is not None:
                await self._loop.run_in_executor(None, health.close)
            self.ended.set()
        self._outcome_log.close()
        summary = self._engine_thread.settler.summary
        log.info(
            "worker %d stopped after %.1f s: %s",
            os.getpid(),
            time.monotonic() - began,
            summary.in_words(),
        )
        if self._failure is not None:
            raise self._failure
        if is_cancelled:
            raise asyncio.CancelledError
        return summary

    async def _run_until_stopped(self, ready: Callable[[], None] | None) -> bool:
        """Returns whether the caller's task was cancelled."""
        is_cancelled = False
        if len(self._handlers):
            self._heartbeat.start()
        else:
            self._engine_thread.stop_leasing()
        if self._takes_samples:
            self._history.start()
        self._engine_thread.start()
        self._is_started = True
        worker_registry.call_hooks(worker_registry.STARTED, self)
        if len(self._handlers):
            log.info(
                "worker %d is ready: pool %s, concurrency %d",
                os.getpid(),
                self._options.pool,
                self._options.concurrency,
            )
        else:
            log.info("worker %d is ready: elections, and no handlers", os.getpid())
        self._start_side_workers()
        if ready is not None:
            ready()
        try:
            await self._wait_until(lambda: self._stop_count > 0)
        except asyncio.CancelledError:
            is_cancelled = True
            self._stop_count += 1
        if self._stopping is not None:
            self._stopping()
        worker_registry.call_hooks(worker_registry.STOPS, self)
        is_cancelled |= await self._to_the_end(self._shut_down_all())
        return is_cancelled

    def _start_side_workers(self) -> None:
        make = self._handlers.make_side_workers
        if self._has_side_workers and make is not None and self._handlers.has_subscriptions():
            self._side_workers = make(self._engine, self._handlers, self._options, self.failed)
            self._side_workers.start()

    async def _shut_down_all(self) -> None:
        """Shut down with the workers that run along; a burst is over when theirs are."""
        side_workers = self._side_workers
        if side_workers is None:
            await self._shut_down()
            return
        if self._is_drained:
            await side_workers.end()
        side_workers.stop()
        await asyncio.gather(self._shut_down(), side_workers.end())
        self._engine_thread.settler.summary.add(side_workers.summary)

    def _open_health_server(self) -> HealthServer | None:
        options = self._options
        if options.health_port is None:
            return None
        # It imports an HTTP server, which most workers do not need.
        from laneway.working.health_server import HealthServer  # noqa: PLC0415

        server = HealthServer(
            options.health_address,
            options.health_port,
            call_soon=self._loop.call_soon_threadsafe,
            is_alive=lambda: not self._is_started or self._engine_thread.is_alive(),
            is_serving=lambda: self._is_started and not self._stop_count,
            ask_store=self._ask_store,
        )
        server.start()
        return server

    def _ask_store(self) -> str | None:
        """What keeps the worker from its work though its store answers, or None."""
        self._engine.overview()
        return self._handlers.problem(self._engine)

    def _create_executors(self) -> None:
        concurrency = self._options.concurrency
        self._coroutines = AsyncExecutor(self._finished, self.dispatch, self._middlewares)
        self._executors = {
            "async": self._coroutines,
            "thread": ThreadExecutor(
                self._finished, self.dispatch, self._middlewares, concurrency, self._priority
            ),
            "process": ProcessExecutor(
                self._finished,
                self.dispatch,
                self._middlewares,
                concurrency,
                self._priority,
                began=self._began_in_child,
                cannot_start=self._cannot_start_child,
                fork_server=fork_server_for(self._handlers),
            ),
        }
        for handler in self._handlers:
            if handler.make_executor is not None:
                self._add_executor(handler, handler.make_executor)

    def _create_standby(self) -> StandbyRenewal | None:
        options = self._options
        may_hold_interpreter = any(each.kind in ("async", "thread") for each in self._handlers)
        if not (self._keeps_leases and may_hold_interpreter):
            return None
        room = 2 * (options.concurrency + MAX_PREFETCH)
        return StandbyRenewal.of(self._engine, options.heartbeat_timeout, room)

    def _add_executor(self, handler: Handler, make: MakeExecutor) -> None:
        """Give a handler the executor of its kind, which handlers of that kind share."""
        executor = self._topic_executors.get(handler.kind)
        if executor is None:
            executor = make(self._engine, self._finished, self.dispatch, self._options.concurrency)
            self._topic_executors[handler.kind] = self._executors[handler.kind] = executor
        self._buffer.queue(handler).is_full = executor.is_full

    async def _to_the_end(self, stopping: Coroutine[Any, Any, None]) -> bool:
        """
        Await a coroutine to its end. If the caller is cancelled meanwhile, the worker stops
        immediately; returns whether that happened.
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
        """Whether waiting for its end in the current thread would block the worker itself."""
        return self._thread_id == threading.get_ident() and not self.ended.is_set()

    def stop(self) -> None:
        """
        Stop in order: running handlers may end within the grace period. Called again: stop now.

        Can be called from any thread; does not wait.
        """
        loop = getattr(self, "_loop", None)
        if loop is None:
            self._stop_count += 1  # before it has started
        else:
            with contextlib.suppress(RuntimeError):  # it has already ended
                loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stop_count += 1
        self._change.set()
        if self._stop_count > 1 and self._side_workers is not None:
            self._side_workers.stop()

    async def _wait_until(
        self, condition: Callable[[], bool], seconds: float | None = None
    ) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    self._change.clear()
                    await self._change.wait()

    async def _shut_down(self) -> None:
        self._engine_thread.stop_leasing()
        self._heartbeat.beat_now()
        self._release_waiting()
        if self._failure is not None:
            self._give_up_unrecorded()
        if self._stop_count == 1 and self._running:
            count = len(self._running)
            log.info(
                "stopping: waiting up to %g s for %s; stop again to end now",
                self._options.grace,
                "1 handler" if count == 1 else f"{count:,} handlers",
            )
            await self._wait_until(
                lambda: not self._running or self._stop_count > 1, self._options.grace
            )
        stopped = WorkerStopped("the worker is stopped")
        for unit in list(self._running):
            self._give_up(unit, stopped, [release(each, begun=True) for each in unit.open_parts()])
        await self._loop.run_in_executor(None, self._engine_thread.end, STOP_SECONDS)
        if (
            self._engine_thread.settler.settlements
        ):  # of leases that were on their way when it ended
            await self._loop.run_in_executor(None, self._engine_thread.settle_rest)
        if self._hooks is not None:
            await self._loop.run_in_executor(None, self._hooks.end, STOP_SECONDS)
        for executor in self._executors.values():
            await executor.close(0 if self._owns_loop else CANCEL_SECONDS)
        if self._takes_samples:
            await self._loop.run_in_executor(None, self._history.end)
        await self._loop.run_in_executor(None, self._heartbeat.end)

    def _release_waiting(self) -> None:
        """Release all messages and suspects that have not begun."""
        self.release_buffered()
        for _, _, suspect in self._trials.waiting:
            self._release_unbegun(suspect)

    def release_buffered(self) -> None:
        """Release all messages that wait in the buffer."""
        for delivery in self._buffer.drain():
            self._release_unbegun(delivery)

    def _release_unbegun(self, delivery: WorkerDelivery) -> None:
        if not delivery.is_gone():
            delivery.over = True
            self._settle(release(delivery, begun=False))

    def _give_up_unrecorded(self) -> None:
        """
        Give up suspects whose start is to be recorded: the engine thread has ended by an error.
        """
        stopped = WorkerStopped("the worker is stopped")
        for unit in list(self._engine_thread.starts):
            if not unit.over:
                self._give_up(
                    unit, stopped, [release(each, begun=False) for each in unit.open_parts()]
                )

    # Called by the engine thread and the notification thread

    def _pinged(self, worker_ids: set[str]) -> None:
        if self._heartbeat.worker_id in worker_ids:
            self._heartbeat.asked()

    def prepare(self, deliveries: list[WorkerDelivery]) -> None:
        for kind, executor in self._topic_executors.items():
            executor.prepare([each for each in deliveries if each.handler.kind == kind])

    def watch(self, listener: ReadableListener, file: int, generation: int) -> None:
        try:
            self._loop.call_soon_threadsafe(self._watch, listener, file, generation)
        except RuntimeError:  # the worker has ended
            os.close(file)

    def aborted(self, names: set[str]) -> None:
        with contextlib.suppress(RuntimeError):  # the worker has ended
            self._loop.call_soon_threadsafe(self._abort, names)

    def settled(self, settlement: Settlement, answer: str) -> None:
        self._outcome_log.settled(settlement, answer)

    def drained(self) -> None:
        self._is_drained = True
        self.stop()

    def failed(self, error: BaseException) -> None:
        self._failure = error
        self.stop()

    # Receive

    def _watch(self, listener: ReadableListener, file: int, generation: int) -> None:
        self._stop_watching()
        try:
            self._loop.add_reader(file, self._receive, listener, generation)
        except NotImplementedError:  # an event loop that watches no files
            os.close(file)
            listener.is_watched = False
            self._engine_thread.has_work.set()
        else:
            self._watched_file = file

    def _receive(self, listener: ReadableListener, generation: int) -> None:
        """Something has arrived at the listener, or its file was closed."""
        try:
            found = listener.receive()
            deliveries = self._engine_thread.receive(found)
        except BaseException as error:  # noqa: BLE001  # as in the engine thread, the worker ends with it
            self._stop_watching()
            self.failed(error)
            return
        if listener.generation != generation:
            self._stop_watching()
        if deliveries:
            self.begin_leased(deliveries, False)
            self._flush_soon()
        else:
            self._engine_thread.has_work.set()

    def _stop_watching(self) -> None:
        if self._watched_file >= 0:
            self._loop.remove_reader(self._watched_file)
            os.close(self._watched_file)
            self._watched_file = -1

    # Begin

    def begin_leased(self, deliveries: list[WorkerDelivery], is_reserved: bool) -> None:
        self._coroutines.starts_at_once = True
        try:
            self._add_leased(deliveries, is_reserved)
        finally:
            self._coroutines.start_now()

    def _add_leased(self, deliveries: list[WorkerDelivery], is_reserved: bool) -> None:
        if self._stop_count:
            for delivery in deliveries:
                self._settle(release(delivery, begun=False))
            return
        for delivery in deliveries:
            if delivery.lease.suspect:
                self._trials.add(delivery)
            elif not self._buffer.add(delivery):
                delivery.over = True
                self._settle(release(delivery, begun=False, delay_us=PUT_OFF_US))
        if is_reserved:
            self._buffer.mark(deliveries)
        self.dispatch()

    def settle_unhandled(self, leases: list[Lease]) -> None:
        self._unhandled.warn(leases)
        for lease in leases:
            error = UnknownHandler("no worker had a handler for it within on_unhandled")
            self._outcome_log.expect(lease, error, 0)  # a line if it becomes a dead letter
            if self._hooks is not None:
                self._hooks.expect(lease, error)
            self._settle(Settlement(lease.handle, lease.fence, "unhandled"))

    def dispatch(self) -> None:
        """Begin all messages that may begin now."""
        self._engine_thread.note_renewed()
        if self._trials.waiting or self._engine_thread.is_paused:
            self._trials.begin_next()
        self.begin_others()

    def begin_others(self) -> None:
        """Begin messages that are no suspects."""
        running, buffer = self._running, self._buffer
        every = slots = self._options.concurrency
        if self._trials.blocks_others:
            return  # the end of the trial calls dispatch
        if self._has_max_messages:
            slots = min(slots, len(running) + self._messages_left())
        if self._hooks is not None and self._hooks.is_behind():
            return  # it calls _hooks_caught_up
        now = time.monotonic()  # once: all of these begin within a millisecond
        reserved = self._still_reserved()
        while True:
            if (
                len(running) < min(slots, every - reserved)
                and (queue := buffer.next_queue()) is not None
            ):
                delivery = queue.pop()
            elif (
                reserved
                and len(running) < slots
                and (queue := buffer.newcomers_queue()) is not None
            ):
                delivery = queue.pop_newcomer()
                self._reserves.give(delivery)
            elif reserved and (left := self._still_reserved()) < reserved:
                reserved = left
                continue
            else:
                break
            if delivery.over or (delivery.expires <= now and delivery.is_gone()):
                continue
            if queue.handler.batch is not None:
                self._begin_batch(queue, delivery)
            else:
                queue.running += 1
                running.add(delivery)
                self._execute(delivery)
        if buffer.with_batch_wait:
            self._wait_for_batches()
        if buffer.reserved and not self._is_reservation_timed:
            self._is_reservation_timed = True
            self._loop.call_later(buffer.seconds_reserved(), self._end_reservation)

    def _still_reserved(self) -> int:
        """How many slots messages without a reserved one may not take."""
        return max(self._buffer.reserved, self._reserves.unused(self._running))

    def _wait_for_batches(self) -> None:
        """Look again when batches that are not full have waited long enough."""
        gathering = 0
        for queue in self._buffer.with_batch_wait:
            if seconds := queue.seconds_to_gather():
                gathering += queue.count
                if not queue.is_timed:
                    queue.is_timed = True
                    self._loop.call_later(seconds, self._end_gathering, queue)
        thread = self._engine_thread
        if gathering > thread.gathering:
            thread.gathering = gathering
            thread.has_work.set()  # there is room for more
        thread.gathering = gathering

    def _end_gathering(self, queue: HandlerQueue) -> None:
        queue.is_timed = False
        self.dispatch()

    def _end_reservation(self) -> None:
        """Give slots that were reserved for newcomers to all topics, unless one came meanwhile."""
        if seconds := self._buffer.seconds_reserved():
            self._loop.call_later(seconds, self._end_reservation)
        else:
            self._is_reservation_timed = False
            self.dispatch()

    def _hooks_caught_up(self) -> None:
        """Hooks were behind and no longer are; called from their thread."""
        with contextlib.suppress(RuntimeError):  # the worker has ended
            self._loop.call_soon_threadsafe(self.dispatch)

    def _messages_left(self) -> int:
        """How many more messages may begin before the worker ends."""
        max_messages = self._options.max_messages
        if max_messages is None:
            return self._options.concurrency
        return max(0, max_messages - self._begun_count)

    def _begin_batch(self, queue: HandlerQueue, first: WorkerDelivery) -> None:
        deliveries = [first]
        while queue.count and len(deliveries) < (queue.handler.batch or 1):
            delivery = queue.pop()
            if not delivery.is_gone():
                deliveries.append(delivery)
        queue.gathering_since = time.monotonic()  # what is left gathers for the next batch
        unit = self._batch_of(deliveries)
        if unit is not None:
            queue.running += 1
            self._running.add(unit)
            self._execute(unit)

    def _batch_of(self, deliveries: list[WorkerDelivery]) -> WorkerDelivery | None:
        """
        A batch of deliveries. Those whose body cannot be decoded end separately. None if all did.
        """
        parts: list[WorkerDelivery] = []
        messages: list[Any] = []
        for delivery in deliveries:
            try:
                (message,), _ = delivery.handler.arguments(delivery.lease)
            except BaseException as error:  # noqa: BLE001  # Reject, or whatever decoding the body raises
                delivery.over = True
                self._conclude(delivery, error, 0)
            else:
                parts.append(delivery)
                messages.append(message)
        return WorkerDelivery.batch_of(parts, messages) if parts else None

    def _execute(self, unit: WorkerDelivery) -> None:
        handler = unit.handler
        executor = self._executors[handler.kind]
        self._begun_count += 1
        if unit.may_have_limit and not executor.reports_begin:
            self._set_timers(unit)
        executor.start(unit)

    # Suspects; see suspect_trials

    def has_free_slot(self) -> bool:
        return len(self._running) < self._options.concurrency and self._messages_left() > 0

    def has_room_for(self, handler: Handler) -> bool:
        queue = self._buffer.queue(handler)
        return queue.running < queue.max_running

    def is_idle(self) -> bool:
        return not self._running

    def record_start(self, suspect: WorkerDelivery) -> WorkerDelivery | None:
        unit = self._batch_of([suspect]) if suspect.handler.batch is not None else suspect
        if unit is not None:
            self._buffer.queue(suspect.handler).running += 1
            self._running.add(unit)
            self._engine_thread.starts.append(unit)
            self._flush_soon()
        return unit

    def begin_suspects(self, units: list[WorkerDelivery]) -> None:
        for unit in units:
            if not unit.over:
                if not self._executors[unit.handler.kind].reports_begin:
                    self._trials.set_timer(unit)
                self._execute(unit)

    def end_refused(self, refused: list[tuple[WorkerDelivery, Exception]]) -> None:
        for unit, error in refused:
            if not unit.over:
                self._end(unit)
                self._conclude(unit, error, 0)
        self.dispatch()

    # Child processes

    def _began_in_child(self, unit: WorkerDelivery) -> None:
        """A child has begun a unit; called from a thread."""
        if unit.limits != (None, None) or self._trials.on_trial is unit:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._set_timers_of_child, unit)

    def _set_timers_of_child(self, unit: WorkerDelivery) -> None:
        if unit.over:
            return
        self._set_timers(unit)
        if self._trials.on_trial is unit:
            self._trials.set_timer(unit)

    def _cannot_start_child(self, unit: WorkerDelivery, error: CannotStart) -> None:
        """No child can be started: the worker ends, and the message is not to blame."""
        if not unit.over:
            self._give_up(unit, error, [release(each, begun=False) for each in unit.open_parts()])
            self.failed(error)

    # End

    def _finished(self, unit: WorkerDelivery, returned: Any, error: BaseException | None) -> None:
        """The handler of a unit has ended. Its executor calls `dispatch` later."""
        if unit.over:
            return
        self._end(unit)
        cost_us = int((time.perf_counter() - unit.began) * 1_000_000)
        if unit.parts is not None:
            for part, outcome in unit.outcomes(returned, error):
                if not part.over:
                    part.over = True
                    self._conclude(part, outcome, cost_us // len(unit.parts))
        elif error is None and returned is None and self._is_plain_ack(unit):
            self._ack(unit, cost_us)  # most messages: the short way
        else:
            if returned is not None and error is None:
                error = work_not_done(unit.handler.name, returned)
            self._conclude(unit, error, cost_us, returned)

    def _is_plain_ack(self, unit: WorkerDelivery) -> bool:
        """Whether nothing but an ack follows from a handler that returned None."""
        adding, headers = unit.handler.adding_headers, unit.lease.headers
        return (
            self._hooks is None
            and adding is not None
            and (headers is None or adding.isdisjoint(headers))
        )

    def _end(self, unit: WorkerDelivery) -> None:
        """Mark a unit as over and free its slot."""
        unit.over = True
        running = self._running
        running.discard(unit)
        if self._trials.on_trial is unit:
            self._trials.end(unit)
        self._buffer.queues[unit.handler].running -= 1
        if unit.timers is not None:
            for timer in unit.timers:
                timer.cancel()
        if (
            self._has_max_messages
            and not self._messages_left()
            and not running
            and not self._stop_count
        ):
            self._stop()
        if self._stop_count and not running:
            self._change.set()

    # Stop handlers

    def _set_timers(self, unit: WorkerDelivery) -> None:
        """Start the time limits of a unit, if it has any."""
        limit, soft_limit = unit.limits
        if limit is None and soft_limit is None:
            return
        unit.timers = []
        if limit is not None:
            unit.timers.append(self._loop.call_later(limit, self._stop_at_limit, unit, limit))
        if soft_limit is not None:
            unit.timers.append(self._loop.call_later(soft_limit, self._warn, unit, soft_limit))

    def _warn(self, unit: WorkerDelivery, soft_limit: float) -> None:
        if unit.runner is not None:
            unit.runner.warn(unit, SoftTimeLimit(f"the handler has run for {soft_limit:g} s"))

    def stop_overdue(self, units: dict[WorkerDelivery, float]) -> None:
        for unit, limit in units.items():
            if not unit.over:
                is_own = limit == unit.limits[0]
                self._stop_at_limit(unit, limit, "its" if is_own else "its topic's")

    def _stop_at_limit(self, unit: WorkerDelivery, limit: float, whose: str = "its") -> None:
        error = TimeLimit(f"the handler was stopped after {whose} time limit of {limit:g} s")
        ran = time.perf_counter() - unit.began if unit.began else 0.0
        cost_us = int(max(limit, ran) * 1_000_000)
        parts = unit.open_parts()
        for part in parts:
            self._report_end(part, error, cost_us)
        settlements = [self._settlement_of(part, error, cost_us, None)[0] for part in parts]
        self._give_up(unit, error, settlements)
        self.dispatch()

    def _abort(self, names: set[str]) -> None:
        """Messages were cancelled from outside; some of them may be here."""
        held = self._engine_thread.held
        deliveries = [
            each
            for each in list(held.values())
            if each and result_name(each.lease.id, each.lease.topic) in names
        ]
        for delivery in deliveries:
            held.pop(delivery.lease.fence, None)
        self.let_go_of(deliveries, is_cancelled=True)

    def let_go_of(self, deliveries: list[WorkerDelivery], *, is_cancelled: bool = False) -> None:
        """Stop the handlers of messages whose leases were lost; nothing is settled."""
        for delivery in deliveries:
            if delivery.over:
                continue
            unit = delivery.whole or delivery
            error = _cancelled(delivery.lease) if is_cancelled else _lost(delivery.lease)
            delivery.over = True
            if unit in self._running and all(part.over for part in unit.parts or ()):
                self._give_up(unit, error, [])
        self.dispatch()

    def _give_up(
        self, unit: WorkerDelivery, error: Exception, settlements: list[Settlement]
    ) -> None:
        """End a unit and stop its handler; what the handler does from now on changes nothing."""
        self._end(unit)
        for part in unit.parts or ():
            part.over = True
        for settlement in settlements:
            self._settle(settlement)
        if (runner := unit.runner) is not None:
            runner.stop(unit, error)

    # Settle

    def _ack(self, delivery: WorkerDelivery, cost_us: int) -> None:
        """As `_conclude`, for a handler that returned None and whose end nobody observes."""
        outcome_log = self._outcome_log
        outcome_log.count += 1
        if outcome_log.is_open:
            outcome_log.succeeded(delivery.lease, cost_us)
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
        """Log, report and settle the end of a delivery."""
        settlement, error = self._settlement_of(delivery, error, cost_us, returned)
        self._report_end(delivery, error, cost_us)
        self._settle(settlement)

    def _settlement_of(
        self, delivery: WorkerDelivery, error: BaseException | None, cost_us: int, returned: Any
    ) -> tuple[Settlement, BaseException | None]:
        """
        How a lease ends, and the error, which may also be about the returned value.

        Never raises: a lease without a settlement would keep its slot and be extended forever.
        """
        try:
            settlement, error = self._concluded(delivery, error, cost_us, returned)
        except BaseException as fault:  # noqa: BLE001  # the code of what was returned or raised runs here
            self._engine_thread.settler.followers.pop(delivery.lease.fence, None)
            settlement = dead_letter_for_fault(delivery, error, fault, cost_us)
            error = Reject(settlement.reason or "") if error is None else error
        return codec.checked(settlement), error

    def _concluded(
        self, delivery: WorkerDelivery, error: BaseException | None, cost_us: int, returned: Any
    ) -> tuple[Settlement, BaseException | None]:
        """As `_settlement_of`, with what `Handler.concluded` adds to the settlement."""
        settlement = settlement_for(delivery, error, cost_us)
        concluded = delivery.handler.concluded
        try:
            followers = concluded(delivery.lease, returned, error, settlement)
        except Reject as refusal:
            error, settlement = refusal, settlement_for(delivery, refusal, cost_us)
            followers = concluded(delivery.lease, None, refusal, settlement)
        if followers:
            self._engine_thread.settler.followers[settlement.fence] = followers
        return settlement, error

    def _report_end(
        self, delivery: WorkerDelivery, error: BaseException | None, cost_us: int
    ) -> None:
        """Report the end of a delivery to the log and the hooks."""
        if error is not None:
            self._outcome_log.expect(delivery.lease, error, cost_us)
        else:
            self._outcome_log.count += 1
            if self._outcome_log.is_open:
                self._outcome_log.succeeded(delivery.lease, cost_us)
        if self._hooks is not None:
            self._hooks.expect(delivery.lease, error)

    def _settle(self, settlement: Settlement) -> None:
        self._engine_thread.settler.settlements.append(settlement)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """
        Wake the engine thread at the end of the event loop's iteration: everything that ended in it
        is settled together.
        """
        self._is_flush_due = False
        self._engine_thread.flush()


def _cancelled(lease: Lease) -> Exception:
    log.info("message %s in topic %s: cancelled; stopping its handler", lease.id, lease.topic)
    return JobCancelled(f"job {lease.id}: cancelled while it ran")


def _lost(lease: Lease) -> Exception:
    log.warning("message %s in topic %s: lease lost; stopping its handler", lease.id, lease.topic)
    return LeaseLost(
        f"message {lease.id}: the lease (fence {lease.fence}) has ended", lease.id, lease.fence
    )
