"""
Time limits: what is raised in a handler that takes too long, and how it gets into a coroutine or a
thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import types
from typing import TYPE_CHECKING, Any

from laneway.errors import LanewayError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator


class SoftTimeLimit(LanewayError):
    """
    Raised inside a handler at its `soft_time_limit`: time to tidy up and end.

    A handler that lets it out is retried like after any other exception.
    """


class TimeLimit(LanewayError):
    """
    What the error of a message says whose handler was stopped at its `time_limit`; never raised in
    the handler.
    """


class WorkerStopped(LanewayError):
    """
    Raised in a thread's handler that has not ended when the worker does; its message was given
    back.
    """


class Interrupter:
    """
    Brings an exception into a coroutine that `interruptible` runs: asyncio itself can only cancel.
    """

    __slots__ = ("_error", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self._error: BaseException | None = None

    def throw(self, error: BaseException) -> None:
        """Raise the error at the coroutine's next step; on its loop."""
        self._error = error
        self.task.cancel()

    def take(self) -> BaseException | None:
        """The error that stands behind a cancellation, if it was ours."""
        error, self._error = self._error, None
        if error is not None:
            self.task.uncancel()
        return error


@types.coroutine
def interruptible(
    coroutine: Coroutine[Any, Any, Any], interrupter: Interrupter
) -> Generator[Any, Any, Any]:
    """Run the coroutine; an error thrown by the interrupter is raised where it awaits."""
    error: BaseException | None = None
    while True:
        try:
            awaited = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value
        try:
            yield awaited
        except GeneratorExit:
            coroutine.close()
            raise
        except asyncio.CancelledError as cancelled:
            error = interrupter.take() or cancelled
        except BaseException as raised:  # noqa: BLE001  # whatever the awaited future raised belongs to the coroutine
            error = raised
        else:
            error = None


def raise_in_thread(ident: int, error: Exception | None) -> None:
    """
    Raise an error in a thread at its next bytecode; None takes back one that was not raised yet.
    """
    what = ctypes.py_object(_without_arguments(error)) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), what)


def _without_arguments(error: Exception) -> type[Exception]:
    """
    The error as a class: the interpreter takes only a class, and makes the instance without
    arguments.
    """
    kind = type(error)

    def fill(self: Exception) -> None:
        Exception.__init__(self, *error.args)
        self.__dict__.update(error.__dict__)

    return type(kind.__name__, (kind,), {"__init__": fill, "__module__": kind.__module__})
