"""
The thread that tells the store that this worker is alive, and what it does.

It is a thread of its own, so that neither a handler that blocks the event loop nor a long call of
the engine thread delays a heartbeat. Leases do not depend on it: the engine thread extends them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence

from laneway import storable, units
from laneway.engines.base import (
    MAX_BUSY_TOPICS,
    MAX_WORKER_NAMES,
    FullEngine,
    RunningMessage,
    WorkerFacts,
)
from laneway.errors import LanewayError
from laneway.working import commands
from laneway.working.banner import installed_version
from laneway.working.engine_thread import EngineThread
from laneway.working.handler import Handlers
from laneway.working.worker_delivery import WorkerDelivery

log = logging.getLogger("laneway.worker")

BEATS = 3
"""Heartbeats in one heartbeat timeout: two may be lost or late."""

BUSY_BEATS = 4
"""The number of heartbeats whose mean is reported as what topics keep busy."""

LISTED_SECONDS = 11.0
"""How long a dead worker stays on the list, so that people see that it died."""

BLOCKED_SECONDS, WARN_SECONDS = 1.0, 60.0
"""
How long a handler may block the event loop before the log names it, and how often it does so.
"""

END_SECONDS = 5.0
"""How long the end of the worker waits for the store to take it off the list."""


class Heartbeat(threading.Thread):
    """
    Sends heartbeats from `start` to `end`.

    `running`: the units that have a slot. `stop`: stops the worker in order. Created on its event
    loop.
    """

    def __init__(
        self,
        engine: FullEngine,
        handlers: Handlers,
        engine_thread: EngineThread,
        running: Collection[WorkerDelivery],
        stop: Callable[[], None],
    ) -> None:
        super().__init__(name="laneway-heartbeat", daemon=True)
        host = socket.gethostname()
        self.worker_id = f"{host}-{os.getpid()}-{secrets.token_hex(3)}"
        self._engine = engine
        self._options = options = engine_thread.options
        self._engine_thread = engine_thread
        self._running = running
        self._loop = asyncio.get_running_loop()
        self._stop = stop
        self._facts = WorkerFacts(
            id=self.worker_id,
            host=host,
            pid=os.getpid(),
            program=handlers.program,
            version=handlers.version,
            laneway=installed_version(),
            pools=[options.pool],
            topics=options.topics,
            patterns=handlers.handled_patterns(),
            concurrency=options.concurrency,
            keys=handlers.key_names(),
        )
        self._patterns = handlers.covering_patterns()
        self._busy: deque[dict[str, int]] = deque(maxlen=BUSY_BEATS)
        self._due = threading.Event()
        self._is_ending = False
        self._is_asked = False
        """Whether somebody pinged the worker: there may be a command for it."""
        self._clock_us = 0
        """The store's time, in microseconds, when `perf_counter` was 0."""
        self._asked = self._responded = time.monotonic()
        """When the event loop was asked to respond, and when it last did (monotonic seconds)."""
        self._warned_until: dict[str, float] = {}
        """By name: until when a handler that blocks the event loop is not named again."""
        self._is_failing = False
        self._locality = Locality(engine, options.pool, self.worker_id)

    def beat_now(self) -> None:
        """Send a heartbeat immediately. From any thread."""
        self._due.set()

    def asked(self) -> None:
        """Send a heartbeat immediately, and look for a command. From any thread."""
        self._is_asked = True
        self._due.set()

    def end(self) -> None:
        """Take the worker off the list; waits for that."""
        self._is_ending = True
        self._due.set()
        if self.ident is not None:
            self.join(END_SECONDS)

    def run(self) -> None:
        interval = self._options.heartbeat_timeout / BEATS
        count = 0
        while not self._is_ending:
            self._due.clear()
            self._call(self._beat)
            if self._is_asked:
                self._is_asked = False
                self._call(self._obey)
            if count % BEATS in (0, 1) and not self._is_ending:
                self._call(self._locality.refresh)
            count += 1
            if not self._is_ending and not self._due.wait(min(BLOCKED_SECONDS, interval)):
                self._call(self._name_blocking)
                self._due.wait(max(0.0, interval - BLOCKED_SECONDS))
        self._call(lambda: self._engine.leave(self.worker_id))

    def _call(self, call: Callable[[], None]) -> None:
        """A heartbeat that fails ends nothing: the next one may succeed."""
        try:
            call()
        except LanewayError as error:
            if not self._is_failing:
                log.debug("heartbeat failed; sending it again every few seconds: %s", error)
            self._is_failing = True
        except Exception as error:  # noqa: BLE001  # the messages matter more
            if not self._is_failing:
                log.warning(
                    "heartbeat failed; the worker continues: %s: %s",
                    storable.type_name(type(error)),
                    storable.of(error, storable.MAX_REASON),
                )
            self._is_failing = True
        else:
            self._is_failing = False

    def _beat(self) -> None:
        facts = self._facts
        running, held = list(self._running), dict(self._engine_thread.held)
        facts.busy = len(running)
        facts.busy_topics = self._busy_topics(running)
        facts.slots = _slots(running)
        if (full := _full(running)) and facts.patterns is None:
            full |= dict.fromkeys(self._patterns - full.keys(), 0)
        facts.full = full
        facts.leased = len(held)
        oldest = [each for _, each in sorted(held.items()) if each is not None]  # in each shard
        facts.held = [each.lease.handle for each in oldest[:MAX_WORKER_NAMES]]
        facts.durations = self._engine_thread.settler.durations.counts()
        facts.oldest = self._oldest(running)
        facts.stopping = not self._engine_thread.is_leasing
        facts.loop_lag = self._loop_lag()
        timeout = self._options.heartbeat_timeout
        now_us = self._engine.beat(
            facts,
            dead_after_us=round(timeout * units.SECOND),
            listed_us=round((timeout + LISTED_SECONDS) * units.SECOND),
        )
        self._clock_us = now_us - round(time.perf_counter() * units.SECOND)

    def _obey(self) -> None:
        if commands.obey(self._engine, self.worker_id, list(self._running), self._loop):
            log.info("worker %d is asked to drain", os.getpid())
            self._stop()

    def _busy_topics(self, running: list[WorkerDelivery]) -> dict[str, float]:
        """By topic: how many handlers run, as a mean of the last heartbeats."""
        now = Counter(unit.lease.topic for unit in running if unit.began)
        self._busy.append(dict(now.most_common(MAX_BUSY_TOPICS)))
        total: Counter[str] = Counter()
        for each in self._busy:
            total.update(each)
        return {
            topic: round(count / len(self._busy), 2)
            for topic, count in total.most_common(MAX_BUSY_TOPICS)
        }

    def _oldest(self, running: list[WorkerDelivery]) -> RunningMessage | None:
        begun = [unit for unit in running if unit.began]
        if not begun or not self._clock_us:
            return None
        first = min(begun, key=lambda unit: unit.began)
        since_us = self._clock_us + round(first.began * units.SECOND)
        return RunningMessage(first.lease.topic, first.lease.id, since_us)

    def _loop_lag(self) -> float:
        """How long the event loop took to respond last; it is asked again once it has."""
        now = time.monotonic()
        if self._responded < self._asked:
            return now - self._asked
        lag = self._responded - self._asked
        self._asked = now
        try:
            self._loop.call_soon_threadsafe(self._respond)
        except RuntimeError:  # the event loop is closed
            self._responded = now
        return lag

    def _name_blocking(self) -> None:
        """Log which handler keeps the event loop from responding, if one does."""
        now = time.monotonic()
        if self._responded >= self._asked or now - self._asked < BLOCKED_SECONDS:
            return
        task = asyncio.current_task(self._loop)
        for unit in list(self._running):
            if task is None or getattr(unit.runner, "task", None) is not task:
                continue
            name = unit.handler.name
            if self._warned_until.get(name, 0.0) <= now:
                self._warned_until[name] = now + WARN_SECONDS
                log.warning(
                    "handler %s blocks the event loop: nothing else ran there for %.1f s (message"
                    " %s in topic %s); make it a plain function (def), which gets a thread",
                    name,
                    now - self._asked,
                    unit.lease.id,
                    unit.lease.topic,
                )

    def _respond(self) -> None:
        self._responded = time.monotonic()


