"""
The one thread of a worker that talks to the engine: it settles, extends, records starts and leases,
all in batches.

It owns `held`: every lease this worker has and has not settled. What is to be done is put into its
boxes from the event loop; what came of it is handed back there. Everything a turn finds in the
boxes goes in one batch, so batches grow with the load.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from laneway import codec, texts, units
from laneway.engines.shared.refusals import STARTED_AND_LOST
from laneway.errors import BacklogFull, EngineCorrupt, EngineUnavailable
from laneway.message import Settlement, SettlementAnswer
from laneway.working.delivery import WorkerDelivery
from laneway.working.lease_filter import PROBE, LeaseFilter
from laneway.working.lease_renewal import LeaseRenewal
from laneway.working.options import Summary
from laneway.working.outcome import CANNOT_SETTLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from laneway.engines.base import ArrivalListener, FullEngine, MessageView
    from laneway.message import Batch, Draft, Lease
    from laneway.working.engine_priority import EnginePriority
    from laneway.working.handler import Handler
    from laneway.working.options import Options

    class WorkerCallbacks(Protocol):
        """The worker's side, called from the courier's thread."""

        def store_time(self, now_us: int) -> None: ...
        def find(self, lease: Lease) -> Handler | None: ...
        def coverage(self) -> list[str] | None: ...
        def arrived(self, deliveries: list[WorkerDelivery]) -> None: ...
        def unhandled(self, leases: list[Lease]) -> None: ...
        def started(self, deliveries: list[WorkerDelivery]) -> None: ...
        def refused(self, refused: list[tuple[WorkerDelivery, Exception]]) -> None: ...
        def lost(self, deliveries: list[WorkerDelivery]) -> None: ...
        def told(self, settlement: Settlement, answer: str) -> None: ...
        def drained(self) -> None: ...
        def failed(self, error: BaseException) -> None: ...
        def call_soon(self, callback: Callable[[], None]) -> object: ...


log = logging.getLogger("laneway.worker")

AHEAD_SECONDS = 0.01
"""
So much work, at the pace of late, is leased ahead of what runs: it bounds how long a message waits
here.
"""

ASK_AT = 5
"""
More is asked for when one part in so many of that is used up: a quiet topic's message waits no
longer than that takes.
"""

AHEAD_MOST = 2_000

FOR_ARRIVALS = 4
"""
So many are asked for when something has arrived, whatever else there is to do: a quiet topic's
message is among the first of them.
"""

FREQUENT_SECONDS = 0.05
AT_ONCE_PART, LEAST_AT_ONCE = 10, 16
"""
While arrivals are frequent, a lease is one part in so many of what is leased ahead, a millisecond's
work: they wait for the one under way.
"""

PACE_WINDOW = 0.02
AWAY_FIRST, AWAY_MOST = 0.05, 5.0
"""Seconds between attempts to reach an engine that is away."""

BELL_END_SECONDS = 5.0
"""How long the bell may take to end: a call of an engine that is away."""

WAKEUP_SECONDS = 60.0
"""Longest wait for the engine's bell."""

BUSY_SECONDS = 5.0
"""How long after it last had all that it asked for the worker still counts as busy."""

FOLLOWERS_AT_ONCE = 250
"""
Messages that are published with the settlements of one call: a step that opens a part of a flow has
a hundred.
"""

FOLLOW_LATER_US = 5_000_000
"""When a message comes again whose end could not be told since a backlog was full."""

BURST_LOOK = 1_000
"""Topics that are looked at to tell whether anything is ready when a burst seems over."""


