"""
`Term`: an election's term, as its holder sees it.

The holder's own clock decides until when it may act: the store confirms the term for a duration,
which counts from before the request was sent. The holder therefore stops before the store gives the
term to another process, even if the store no longer answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any

from laneway import arguments
from laneway.errors import StepAborted, TermLost, UsageError
from laneway.units import Duration
from laneway.working.time_limits import raise_in_thread

log = logging.getLogger("laneway.election")

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds of a monotonic clock that continues, if possible, while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


class TermEvent:
    """
    An event that happens at most once in a term, for threads and coroutines.

    `if event:`, `event.is_set()`, `event.wait(timeout)`, `await event`.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._futures: set[asyncio.Future[None]] = set()

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._event.is_set()

    __bool__ = is_set

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until it happens, at most `timeout`. Returns whether it has."""
        seconds = arguments.seconds_or_none("wait", "timeout", timeout)
        return self.is_set() or self._event.wait(seconds)

    def __await__(self) -> Generator[Any, Any, None]:
        return self._awaited().__await__()

    async def _awaited(self) -> None:
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._event.is_set():
                return
            self._futures.add(future)
        try:
            await future
        finally:
            with self._lock:
                self._futures.discard(future)

    def happen(self) -> None:
        """Set the event."""
        with self._lock:
            self._event.set()
            futures, self._futures = self._futures, set()
        for future in futures:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                future.get_loop().call_soon_threadsafe(_finish, future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Term:
    """
    A term of an election, for its holder.

    `name`: the election's. `number`: the fencing token; it is larger than the number of every
    earlier term. Write it with every change to your own store, and let that store refuse a number
    below the highest that it has seen. `was_handed_over`: whether the previous holder has handed
    over. It is also False for the first holder and after a crash: then repair any work that may be
    incomplete.
    """

    def __init__(self, name: str, number: int, until: float, *, was_handed_over: bool) -> None:
        self.name = name
        self.number = number
        self.was_handed_over = was_handed_over
        self._until = until
        self._bound_until = float("inf")
        self._ending = TermEvent()
        self.lost = TermEvent()
        """Set when this process no longer holds the term without having ended it."""
        self._lock = threading.Lock()
        self._steps: set[AtomicStep] = set()
        self._looked = clock()
        self._is_over = False

    # For the career

    @property
    def ending(self) -> TermEvent:
        """
        Set when the holder must step down, or has lost the term: end `execute` soon.

        `while not term.ending:`, `term.ending.wait(10)`, `await term.ending`.
        """
        self._looked = clock()
        if not self.is_held:
            self.lose("its time has passed")  # this thread is faster than the one that watches
        return self._ending

    @property
    def is_held(self) -> bool:
        """Whether this process holds the term now, by its own clock."""
        return not (self._is_over or self.lost.is_set()) and clock() < self.until

    def check(self) -> None:
        """Raise TermLost unless this process holds the term."""
        self._looked = clock()
        if not self.is_held:
            raise self.loss()

    def sleep(self, duration: Duration) -> bool:
        """
        Wait this long, or until the term is ending. Returns whether to continue:
        `while term.sleep(60):`
        """
        return not self.ending.wait(arguments.seconds("sleep", "duration", duration))

    async def asleep(self, duration: Duration) -> bool:
        """The async variant of `sleep`."""
        seconds = arguments.seconds("asleep", "duration", duration)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.ending
        return not self.ending

    def atomic(self, cancel: Callable[[], object] | None = None) -> AtomicStep:
        """
        Declare a step atomic, such as a transaction that is rolled back: it is aborted immediately
        when the term is ending, without side effects.

        `with term.atomic(), connection:` raises StepAborted inside the block; `async with` cancels
        it, and raises StepAborted at its end. Let the error end `execute`. `cancel` is also called,
        from another thread: it interrupts a call that does not return to Python meanwhile, such as
        `connection.interrupt` of sqlite3. The block ends after `cancel` has returned, so `cancel`
        never affects code after the block, and must not wait for the block.

        A block that ends without an error was not aborted.
        """
        if cancel is not None and not callable(cancel):
            raise UsageError(f"atomic: expected cancel to be a function, got {cancel!r:.80}")
        return AtomicStep(self, cancel)

    def __repr__(self) -> str:
        state = "lost" if not self.is_held else "ending" if self._ending.is_set() else "held"
        return f"<Term {self.number} of {self.name}, {state}>"

    # For the campaign

    @property
    def until(self) -> float:
        """The time until which this process may act, by `clock`."""
        return min(self._until, self._bound_until)

    def is_past_bound(self, now: float) -> bool:
        """Whether the bound for handing over has passed."""
        return self._bound_until <= now

    @property
    def is_ending(self) -> bool:
        """Whether the holder must step down; reading this does not count as the career's check."""
        return self._ending.is_set()

    @property
    def looked(self) -> float:
        """When the career last checked this object, by `clock`."""
        return self._looked

    def renewed(self, until: float) -> None:
        """Record that the store has confirmed the term until then."""
        self._until = until

    def end_soon(self, reason: str, bound: float) -> None:
        """Ask the holder to step down within `bound` seconds. The first call counts."""
        with self._lock:
            if self._ending.is_set():
                return
            self._bound_until = clock() + bound
            self._ending.happen()
        log.info("election %s: term %d is ending: %s", self.name, self.number, reason)
        self._abort_steps()

    def lose(self, reason: str) -> None:
        """Record that the process must no longer act. The first call counts."""
        with self._lock:
            if self._is_over or self.lost.is_set():
                return
            self.lost.happen()
            self._ending.happen()
        log.warning("election %s: term %d is lost: %s", self.name, self.number, reason)
        self._abort_steps()

    def finish(self) -> bool:
        """End the term. Returns whether the holder has held it until now."""
        with self._lock:
            is_held = self.is_held
            self._is_over = True
            self._ending.happen()
        self._abort_steps()
        return is_held

    def loss(self) -> TermLost:
        """The error that reports the loss."""
        return TermLost(
            f"election {self.name}: this process does not hold term {self.number} any more; end"
            " without changing anything",
            self.number,
        )

    def aborted(self) -> StepAborted:
        """The error of an atomic step that must not continue."""
        return StepAborted(
            f"election {self.name}: term {self.number} is ending, so this atomic step was aborted"
        )

    def _abort_steps(self) -> None:
        with self._lock:
            steps = list(self._steps)
        # Aborting a step of this thread raises its error here.
        for step in sorted(steps, key=AtomicStep.is_in_this_thread):
            step.abort()

    def add_step(self, step: AtomicStep) -> None:
        """Register a step that begins. Raises StepAborted if it must not begin."""
        self._looked = clock()
        with self._lock:
            if not self._ending.is_set() and self.is_held:
                self._steps.add(step)
                return
        raise self.aborted()

    def remove_step(self, step: AtomicStep) -> None:
        """Remove a step that has ended."""
        self._looked = clock()
        with self._lock:
            self._steps.discard(step)


