"""
Functions in child processes that can be killed.

Each running delivery has a child of its own for as long as it runs; a thread of the worker waits for its answer. A child
is started anew ("spawn"), imports the handler by its name, and serves one delivery after the other until it dies.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import signal
import threading
from typing import TYPE_CHECKING, Any

from fairlead.errors import DestinationUnwell, Reject, Retry
from fairlead.working.limits import SoftTimeLimit
from fairlead.working.loading import importing
from fairlead.working.logs import Style
from fairlead.working.settle import ChildDied, Portable, RemoteFailure, describe, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from fairlead.working.work import Work

_SPAWN = multiprocessing.get_context("spawn")
JOIN_SECONDS = 5.0


class ProcessCaller:
    """Calls handlers in children; each thread that calls takes an idle child of the handler, or starts one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[_Child]] = {}
        self._busy: dict[Work, _Child] = {}
        self._closed = False

    def call(self, work: Work) -> Any:
        """Run the handler in a child. Raises what it raised, or ChildDied."""
        arguments = work.arguments()
        child = self._take(work)
        try:
            kind, value = child.ask(arguments, work.limits[1], is_batch=work.parts is not None)
        except (EOFError, OSError) as error:
            raise ChildDied(f"the child process of handler {work.handler.name} {child.obituary()}") from error
        finally:
            self._give(work, child)
        if kind == "returned":
            return value
        raise value

    def _take(self, work: Work) -> _Child:
        address = work.handler.address
        with self._lock:
            if self._closed:
                raise ChildDied("the worker is being stopped")
            idle = self._idle.get(address)
            child = idle.pop() if idle else _Child(address)
            self._busy[work] = child
            return child

    def _give(self, work: Work, child: _Child) -> None:
        with self._lock:
            self._busy.pop(work, None)
            if child.process.is_alive() and not self._closed and not child.is_stopped:
                self._idle.setdefault(child.address, []).append(child)
            else:
                child.kill()

    def kill(self, work: Work) -> None:
        """End the child that runs a delivery; its thread learns it by the end of the pipe."""
        with self._lock:
            child = self._busy.get(work)
            if child is not None:
                child.is_stopped = True
                child.kill()

    def close(self) -> None:
        """End all children."""
        with self._lock:
            self._closed = True
            children = [child for idle in self._idle.values() for child in idle] + list(self._busy.values())
            self._idle.clear()
        for child in children:
            child.kill()


class _Child:
    """One child process and the pipe to it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_stopped = False
        self._pipe, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=serve, args=(theirs, address, Style.present()), name="fairlead-child", daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, arguments: tuple[tuple[Any, ...], dict[str, Any]], soft_time_limit: float | None, *, is_batch: bool) -> tuple[str, Any]:
        self._pipe.send((arguments, soft_time_limit, is_batch))
        answer: tuple[str, Any] = self._pipe.recv()
        return answer

    def obituary(self) -> str:
        """How it ended."""
        self.process.join(JOIN_SECONDS)
        return obituary(self.process.exitcode)

    def kill(self) -> None:
        self.process.kill()
        self._pipe.close()


def obituary(code: int | None) -> str:
    """How a process ended, by its exit code."""
    if code is None:
        return "closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-code} ({name})"


def serve(pipe: Connection, address: str, style: Style) -> None:
    """What a child does: answer calls until the pipe is closed."""
    style.apply()
    # A Ctrl-C in the terminal reaches the whole group; when this process ends is the worker's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        while True:
            (args, kwargs), soft_time_limit, is_batch = pipe.recv()
            pipe.send(_answer(address, args, kwargs, soft_time_limit, is_batch=is_batch))


def _answer(address: str, args: tuple[Any, ...], kwargs: dict[str, Any], soft_time_limit: float | None, *, is_batch: bool) -> tuple[str, Any]:
    try:
        function = _resolve(address)
        with _soft_limit(soft_time_limit):
            returned = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001  # also SystemExit: it is a failure of the message
        return "raised", _portable(error)
    if is_batch and isinstance(returned, list):
        return "returned", [_portable(one) if isinstance(one, BaseException) else None for one in returned]
    return "returned", returned if isinstance(returned, Portable) else None


def _resolve(address: str) -> Callable[..., Any]:
    module, _, name = address.partition(":")
    with importing(module):
        found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function


def _portable(error: BaseException) -> BaseException:
    if isinstance(error, (Retry, Reject, DestinationUnwell)):
        made = _plain_signal(error)
        made.details = describe(error)  # type: ignore[attr-defined]  # goes with it through the pipe
        return made
    return RemoteFailure(text_of(error), describe(error))


def _plain_signal(error: Retry | Reject | DestinationUnwell) -> BaseException:
    """Without what a user's subclass may have added: it has to survive the pipe."""
    if isinstance(error, Reject):
        return Reject(error.reason, error=error.error)
    if isinstance(error, Retry):
        return Retry(error.reason, delay=error.delay)
    return DestinationUnwell(error.reason, retry_after=error.retry_after)


@contextlib.contextmanager
def _soft_limit(seconds: float | None) -> Iterator[None]:
    """Raise SoftTimeLimit after so many seconds, also in the middle of a sleep; not on systems without SIGALRM."""
    if seconds is None or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(_signal: int, _frame: object) -> None:
        raise SoftTimeLimit(f"the handler has run for {seconds:g} s")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
