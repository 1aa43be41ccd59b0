"""
`Career`: a program's work as the holder of an election, and how its methods are called.

Coroutine functions run on the event loop. A term's plain functions run one at a time in their own
thread, which can be abandoned: a method that does not return must not keep the program from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from laneway.cluster.term import Term
from laneway.errors import TermLost, UsageError
from laneway.printable import escaped
from laneway.working.time_limits import raise_in_thread

log = logging.getLogger("laneway.election")

METHODS = ("inaugurate", "execute", "hand_over")

INSIST_SECONDS = 1.0
"""
Seconds after which a method that has lost the term gets the error again; if its candidate is
stopped, the method is then abandoned.
"""


class Career(Protocol):
    """
    One term of office. The three methods may be plain or coroutine functions; `inaugurate` and
    `hand_over` may also take the term.

    Each term has its own object, so no state remains from an earlier term.
    """

    # properties, because a protocol's method cannot have a parameter that may be missing

    @property
    def inaugurate(self) -> Callable[..., Any]:
        """Take over: read where the previous holder stopped. No other holder is active."""

    @property
    def execute(self) -> Callable[[Term], Any]:
        """
        Do the work until `term.ending`. Returning earlier also ends the term, unless it returns
        True: then it is called again until the term is ending.
        """

    @property
    def hand_over(self) -> Callable[..., Any]:
        """
        Prepare the work so that the successor can continue it. Not called after the term is lost.
        """


def check_career(call: str, make: object) -> None:
    """
    Raise UsageError if this cannot be a career: a class, or a function that creates the object.
    """
    expected = "expected a class with inaugurate(), execute(term) and hand_over()"
    if not callable(make):
        raise UsageError(f"{call}: {expected}, or a function that makes one, got {make!r:.80}")
    if not inspect.isclass(make):
        return
    for name in METHODS:
        method = inspect.getattr_static(make, name, None)
        if method is None:
            raise UsageError(f"{call}: {expected}; {make.__qualname__} has no {name}")
        if not callable(getattr(make, name)):
            raise UsageError(f"{call}: {expected}; {make.__qualname__}.{name} is no function")


class CareerRunner:
    """Creates a term's object and calls its methods, until its candidate is stopped."""

    def __init__(
        self, make: Callable[[], Any], term: Term, is_stopping: Callable[[], bool]
    ) -> None:
        self._term = term
        self._make = make
        self._is_stopping = is_stopping
        self._career: Any = None
        self._thread: CareerThread | None = None

    async def begin(self) -> None:
        """Create the object."""
        if inspect.iscoroutinefunction(getattr(self._make, "inaugurate", None)):
            self._career = self._make()  # where its first method runs
        else:
            self._career = await self._run(self._in_thread(self._make))
        for name in METHODS:
            if not callable(getattr(self._career, name, None)):
                raise UsageError(
                    f"election {self._term.name}: expected an object with inaugurate(),"
                    f" execute(term) and hand_over(); {type(self._career).__qualname__} has no"
                    f" {name}"
                )

    async def call(self, name: str) -> None:
        """
        Call a method of the career; `execute` again while it returns True. Raises the method's
        errors, and TermLost once the term is lost and the method has ended or is abandoned.
        """
        while await self._call_once(name) is True and name == "execute":
            if self._term.ending:
                return

    async def _call_once(self, name: str) -> Any:
        method = getattr(self._career, name)
        arguments = (self._term,) if name == "execute" or _takes_one(method) else ()
        if inspect.iscoroutinefunction(method):
            task = asyncio.create_task(
                method(*arguments), name=f"laneway-term-{self._term.name}-{name}"
            )
            return await self._run((task, task.cancel))
        return await self._run(self._in_thread(method, *arguments))

    def close(self) -> None:
        """End the thread, or abandon it if its method is still running."""
        if self._thread is not None:
            self._thread.close()

    async def _run(self, begun: tuple[asyncio.Future[Any], Callable[[], object]]) -> Any:
        """Wait for a method; when the term is lost, stop it and wait on."""
        running, stop = begun
        lost = asyncio.ensure_future(_wait(self._term))
        try:
            await asyncio.wait((running, lost), return_when=asyncio.FIRST_COMPLETED)
            while not running.done():
                stop()
                await asyncio.wait((running,), timeout=INSIST_SECONDS)
                if self._is_stopping() and not running.done():
                    log.warning(
                        "election %s: term %d is lost and this candidate is stopped, but its"
                        " method does not return; it is abandoned",
                        self._term.name,
                        self._term.number,
                    )
                    raise self._term.loss()
        except asyncio.CancelledError:  # the campaign ends immediately
            stop()
            raise
        finally:
            lost.cancel()
        if self._term.lost and (running.cancelled() or running.exception() is not None):
            with contextlib.suppress(BaseException):
                running.result()
            raise self._term.loss()
        if running.cancelled():
            raise RuntimeError("it was cancelled")  # by the program itself
        return running.result()

    def _in_thread(
        self, method: Callable[..., Any], *arguments: Any
    ) -> tuple[asyncio.Future[Any], Callable[[], object]]:
        if self._thread is None:
            self._thread = CareerThread(escaped(self._term.name))
            self._thread.start()
        thread = self._thread
        return thread.submit(method, *arguments), lambda: thread.stop(self._term.loss())


async def _wait(term: Term) -> None:
    await term.lost


def _takes_one(method: Callable[..., Any]) -> bool:
    """Whether the method has a parameter for the term."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(
        each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters
    )


class CareerThread(threading.Thread):
    """Runs a term's plain functions. A daemon thread, because it may have to be abandoned."""

    def __init__(self, name: str) -> None:
        super().__init__(name=f"laneway-term-{name}", daemon=True)
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Held while an error is raised in this thread, and while a method begins and ends.
        self._lock = threading.Lock()
        self._is_busy = False

    def submit(self, method: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Call the method in the thread; on the event loop, which gets the result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def report(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            elif isinstance(error, StopIteration):  # a future cannot hold it
                future.set_exception(RuntimeError(f"StopIteration: {error}"))
            else:
                future.set_exception(error)

        def call() -> None:
            result, error = self._call(method, arguments)
            with contextlib.suppress(RuntimeError):  # loop closed: nothing waits
                loop.call_soon_threadsafe(report, result, error)

        self._calls.put(call)
        return future

    def run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def stop(self, error: TermLost) -> None:
        """Raise the error in the running method, if any."""
        with self._lock:
            if self._is_busy:
                raise_in_thread(self.ident or 0, error)

    def close(self) -> None:
        """End the thread after the running method."""
        self._calls.put(None)

    def _call(
        self, method: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> tuple[Any, BaseException | None]:
        result: Any = None
        error: BaseException | None = None
        try:
            with self._lock:
                self._is_busy = True
            try:
                result = method(*arguments)
            except BaseException as raised:  # noqa: BLE001  # SystemExit, too, ends the term only
                error = raised
            self._let_go()
        except BaseException as late:  # noqa: BLE001  # an error for the method, raised just after it
            error = error or late
            self._let_go()
        return result, error

    def _let_go(self) -> None:
        with self._lock:
            self._is_busy = False
            raise_in_thread(self.ident or 0, None)
