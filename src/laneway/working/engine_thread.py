"""
The thread of a worker that calls the engine.

It extends, settles, records starts and leases, each in batches.
The event loop puts what is to be done into `settler` and `starts`, and calls `flush`.
One *pass* of this thread takes all of it together, so batches grow with the load.

In a pass, in this order:

    extend    leases that are a third over, except for handlers that are over their time limit
    settle    what ended since the last pass; `SettleThread` does it for a busy worker of a server
    start     record the starts of suspects
    lease     what the worker has room for, plus a few milliseconds of work (prefetch)

It owns `held`: each lease that this worker has and has not settled, by fence. While a handler holds
the interpreter, another process extends them, see `StandbyRenewal`.
While the worker has free slots and nothing to lease, this thread registers for the engine's
notification. The event loop receives it where it can, and immediately begins what was leased;
else this thread waits for it. `ArrivalThread` listens while the worker is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from laneway import storable, units
from laneway.engines.base import FullEngine, MessageView, TopicStats, WorkListener
from laneway.engines.base.queue import SyncsLater
from laneway.engines.base.wakeup import ReadableListener
from laneway.engines.shared.body_sizes import BodySizes
from laneway.engines.shared.refusals import STARTED_AND_LOST
from laneway.engines.shared.waiting_listener import WaitingListener
from laneway.errors import EngineCorrupt, EngineUnavailable
from laneway.message import Batch, Lease, Settlement, releases
from laneway.subscriptions import is_copy
from laneway.working.arrival_thread import ArrivalThread
from laneway.working.engine_priority import EnginePriority
from laneway.working.handler import Handler, Handlers
from laneway.working.hook_thread import HookThread
from laneway.working.lease_filter import PROBE_SIZE, LeaseFilter
from laneway.working.lease_renewal import LeaseRenewal
from laneway.working.options import Options
from laneway.working.overdue import OverdueHandlers
from laneway.working.reserves import OTHERS, Reserves
from laneway.working.settler import Reconnection, Settler, SettleThread
from laneway.working.standby_renewal import StandbyRenewal
from laneway.working.work_signal import WorkSignal
from laneway.working.worker_delivery import WorkerDelivery

if TYPE_CHECKING:

    class WorkerCallbacks(Protocol):
        """
        What the worker offers to its engine thread, which calls the first group, and has the event
        loop call the second.
        """

        def prepare(self, deliveries: list[WorkerDelivery]) -> None:
            """Read what the executors of these need, which were just leased. Never raises."""

        def settled(self, settlement: Settlement, answer: str) -> None:
            """The engine's answer to a settlement, unless it was simply acked."""

        def drained(self) -> None:
            """A burst is over: nothing is left to run now."""

        def failed(self, error: BaseException) -> None:
            """The engine thread has ended by an error, and the worker ends with it."""

        def watch(self, listener: ReadableListener, file: int, generation: int) -> None:
            """
            Receive what arrives at the listener, on the event loop. The worker closes the file, and
            resets `is_watched` if its event loop cannot watch files.
            """

        def begin_leased(self, deliveries: list[WorkerDelivery], is_reserved: bool) -> None:
            """These were leased, and each has a handler. `is_reserved`: for reserved slots."""

        def settle_unhandled(self, leases: list[Lease]) -> None:
            """These were leased, and there is no handler for them."""

        def begin_suspects(self, units: list[WorkerDelivery]) -> None:
            """The starts of these suspects are recorded; run them."""

        def end_refused(self, refused: list[tuple[WorkerDelivery, Exception]]) -> None:
            """These suspects have lost too many workers; end each with its error."""

        def let_go_of(self, deliveries: list[WorkerDelivery]) -> None:
            """The leases of these have ended; stop their handlers."""

        def stop_overdue(self, units: dict[WorkerDelivery, float]) -> None:
            """These are over their time limits (seconds); stop their handlers."""


log = logging.getLogger("laneway.worker")

PREFETCH_SECONDS = 0.01
"""
How many seconds of work, at the recent pace, are leased ahead of what runs; a message waits in this
worker about that long.
"""

MAX_PREFETCH = 4_000
"""How many messages are leased ahead at most; a worker that dies delays no more than these."""

GATHER_SECONDS = 0.04
"""
How long ended messages gather for one pass of a worker that prefetches more, while what it has
prefetched lasts twice as long.
"""

MAX_PREFETCH_BYTES = 32 << 20
"""How many bytes of bodies are leased ahead at most, as far as the last bodies foretell them."""

