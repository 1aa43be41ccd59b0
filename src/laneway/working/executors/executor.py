"""What the worker needs of an executor, the same for coroutines, threads and child processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from laneway.engines.base import FullEngine
from laneway.working.worker_delivery import WorkerDelivery

Finished = Callable[[WorkerDelivery, Any, BaseException | None], None]
"""Called on the event loop with a unit and what its handler returned or raised."""

Dispatch = Callable[[], object]
"""
Called on the event loop when an executor has reported units and has no others to begin: it
starts as many as there is room for. Once for many units, because each call costs as much as
beginning one.
"""


class Executor(Protocol):
    """
    Runs units: a unit is one delivery, or a batch of deliveries for one call of their handler.

    It reports each unit once, on the event loop, by the `finished` that it was created with, and
    then calls `dispatch`.
    While a unit runs, `unit.runner` stops it.
    """

    reports_begin: bool
    """
    Whether a unit begins later than `start` and is reported then: a child process has to start
    first. Time limits count from there.
    """

    def start(self, unit: WorkerDelivery) -> None:
        """Run a unit as soon as possible; on the event loop, returns immediately."""

    async def close(self, seconds: float) -> None:
        """
        Drop what has not begun, stop what still runs, and wait for that at most `seconds`.
        """


MakeExecutor = Callable[["FullEngine", "Finished", "Dispatch", int], "TopicExecutor"]
"""Creates an executor on the event loop, given how many units it runs concurrently."""


class TopicExecutor(Executor, Protocol):
    """An executor that knows when one topic has too many slots."""

    prefetch_seconds: float
    """How many seconds of work the worker leases ahead, of topics with a limit too."""

    def prepare(self, deliveries: list[WorkerDelivery]) -> None:
        """
        Read what these need, which were just leased; on the engine's thread. Sets `prepared`. Never
        raises.
        """

    def is_full(self, topic: str) -> bool:
        """Whether messages of other topics begin first, even if they have waited less."""
