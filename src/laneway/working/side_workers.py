"""Workers that run on another worker's event loop."""

from __future__ import annotations

from typing import Protocol

from laneway.working.options import Summary


class SideWorkers(Protocol):
    """What a worker needs of the workers that run along with it."""

    @property
    def summary(self) -> Summary:
        """What they have handled, once they have ended."""

    def start(self) -> None:
        """Start them. On the event loop."""

    def stop(self) -> None:
        """Stop them in order; a second call stops them immediately. Does not wait."""

    async def end(self) -> None:
        """Wait for their end: after `stop`, or with `burst` until nothing is left to run now."""
