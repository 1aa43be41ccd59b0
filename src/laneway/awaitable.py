"""Async variants of blocking methods: the same implementation, run in a thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class HasThreads(Protocol):
    """What `async_variant` needs of the object that has the method: threads to wait in."""

    @property
    def threads(self) -> Executor:
        """The threads in which blocking calls of coroutines run."""


Self = TypeVar("Self", bound=HasThreads)
P = ParamSpec("P")
R = TypeVar("R")


def async_variant(
    method: Callable[Concatenate[Self, P], R],
) -> Callable[Concatenate[Self, P], Coroutine[Any, Any, R]]:
    """
    Return the method as a coroutine function, named with an `a` in front.

    It runs in a thread of the object's `threads`, so the caller's event loop is not blocked.
    """

    @functools.wraps(method)
    async def awaited(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        call = functools.partial(method, self, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)

    awaited.__name__ = "a" + method.__name__
    awaited.__doc__ = f"The async variant of `{method.__name__}`."
    return awaited