LARGE_PREFETCH_SECONDS = 0.05
"""
The same while the engine prefers large leases, because a call has a cost besides its messages. On a
server these are round trips and statements. Where workers of several processes wait for each other,
what others changed is read again, and small calls would make two workers slower than one.
"""

AHEAD_OF_LEASE, MAX_AHEAD_SECONDS = 3, 0.25
"""
The minimum that is leased ahead, in lengths of a recent lease call, and its limit in seconds: half
of it runs while the next call waits for a distant or busy server.
"""

REFILL_DIVISOR = 5
"""
The worker leases again once 1/REFILL_DIVISOR of the prefetched messages have started; the message
of a quiet topic waits no longer than that takes.
"""

ARRIVAL_LEASE = 4
"""
How many messages are leased as soon as an arrival is notified, before any other call; a quiet
topic's message is among the first of them.
"""

SHORT_LEASE_DIVISOR, MIN_SHORT_LEASE = 10, 16
"""
How many messages a lease has while arrivals are frequent: 1/SHORT_LEASE_DIVISOR of the prefetch,
about a millisecond's work, and at least MIN_SHORT_LEASE; an arrival waits for the call under way.
"""

RECEIVED_SECONDS = 1.0
"""
How often this thread looks at what the event loop has received, if a handler blocks the event loop
so that it does not say so: in time to extend a lease of twice that.
"""

SOON_OVER_US = round(2 * RECEIVED_SECONDS * units.SECOND)
"""This thread extends shorter leases as soon as the event loop has received them."""

MAX_WAIT_SECONDS = 60.0
"""How long one wait for the engine's notification lasts at most; a lost one costs that long."""

SEARCH_SECONDS = 1.0
"""The same for a worker that leases by patterns, whose listener does not look for messages."""

MAX_BURST_TOPICS = 1_000
"""
How many topics are examined for ready messages when a burst seems over; a burst ends too early if
all ready ones are behind these.
"""


class _HeldBatch(NamedTuple):
    """A batch whose leases are held."""

    batch: Batch
    handled: list[WorkerDelivery]
    unhandled: list[Lease]


