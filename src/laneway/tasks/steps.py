"""
One path for blocking and asynchronous callers: a generator yields steps, and a small loop makes
each call, or awaits it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from types import CoroutineType
from typing import Any

Step = tuple[Callable[[], Any], Callable[[], Any]]
Steps = Generator[Step, Any, Any]

# A step is one call: the first for threads, the second for coroutines, which await its result.
# A plain tuple, because each publish of a call makes one.


def run(steps: Steps) -> Any:
    """Make each call and send its result back. Returns the result of the generator."""
    result: Any = None
    error: Exception | None = None
    while True:
        try:
            step = steps.send(result) if error is None else steps.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            error = None  # its traceback refers to this frame
        try:
            result = step[0]()
        except StopIteration:  # a generator cannot raise it
            steps.close()
            raise
        except Exception as raised:  # noqa: BLE001  # the generator raises or handles it
            error = raised


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
