"""What runs inside a child process: it takes units from its worker and calls their handler."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from laneway import storable
from laneway.errors import DestinationUnavailable, Reject, Retry
from laneway.message import Message
from laneway.working import child_processes
from laneway.working.error_details import (
    RemoteFailure,
    attribute,
    describe,
    error_text,
    text_attribute,
    text_of,
)
from laneway.working.handler import CURRENT
from laneway.working.log_format import LogStyle
from laneway.working.outcome import Portable
from laneway.working.time_limits import SoftTimeLimit


def serve(pipe: Connection, address: str, setup: str | None, style: LogStyle) -> None:
    """
    Import the module `setup`, then answer calls of the function at `address` until the worker
    closes the pipe.

    The child sends None when it is ready (or a text that explains why it cannot run), then for each
    call "began" and its answer.
    """
    _leave_signals_to_the_worker()
    child_processes.when_orphaned(child_processes.end_at_once)
    style.apply()
    with contextlib.suppress(EOFError, OSError):
        try:
            if setup is not None:
                importlib.import_module(setup)
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
    Ignore SIGINT and SIGTERM: a Ctrl-C in the terminal and a service manager's SIGTERM reach all
    processes, and the worker decides when this one ends.

    Processes that the handler starts get the default behavior.
    """

    def ignore(_signal: int, _frame: object) -> None:
        pass

    def restore_default() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, ignore)
    os.register_at_fork(after_in_child=restore_default)


def _answer(function: Callable[..., Any], call: bytes) -> tuple[str, Any]:
    try:
        (args, kwargs), soft_time_limit, is_batch = pickle.loads(call)  # noqa: S301  # of the worker
        CURRENT.set(_log_subject(args))
        with _soft_limit(soft_time_limit):
            returned = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001  # also SystemExit: it is a failure of the message
        return "raised", _portable(error)
    # Not isinstance, here and below: it asks the handler's own object for its class.
    kind = type(returned)
    if is_batch and issubclass(kind, list):
        return "returned", [
            _portable(one) if issubclass(type(one), BaseException) else None
            for one in list.copy(returned)
        ]
    return "returned", returned if issubclass(kind, Portable) else None


def _log_subject(args: tuple[Any, ...]) -> Any:
    """The subject of the handler's log lines; a task sets its own."""
    first = args[0] if args else None
    if isinstance(first, list) and first and isinstance(first[0], Message):
        return {"topic": first[0].topic, "messages": len(first)}
    return first if isinstance(first, Message) else None


def _portable(error: BaseException) -> BaseException:
    """An error that can be sent through the pipe, with what is kept of the original."""
    copied = _signal_copy(error)
    if copied is None:
        return RemoteFailure(text_of(error), describe(error))
    copied.details = describe(error)  # type: ignore[attr-defined]  # sent with it through the pipe
    return copied


def _signal_copy(error: BaseException) -> BaseException | None:
    """
    A Reject, Retry or DestinationUnavailable without what a user's subclass may have added, which
    may not survive the pipe. None if it is another error.
    """
    kind, reason = type(error), text_attribute(error, "reason") or ""
    if issubclass(kind, Reject):
        return Reject(reason, error=text_attribute(error, "error"))
    if issubclass(kind, Retry):
        return Retry(error_text(error) or "", delay=_plain_delay(error, "delay"))
    if issubclass(kind, DestinationUnavailable):
        return DestinationUnavailable(reason, retry_after=_plain_delay(error, "retry_after"))
    return None


def _plain_delay(error: BaseException, name: str) -> Any:
    """The delay if it is of a plain type, else its text, which the worker reports as invalid."""
    delay = attribute(error, name)
    if delay is None or type(delay) in (int, float, str, timedelta):
        return delay
    return storable.shown(delay)


@contextlib.contextmanager
def _soft_limit(seconds: float | None) -> Iterator[None]:
    """
    Raise SoftTimeLimit after `seconds`, also in the middle of a sleep.

    Has no effect on systems without SIGALRM.
    """
    if seconds is None or not hasattr(signal, "setitimer"):
        yield
        return

    def warn(_signal: int, _frame: object) -> None:
        raise SoftTimeLimit(f"the handler has run for {seconds:g} s")

    signal.signal(signal.SIGALRM, warn)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
