"""
One path for blocking and asynchronous callers: a generator yields steps, and a small loop makes
each call, or awaits it.
"""

from __future__ import annotations

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
