"""`Noun`: the operations of an application on one kind of thing, such as `app.schedules`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from laneway.runtime.runtime import Runtime


class Noun:
    """An attribute of `Laneway`, whose methods are the verbs."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def threads(self) -> Executor:
        """Threads for the blocking calls of coroutines."""
        return self._runtime.threads
