"""Async faces of blocking methods: one implementation, another way of waiting for it."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Executor


class HasThreads(Protocol):
    """What `twin` needs of the object whose method it is: threads to wait in."""

    @property
    def threads(self) -> Executor:
        """Where blocking calls of coroutines run."""
        ...


Self = TypeVar("Self", bound=HasThreads)
P = ParamSpec("P")
R = TypeVar("R")


def async_variant(
    method: Callable[Concatenate[Self, P], R],
) -> Callable[Concatenate[Self, P], Coroutine[Any, Any, R]]:
    """The method as a coroutine: it runs in a thread, its caller's event loop goes on."""

    @functools.wraps(method)
    async def awaited(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        call = functools.partial(method, self, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)

    awaited.__name__ = "a" + method.__name__
    awaited.__doc__ = f"As `{method.__name__}`, awaited."
    return awaited