class AtomicStep:
    """The block of `term.atomic()`. Not reusable."""

    def __init__(self, term: Term, cancel: Callable[[], object] | None) -> None:
        self._term = term
        self._cancel = cancel
        # Held while an error is raised in the step's thread, and while it begins and ends.
        self._lock = threading.Lock()
        self._is_running = False
        self._is_aborted = False
        self._thread = 0
        self._task: asyncio.Task[Any] | None = None
        self._cancellations = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancelled = TermEvent()
        """Happens when `cancel` has returned."""

    def is_in_this_thread(self) -> bool:
        """Whether the step is not a coroutine's and runs in the current thread."""
        return self._loop is None and self._thread == threading.get_ident()

    def abort(self) -> None:
        """Abort the step, from any thread. Raises StepAborted if it runs in this thread."""
        with self._lock:
            if not self._is_running or self._is_aborted:
                return
            self._is_aborted = True
            if self.is_in_this_thread():
                self._cancelled.happen()  # nothing needs cancelling: this is the step's thread
                raise self._term.aborted()
            if self._loop is None:
                raise_in_thread(self._thread, self._term.aborted())
            else:
                with contextlib.suppress(RuntimeError):  # the event loop is closed
                    self._loop.call_soon_threadsafe(self._cancel_task)
        try:
            if self._cancel is not None:
                self._cancel()
        except Exception:
            log.exception("election %s: cancel of an atomic step failed", self._term.name)
        finally:
            self._cancelled.happen()

    # In a thread

    def __enter__(self) -> None:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise UsageError("atomic: expected `async with` in a coroutine, got `with`")
        self._thread = threading.get_ident()
        try:
            self._begin()
        except StepAborted:  # even from an abort just after it had begun
            self._await_cancel()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with self._lock:
                self._is_running = False
                raise_in_thread(self._thread, None)
        finally:
            self._is_running = False  # even if the error was raised at that lock
            self._await_cancel()
            self._term.remove_step(self)
        if self._is_aborted and isinstance(error, Exception) and not _is_abort(error):
            raise self._term.aborted() from error  # from the call that `cancel` interrupted

    def _await_cancel(self) -> None:
        if self._is_aborted:
            self._cancelled.wait()

    # In a coroutine

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancellations = self._task.cancelling()
        self._begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._is_running = False
        self._term.remove_step(self)
        try:
            await self._end_cancellation(error)
        finally:
            if self._is_aborted:
                await self._cancelled

    async def _end_cancellation(self, error: BaseException | None) -> None:
        """Undo this step's cancellation. Raises StepAborted instead of it."""
        task = self._task
        assert task is not None
        if task.cancelling() <= self._cancellations:
            if self._is_aborted and isinstance(error, Exception) and not _is_abort(error):
                raise self._term.aborted() from error
            return
        if not self._was_cancelled:
            return  # something else cancels the task
        if error is None:  # the step was complete: drop the rest of the cancellation
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        if task.uncancel() <= self._cancellations and isinstance(
            error, (asyncio.CancelledError, Exception)
        ):
            raise self._term.aborted() from error

    _was_cancelled = False

    def _cancel_task(self) -> None:
        """On the event loop."""
        if self._is_running and self._task is not None:
            self._was_cancelled = True
            self._task.cancel()

    def _begin(self) -> None:
        if self._is_running or self._is_aborted:
            raise UsageError("atomic: a block is used once; call term.atomic() again")
        self._is_running = True
        try:
            self._term.add_step(self)
        except BaseException:
            self._is_running = False
            raise


def _is_abort(error: BaseException) -> bool:
    return isinstance(error, (StepAborted, TermLost))