class EngineThread(threading.Thread):
    """Calls the engine for one worker. See the head of this module."""

    def __init__(
        self,
        engine: FullEngine,
        options: Options,
        handlers: Handlers,
        callbacks: WorkerCallbacks,
        priority: EnginePriority,
        reserves: Reserves,
        standby: StandbyRenewal | None,
        hooks: HookThread | None,
    ) -> None:
        super().__init__(name="laneway-engine", daemon=True)
        self.starts: deque[WorkerDelivery] = deque()
        """Suspects whose start is to be recorded."""
        self.held: dict[int, WorkerDelivery | None] = {}
        """By fence: leases that are not settled, or None for a message without a handler."""
        self.settler = Settler(
            engine,
            self.held,
            is_burst=options.burst,
            report=callbacks.settled,
            settled=self._settled,
        )
        self.has_work = WorkSignal()
        """Set to start a pass."""
        self.gathering = 0
        """How many messages wait in the worker for a batch to be full; they take no slot."""
        self.is_paused = False
        """Whether nothing is leased, because a suspect is to run alone."""
        self.prefetch_seconds = 0.0
        self._lease_seconds = 0.0
        """The recent length of a lease call."""
        """
        How many seconds of work an executor wants ahead, of limited topics too; 0: the default,
        without limited topics. Set before the start.
        """
        self._is_gathering = False
        """Whether this thread lets ended messages gather."""
        self._engine = engine
        self.options = options
        self._syncing_later: Callable[[], AbstractContextManager[None]] = (
            engine.syncing_later
            if isinstance(engine, SyncsLater) and hooks is None
            else contextlib.nullcontext
        )
        """
        While the disk takes the settlements, the worker begins what was leased after them. Hooks
        are called for what is on the disk.
        """
        self._max_lease_us = round(options.heartbeat_timeout * units.SECOND)
        self._handlers = handlers
        self._callbacks = callbacks
        self._call_soon = asyncio.get_running_loop().call_soon_threadsafe
        self._priority = priority
        self._reserves = reserves
        self._has_reserves = engine.capabilities.reserves and options.topics is None
        self._renewal = LeaseRenewal()
        self._standby = standby
        self._hooks = hooks
        self._overdue = OverdueHandlers(engine)
        self._listener: WorkListener | None = None
        self._is_listening = False
        """Notifies this worker while it has free slots; created with the first wait."""
        self._watched = -1
        """The generation of the listener's file that the event loop watches."""
        self._readable: ReadableListener | None = None
        """The listener, if the event loop can watch it."""
        self._received: deque[_HeldBatch | None] = deque()
        """What the event loop has received: a batch, or None for a notification."""
        self._other_listener: WorkListener | None = None
        """
        The one that is not used now: two exist, for a worker that leases all messages and for one
        that leases by patterns.
        """
        self._is_filtered = False
        """Whether the one that is used is for a worker that leases by patterns."""
        self._listen_from = 0.0
        """Until then notifications are ignored (monotonic seconds)."""
        self._listen_until: float | None = None
        """When to lease without a notification (monotonic seconds), or None while busy."""
        self._arrivals = ArrivalThread(engine, options.pool, self.has_work)
        self._filter = LeaseFilter(handlers.handled_patterns())
        self._reconnection = Reconnection()
        self._settle_thread = (
            None
            if engine.capabilities.embedded
            else SettleThread(self.settler, self._reconnection, callbacks.failed)
        )
        self.is_leasing = True
        """Whether the worker takes messages: False once it stops."""
        self._should_lease = True
        """Whether a lease may find messages; False until a notification or a settlement sets it."""
        self._is_ending = False
        self._prefers_large_leases = False
        """What the last lease said, see `Batch`."""
        self._was_notified = False
        """Whether the engine notified this worker, and it has not leased since."""
        self._held_at_lease = False
        """Whether messages were in flight when it leased last."""
        self._bodies = BodySizes()
        """The mean size of the last bodies; of larger ones before them a part."""
        self._ready_topic: str | None = None
        """A topic with messages that a limit delayed, as a burst saw last."""

    # Called by the event loop

    def stop_leasing(self) -> None:
        """Lease nothing more."""
        self.is_leasing = False
        self._arrivals.end()
        self.has_work.set()

    def resume(self) -> None:
        """Lease again after a pause."""
        if self.is_paused:
            self.is_paused = False
            self._should_lease = True
            self.has_work.set()

    def flush(self) -> None:
        """Messages have ended, or suspects are to start: tell the engine."""
        if self._is_gathering and not (self.starts or self._received):
            return
        if self._settles_here or self.starts or self._received:
            self.has_work.set()
        if not self._settles_here:
            self._wake_settle_thread()

    def start(self) -> None:
        super().start()
        if self._settle_thread is not None:
            self._settle_thread.start()

    def receive(self, found: Batch | bool) -> list[WorkerDelivery]:
        """
        Take what the event loop has received from the listener. Returns the deliveries to begin;
        set `has_work` once they have begun.
        """
        if isinstance(found, Batch):
            batch = self._hold(found, prepares=False)
            self._received.append(batch)
            for delivery in batch.handled:
                if delivery.length_us < SOON_OVER_US:
                    self.has_work.set()
                    break
            return batch.handled
        if found:
            self._received.append(None)
        return []

    def note_renewed(self) -> None:
        """Note until when leases last that were extended while no thread of this worker ran."""
        if self._standby is not None and (until := self._standby.renewed()):
            for delivery in list(self.held.values()):
                if delivery is not None:
                    delivery.expires = max(delivery.expires, until)

    def end(self, seconds: float) -> None:
        """
        Settle what has ended, then stop; waits for that. From any thread but the event loop's.
        """
        deadline = time.monotonic() + seconds
        self._is_ending = True
        self.has_work.set()
        self.join(seconds)
        if self._settle_thread is not None:
            self._settle_thread.end(max(0.0, deadline - time.monotonic()))

    def settle_rest(self) -> None:
        """
        Settle what ended after `end`. Best effort: an unsettled lease expires on its own.
        """
        with contextlib.suppress(EngineUnavailable):
            self.settler.settle()

    # The thread

    @property
    def _settles_here(self) -> bool:
        """Whether this thread settles: always with an embedded engine, else while it is idle."""
        return self._settle_thread is None or self._listen_until is not None

    @property
    def _to_settle(self) -> int:
        """How many leases this thread has to end now."""
        return len(self.settler.settlements) if self._settles_here else 0

    def _wake_settle_thread(self) -> None:
        if self._settle_thread is not None and self.settler.settlements:
            self._settle_thread.wake()

    def run(self) -> None:
        try:
            if self._standby is not None:
                self._standby.start()
            while not self._is_ending or self._to_settle:
                try:
                    self._pass()
                    self._reconnection.succeeded()
                except EngineCorrupt:
                    raise
                except EngineUnavailable as error:
                    if self._is_ending:
                        log.warning(
                            "store unavailable while stopping; %d leases will expire: %s",
                            len(self.held),
                            error,
                        )
                        return
                    self._wait_to_reconnect(error)
                else:
                    self._wait_for_work()
        except BaseException as error:  # noqa: BLE001  # the worker ends with it
            self._callbacks.failed(error)
        finally:
            if self._standby is not None:
                self._standby.close()
            self._arrivals.finish()
            self._close_listeners()

    def _wait_to_reconnect(self, error: EngineUnavailable) -> None:
        self._should_lease = True
        self._renewal.next_look = 0.0
        self.has_work.clear()
        # New settlements wait with the others.
        self._reconnection.wait(error, lambda: self._is_ending)

    def _gather(self) -> None:
        """
        Let ended messages gather while what is prefetched lasts: a message of a large call costs
        less.
        """
        ahead = self._taken() - self._ending() - self._reserves.common
        if ahead <= max(0.0, 2 * GATHER_SECONDS * self.settler.pace):
            return
        self._is_gathering = True
        self.has_work.clear()
        is_urgent = self.starts or self._received or self._is_ending or self._arrivals.was_notified
        if not is_urgent:
            self.has_work.wait(GATHER_SECONDS)
        self._is_gathering = False
        self._wake_settle_thread()

    def _wait_for_work(self) -> None:
        if self.prefetch_seconds:
            self._gather()
        seconds = 0.0
        if not (self._to_settle or self.starts or self._is_ending):
            seconds = MAX_WAIT_SECONDS
            if self.held:
                seconds = min(seconds, self._renewal.next_look - time.monotonic())
            if self._needs_reserves:
                seconds = min(seconds, self._reserves.search_at() - time.monotonic())
        if not self.is_leasing or self.is_paused:
            self._stop_listening()
        pause = self._listen_from - time.monotonic()
        if self._listen_until is not None and pause <= 0:
            self._listen(self._listen_until, max(seconds, 0.0))
        elif seconds > 0:
            self.has_work.wait(seconds if self._listen_until is None else min(seconds, pause))
        self.has_work.clear()

    def _listen(self, until: float, seconds: float) -> None:
        """Wait for the engine's notification, for other work, or for `seconds`."""
        left = until - time.monotonic()
        startable = 0
        if self.options.topics is None and self._filter.only is None:
            startable = max(0, self._reserves.common - self._taken())
        found: Batch | bool = False
        try:
            self._is_listening = True
            if self._listener is None:
                self._listener = self._create_listener()
                if isinstance(self._listener, ReadableListener) and not self._is_filtered:
                    self._readable = self._listener
            readable = None if self._is_filtered else self._readable
            listener, seconds = self._listener, min(left, seconds)
            if readable is not None and (startable or readable.is_watched):
                found = readable.poll(0.0, startable)
                if found is False and self._is_watched(readable):
                    seconds = min(seconds, readable.look_at - time.monotonic(), RECEIVED_SECONDS)
                    self.has_work.wait(max(0.0, seconds))
                    seconds = 0.0
            if found is False and seconds > 0:
                with self.has_work.waking(listener.wake) as is_set:
                    found = listener.poll(0.0 if is_set else seconds, startable)
        except EngineUnavailable:
            log.debug("store unavailable while the worker waited for messages")
            found = True  # the next lease raises it again, or succeeds
        if found is not False or time.monotonic() >= until:
            self._take_notification(found)

    def _is_watched(self, listener: ReadableListener) -> bool:
        """Have the event loop watch the listener's file; returns whether it does."""
        generation = listener.generation
        if generation != self._watched:
            file = -1
            with contextlib.suppress(OSError):  # too many files
                file = listener.duplicate_file()
            if file < 0:
                return False
            self._watched, listener.is_watched = generation, True
            self._callbacks.watch(listener, file, generation)
        return listener.is_watched

    def _take_received(self) -> None:
        """Do what follows from what the event loop has received."""
        while self._received:
            received = self._received.popleft()
            if received is None:
                self._take_notification(found=True)
            else:
                if received.handled:
                    self._renewal.add(received.handled)
                self._follow_up(received, len(received.batch.leases) + 1)

    def _take_notification(self, found: Batch | bool) -> None:
        """The engine has notified this worker, or leased messages to it, or it is time to look."""
        if isinstance(found, Batch):
            self._deliver(found, len(found.leases) + 1)
        else:
            self._listen_until = None
            self._should_lease = self._was_notified = True

    def _create_listener(self) -> WorkListener:
        create = getattr(self._engine, "work_listener", None)
        pool, topics = self.options.pool, [] if self._is_filtered else self.options.topics
        if create is None:  # an engine of somebody else
            return WaitingListener(self._engine, pool, topics)
        listener: WorkListener = create(pool, topics, max_lease_us=self._max_lease_us)
        return listener

    def _change_listener(self) -> None:
        """While this worker leases by patterns, it learns of all that becomes runnable."""
        self._is_filtered = not self._is_filtered
        self._stop_listening()
        self._listener, self._other_listener = self._other_listener, self._listener

    def _stop_listening(self) -> None:
        """The worker is busy: the engine should notify others."""
        self._listen_until, self._is_listening = None, False
        if self._listener is not None:
            if self._readable is not None and not self.is_leasing:
                self._readable.is_watched = False  # the rest is received before this thread ends
            try:
                found = self._listener.pause()
            except EngineUnavailable:
                log.debug("store unavailable while the worker stopped listening")
                return
            if found is not False:
                self._take_notification(found)
                self.has_work.set()

    def _close_listeners(self) -> None:
        self._stop_listening()
        for listener in (self._listener, self._other_listener):
            if listener is not None:
                listener.close()

    def _taken(self) -> int:
        """How many messages run or wait here for a common slot."""
        return len(self.held) - self.gathering - self._reserves.held(self.held)

    def _ending(self) -> int:
        """How many of them are about to end."""
        return max(0, self.settler.ending - self._reserves.ending())

    def _prefetch(self, seconds: float) -> int:
        """How many messages to lease ahead: work of these seconds, of a bounded size."""
        most = min(MAX_PREFETCH, self._bodies.within(MAX_PREFETCH_BYTES))
        return min(most, int(self.settler.pace * seconds))

    def _lease_size(self, prefetch: int) -> int:
        """How many messages to lease now. Leases that are about to end leave room for others."""
        most = self._reserves.common + prefetch
        room = most + min(self._ending(), most) - self._taken()
        if not self.is_leasing or self.is_paused or not self._should_lease:
            return 0
        if room < max(1, prefetch // REFILL_DIVISOR):
            # The engine notified this worker only, which cannot start what came. It leases although
            # it is full if nothing else makes the engine notify another worker.
            if room <= 0 and self._was_notified and self._listener is not None:
                self._stop_listening()  # else it could notify itself
                self._was_notified = not self._listener.pass_on()
            return int(self._was_notified)
        if self._arrivals.are_frequent:
            return min(room, max(MIN_SHORT_LEASE, prefetch // SHORT_LEASE_DIVISOR))
        if self._settle_thread is not None:  # half of them begin while the other half is leased
            return min(room, -(-most // 2))
        return room

    def _lease_arrivals(self, prefetch: int) -> None:
        """
        Lease a few messages immediately if some have arrived, before a call that takes longer.

        The prefetch may grow by half for them.
        """
        room = self._reserves.common + prefetch + prefetch // 2 - self._taken()
        size = min(ARRIVAL_LEASE, room)
        if not self._arrivals.take():
            return
        self._reserves.arrived()
        if self.is_leasing and not self.is_paused and size > 0:
            self._deliver(self._lease(size), size)

    def _pass(self) -> None:
        if self._standby is not None:
            self._standby.passed(self.held)
        self.note_renewed()
        self._take_received()
        if self._has_reserves:
            self._reserves.follow(self._engine.tiers)
        seconds = LARGE_PREFETCH_SECONDS if self._prefers_large_leases else PREFETCH_SECONDS
        seconds = max(seconds, min(AHEAD_OF_LEASE * self._lease_seconds, MAX_AHEAD_SECONDS))
        prefetch = self._prefetch(max(seconds, self.prefetch_seconds))
        if self._reserves.count:
            self._reserves.measure(self.settler.summary.ended)
            if self._reserves.is_slow:
                prefetch = 0  # it would wait here for long
        if self._arrivals.was_notified:
            with self._priority.during(ARRIVAL_LEASE, self._call_soon):
                self._lease_arrivals(prefetch)
        settling, starting = self._to_settle, len(self.starts)
        if not settling:
            self._wake_settle_thread()
        leasing = self._lease_size(prefetch)
        is_extending = self._renewal.is_due(self.held)
        if not (settling or starting or leasing or is_extending):
            self._lease_reserved()
            return
        # A start is recorded on disk before its message runs, as it may end the whole machine.
        with self._syncing_later() if not starting else contextlib.nullcontext():
            with self._priority.during(settling + starting + leasing, self._call_soon):
                if is_extending:
                    self._extend()
                if settling:
                    self.settler.settle()
                if starting:
                    self._record_starts(starting)
                self._lease_arrivals(prefetch)
                size = self._lease_size(prefetch)
                began = time.monotonic()
                held = self._hold(self._lease(size)) if size else None
                if size:
                    self._lease_seconds += (time.monotonic() - began - self._lease_seconds) / 4
            if held is not None:
                self._begin(held, size)
        self._lease_reserved()

    def _settled(
        self, settlements: Sequence[Settlement], answers: Sequence[str], is_lease_due: bool
    ) -> None:
        """Leases have ended: there is room for others."""
        if self._hooks is not None:
            self._hooks.settled(settlements, answers)
        if is_lease_due:
            self._should_lease = True
            self._reserves.arrived()
        if threading.current_thread() is not self:
            self.has_work.set()

    # Extend and start

    def _extend(self) -> None:
        held = [each for each in list(self.held.values()) if each is not None and not each.over]
        overdue = self._overdue.find(held)
        if overdue:
            self._call_soon(self._callbacks.stop_overdue, overdue)
            held = [each for each in held if (each.whole or each) not in overdue]
        for length_us, deliveries in self._renewal.take_due(held).items():
            began = time.monotonic()
            answers = _by_halves(partial(self._call_extend, length_us), deliveries)
            extended, lost = _divided(deliveries, answers)
            for delivery in extended:
                delivery.expires = began + length_us / units.SECOND
            self._lose(lost)

    def _call_extend(self, length_us: int, deliveries: Sequence[WorkerDelivery]) -> list[bool]:
        return self._engine.extend(
            [delivery.handle_and_fence for delivery in deliveries], length_us
        )

    def _record_starts(self, count: int) -> None:
        suspects = [self.starts.popleft() for _ in range(count)]
        try:
            refused = self._refused(suspects)
            accepted = [suspect for suspect in suspects if suspect not in refused]
            answers = _by_halves(self._call_start, accepted) if accepted else []
        except BaseException:
            self.starts.extendleft(reversed(suspects))
            raise
        if refused:
            self._call_soon(self._callbacks.end_refused, list(refused.items()))
        started, lost = _divided(accepted, answers)
        if started:
            self._call_soon(self._callbacks.begin_suspects, started)
        self._lose(lost)

    def _call_start(self, deliveries: Sequence[WorkerDelivery]) -> list[bool]:
        return self._engine.start([delivery.handle_and_fence for delivery in deliveries])

    def _lose(self, deliveries: list[WorkerDelivery]) -> None:
        if deliveries:
            for delivery in deliveries:
                self.held.pop(delivery.lease.fence, None)
            self._call_soon(self._callbacks.let_go_of, deliveries)

    def _refused(self, suspects: list[WorkerDelivery]) -> dict[WorkerDelivery, Exception]:
        """The suspects that have lost too many workers, each with the error that ends it."""
        refused: dict[WorkerDelivery, Exception] = {}
        for suspect in suspects:
            if suspect.parts is None and suspect.lease.attempt > 1:
                view = (
                    self._engine.find(suspect.lease.id, suspect.lease.topic)
                    if suspect.handler.asks_for_losses
                    else None
                )
                error = suspect.handler.refusal(suspect.lease, _losses(view))
                if error is not None:
                    refused[suspect] = error
        return refused

    # Lease

    def _find_handler(self, lease: Lease) -> Handler | None:
        """The handler of a message, or None if it has none."""
        try:
            return self._handlers.find(lease)
        except BaseException as error:  # noqa: BLE001  # it may import the user's code; other messages have handlers
            log.warning(
                "message %s in topic %s: looking up its handler failed: %s",
                lease.id,
                lease.topic,
                storable.of(error, storable.MAX_REASON),
            )
            return None

    def _lease(self, count: int) -> Batch:
        options, lease_filter = self.options, self._filter
        ahead = self._prefetch(self.prefetch_seconds)
        startable = max(0, self._reserves.common + ahead + self._ending() - self._taken())
        was_notified = self._was_notified
        self._was_notified = self._should_lease = False  # others set it while the engine answers
        self._held_at_lease = bool(self.held)
        if lease_filter.only is None:
            return self._engine.lease(
                count,
                pool=options.pool,
                topics=options.topics,
                startable=startable,
                max_lease_us=self._max_lease_us,
            )
        if lease_filter.take_due_probe():
            return self._probe(min(count, PROBE_SIZE), startable)
        began = time.monotonic()
        batch = self._engine.lease(
            count,
            pool=options.pool,
            startable=startable,
            only=lease_filter.only,
            max_lease_us=self._max_lease_us,
        )
        seconds = time.monotonic() - began
        lease_filter.record_search(batch, seconds, was_notified=was_notified)
        return batch

    # Lease for reserved slots

    @property
    def _needs_reserves(self) -> bool:
        """Whether slots are reserved, and all others are taken."""
        return (
            self._reserves.count > 0
            and self.is_leasing
            and not self.is_paused
            and self._taken() - self._ending() >= self._reserves.common
            and None not in list(self.held.values())  # such a message leaves its slot soon
        )

    def _lease_reserved(self) -> None:
        """Lease messages that may take reserved slots, if these are free and no others are."""
        if not self._needs_reserves:
            return
        self._arrivals.listen()
        for owner, count, search in self._reserves.due():
            began = time.monotonic()
            search.begin()
            with self._priority.during(count, self._call_soon):
                batch = self._call_lease_reserved(owner, count)
            held = self._hold(batch)
            self._reserves.add(held.handled, owner)
            if held.handled:
                self._renewal.add(held.handled)
                self._call_soon(self._callbacks.begin_leased, held.handled, True)
            if held.unhandled:
                self._call_soon(self._callbacks.settle_unhandled, held.unhandled)
            search.ended(began, batch, is_full=len(batch.leases) == count)

    def _call_lease_reserved(self, owner: str, count: int) -> Batch:
        held = [each for each in list(self.held.values()) if each is not None]
        among, without = self._reserves.filters(owner, held)
        return self._engine.lease(
            count,
            pool=self.options.pool,
            startable=count,
            only=self._filter.only if among is None else among,
            without=without,
            tiers=None if owner == OTHERS else [owner],
            max_lease_us=self._max_lease_us,
        )

    def _probe(self, count: int, startable: int) -> Batch:
        """
        Lease messages of any topic.

        A message that no worker had before is released immediately, without a delay: another
        program may be about to lease it.
        """
        batch = self._engine.lease(
            count,
            pool=self.options.pool,
            startable=startable,
            max_lease_us=self._max_lease_us,
        )
        foreign = [lease for lease in batch.leases if self._find_handler(lease) is None]
        self._filter.add_handled(
            {lease.topic for lease in batch.leases} - {lease.topic for lease in foreign}
        )
        first = [lease for lease in foreign if lease.deliveries == 1]
        if first:
            self._engine.settle(releases(first))
            fences = {lease.fence for lease in first}
            batch.leases = [lease for lease in batch.leases if lease.fence not in fences]
        batch.goes_on = True  # this worker's own messages are still to be searched for
        return batch

    def _deliver(self, batch: Batch, size: int) -> None:
        """Give a batch, for which `size` messages were requested, to the worker."""
        self._begin(self._hold(batch), size)

    def _begin(self, held: _HeldBatch, size: int) -> None:
        if held.handled:
            self._renewal.add(held.handled)
            self._call_soon(self._callbacks.begin_leased, held.handled, False)
        self._follow_up(held, size)

    def _hold(self, batch: Batch, *, prepares: bool = True) -> _HeldBatch:
        """
        Add a batch to the held leases, and find their handlers. `prepares`: executors may read what
        they need now, because this is not the event loop.
        """
        now = time.monotonic()
        deliveries: list[WorkerDelivery] = []
        unhandled: list[Lease] = []
        held, find_handler, now_us = self.held, self._find_handler, batch.now_us
        self._prefers_large_leases = batch.prefers_large_leases
        if batch.leases:
            self._handlers.set_store_time(now_us)
            self._bodies.note(batch.leases)
        for lease in batch.leases:
            handler = find_handler(lease)
            if handler is None:
                held[lease.fence] = None
                unhandled.append(lease)
                continue
            length_us = lease.deadline_us - now_us
            expires = now + length_us / units.SECOND if batch.until is None else batch.until
            delivery = WorkerDelivery(lease, handler, expires, length_us)
            held[lease.fence] = delivery
            deliveries.append(delivery)
        if deliveries:
            if self._standby is not None:
                self._standby.add(deliveries, held)
            if prepares:
                self._callbacks.prepare(deliveries)
        return _HeldBatch(batch, deliveries, unhandled)

    def _follow_up(self, held: _HeldBatch, size: int) -> None:
        """
        Do what is left to do for a batch for which `size` messages were requested, and decide when
        to lease again.
        """
        batch, unhandled = held.batch, held.unhandled
        if unhandled:
            if self.options.topics is None and self._engine.capabilities.only:
                self._filter.add_unhandled(unhandled)
                unhandled = self._release_copies(unhandled)
            if unhandled:
                self._call_soon(self._callbacks.settle_unhandled, unhandled)
        if self._taken() < self._reserves.common and len(batch.leases) < size:
            # There is no more. With every slot taken, the next settlement leases again instead.
            if batch.goes_on:
                self._should_lease = True
                self.has_work.set()
            else:
                self._wait_for_messages(batch)
        else:
            self._should_lease = True
            if self._settle_thread is not None:
                self.has_work.set()  # there may be room for the other half
            self._stop_listening()
            if self.options.topics is None and self._filter.only is None:
                self._arrivals.listen()

    def _release_copies(self, leases: list[Lease]) -> list[Lease]:
        """
        Immediately release messages of other workers' subscriptions that no worker has had before;
        this worker leases by its patterns from now on. Returns the other leases.
        """
        copies = [lease for lease in leases if is_copy(lease.topic) and lease.deliveries == 1]
        if not copies:
            return leases
        self._engine.settle(releases(copies))
        fences = {lease.fence for lease in copies}
        for fence in fences:
            self.held.pop(fence, None)
        return [lease for lease in leases if lease.fence not in fences]

    def _wait_for_messages(self, batch: Batch) -> None:
        # What ended during the call makes this worker lease again.
        is_last = not (batch.leases or self.held or self._held_at_lease)
        if self.options.burst and is_last:
            if self._is_listening:  # a message may have been sent to this worker during the call
                self._stop_listening()
                self._should_lease = True
                self.has_work.set()
                return
            if not self._has_ready_topic():
                self.is_leasing = False
                self._callbacks.drained()
                return
        if self._is_filtered != (self._filter.only is not None):
            self._change_listener()
            if self._should_lease:
                return
        seconds = SEARCH_SECONDS if self._is_filtered else MAX_WAIT_SECONDS
        if batch.next_wake_us is not None:
            seconds = min(seconds, max(0.0, (batch.next_wake_us - batch.now_us) / units.SECOND))
        pause = self._filter.take_pause() if batch.passed_over else 0.0
        now = time.monotonic()
        self._listen_from, self._listen_until = now + pause, now + max(seconds, pause)

    def _has_ready_topic(self) -> bool:
        """
        Whether a rate, a gate or a concurrency delays a message that is ready.

        A burst does not wait for delays, pauses and back-offs.
        """
        engine, known = self._engine, self._ready_topic
        if known is not None and self._is_delayed_by_limit(engine.topic_stats(known)):
            return True
        topics = engine.topic_list(order="backlog", limit=MAX_BURST_TOPICS)
        found = next((each.topic for each in topics if self._is_delayed_by_limit(each)), None)
        self._ready_topic = found
        return found is not None

    def _is_delayed_by_limit(self, topic: TopicStats) -> bool:
        options = self.options
        return (
            topic.ready > 0
            and topic.state != "paused"
            and topic.backs_off_until_us is None
            and (self._filter.only is None or self._filter.covers(topic.topic))
            and topic.pool == options.pool
            and (options.topics is None or topic.topic in options.topics)
        )


def _divided(
    deliveries: Sequence[WorkerDelivery], answers: Sequence[bool]
) -> tuple[list[WorkerDelivery], list[WorkerDelivery]]:
    """The deliveries whose lease is still held, and those whose lease is lost."""
    pairs = list(zip(deliveries, answers, strict=True))
    return [each for each, is_held in pairs if is_held], [
        each for each, is_held in pairs if not is_held
    ]


def _by_halves(
    call: Callable[[Sequence[WorkerDelivery]], list[bool]], deliveries: Sequence[WorkerDelivery]
) -> list[bool]:
    """
    The engine's answers to a call for all deliveries; a call that fails is halved and repeated.

    A single delivery whose call fails is answered with False. Raises EngineUnavailable.
    """
    try:
        return call(deliveries)
    except EngineUnavailable:
        raise
    except Exception:
        if len(deliveries) == 1:
            log.exception(
                "message %s in topic %s: the store refuses its lease; the lease is lost",
                deliveries[0].lease.id,
                deliveries[0].lease.topic,
            )
            return [False]
        middle = len(deliveries) // 2
        return _by_halves(call, deliveries[:middle]) + _by_halves(call, deliveries[middle:])


def _losses(view: MessageView | None) -> int:
    """How many times in a row a message's start was recorded and its worker was lost."""
    count = 0
    for event in reversed(view.history if view is not None else []):
        if event["what"] != STARTED_AND_LOST:
            break
        count += 1
    return count
