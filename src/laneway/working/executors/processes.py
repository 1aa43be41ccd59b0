"""
Functions in child processes that can be killed.

Each running delivery has a child of its own for as long as it runs; a thread of the worker waits
for its answer. A child is a fresh interpreter that imports the handler by its name, or, for a
handler in the main module, a copy of this process; it serves one delivery after the other until it
dies.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from laneway import texts
from laneway.errors import DestinationUnavailable, Reject, Retry
from laneway.message import Message
from laneway.working import child_processes
from laneway.working.child_processes import CannotStart
from laneway.working.error_details import (
    ChildDied,
    RemoteFailure,
    attribute,
    describe,
    error_text,
    said,
    text_of,
)
from laneway.working.handler import DELIVERY
from laneway.working.log_format import LogStyle
from laneway.working.outcome import Portable
from laneway.working.time_limits import SoftTimeLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.connection import Connection

    from laneway.working.child_processes import ForkServer, Process
    from laneway.working.delivery import WorkerDelivery
    from laneway.working.handler import Handler

log = logging.getLogger("laneway.worker")

START_SECONDS = 60.0
"""How long a child may take until it is ready: it imports the handler's module."""

END_SECONDS = 5.0

TRIES = 3
"""Children that may be found to have died while they were idle."""


def template_for(handlers: Iterable[Handler]) -> ForkServer | None:
    """
    What children of the main module's handlers are copied from, where there are any such handlers;
    made before a worker starts its threads.
    """
    is_needed = any(
        handler.kind == "process" and handler.address.startswith(f"{child_processes.MAIN}:")
        for handler in handlers
    )
    return child_processes.ForkServer() if is_needed else None


class ProcessCaller:
    """
    Calls handlers in children; each thread that calls takes an idle child of the handler, or starts
    one.

    `began` is called, from that thread, when the handler begins: the child's own start does not
    count.
    """

    def __init__(
        self, began: Callable[[WorkerDelivery], object], template: ForkServer | None = None
    ) -> None:
        self._began = began
        self._template = template
        self._lock = threading.Lock()
        self._idle: dict[str, list[_Child]] = {}
        self._busy: dict[WorkerDelivery, _Child] = {}
        self._closed = False

    def call(self, delivery: WorkerDelivery) -> Any:
        """
        Run the handler in a child. Raises what it raised, ChildDied, or CannotStart where no child
        can be had.
        """
        arguments = delivery.arguments()
        for _ in range(TRIES):
            child = self._take(delivery)
            try:
                if not child.is_ready:
                    child.wait_until_ready()
                if not child.begins(
                    arguments, delivery.limits[1], is_batch=delivery.parts is not None
                ):
                    continue  # it had died while it was idle, and has seen nothing of the message
                self._began(delivery)
                kind, value = child.answer()
            except (EOFError, OSError) as error:
                raise ChildDied(
                    f"the child process of handler {delivery.handler.name} {child.describe_exit()}"
                ) from error
            finally:
                self._give(delivery, child)
            if kind == "returned":
                return value
            raise value
        raise CannotStart(
            f"child processes of handler {delivery.handler.name} end before they receive a message;"
            " is something killing them?"
        )

    def _take(self, delivery: WorkerDelivery) -> _Child:
        address = delivery.handler.address
        with self._lock:
            if self._closed:
                raise ChildDied("the worker is being stopped")
            idle = self._idle.get(address)
            child = idle.pop() if idle else _Child(address, self._template)
            self._busy[delivery] = child
            return child

    def _give(self, delivery: WorkerDelivery, child: _Child) -> None:
        with self._lock:
            self._busy.pop(delivery, None)
            if child.is_ready and not child.has_ended and not self._closed and not child.is_stopped:
                self._idle.setdefault(child.address, []).append(child)
                return
        child.kill()
        child.close()

    def kill(self, delivery: WorkerDelivery) -> None:
        """End the child that runs a delivery; its thread learns it by the end of the pipe."""
        with self._lock:
            child = self._busy.get(delivery)
            if child is not None:
                child.is_stopped = True
                child.kill()

    def close(self) -> None:
        """End all children."""
        with self._lock:
            self._closed = True
            idle = [child for each in self._idle.values() for child in each]
            busy = list(self._busy.values())
            self._idle.clear()
        for child in idle + busy:
            child.kill()
        for child in idle:
            child.close()
        if self._template is not None:
            self._template.close()


