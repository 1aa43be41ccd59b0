"""`Host`: what the gateway needs from its application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from laneway.engines.base import FullEngine
    from laneway.producing.producer import Producer
    from laneway.tasks.job import Job


class Host(Protocol):
    """An application as the gateway sees it. `Laneway` is one."""

    @property
    def engine(self) -> FullEngine:
        """The engine, opened at first use. Raises EngineUnavailable."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        ...

    @property
    def url(self) -> str:
        """The engine's URL."""
        ...

    @property
    def threads(self) -> Executor:
        """Threads for the blocking calls of coroutines."""
        ...

    @property
    def max_backlog(self) -> int | None:
        """Most messages that may wait in the namespace; None: any number."""
        ...

    def job(self, job_id: str, topic: str | None = None) -> Job[Any]:
        """The handle of a task's call."""
        ...

    @property
    def producer(self) -> Producer:
        """Publishes the program's messages."""
        ...
