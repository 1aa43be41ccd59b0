"""What workers need from the application whose messages they handle."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Protocol

from laneway.engines.base import FullEngine
from laneway.working.election_threads import Candidacy
from laneway.working.handler import Handlers
from laneway.working.worker_registry import WorkerRegistry


class Schedules(Protocol):
    """What a worker needs of the program's schedules."""

    def install(self) -> None:
        """Store the program's schedules and handle those that are due."""


class Application(Protocol):
    """An application as a worker inside its process sees it."""

    @property
    def engine(self) -> FullEngine:
        """The engine, opened at first use. Raises EngineUnavailable."""

    @property
    def handlers(self) -> Handlers:
        """The program's handlers."""

    @property
    def threads(self) -> Executor:
        """Threads for the blocking calls of coroutines."""

    @property
    def workers(self) -> WorkerRegistry:
        """The workers that run in this process."""

    @property
    def elections_in_workers(self) -> Sequence[Candidacy]:
        """The elections in which workers are candidates."""

    @property
    def schedules(self) -> Schedules:
        """The program's schedules."""


class ProcessApplication(Application, Protocol):
    """An application as a supervisor and the workers in its child processes see it."""

    @property
    def app(self) -> object:
        """The `Laneway` of the program."""

    @property
    def address(self) -> str | None:
        """`module:name` by which another process imports it, or None if it is looked for."""

    @property
    def url(self) -> str:
        """The engine's URL."""

    @property
    def store_options(self) -> tuple[str | None, str | None]:
        """URL and namespace that replace those of the code."""

    def use_store(self, url: str | None = None, namespace: str | None = None) -> None:
        """Replace the URL and the namespace of the code. Raises UsageError."""
