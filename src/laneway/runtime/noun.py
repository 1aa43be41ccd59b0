"""`Noun`: an application's operations on things of one kind, or on one such thing."""

from __future__ import annotations

from concurrent.futures import Executor

from laneway.runtime.runtime import Runtime


class Noun:
    """
    An attribute of `Laneway` such as `app.schedules`, or a handle such as `Topic`, with its
    methods.
    """

    __slots__ = ("_runtime",)

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def threads(self) -> Executor:
        """Threads for the blocking calls of coroutines."""
        return self._runtime.threads
