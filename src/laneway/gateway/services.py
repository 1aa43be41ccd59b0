"""`Services`: what all requests of a gateway share."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from laneway.gateway import receipts
from laneway.gateway.http import Readers, Request, Response
from laneway.gateway.login.access import Caller
from laneway.gateway.login.local_login import LocalLogin
from laneway.gateway.login.sessions import Sessions
from laneway.gateway.login.shared_key import shared_key
from laneway.gateway.login.tokens import TokenCheck
from laneway.gateway.operations import Operations
from laneway.gateway.routing import Route
from laneway.gateway.waiting.credits import Credits
from laneway.gateway.waiting.feed import Feed
from laneway.gateway.waiting.long_poll import LongPolls, Waits
from laneway.gateway.waiting.open_requests import OpenRequests
from laneway.runtime.runtime import Runtime

T = TypeVar("T")

BODY_SECONDS = 5.0
"""How long the rest of a request's body may take once the gateway stops."""

THREADS = 16
"""Reads and settlements that run at the same time; publishes have the application's threads."""

LATENCY_BOUNDS = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, math.inf)
"""Upper bounds in seconds of the time that answers take."""


class Extended(Protocol):
    """What the routes of the API use of an extension."""

    def login(self, request: Request, following: str, problem: str) -> Response | None:
        """The page of a login."""

    def close(self) -> None:
        """End threads."""


class Services:
    """The application, threads for blocking calls, the requests that wait, and counters."""

    def __init__(
        self,
        runtime: Runtime,
        routes: tuple[Route, ...],
        extensions: Sequence[Extended] = (),
        local_login: LocalLogin | None = None,
    ) -> None:
        self.runtime = runtime
        self.routes = routes
        self.extensions = extensions
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="laneway-gateway")
        self.long_polls = LongPolls(runtime, self.threads)
        self.answers: Counter[tuple[str, str, int]] = Counter()
        """Answers by method, path of the route, and status."""
        self.latencies: Counter[tuple[str, str, float]] = Counter()
        """Answers by method, path of the route, and the bound of the time that they took."""
        self.answer_seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.tokens = TokenCheck(runtime)
        self.sessions = Sessions(runtime, self.tokens, local_login)
        self.credits = Credits()
        self.waits = Waits()
        self.operations = Operations(runtime)
        self.feed = Feed(self)
        self.open_requests = OpenRequests(self.threads, self.tokens, self.sessions)
        self.is_stopping = False
        self.is_closed = False
        self._receipt_key: bytes | None = None
        self._probe_thread = ThreadPoolExecutor(1, thread_name_prefix="laneway-gateway-probe")
        self._question: asyncio.Future[int] | None = None
        """What was asked of the store last: probes that come meanwhile share the answer."""
        self._shared: dict[Hashable, asyncio.Future[Any]] = {}
        """The calls of `run_shared` that run, by loop, function and arguments."""
        self.readers: Readers = {}
        self._ends: dict[Callable[[], object], asyncio.AbstractEventLoop] = {}

    def count_answer(self, method: str, path: str, status: int, started: float) -> None:
        """Count an answer to a request of a route that arrived at `started` (`perf_counter`)."""
        seconds = time.perf_counter() - started
        bound = LATENCY_BOUNDS[bisect.bisect_left(LATENCY_BOUNDS, seconds)]
        self.answers[method, path, status] += 1
        self.latencies[method, path, bound] += 1
        self.answer_seconds[method, path] += seconds

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a blocking function in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, function, *arguments)

    async def run_shared(self, function: Callable[..., T], *arguments: Hashable) -> T:
        """As `run`. Who asks for the same call while it runs shares its answer, or its error."""
        loop = asyncio.get_running_loop()
        key = (loop, function, arguments)
        running: asyncio.Future[T] | None = self._shared.get(key)
        if running is None:
            running = loop.run_in_executor(self.threads, function, *arguments)
            self._shared[key] = running
            running.add_done_callback(lambda _: self._shared.pop(key, None))
        return await asyncio.shield(running)

    async def receipt_key(self, caller: Caller) -> bytes:
        """The key of a caller's receipts."""
        if self._receipt_key is None:
            self._receipt_key = await self.run(shared_key, self.runtime.engine, receipts.KEY)
        return receipts.key_of(self._receipt_key, caller.token)

    async def ask_store(self) -> None:
        """
        Read the store's clock, in a thread of its own: it answers even if all others are busy.
        """
        loop, question = asyncio.get_running_loop(), self._question
        if question is None or question.done() or question.get_loop() is not loop:
            question = self._question = loop.run_in_executor(self._probe_thread, self._read_clock)
        await asyncio.shield(question)

    def _read_clock(self) -> int:
        return self.runtime.engine.time_us()

    @contextlib.contextmanager
    def ended_by(self, end: Callable[[], object]) -> Iterator[None]:
        """While the block runs, `stop` calls `end` on its event loop."""
        loop = self._ends[end] = asyncio.get_running_loop()
        if self.is_stopping:
            loop.call_soon(self._end, end)
        try:
            yield
        finally:
            del self._ends[end]

    def _end(self, end: Callable[[], object]) -> None:
        if end in self._ends:
            end()

    def stop(self) -> None:
        """End the waiting requests and streams."""
        self.is_stopping = True
        self.long_polls.stop()
        self.operations.stop()
        for end, loop in list(self._ends.items()):
            loop.call_soon_threadsafe(self._end, end)
        for reader, loop in list(self.readers.items()):
            loop.call_soon_threadsafe(reader.end_reading, BODY_SECONDS)

    def close(self) -> None:
        """Wait for what runs in threads."""
        self.stop()
        self.is_closed = True
        for extension in self.extensions:
            extension.close()
        self.operations.close()
        self.threads.shutdown()
        self._probe_thread.shutdown(wait=False)
