"""
Time limits: the errors that end a handler, and how to raise them in a coroutine or a thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from laneway.errors import LanewayError


class SoftTimeLimit(LanewayError):
    """
    Raised inside a handler at its `soft_time_limit`, so that it can clean up and end.

    If the handler does not catch it, the message is retried as after any other exception.
    """


class TimeLimit(LanewayError):
    """
    The error of a message whose handler was stopped at its `time_limit`.

    It ends a handler in a thread where that is possible; a coroutine is cancelled and a child
    process is killed.
    """


class WorkerStopped(LanewayError):
    """
    Raised in a handler that has not ended when the worker stops; its message was released.
    """


@types.coroutine
def interruptible(
    coroutine: Coroutine[Any, Any, Any], take: Callable[[], BaseException | None]
) -> Generator[Any, Any, Any]:
    """
    Run a coroutine whose task may be cancelled to raise an error where it awaits; asyncio itself
    can only cancel. `take`: the error behind a cancellation, or None if it has another cause.
    """
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
            error = take() or cancelled
        except BaseException as raised:  # noqa: BLE001  # what the awaited future raises is for the coroutine
            error = raised
        else:
            error = None


def raise_in_thread(ident: int, error: Exception | None) -> None:
    """
    Raise an error in a thread at its next bytecode; None revokes one that was not raised yet.
    """
    error_class = ctypes.py_object(_class_of(error)) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), error_class)


def _class_of(error: Exception) -> type[Exception]:
    """
    A class whose instances equal the error: the interpreter takes only a class, and creates the
    instance without arguments.
    """
    kind = type(error)

    def fill(self: Exception) -> None:
        Exception.__init__(self, *error.args)
        self.__dict__.update(error.__dict__)

    return type(kind.__name__, (kind,), {"__init__": fill, "__module__": kind.__module__})