def _slots(running: list[WorkerDelivery]) -> dict[str, tuple[int, float]]:
    """By pattern: how many handlers run, and for how many seconds the oldest one."""
    now = time.perf_counter()
    found: dict[str, tuple[int, float]] = {}
    for unit in running:
        if unit.began:
            pattern = unit.handler.covering
            count, longest = found.get(pattern, (0, 0.0))
            found[pattern] = count + 1, round(max(longest, now - unit.began), 3)
    return found


def _full(running: list[WorkerDelivery]) -> dict[str, int]:
    """By pattern of the handlers that run as many calls as they admit: that number."""
    calls = Counter(unit.handler for unit in running)
    return {
        handler.covering: count for handler, count in calls.items() if count == handler.concurrency
    }


MAX_WORKERS = 500
"""
Workers of a pool that divide the shards; where there are more, nobody has shards of its own. Each
worker reads the list of all.
"""


class Locality:
    """
    Which shards a worker visits first: its own. `refresh` is called in one thread.

    The running workers of a pool divide the shards among them by rendezvous hashing: each worker
    has a score in each shard, and the shard belongs to the worker with the highest. A topic
    keeps meeting the same process, and when a worker comes or goes only its part moves. Nothing but
    the order of visits depends on it.
    """

    def __init__(self, engine: FullEngine, pool: str, worker_id: str) -> None:
        self._engine = engine
        self._pool = pool
        self._worker_id = worker_id
        self._workers: list[str] = []

    def refresh(self) -> None:
        """Read who works in the pool, and prefer the shards that are this worker's part."""
        shards = self._engine.capabilities.shards
        if shards == 1:
            return
        listed = self._engine.workers(limit=MAX_WORKERS + 1, pool=self._pool)
        workers = [each.facts.id for each in listed if each.state == "running"]
        if workers != self._workers:
            self._workers = workers
            divides = len(listed) <= MAX_WORKERS and self._worker_id in workers
            own = own_shards(self._worker_id, workers, shards) if divides else []
            self._engine.prefer(self._pool, own)


def own_shards(worker_id: str, worker_ids: Sequence[str], shards: int) -> list[int]:
    """The shards in which this worker has the highest score of all."""
    return [
        shard
        for shard in range(shards)
        if max(worker_ids, key=lambda each: _score(each, shard)) == worker_id
    ]


def _score(worker_id: str, shard: int) -> bytes:
    return hashlib.blake2b(f"{shard} {worker_id}".encode(), digest_size=8).digest()
