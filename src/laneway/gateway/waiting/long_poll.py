"""
Leases that wait for messages: one thread waits for all requests that want the same.

Requests for the same pool and topics form a line. The line's thread leases for the first request;
if there is nothing, it blocks in the engine's `wait`, so nothing polls and a waiting request costs
no thread. What was leased for a request that has ended meanwhile goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Literal

import msgspec

from laneway import units
from laneway.delivery import Wanted, lease_batch
from laneway.engines.shared.interrupt import Interrupt
from laneway.gateway.login.access import Caller
from laneway.gateway.problems import Problem
from laneway.message import Batch, releases
from laneway.runtime.runtime import Runtime

MAX_LINES = 64
"""Most different combinations of pool and topics that requests wait for; each has a thread."""

LINES_OF_CALLER = MAX_LINES // 4
"""Most of these that the requests of one token begin, so that none has all."""

MAX_WAITING = 200
"""Most requests of one token that wait at the same time."""

WAIT_SECONDS = 30.0
"""How long a line's thread waits at most before it leases again."""

MIN_PAUSE, MAX_PAUSE = 0.02, 0.5
"""
Seconds before a line that sees only some topics leases again after it was woken for other topics;
doubled from the first to the second.
"""


class _Waiting(msgspec.Struct, eq=False):
    """One request in a line, for a future of this loop."""

    count: int
    caller: str
    holder: str
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Batch]
    is_done: bool = False  # guarded by the lock of `LongPolls`


class _Line(msgspec.Struct, eq=False):
    """Requests that want the same: their `Wanted` are equal."""

    wanted: Wanted
    beginner: str
    waiting: deque[_Waiting] = msgspec.field(default_factory=deque)
    interrupt: Interrupt = msgspec.field(default_factory=Interrupt)


