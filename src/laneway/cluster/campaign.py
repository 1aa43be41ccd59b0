"""
`Campaign`: one candidate of an election, from its first read of the state until it is stopped.

    look, until the term is free ──► claim ──► inaugurate ──► execute ──► hand_over ──► end
      ▲                                                                                  │
      └──────────────────────────────── back off, with jitter ◄──────────────────────────┘

Everything here runs on one event loop; blocking calls run in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from laneway.cluster.career import CareerRunner
from laneway.cluster.renewal import TermRenewal, TermTimes
from laneway.cluster.term import Term, clock
from laneway.cluster.term_store import Candidate, Claim, ElectionState, TermStore
from laneway.errors import EngineUnavailable, LanewayError, StepAborted, TermLost
from laneway.printable import process_name, without_passwords

log = logging.getLogger("laneway.election")

FIRST_BACK_OFF, MAX_BACK_OFF = 1.0, 60.0
"""
Seconds between the end of a failed term and the next candidacy, doubled by each further failure;
the actual pause is half to all of it.
"""

AWAY_SECONDS = 15.0
"""The longest pause between two attempts while the store does not answer."""

END_TRIES_SECONDS = 0.5
"""The pause between two attempts to report the term's end to the store."""


class Campaign:
    """Runs for one election until it is stopped or has served `most` terms. Not reusable."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Any],
        times: TermTimes,
        store: TermStore,
        threads: Executor,
        most: int | None,
    ) -> None:
        self._name = name
        self._make = make
        self._times = times
        self._store = store
        self._threads = threads
        self._most = most
        self._candidate = Candidate(secrets.token_hex(6), process_name())
        self._lock = threading.Lock()  # guards the next two
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._thread_id = 0
        self._signals = 0
        self._task: asyncio.Task[None] | None = None
        self._terms = 0
        self.ended = threading.Event()
        """Set once it no longer uses the store."""
        self.stop_seconds = times.bound + times.term
        """The longest time from the stop to the end."""

    # From any thread

    def stop(self) -> None:
        """End the candidacy; a holder steps down first. Does not wait."""
        with self._lock:
            self._is_stopping = True
            loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._stop)

    def stop_by_signal(self) -> None:
        """Shut down gracefully; the second call stops immediately. On the event loop."""
        self._signals += 1
        if self._signals > 1 and self._task is not None:
            self._task.cancel()
        self.stop()

    def runs_in_this_thread(self) -> bool:
        """Whether waiting for its end in the current thread would deadlock."""
        return self._thread_id == threading.get_ident() and not self.ended.is_set()

    # On the event loop

    async def arun(self) -> int:
        """
        Returns the number of terms that this candidate has held. If it is cancelled, it steps down
        gracefully; if it is cancelled again, immediately.
        """
        self._thread_id = threading.get_ident()
        self._stopped = asyncio.Event()
        self._renewal: TermRenewal | None = None
        with self._lock:
            self._loop = asyncio.get_running_loop()
        if self._is_stopping:
            self._stop()
        task = asyncio.create_task(self._run(), name=f"laneway-election-{self._name}")
        self._task = task
        cancellations = 0
        try:
            while not task.done():
                try:
                    await asyncio.wait((task,))
                except asyncio.CancelledError:
                    cancellations += 1
                    self.stop()
                    if cancellations > 1:
                        task.cancel()
            if not task.cancelled():
                task.result()  # raises the error that makes the election impossible
            if cancellations:
                raise asyncio.CancelledError
            return self._terms
        finally:
            self.ended.set()

    def _stop(self) -> None:
        self._stopped.set()
        if self._renewal is not None:
            self._renewal.step_down("this candidate is stopped")

    async def _run(self) -> None:
        failures = 0
        try:
            while not self._is_stopping and (self._most is None or self._terms < self._most):
                claim = await self._candidacy()
                if claim is None:
                    break
                self._terms += 1
                is_success = await self._serve(claim)
                failures = 0 if is_success else failures + 1
                if self._terms != self._most:
                    await self._pause(self._back_off(failures))
        finally:
            with contextlib.suppress(Exception):
                await self._do(self._store.close)

    def _back_off(self, failures: int) -> float:
        """The pause in seconds, long enough for another candidate to read the state in between."""
        if failures == 0:
            return self._times.look * random.uniform(1.5, 2.5)
        longest = min(FIRST_BACK_OFF * 2.0 ** min(failures - 1, 10), MAX_BACK_OFF)
        return max(longest * random.uniform(0.5, 1.0), self._times.look * 1.5)

    # Being a candidate

    async def _candidacy(self) -> Term | None:
        """Read the state until the term can be claimed. Returns None if stopped."""
        away = 0
        while not self._is_stopping:
            asked = clock()
            try:
                answer = await self._do(self._store.claim, self._candidate, self._times.term)
            except EngineUnavailable as error:
                away += 1
                pause = min(2.0 ** min(away, 10) / 4, AWAY_SECONDS) * random.uniform(0.5, 1.0)
                log.log(
                    logging.WARNING if away == 1 else logging.DEBUG,
                    "election %s: the store does not answer; trying again: %s",
                    self._name,
                    without_passwords(str(error)),
                )
                await self._pause(pause)
                continue
            if away:
                log.info("election %s: the store answers again", self._name)
                away = 0
            if isinstance(answer, Claim):
                log.info("election %s: term %d begins here", self._name, answer.number)
                return Term(
                    self._name,
                    answer.number,
                    asked + answer.left - self._times.margin,
                    was_handed_over=answer.was_handed_over,
                )
            await self._pause(self._next_look(answer))
        return None

    def _next_look(self, state: ElectionState) -> float:
        """
        The pause until the next read, with jitter that separates candidates that began together.
        """
        look = self._times.look * random.uniform(0.5, 1.0)
        return look if state.left is None else min(look, state.left + look / 10)

    # Being the holder

    async def _serve(self, term: Term) -> bool:
        """Hold a term to its end. Returns whether nothing failed."""
        renewal = self._renewal = TermRenewal(self._store, term, self._times)
        career = CareerRunner(self._make, term, lambda: self._is_stopping)
        renewal.start()
        handed_over = False
        try:
            if self._is_stopping:
                self._stop()
            is_success, is_inaugurated = await self._work(career, term)
            if is_inaugurated and term.is_held:
                renewal.step_down("execute has ended")
                handed_over = await self._attempt(career, "hand_over", term)
                is_success &= handed_over
        finally:
            self._renewal = None
            career.close()
            await self._end(renewal, term, handed_over=handed_over)
        return is_success

    async def _work(self, career: CareerRunner, term: Term) -> tuple[bool, bool]:
        """Returns whether nothing failed, and whether the holder was inaugurated."""
        if not await self._attempt(career, "begin", term):
            return False, False
        if not await self._attempt(career, "inaugurate", term):
            return False, False
        if term.is_ending:
            return True, True
        return await self._attempt(career, "execute", term), True

    async def _attempt(self, career: CareerRunner, method: str, term: Term) -> bool:
        """Call a method; its error is logged. Returns whether it has succeeded."""
        try:
            if method == "begin":
                await career.begin()
            else:
                await career.call(method)
        except StepAborted as error:
            if term.is_ending:
                log.info("%s", error)
                return True
            self._log_failure(method, term, error)
        except TermLost as error:
            log.info("%s", error)
        except Exception as error:  # noqa: BLE001  # the career's own errors end its term, not the program
            self._log_failure(method, term, error)
        except (SystemExit, KeyboardInterrupt) as error:
            self._log_failure(method, term, error)
            self.stop()
        else:
            return not term.lost
        return False

    def _log_failure(self, method: str, term: Term, error: BaseException) -> None:
        log.error(
            "election %s: term %d: %s failed: %s: %s",
            self._name,
            term.number,
            "making the career" if method == "begin" else method,
            type(error).__name__,
            without_passwords(str(error)),
            exc_info=error,
        )

    async def _end(self, renewal: TermRenewal, term: Term, *, handed_over: bool) -> None:
        """Report the term's end to the store, while no other candidate can have the term."""
        renewal.close()  # first: a renewal that finds the term ended would report it as lost
        until = term.until
        handed_over &= term.finish()
        while True:
            try:
                await self._do(lambda: self._store.end(term.number, handed_over=handed_over))
            except LanewayError as error:
                if clock() < until:
                    await asyncio.sleep(END_TRIES_SECONDS)
                    continue
                log.warning(
                    "election %s: the store was not told that term %d has ended (%s); it expires"
                    " on its own",
                    self._name,
                    term.number,
                    without_passwords(str(error)),
                )
            else:
                log.info("election %s: term %d has ended here", self._name, term.number)
            break

    # Waiting

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()

    async def _do(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