class _Child:
    """One child process and the pipe to it. Raises CannotStart."""

    def __init__(self, address: str, template: ForkServer | None) -> None:
        self.address = address
        self.is_stopped = False
        self.is_ready = False
        self.has_ended = False
        entry, args = "laneway.working.executors.processes:serve", (address, LogStyle.present())
        try:
            is_copy = template is not None and address.startswith(f"{child_processes.MAIN}:")
            self._process: Process = (
                template.start(entry, args)
                if template is not None and is_copy
                else child_processes.SpawnedProcess(entry, args)
            )
        except OSError as error:
            raise CannotStart(
                f"a child process for {address} cannot be started: {error}"
            ) from error
        self._pipe = self._process.pipe

    def wait_until_ready(self) -> None:
        """It can take deliveries now. Raises CannotStart, EOFError where this worker ended it."""
        try:
            problem = (
                self._pipe.recv()
                if self._pipe.poll(START_SECONDS)
                else f"it was not ready after {START_SECONDS:g} s"
            )
        except (EOFError, OSError):
            if self.is_stopped:
                raise
            problem = f"it {self.describe_exit()}"
        if problem is not None:
            self.has_ended = True
            raise CannotStart(f"a child process for {self.address} cannot be started: {problem}")
        self.is_ready = True

    def begins(
        self,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        soft_time_limit: float | None,
        *,
        is_batch: bool,
    ) -> bool:
        """Give it a delivery; False: it had ended before."""
        try:
            self._pipe.send((arguments, soft_time_limit, is_batch))
            self._pipe.recv()
        except (EOFError, OSError):
            self.has_ended = True
            if self.is_stopped:
                raise
            return False
        return True

    def answer(self) -> tuple[str, Any]:
        try:
            answer: tuple[str, Any] = self._pipe.recv()
        except (EOFError, OSError):
            self.has_ended = True
            raise
        return answer

    def describe_exit(self) -> str:
        """How it ended."""
        return describe_exit(self._process.exit_code(END_SECONDS))

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """After its end; by the thread that used it."""
        self._pipe.close()
        self._process.exit_code(END_SECONDS)


def describe_exit(code: int | None) -> str:
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


def serve(pipe: Connection, address: str, style: LogStyle) -> None:
    """What a child does: answer calls until the pipe is closed."""
    _leave_signals_to_the_worker()
    child_processes.when_orphaned(child_processes.end_at_once)
    style.apply()
    with contextlib.suppress(EOFError, OSError):
        try:
            function = child_processes.resolve(address)
        except BaseException as error:  # noqa: BLE001  # whatever the user's module raises
            pipe.send(" ".join(f"{type(error).__name__}: {error}".split()))
            return
        pipe.send(None)
        while True:
            call = pipe.recv_bytes()
            pipe.send("began")
            answer = _answer(function, call)
            child_processes.flush()
            pipe.send(answer)


def _leave_signals_to_the_worker() -> None:
    """
    A Ctrl-C in the terminal and a service manager's SIGTERM reach all processes; when this one ends
    is the worker's decision. Processes that the handler starts are not concerned.
    """

    def stay(_signal: int, _frame: object) -> None:
        pass

    def be_usual() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stay)
    os.register_at_fork(after_in_child=be_usual)


def _answer(function: Callable[..., Any], call: bytes) -> tuple[str, Any]:
    try:
        (args, kwargs), soft_time_limit, is_batch = pickle.loads(call)  # noqa: S301  # of the worker
        DELIVERY.set(_delivery(args))
        with _soft_limit(soft_time_limit):
            returned = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001  # also SystemExit: it is a failure of the message
        return "raised", _portable(error)
    kind = type(returned)  # not isinstance, here and below: it asks what the handler has made
    if is_batch and issubclass(kind, list):
        return "returned", [
            _portable(one) if issubclass(type(one), BaseException) else None
            for one in list.copy(returned)
        ]
    return "returned", returned if issubclass(kind, Portable) else None


def _delivery(args: tuple[Any, ...]) -> Any:
    """What log lines of the handler are about; a task says it by itself."""
    given = args[0] if args else None
    if isinstance(given, list) and given and isinstance(given[0], Message):
        return {"topic": given[0].topic, "messages": len(given)}
    return given if isinstance(given, Message) else None


def _portable(error: BaseException) -> BaseException:
    made = _plain_signal(error)
    if made is None:
        return RemoteFailure(text_of(error), describe(error))
    made.details = describe(error)  # type: ignore[attr-defined]  # goes with it through the pipe
    return made


def _plain_signal(error: BaseException) -> BaseException | None:
    """
    Without what a user's subclass may have added: it has to survive the pipe. None: it is no
    signal.
    """
    kind, reason = type(error), said(error, "reason") or ""
    if issubclass(kind, Reject):
        return Reject(reason, error=said(error, "error"))
    if issubclass(kind, Retry):
        return Retry(error_text(error) or "", delay=_plain_delay(error, "delay"))
    if issubclass(kind, DestinationUnavailable):
        return DestinationUnavailable(reason, retry_after=_plain_delay(error, "retry_after"))
    return None


def _plain_delay(error: BaseException, name: str) -> Any:
    delay = attribute(error, name)
    return (
        delay
        if delay is None or type(delay) in (int, float, str, timedelta)
        else texts.shown(delay)
    )  # the worker tells what is none


@contextlib.contextmanager
def _soft_limit(seconds: float | None) -> Iterator[None]:
    """
    Raise SoftTimeLimit after so many seconds, also in the middle of a sleep; not on systems without
    SIGALRM.
    """
    if seconds is None or not hasattr(signal, "setitimer"):
        yield
        return

    def notify(_signal: int, _frame: object) -> None:
        raise SoftTimeLimit(f"the handler has run for {seconds:g} s")

    signal.signal(signal.SIGALRM, notify)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
