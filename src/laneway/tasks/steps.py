"""
One path for blocking and asynchronous callers: a generator yields steps, and a small loop makes
each call, or awaits it.
"""

from __future__ import annotations

import functools
import inspect
from types import CoroutineType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    Step = tuple[Callable[[], Any], Callable[[], Any]]
    Steps = Generator[Step, Any, Any]

# A step is one call: the first for threads, the second for coroutines, which await its result.
# A plain tuple, because each run of a task makes one.


def both(call: Callable[[], Any]) -> Step:
    """A step that is the same call for threads and coroutines."""
    return call, call


def handling(error: Exception, call: Callable[[], Any]) -> Step:
    """
    A step that is called while `error` is being handled: `sys.exception()` and
    `logger.exception` see the error, as in the `except` clause that the step stands for.
    """
    return functools.partial(_handle, error, call), functools.partial(_ahandle, error, call)


def _handle(error: Exception, call: Callable[[], Any]) -> Any:
    traceback = error.__traceback__
    try:
        raise error
    except Exception:  # noqa: BLE001  # it is this error
        error.__traceback__ = traceback  # without this frame
        return call()


async def _ahandle(error: Exception, call: Callable[[], Any]) -> Any:
    traceback = error.__traceback__
    try:
        raise error
    except Exception:  # noqa: BLE001  # it is this error
        error.__traceback__ = traceback  # without this frame
        result = call()
        return await result if inspect.isawaitable(result) else result


def run(steps: Steps) -> Any:
    """Make each call and send its result back. Returns the result of the generator."""
    try:
        step = next(steps)
        while True:
            try:
                result = step[0]()
            except Exception as error:  # noqa: BLE001  # the generator raises or handles it
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value


async def arun(steps: Steps) -> Any:
    """As `run`, but await results that are awaitable."""
    try:
        step = next(steps)
        while True:
            try:
                result = step[1]()
                if type(result) is CoroutineType or inspect.isawaitable(result):
                    result = await result
            except Exception as error:  # noqa: BLE001  # the generator raises or handles it
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value
