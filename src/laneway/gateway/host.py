"""`Host`: what the gateway needs from its application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from laneway.engines.base import FullEngine
    from laneway.producing.producer import Producer


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
    def producer(self) -> Producer:
        """Publishes the program's messages."""
        ...