class LongPolls:
    """All lines of a gateway. `threads`: where messages are released."""

    def __init__(self, runtime: Runtime, threads: Executor) -> None:
        self._runtime = runtime
        self._threads = threads
        self._lock = threading.Lock()
        self._lines: dict[Wanted, _Line] = {}
        self._count_by_caller: dict[str, int] = {}
        self._is_stopping = False

    @property
    def count(self) -> int:
        """How many requests wait."""
        return sum(self._count_by_caller.values())

    async def lease(
        self, wanted: Wanted, count: int, seconds: float, caller: Caller, holder: str
    ) -> Batch:
        """
        Lease up to `count` messages; wait for the first one at most `seconds`.

        A cancelled call releases what arrives for it. Raises Problem if too many wait.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(count, caller.token or caller.name, holder, loop, loop.create_future())
        self._join(wanted, waiting)
        timer = waiting.loop.call_later(seconds, self._end, waiting)
        try:
            return await waiting.future
        except asyncio.CancelledError:
            if waiting.future.done() and not waiting.future.cancelled():
                self.release(waiting.future.result())
            raise
        finally:
            timer.cancel()
            self._leave(waiting)

    def release(self, batch: Batch) -> None:
        """Release messages in a thread."""
        if batch.leases:
            self._threads.submit(self._release, batch)

    def _release(self, batch: Batch) -> None:
        self._runtime.engine.settle(releases(batch.leases))

    def stop(self) -> None:
        """Answer all waiting requests, with nothing; later ones do not wait."""
        with self._lock:
            self._is_stopping = True
            waiting = [each for line in self._lines.values() for each in line.waiting]
            lines = list(self._lines.values())
        for line in lines:
            line.interrupt.set()
        for each in waiting:
            each.loop.call_soon_threadsafe(self._end, each)

    def _join(self, wanted: Wanted, waiting: _Waiting) -> None:
        with self._lock:
            if self._is_stopping:
                waiting.future.set_result(Batch([], time.time_ns() // 1000))
                return
            count = self._count_by_caller.get(waiting.caller, 0)
            line = self._lines.get(wanted)
            if count >= MAX_WAITING:
                raise _too_many(f"{MAX_WAITING} lease requests of this token wait already")
            if line is None and len(self._lines) >= MAX_LINES:
                raise _too_many(
                    f"requests for {MAX_LINES} different pools and lists of topics wait already"
                )
            own = sum(each.beginner == waiting.caller for each in self._lines.values())
            if line is None and own >= LINES_OF_CALLER:
                raise _too_many(
                    f"requests of this token wait for {LINES_OF_CALLER} different pools and lists"
                    " of topics already"
                )
            self._count_by_caller[waiting.caller] = count + 1
            if line is not None:
                line.waiting.append(waiting)
                return
            line = self._lines[wanted] = _Line(wanted, waiting.caller)
            line.waiting.append(waiting)
        threading.Thread(
            target=self._run, args=[line], name="laneway-long-poll", daemon=True
        ).start()

    def _leave(self, waiting: _Waiting) -> None:
        """The request has ended."""
        with self._lock:
            waiting.is_done = True
            left = self._count_by_caller.get(waiting.caller, 1) - 1
            if left:
                self._count_by_caller[waiting.caller] = left
            else:
                self._count_by_caller.pop(waiting.caller, None)
            for line in self._lines.values():
                if waiting in line.waiting:
                    line.waiting.remove(waiting)
                    if not line.waiting:
                        line.interrupt.set()
                    break

    def _end(self, waiting: _Waiting) -> None:
        """The time of the request is over. On its event loop."""
        if not waiting.future.done():
            waiting.future.set_result(Batch([], time.time_ns() // 1000))

    # The line's thread

    def _run(self, line: _Line) -> None:
        pause = MIN_PAUSE
        while (first := self._first(line)) is not None:
            try:
                batch = lease_batch(self._runtime.engine, line.wanted, first.count, first.holder)
                if batch.leases:
                    pause = MIN_PAUSE
                    self._deliver(line, first, batch)
                elif self._wait(line, batch) and batch.passed_over:
                    time.sleep(pause)
                    pause = min(2 * pause, MAX_PAUSE)
            except Exception as error:  # noqa: BLE001  # the requests get it
                self._fail(line, error)

    def _first(self, line: _Line) -> _Waiting | None:
        """The first request, or None if the line has ended."""
        with self._lock:
            if line.waiting and not self._is_stopping:
                if line.interrupt.is_set:  # it was empty for a moment
                    line.interrupt = Interrupt()
                return line.waiting[0]
            if self._lines.get(line.wanted) is line:
                del self._lines[line.wanted]
            return None

    def _wait(self, line: _Line, batch: Batch) -> bool:
        seconds = WAIT_SECONDS
        if batch.next_wake_us is not None:
            until = (batch.next_wake_us - batch.now_us) / units.SECOND
            seconds = min(seconds, max(0.0, until))
        return self._runtime.engine.wait(
            seconds,
            pool=line.wanted.pool,
            topics=line.wanted.topics,
            interrupt=line.interrupt,
        )

    def _deliver(self, line: _Line, waiting: _Waiting, batch: Batch) -> None:
        """Give the messages to the request that they were leased for, or back if it has ended."""
        with self._lock:
            if not waiting.is_done:
                line.waiting.remove(waiting)
        if waiting.is_done:
            self._release(batch)
        else:
            self._answer(waiting, batch)

    def _next(self, line: _Line) -> _Waiting | None:
        with self._lock:
            while line.waiting:
                waiting = line.waiting.popleft()
                if not waiting.is_done:
                    return waiting
        return None

    def _answer(self, waiting: _Waiting, batch: Batch) -> None:
        def answer() -> None:
            if waiting.future.done():  # its time was over, or its client has gone
                self.release(batch)
            else:
                waiting.future.set_result(batch)

        try:
            waiting.loop.call_soon_threadsafe(answer)
        except RuntimeError:  # the event loop has ended
            self._release(batch)

    def _fail(self, line: _Line, error: Exception) -> None:
        def fail(waiting: _Waiting) -> None:
            if not waiting.future.done():
                waiting.future.set_exception(error)

        while (waiting := self._next(line)) is not None:
            waiting.loop.call_soon_threadsafe(fail, waiting)


def _too_many(text: str) -> Problem:
    return Problem("rate-limited", f"{text}; wait for one of them", headers=(("retry-after", "1"),))


# Requests that wait for something else than messages


WaitKind = Literal["job", "stream", "consumer", "events"]
"""
What waits: for a job, for room in a stream of deliveries or messages for it, as the consumer of a
subscription, for events.
"""

KINDS: tuple[WaitKind, ...] = ("job", "stream", "consumer", "events")


class Waits:
    """Counts the requests that wait. Its methods belong to the event loop."""

    def __init__(self) -> None:
        self.by_kind: Counter[WaitKind] = Counter()
        self._by_caller: Counter[str] = Counter()

    def check(self, caller: Caller) -> None:
        """Raise Problem if a token has the maximum number of waiting requests."""
        if self._by_caller[caller.token or caller.name] >= MAX_WAITING:
            raise Problem(
                "rate-limited",
                f"{MAX_WAITING} requests of this token wait already for jobs, deliveries and"
                " events; end one of them",
                headers=(("retry-after", "1"),),
            )

    @contextlib.contextmanager
    def of(self, caller: Caller, kind: WaitKind) -> Iterator[None]:
        """Count a request while it waits. It has been checked before its answer began."""
        name = caller.token or caller.name
        self.by_kind[kind] += 1
        self._by_caller[name] += 1
        try:
            yield
        finally:
            self.by_kind[kind] -= 1
            self._by_caller[name] -= 1
            if not self._by_caller[name]:
                del self._by_caller[name]
