"""
One path for blocking and asynchronous callers: a generator yields steps, and a small loop makes
each call, or awaits it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    Steps = Generator["Step", Any, Any]


class Step(NamedTuple):
    """One call: `blocking` for threads, `awaitable` for coroutines, which await its result."""

    blocking: Callable[[], Any]
    awaitable: Callable[[], Any]


def both(call: Callable[[], Any]) -> Step:
    """A step that is the same call for threads and coroutines."""
    return Step(call, call)


def run(steps: Steps) -> Any:
    """Make each call and send its result back. Returns the result of the generator."""
    try:
        step = next(steps)
        while True:
            try:
                result = step.blocking()
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
                result = step.awaitable()
                if inspect.isawaitable(result):
                    result = await result
            except Exception as error:  # noqa: BLE001  # the generator raises or handles it
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value
