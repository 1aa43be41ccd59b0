"""A work listener made of `Wakeup.wait`, for engines that have no other."""

from __future__ import annotations

from collections.abc import Sequence

from laneway.engines.base import Wakeup
from laneway.engines.shared.interrupt import Interrupt


class WaitingListener:
    """A `WorkListener` whose `poll` calls the engine's `wait`; it never leases."""

    def __init__(
        self, engine: Wakeup, pool: str = "default", topics: Sequence[str] | None = None
    ) -> None:
        self._engine = engine
        self._pool = pool
        self._topics = topics
        self._interrupt = Interrupt()

    def poll(self, timeout: float, startable: int = 0) -> bool:
        """Wait until something can be leased."""
        del startable
        found = self._engine.wait(
            timeout, pool=self._pool, topics=self._topics, interrupt=self._interrupt
        )
        if self._interrupt.is_set:
            self._interrupt = Interrupt()
        return found

    def wake(self) -> None:
        """End the current or next `poll`."""
        self._interrupt.set()

    def pause(self) -> bool:
        """Nothing to stop: the engine knows a waiter only while it waits."""
        return False

    def pass_on(self) -> bool:
        """The engine itself wakes others."""
        return False

    def close(self) -> None:
        """Nothing to free."""
