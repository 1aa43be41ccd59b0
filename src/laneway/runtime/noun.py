"""`Noun`: the operations of an application on things of one kind, or on one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from laneway.runtime.runtime import Runtime


class Noun:
    """An attribute of `Laneway` like `app.schedules`, or a handle like `Topic`, with its verbs."""

    __slots__ = ("_runtime",)

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def threads(self) -> Executor:
        """Threads for the blocking calls of coroutines."""
        return self._runtime.threads
