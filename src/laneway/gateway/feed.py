"""
The feed of `/v1/events`: what the namespace does, once a second for all who listen.

While somebody listens, one task reads the overview and the audit log's new changes, each second;
what that costs does not depend on the number of listeners. Nobody listens: it reads nothing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from typing import TYPE_CHECKING, Protocol

from laneway.errors import LanewayError
from laneway.gateway import audit
from laneway.gateway.schema import OperationAnswer
from laneway.gateway.wire import encode, moment, overview_answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractContextManager

    from laneway.gateway.host import Host
    from laneway.gateway.http import Request

    class Services(Protocol):
        """What the feed needs of the gateway's services."""

        host: Host
        is_stopping: bool

        async def run(self, function: Callable[[], None]) -> None:
            """Run a blocking function in a thread."""

        def ended_by(self, end: Callable[[], object]) -> AbstractContextManager[None]:
            """While the block runs, the end of the gateway calls `end`."""
            ...


log = logging.getLogger("laneway.gateway")

SECONDS = 1.0
"""How often the feed reads."""

OPERATIONS = 100
"""Most changes of one reading, and most that are kept for listeners who read slowly."""


class Feed:
    """The feed of one gateway. Its methods belong to the event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.listeners = 0
        """How many listen now."""
        self._task: asyncio.Task[None] | None = None
        self._overview = b""
        self._operations: deque[tuple[int, bytes]] = deque(maxlen=OPERATIONS)
        self._last: int | None = None
        """The number of the last change that was read; None: none was read yet."""
        self._reading = asyncio.Event()

    async def events(self, request: Request, *, with_operations: bool) -> AsyncIterator[bytes]:
        """Server-sent events, until the client goes or the gateway stops. Raises Disconnected."""
        self.listeners += 1
        if self._task is None:
            self._last, self._task = None, asyncio.create_task(self._read_on())
        seen = self._operations[-1][0] if self._operations else 0
        try:
            with self._services.ended_by(functools.partial(self._notify)):  # each has its own
                while not self._services.is_stopping:
                    await request.while_there(self._reading.wait())
                    yield b"event: overview\ndata: " + self._overview + b"\n\n"
                    for number, operation in list(self._operations):
                        if with_operations and number > seen:
                            seen = number
                            yield b"event: operation\ndata: " + operation + b"\n\n"
        finally:
            self.listeners -= 1
            if not self.listeners and self._task is not None:
                self._task.cancel()
                self._task = None

    def _notify(self) -> None:
        """Let the listeners look."""
        self._reading.set()
        self._reading = asyncio.Event()

    async def _read_on(self) -> None:
        while True:
            try:
                await self._services.run(self._read)
                self._notify()
            except LanewayError as error:
                log.debug("feed: the store does not answer; trying again: %s", error)
            await asyncio.sleep(SECONDS)

    def _read(self) -> None:
        engine = self._services.host.engine
        self._overview = encode(overview_answer(engine.overview()))
        if self._last is None:
            newest = audit.newest(engine, 1, None)
            self._last = newest[0][0] if newest else 0
            return
        changes = audit.newest(engine, OPERATIONS, None, after=self._last)
        for number, change in reversed(changes):
            self._last = number
            answer = OperationAnswer(
                number=number,
                at=moment(change.at_us),
                who=change.who,
                method=change.method,
                path=change.path,
            )
            self._operations.append((number, encode(answer)))
