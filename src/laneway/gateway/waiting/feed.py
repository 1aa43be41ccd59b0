"""
The feed of `/v1/events`: what the namespace does, once a second for all who listen.

While somebody listens, one task reads the overview, the audit log's new changes, the operations and
the endpoints' new events, each second; what that costs does not depend on the number of listeners.
Nobody listens: it reads nothing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from laneway.admin import audit_log
from laneway.engines.base import Records
from laneway.errors import LanewayError
from laneway.gateway import operations
from laneway.gateway.http import Request
from laneway.gateway.login.access import Caller
from laneway.gateway.schema import ChangeEvent, EndpointEvent
from laneway.gateway.waiting.long_poll import Waits
from laneway.gateway.wire import encode, moment, operation_answer, overview_answer
from laneway.push import events as endpoint_events
from laneway.runtime.runtime import Runtime

if TYPE_CHECKING:

    class Services(Protocol):
        """What the feed needs of the gateway's services."""

        runtime: Runtime
        is_stopping: bool
        waits: Waits

        async def run(self, function: Callable[[], None]) -> None:
            """Run a blocking function in a thread."""

        def ended_by(self, end: Callable[[], object]) -> AbstractContextManager[None]:
            """While the block runs, the end of the gateway calls `end`."""


log = logging.getLogger("laneway.gateway")

SECONDS = 1.0
"""How often the feed reads."""

CHANGES = 100
"""Most changes of one reading."""

KEPT = 500
"""Most events that are kept for listeners who read slowly."""


class Feed:
    """The feed of one gateway. Its methods belong to the event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.listeners = 0
        """How many listen now."""
        self._task: asyncio.Task[None] | None = None
        self._overview = b""
        self._events: deque[tuple[int, str, bytes]] = deque(maxlen=KEPT)
        """Events in their order, from 1: the place, the name, and what is sent."""
        self._places = 0
        self._last: _Last | None = None
        """What was read last, or None if nothing was read yet."""
        self._reading = asyncio.Event()

    async def events(
        self, request: Request, caller: Caller, kinds: Collection[str]
    ) -> AsyncIterator[bytes]:
        """
        Server-sent events, until the client goes or the gateway stops: the overview, and others of
        these kinds. Raises Disconnected.
        """
        self.listeners += 1
        if self._task is None:
            self._last, self._task = None, asyncio.create_task(self._read_on())
        seen = self._places
        try:
            with (
                self._services.waits.of(caller, "events"),
                self._services.ended_by(functools.partial(self._notify)),  # each has its own
            ):
                while not self._services.is_stopping:
                    await request.while_there(self._reading.wait())
                    yield b"event: overview\ndata: " + self._overview + b"\n\n"
                    for place, kind, event in list(self._events):
                        if place > seen:
                            seen = place
                            if kind in kinds:
                                yield event
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
        engine = self._services.runtime.engine
        self._overview = encode(overview_answer(engine.overview()))
        if self._last is None:
            self._last = _Last(engine)
            return
        for kind, event in self._last.read_on(engine):
            self._places += 1
            line = f"event: {kind}\ndata: ".encode() + encode(event) + b"\n\n"
            self._events.append((self._places, kind, line))


class _Last:
    """What the feed read last: the numbers of a change and an endpoint's event, and operations."""

    def __init__(self, engine: Records) -> None:
        newest = audit_log.newest(engine, 1, None)
        self._change = newest[0][0] if newest else 0
        self._endpoint_event = endpoint_events.newest_number(engine)
        self._operations = dict(operations.newest(engine))

    def read_on(self, engine: Records) -> Iterator[tuple[str, Any]]:
        """What is new: kinds and events, the oldest first."""
        changes = audit_log.newest(engine, CHANGES, None, after=self._change)
        for number, change in reversed(changes):
            self._change = number
            yield (
                "change",
                ChangeEvent(
                    number=number,
                    at=moment(change.at_us),
                    who=change.who,
                    method=change.method,
                    path=change.path,
                ),
            )
        found = operations.newest(engine)
        for operation_id, operation in reversed(found):
            if self._operations.get(operation_id) != operation:
                yield "operation", operation_answer(operation_id, operation)
        self._operations = dict(found)
        for event in endpoint_events.since(engine, self._endpoint_event):
            self._endpoint_event = event.number
            yield (
                "endpoint",
                EndpointEvent(
                    number=event.number,
                    at=moment(event.at_us),
                    kind=event.kind,
                    topic=event.topic,
                    detail=event.detail,
                ),
            )
