"""
The workers of exclusive and failover subscriptions.

A worker with a handler for such a subscription is a candidate for its term. While it holds the
term, a second worker runs on the same event loop: it serves the subscription's own pool, and its
leases end with the term. The rest of a worker does not know about terms.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, cast

import msgspec

from laneway import subscriptions
from laneway.cluster.consumer import LEAST_TERM, MOST_TERM, Consumer
from laneway.cluster.term import Term, TermEvent, clock
from laneway.engines.base import FullEngine
from laneway.errors import EngineUnavailable, Refused, TermLost, UsageError
from laneway.message import Batch, releases
from laneway.policy import handling_patterns, is_pattern, matches
from laneway.units import SECOND
from laneway.working.handler import Handlers
from laneway.working.options import Options, Summary
from laneway.working.worker import Worker

log = logging.getLogger("laneway.worker")

LOOK_SECONDS = 5.0
"""Seconds between a worker's checks for new subscriptions and changed kinds."""


class SubscriptionWorkers:
    """
    The candidates of one worker: one for each exclusive or failover subscription that its handlers
    cover. On the worker's event loop.

    `failed`: ends the worker with an error.
    """

    def __init__(
        self,
        threads: Executor,
        engine: FullEngine,
        handlers: Handlers,
        options: Options,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._threads = threads
        self._engine = engine
        self._handlers = handlers
        self._options = options
        self._failed = failed
        self._term_seconds = min(max(options.heartbeat_timeout, LEAST_TERM), MOST_TERM)
        self._patterns = {
            handler.pattern
            for handler in handlers.by_pattern()
            if subscriptions.is_copy(handler.pattern)
        }
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By the subscription's topic."""
        self._workers: list[Worker] = []
        self._reported: set[str] = set()
        """Subscriptions of patterns that the handlers cover in part."""
        self._stops = 0
        self._is_stopped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.summary = Summary()
        """The messages that they have handled, once they have ended."""

    def start(self) -> None:
        """Be a candidate until `stop`, or once with `burst`."""
        self._task = asyncio.create_task(self._guarded(self._run()))

    def stop(self) -> None:
        """Shut down gracefully; the second call stops immediately. Does not wait."""
        self._stops += 1
        self._is_stopped.set()
        for worker in self._workers:
            worker.stop()

    async def end(self) -> None:
        """Wait for the end: after `stop`, or with `burst` until no message can run now."""
        if self._task is not None:
            await self._task
        await asyncio.gather(*self._tasks.values())

    async def _guarded(self, running: Any) -> None:
        try:
            await running
        except Exception as error:  # noqa: BLE001  # the worker ends with it
            self._failed(error)

    async def _run(self) -> None:
        while not self._stops:
            with contextlib.suppress(EngineUnavailable):  # the worker itself reports it
                for topic in await self._call(self._find):
                    task = self._tasks.get(topic)
                    if task is None or task.done():
                        self._tasks[topic] = asyncio.create_task(
                            self._guarded(self._consume(topic))
                        )
            if self._options.burst:
                return
            await _happens(self._is_stopped.wait(), LOOK_SECONDS)

    def _find(self) -> list[str]:
        """
        The topics of the exclusive and failover subscriptions that the handlers cover; for
        patterns, the subscriptions' names, such as `orders.*#audit`.
        """
        engine = self._engine
        table = engine.policies()
        of_patterns = table.pattern_consumers()
        found = set(of_patterns)
        bases = {subscriptions.base_of(pattern) for pattern in self._patterns}
        for base in bases:
            if not is_pattern(base):
                found |= {
                    subscriptions.topic_of(base, each.name)
                    for each in engine.policy_of(base).subscriptions
                    if each.kind != "shared" and table.consumption(base, each.name) is None
                }
        if any(map(is_pattern, bases)):  # each that has held a message has a pool with its name
            found |= {
                tier.pool
                for tier in engine.overview().tiers
                if subscriptions.is_copy(tier.pool)
                and subscriptions.base_of(tier.pool)
                and not is_pattern(tier.pool)
            }
        served = self._options.topics
        covered = {
            topic for topic in found if not self._patterns.isdisjoint(handling_patterns(topic))
        }
        self._report_parts(of_patterns.keys() - covered)
        return sorted(topic for topic in covered if served is None or topic in served)

    def _report_parts(self, of_patterns: Iterable[str]) -> None:
        """Warn of patterns' subscriptions that have handlers only for single topics."""
        for topic in of_patterns:
            parts = sorted(pattern for pattern in self._patterns if matches(topic, pattern))
            if parts and topic not in self._reported:
                self._reported.add(topic)
                log.warning(
                    "subscription %s: it has one consumer for all its topics, and this worker has"
                    " handlers for %s only; it receives none of its messages",
                    topic,
                    ", ".join(parts),
                )

    async def _consume(self, topic: str) -> None:
        """Hold one subscription whenever it is free."""
        consumer = Consumer(
            lambda: self._engine, self._threads, topic, term=self._term_seconds, wait=0.0
        )
        known_holder = ""
        while not self._stops:
            try:
                kind = await self._call(consumer.kind)
                holder = await self._call(consumer.claim)
            except (Refused, UsageError):  # it was removed, or has become shared
                return
            except EngineUnavailable:
                holder = known_holder
            else:
                if holder is None:
                    known_holder = ""
                    await self._work(consumer)
                    # If the holder was asked to step down, let another candidate go first.
                    await _happens(self._is_stopped.wait(), consumer.look)
                elif holder != known_holder:
                    known_holder = holder
                    self._report(topic, kind, holder)
            if self._options.burst:
                return
            await _happens(self._is_stopped.wait(), consumer.look)

    def _report(self, topic: str, kind: str, holder: str) -> None:
        if self._options.burst:
            log.warning("subscription %s: %s consumes it; this worker skips it", topic, holder)
        elif kind == "exclusive":
            log.warning(
                "subscription %s: %s consumes it, and it is exclusive; this worker receives none"
                " of its messages until that consumer ends",
                topic,
                holder,
            )
        else:
            log.info("subscription %s: %s consumes it; waiting to take over", topic, holder)

    async def _work(self, consumer: Consumer) -> None:
        """Handle the messages of a subscription until its term or this worker ends."""
        try:
            try:
                term = consumer.term
            except TermLost:  # its claim was answered too late
                return
            worker = _TermWorker(self._engine, self._handlers, self._inner(consumer), term)
            self._workers.append(worker)
            for _ in range(self._stops):
                worker.stop()
            log.info(
                "subscription %s: this worker consumes it, term %d", consumer.topic, term.number
            )
            watching = asyncio.create_task(self._guarded(self._watch(consumer, term, worker)))
            try:
                summary = await worker.arun()
            finally:
                watching.cancel()
                self._workers.remove(worker)
            self.summary.add(summary)
        finally:
            with contextlib.suppress(EngineUnavailable):  # the term runs out
                await self._call(consumer.close)

    def _inner(self, consumer: Consumer) -> Options:
        return msgspec.structs.replace(
            self._options,
            pool=consumer.pool,
            topics=None if is_pattern(consumer.topic) else [consumer.topic],
            processes=1,
            reload=False,
            health_port=None,
            max_messages=None,
        )

    async def _watch(self, consumer: Consumer, term: Term, worker: Worker) -> None:
        """Stop the worker gracefully when the term is ending, and immediately when it is lost."""
        while not await _happens(_awaited(term.ending), LOOK_SECONDS):
            try:
                await self._call(consumer.kind)
            except (Refused, UsageError):
                break
            except EngineUnavailable:
                continue
        worker.stop()
        await term.lost
        worker.stop()

    @staticmethod
    async def _call(function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, function)


async def _awaited(event: TermEvent) -> None:
    await event


async def _happens(waiting: Any, seconds: float) -> bool:
    """Whether it ends within this many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        return False
    return True


class _TermWorker(Worker):
    """A worker whose leases end with a term."""

    _takes_samples = False
    _has_side_workers = False
    _keeps_leases = False

    def __init__(
        self, engine: FullEngine, handlers: Handlers, options: Options, term: Term
    ) -> None:
        super().__init__(engine, handlers, options)
        self._leasing_engine = cast("FullEngine", _TermEngine(engine, term))


class _TermEngine:
    """An engine whose leases and extensions end with a term at the latest."""

    work_listener = None
    """Listeners would lease without checking the term."""

    def __init__(self, engine: FullEngine, term: Term) -> None:
        self._engine = engine
        self._term = term

    def _left_us(self) -> int:
        return round((self._term.until - clock()) * SECOND) if self._term.is_held else 0

    def lease(self, n: int, *, max_lease_us: int, **options: Any) -> Batch:
        left_us = self._left_us()
        if left_us <= 0:
            return Batch([], 0)
        batch = self._engine.lease(n, max_lease_us=min(max_lease_us, left_us), **options)
        if not batch.leases or self._left_us() > 0:
            return batch
        # The answer was late: these messages may overlap with a successor's.
        self._engine.settle(releases(batch.leases))
        return Batch([], batch.now_us)

    def extend(self, leases: Sequence[tuple[int, int]], by_us: int) -> list[bool]:
        left_us = self._left_us()
        if left_us <= 0:
            return [False] * len(leases)
        return self._engine.extend(leases, min(by_us, left_us))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)