class EngineThread(threading.Thread):
    """Between the engine and one worker."""

    def __init__(
        self,
        engine: FullEngine,
        options: Options,
        callbacks: WorkerCallbacks,
        pause: EnginePriority,
    ) -> None:
        super().__init__(name="laneway-engine", daemon=True)
        self.summary = Summary()
        self.settlements: deque[Settlement] = deque()
        self.follow: dict[int, Sequence[Draft]] = {}
        """By fence: what is published with settlements."""
        self.starts: deque[WorkerDelivery] = deque()
        self.held: dict[int, WorkerDelivery | None] = {}
        self.go = threading.Event()
        self._engine = engine
        self._options = options
        self._callbacks = callbacks
        self._pause = pause
        self._renewal = LeaseRenewal()
        self._wakeup = WakeupThread(engine, options, self.go)
        self._arrivals = ArrivalThread(engine, options.pool, self.go)
        self._pace = 0.0
        self._counted, self._counted_since = 0, time.monotonic()
        self._away = 0.0
        self._leasing = True
        self.pauses = False
        """Nothing is taken while a message that may kill this process runs alone."""
        self._ending = False
        self._ask_again = True
        self._lease_filter = LeaseFilter(callbacks.coverage())
        self._was_notified = False
        """The engine woke this worker, and it has not leased since."""

    # From the event loop

    def stop_leasing(self) -> None:
        """From now on nothing new is taken."""
        self._leasing = False
        self._wakeup.end()
        self._arrivals.end()

    def resume(self) -> None:
        """Take again."""
        if self.pauses:
            self.pauses = False
            self._ask_again = True
            self.go.set()

    def end(self, seconds: float) -> None:
        """
        Settle what is in the boxes, then stop; waits for that. From any thread but the loop's.
        """
        self._ending = True
        self.go.set()
        self.join(seconds)

    def settle_rest(self) -> None:
        """Settle what came after the end; best effort, the leases run out by themselves."""
        with contextlib.suppress(EngineUnavailable):
            self._settle(len(self.settlements))

    # The thread

    def run(self) -> None:
        self._wakeup.start()
        try:
            while not self._ending or self.settlements:
                try:
                    self._turn()
                    self._away = 0.0
                except EngineCorrupt:
                    raise
                except EngineUnavailable as error:
                    if self._ending:
                        log.warning(
                            "the engine is away, %d leases will run out by themselves: %s",
                            len(self.held),
                            error,
                        )
                        return
                    self._back_off(error)
                else:
                    self._sleep()
        except BaseException as error:  # noqa: BLE001  # the worker ends with it
            self._callbacks.failed(error)
        finally:
            self._wakeup.finish()
            self._arrivals.finish()

    def _back_off(self, error: EngineUnavailable) -> None:
        if not self._away:
            log.warning("the engine is away, trying again until it is back: %s", error)
        self._away = min(AWAY_MOST, self._away * 2 or AWAY_FIRST)
        self._ask_again = True
        self._renewal.next_look = 0.0
        self.go.clear()
        # Settlements that come meanwhile wait with the others; only the end of the worker cuts this
        # short.
        deadline = time.monotonic() + self._away * random.uniform(
            0.5, 1.0
        )  # spreads workers that come back
        while not self._ending and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def _sleep(self) -> None:
        if self.settlements or self.starts or self._ending:
            return
        seconds = (
            min(self._renewal.next_look - time.monotonic(), WAKEUP_SECONDS)
            if self.held
            else WAKEUP_SECONDS
        )
        if self._lease_filter.look_at:
            seconds = min(seconds, self._lease_filter.look_at - time.monotonic())
        self.go.wait(max(seconds, 0.0))
        self.go.clear()
        if self._lease_filter.take_due():
            self._ask_again = True
        if self._wakeup.take():
            self._ask_again = self._was_notified = True

    def _asks_for(self, ahead: int, ending: int) -> int:
        """How many are to be leased now, where so many leases are about to end."""
        room = self._options.concurrency + ahead - len(self.held) + ending
        if not self._leasing or self.pauses or not self._ask_again:
            return 0
        if room < max(1, ahead // ASK_AT):
            # The engine notified this worker only. It asks although it is full, so that the engine
            # notifies another worker of what this one cannot start.
            return int(self._was_notified)
        return (
            min(room, max(LEAST_AT_ONCE, ahead // AT_ONCE_PART))
            if self._arrivals.are_frequent
            else room
        )

    def _lease_arrivals(self, ahead: int) -> None:
        """
        A few at once where something has arrived, before anything that takes longer; what is leased
        ahead is then half as much again, at most.
        """
        asked = min(FOR_ARRIVALS, self._options.concurrency + ahead + ahead // 2 - len(self.held))
        if self._arrivals.take() and self._leasing and not self.pauses and asked > 0:
            self._deliver(self._lease(asked), asked)

    def _turn(self) -> None:
        ahead = min(AHEAD_MOST, int(self._pace * AHEAD_SECONDS))
        if self._arrivals.notified:
            with self._pause.during(FOR_ARRIVALS, self._callbacks.call_soon):
                self._lease_arrivals(ahead)
        settling, starting = len(self.settlements), len(self.starts)
        wanted = self._asks_for(ahead, settling)
        looks = self._renewal.is_due(self.held)
        if not (settling or starting or wanted or looks):
            return
        with self._pause.during(settling + starting + wanted, self._callbacks.call_soon):
            if looks:
                self._extend()
            if settling:
                self._settle(settling)
            if starting:
                self._start(starting)
            self._lease_arrivals(ahead)
            asked = self._asks_for(ahead, 0)
            batch = self._lease(asked) if asked else None
        if batch is not None:
            self._deliver(batch, asked)

    # What a turn does

    def _settle(self, count: int) -> None:
        """
        Settle so many, all at once where that can be.

        What an engine raises for one of them, and which is not that it is away, is narrowed down to
        that one by halves.
        """
        left = [self.settlements.popleft() for _ in range(count)]
        size = count
        try:
            while left:
                some = self._with_few_followers(left[:size])
                try:
                    answers = self._answers(some)
                except EngineUnavailable:
                    raise
                except Exception as error:  # noqa: BLE001  # a driver may raise anything for what it cannot store
                    if len(some) > 1:
                        size = len(some) // 2
                        continue
                    answers = [self._settle_impossible(some[0], error)]
                left = left[len(some) :]
                size *= 2
                self._settled(some, answers)
        finally:
            self.settlements.extendleft(reversed(left))

    def _with_few_followers(self, settlements: list[Settlement]) -> list[Settlement]:
        """As many of them, from the first on, as publish no more than one call should."""
        if self.follow:
            count = 0
            for n, settlement in enumerate(settlements):
                count += len(self.follow.get(settlement.fence, ()))
                if n and count > FOLLOWERS_AT_ONCE:
                    return settlements[:n]
        return settlements

    def _settled(self, settlements: Sequence[Settlement], answers: Sequence[str]) -> None:
        held, summary, follow = self.held, self.summary, self.follow
        for settlement, answer in zip(settlements, answers, strict=True):
            delivery = held.pop(settlement.fence, None)
            if follow:
                follow.pop(settlement.fence, None)
            if answer == "acked":
                summary.acked += 1
            else:
                self._count(answer, settlement)
            if delivery is not None and (delivery.lease.limited or delivery.lease.key is not None):
                self._ask_again = True  # its topic or its key may deliver again
        if self._options.burst and not held:
            self._ask_again = True  # was that the last?
        self._measure(len(settlements))

    def _answers(self, settlements: list[Settlement]) -> list[SettlementAnswer]:
        follow = self.follow
        if not follow:
            return self._engine.settle(settlements)
        publish = {
            n: follow[settlement.fence]
            for n, settlement in enumerate(settlements)
            if settlement.fence in follow
        }
        return self._engine.settle(settlements, publish=publish)

    def _settle_impossible(self, settlement: Settlement, error: Exception) -> SettlementAnswer:
        """
        A settlement that the engine does not take becomes a dead letter with that reason; its lease
        ends in any case.
        """
        handle, fence = settlement.handle, settlement.fence
        if isinstance(error, BacklogFull):
            log.warning(
                "what follows message %d cannot be published now, the message is handled again"
                " later: %s",
                handle,
                error,
            )
            return self._engine.settle(
                [Settlement(handle, fence, "release", delay_us=FOLLOW_LATER_US)]
            )[0]
        log.warning(
            "message %d cannot be settled by %s: it becomes a dead letter",
            handle,
            settlement.action,
            exc_info=error,
        )
        reason = (
            f"{CANNOT_SETTLE}{texts.type_name(type(error))}:"
            f" {texts.of(error, texts.MAX_REASON // 2)}"
        )
        told = Settlement(
            handle, fence, "dead", reason=reason, error=settlement.error, cost_us=settlement.cost_us
        )
        for again in (
            codec.checked(told),
            Settlement(handle, fence, "dead", reason=CANNOT_SETTLE.strip(": ")),
            Settlement(handle, fence, "release"),
        ):
            try:
                return self._engine.settle([again])[0]
            except EngineUnavailable:
                raise
            except Exception as fault:  # noqa: BLE001  # the next one says less
                log.warning(
                    "message %d cannot be settled by %s either: %s",
                    handle,
                    again.action,
                    texts.of(fault, 200),
                )
        return "lost"  # the lease runs out by itself

    def _count(self, answer: str, settlement: Settlement) -> None:
        self._callbacks.told(settlement, answer)
        match answer:
            case "retried":
                self.summary.retried += 1
            case "died":
                self.summary.died += 1
            case "released":
                self.summary.released += 1
            case _:
                self.summary.lost += 1
                log.debug(
                    "a lease (fence %d) had ended before it was settled: %s",
                    settlement.fence,
                    answer,
                )

    def _measure(self, count: int) -> None:
        self._counted += count
        elapsed = (now := time.monotonic()) - self._counted_since
        if elapsed >= PACE_WINDOW:
            self._pace += (self._counted / elapsed - self._pace) / 2
            self._counted, self._counted_since = 0, now

    def _extend(self) -> None:
        for length_us, deliveries in self._renewal.due(self.held).items():
            began = time.monotonic()
            kept = _narrowed(partial(self._extend_some, length_us), deliveries)
            for delivery, is_kept in zip(deliveries, kept, strict=True):
                if is_kept:
                    delivery.expires = began + length_us / units.SECOND
            lost = [
                delivery for delivery, is_kept in zip(deliveries, kept, strict=True) if not is_kept
            ]
            if lost:
                for delivery in lost:
                    self.held.pop(delivery.lease.fence, None)
                self._callbacks.lost(lost)

    def _extend_some(self, length_us: int, deliveries: Sequence[WorkerDelivery]) -> list[bool]:
        return self._engine.extend(
            [delivery.handle_and_fence for delivery in deliveries], length_us
        )

    def _start_some(self, deliveries: Sequence[WorkerDelivery]) -> list[bool]:
        return self._engine.start([delivery.handle_and_fence for delivery in deliveries])

    def _start(self, count: int) -> None:
        deliveries = [self.starts.popleft() for _ in range(count)]
        try:
            refused = self._refused(deliveries)
            begun = [delivery for delivery in deliveries if delivery not in refused]
            answers = _narrowed(self._start_some, begun) if begun else []
        except BaseException:
            self.starts.extendleft(reversed(deliveries))
            raise
        if refused:
            self._callbacks.refused(list(refused.items()))
            deliveries = begun
        started = [
            delivery for delivery, is_held in zip(deliveries, answers, strict=True) if is_held
        ]
        lost = [
            delivery for delivery, is_held in zip(deliveries, answers, strict=True) if not is_held
        ]
        if started:
            self._callbacks.started(started)
        if lost:
            for delivery in lost:
                self.held.pop(delivery.lease.fence, None)
            self._callbacks.lost(lost)

    def _refused(self, deliveries: list[WorkerDelivery]) -> dict[WorkerDelivery, Exception]:
        """Those that have lost their workers too often."""
        refused: dict[WorkerDelivery, Exception] = {}
        for delivery in deliveries:
            if delivery.parts is None and delivery.lease.attempt > 1:
                view = (
                    self._engine.find(delivery.lease.id, delivery.lease.topic)
                    if delivery.handler.asks_for_losses
                    else None
                )
                error = delivery.handler.refusal(delivery.lease, _losses(view))
                if error is not None:
                    refused[delivery] = error
        return refused

    def _lease(self, count: int) -> Batch:
        options, coverage = self._options, self._lease_filter
        startable = max(0, options.concurrency - len(self.held))
        self._was_notified = False
        if coverage.only is None:
            return self._engine.lease(
                count, pool=options.pool, topics=options.topics, startable=startable
            )
        if coverage.is_time_to_probe():
            batch = self._engine.lease(min(count, PROBE), pool=options.pool, startable=startable)
            foreign = [lease for lease in batch.leases if self._callbacks.find(lease) is None]
            coverage.learn(
                {lease.topic for lease in batch.leases} - {lease.topic for lease in foreign}
            )
            self._pass_on(batch, foreign)
            batch.goes_on = True  # what is this worker's is still to be looked for
            return batch
        began = time.monotonic()
        batch = self._engine.lease(
            count, pool=options.pool, startable=startable, only=coverage.only
        )
        coverage.looked(batch, time.monotonic() - began)
        return batch

    def _pass_on(self, batch: Batch, foreign: list[Lease]) -> None:
        """
        What a probe is the first to get, another program may be about to take: it goes back at
        once, without a delay.
        """
        first = [lease for lease in foreign if lease.deliveries == 1]
        if first:
            self._engine.settle(
                [Settlement(lease.handle, lease.fence, "release", begun=False) for lease in first]
            )
            fences = {lease.fence for lease in first}
            batch.leases = [lease for lease in batch.leases if lease.fence not in fences]

    def _deliver(self, batch: Batch, asked: int) -> None:
        now = time.monotonic()
        deliveries: list[WorkerDelivery] = []
        unhandled: list[Lease] = []
        held, find, now_us = self.held, self._callbacks.find, batch.now_us
        if batch.leases:
            self._callbacks.store_time(now_us)
        for lease in batch.leases:
            handler = find(lease)
            if handler is None:
                held[lease.fence] = None
                unhandled.append(lease)
                continue
            length_us = lease.deadline_us - now_us
            delivery = WorkerDelivery(lease, handler, now + length_us / units.SECOND, length_us)
            held[lease.fence] = delivery
            deliveries.append(delivery)
        if deliveries:
            self._renewal.took(deliveries)
            self._callbacks.arrived(deliveries)
        if unhandled:
            if self._options.topics is None and self._engine.capabilities.only:
                self._lease_filter.met(unhandled)
            self._callbacks.unhandled(unhandled)
        if len(held) < self._options.concurrency and len(batch.leases) < asked:
            # There is no more; with every slot taken, the next settlement asks again instead.
            self._ask_again = batch.goes_on
            if batch.goes_on:
                self.go.set()
            else:
                self._wait_for_wakeup(batch)
        elif self._options.topics is None and self._lease_filter.only is None:
            self._arrivals.poll()

    def _wait_for_wakeup(self, batch: Batch) -> None:
        if self._options.burst and not self.held and not self._anything_ready():
            self._leasing = False
            self._callbacks.drained()
            return
        if batch.passed_over:  # the engine would wake this worker at once for what is not its own
            self._lease_filter.pause()
            return
        seconds = WAKEUP_SECONDS
        if batch.next_wake_us is not None:
            seconds = min(seconds, max(0.0, (batch.next_wake_us - batch.now_us) / units.SECOND))
        self._wakeup.poll(seconds)

    def _anything_ready(self) -> bool:
        """
        Whether a rate, a gate or a concurrency holds something back that could run now. Delays,
        pauses and back-offs hold up no burst.
        """
        options = self._options
        return any(
            topic.ready
            and topic.state != "paused"
            and topic.backs_off_until_us is None
            and (self._lease_filter.only is None or self._lease_filter.covers(topic.topic))
            and topic.pool == options.pool
            and (options.topics is None or topic.topic in options.topics)
            for topic in self._engine.topic_list(order="backlog", limit=BURST_LOOK)
        )


def _narrowed(
    call: Callable[[Sequence[WorkerDelivery]], list[bool]], deliveries: Sequence[WorkerDelivery]
) -> list[bool]:
    """
    The answers of an engine; False for a lease, and that one alone, whose own call raises something
    else than that the engine is away.
    """
    try:
        return call(deliveries)
    except EngineUnavailable:
        raise
    except Exception:
        if len(deliveries) == 1:
            log.exception(
                "message %s in %s: the engine refuses its lease; it is given up",
                deliveries[0].lease.id,
                deliveries[0].lease.topic,
            )
            return [False]
        middle = len(deliveries) // 2
        return _narrowed(call, deliveries[:middle]) + _narrowed(call, deliveries[middle:])


def _losses(view: MessageView | None) -> int:
    """How often in a row a message's recorded start was its last sign."""
    count = 0
    for trouble in reversed(view.history if view is not None else []):
        if trouble["what"] != STARTED_AND_LOST:
            break
        count += 1
    return count


class WakeupThread(threading.Thread):
    """
    Sleeps in `engine.wait` on the courier's behalf, so that a settlement never waits for a message
    to come.
    """

    def __init__(self, engine: FullEngine, options: Options, go: threading.Event) -> None:
        super().__init__(name="laneway-wakeup", daemon=True)
        self._engine = engine
        self._options = options
        self._go = go
        self._asked = threading.Semaphore(0)
        self._listening = False
        self._seconds = 0.0
        self._rang = False
        self._ended = False

    def poll(self, seconds: float) -> None:
        """Tell the courier when something could be leased, or after so many seconds."""
        if not self._listening:
            self._listening = True
            self._seconds = seconds
            self._asked.release()

    def take(self) -> bool:
        """Whether it rang since last asked."""
        pools_to_notify, self._rang = self._rang, False
        return pools_to_notify

    def end(self) -> None:
        """Stop listening for good."""
        self._ended = True
        self._asked.release()
        with contextlib.suppress(EngineUnavailable):
            self._engine.interrupt()

    def finish(self) -> None:
        """
        Have it ended when this returns: who has a worker may close the engine next. Again and
        again: a wait may be just about to begin.
        """
        deadline = time.monotonic() + BELL_END_SECONDS
        while self.is_alive() and time.monotonic() < deadline:
            self.end()
            self.join(0.02)

    def run(self) -> None:
        while True:
            self._asked.acquire()
            if self._ended:
                return
            try:
                self._engine.wait(
                    self._seconds, pool=self._options.pool, topics=self._options.topics
                )
            except EngineUnavailable:
                log.debug("the engine was away while the worker waited for messages")
            self._listening = False
            self._rang = True
            self._go.set()


class ArrivalThread(threading.Thread):
    """
    Listens while the worker is busy: what comes to a quiet topic should not wait until some of what
    is leased ahead is done.
    """

    def __init__(self, engine: FullEngine, pool: str, go: threading.Event) -> None:
        super().__init__(name="laneway-arrivals", daemon=True)
        self._engine = engine
        self._pool = pool
        self._go = go
        self._busy = threading.Event()
        self._busy_until = 0.0
        self.notified = False
        """Something has arrived."""
        self._heard_at = -FREQUENT_SECONDS
        self._ended = False
        self._listener: ArrivalListener | None = None

    def poll(self) -> None:
        """The worker is busy."""
        self._busy_until = time.monotonic() + BUSY_SECONDS
        if not self._busy.is_set():
            self._busy.set()
            if self.ident is None and not self._ended:
                self.start()

    @property
    def are_frequent(self) -> bool:
        """Whether something has arrived just now, so that more will soon."""
        return time.monotonic() < self._heard_at + FREQUENT_SECONDS

    def take(self) -> bool:
        """Whether something has arrived since last asked."""
        notified, self.notified = self.notified, False
        return notified

    def end(self) -> None:
        """Stop listening for good."""
        self._ended = True
        self._busy.set()
        if (listener := self._listener) is not None:
            listener.wake()

    def finish(self) -> None:
        """Have it ended when this returns: who has a worker may close the engine next."""
        self.end()
        if self.ident is not None:
            self.join(BELL_END_SECONDS)

    def run(self) -> None:
        while not self._ended:
            self._busy.wait()
            if self._ended:
                return
            try:
                self._listener = self._engine.arrival_listener(self._pool)
                self._hear(self._listener)
            except EngineUnavailable:
                log.debug("the engine was away while the worker listened for what arrives")
                self._busy.clear()
            except Exception:  # the worker goes on without it
                log.exception(
                    "what arrives while this worker is busy is no longer heard of: it is seen when"
                    " the worker next asks"
                )
                return
            finally:
                if (listener := self._listener) is not None:
                    self._listener = None
                    listener.close()

    def _hear(self, listener: ArrivalListener) -> None:
        while not self._ended:
            left = self._busy_until - time.monotonic()
            if left <= 0:
                self._busy.clear()
                return
            if listener.poll(left):
                self.notified = True
                self._heard_at = time.monotonic()
                self._go.set()
