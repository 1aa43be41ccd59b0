"""A delivery inside a worker: its lease, its handler and its state."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

import msgspec

from laneway import codec, headers as control, storable
from laneway.errors import Reject
from laneway.message import Lease, Message
from laneway.working.handler import SOFT_TIME_LIMIT_HEADER, TIME_LIMIT_HEADER, Handler

LIMIT_HEADERS = frozenset({TIME_LIMIT_HEADER, SOFT_TIME_LIMIT_HEADER})


class Runner(Protocol):
    """Stops a unit that is running; an executor sets it as `unit.runner`."""

    def warn(self, unit: WorkerDelivery, error: Exception) -> None:
        """Raise the error in the handler, which may clean up and end."""

    def stop(self, unit: WorkerDelivery, error: Exception) -> None:
        """End the handler, by force where possible; `error` is the reason."""


class WorkerDelivery(msgspec.Struct, eq=False):
    """
    A delivery that this worker has leased: buffered, running, or over.

    `expires`: the lease's end (monotonic seconds).
    `length_us`: how long a lease of its topic is.
    `began`: when its handler began (`perf_counter` seconds).
    `is_starting`: it waits for its child process; no time limit counts yet.
    `over`: its outcome is decided; what its handler does from then on changes nothing.
    `request`: the `laneway.Request` of a task that runs.
    `runner`: what stops its handler; None while that does not run.
    `timers`: its time limits, or None if it has none.
    `prepared`: what its executor has read for it since it was leased.

    A batch is a WorkerDelivery with `parts`, its deliveries, and the `messages` that its handler
    gets. Each part has it as its `whole`.
    """

    lease: Lease
    handler: Handler
    expires: float
    length_us: int
    began: float = 0.0
    is_starting: bool = False
    over: bool = False
    parts: list[WorkerDelivery] | None = None
    messages: list[Any] | None = None
    whole: WorkerDelivery | None = None
    request: Any = None
    runner: Runner | None = None
    timers: list[asyncio.TimerHandle] | None = None
    prepared: Any = None

    @staticmethod
    def batch_of(parts: list[WorkerDelivery], messages: list[Any]) -> WorkerDelivery:
        """A batch: several deliveries for one call of a batch handler."""
        first = parts[0]
        whole = WorkerDelivery(first.lease, first.handler, first.expires, first.length_us)
        whole.parts = parts
        whole.messages = messages
        for part in parts:
            part.whole = whole
        return whole

    @property
    def handle_and_fence(self) -> tuple[int, int]:
        """The engine's reference to the lease."""
        return self.lease.handle, self.lease.fence

    @property
    def log_subject(self) -> Any:
        """What log lines of the handler are about; see `handler.fields`."""
        return (
            self.lease
            if self.parts is None
            else {"topic": self.lease.topic, "messages": len(self.parts)}
        )

    @property
    def current(self) -> Any:
        """What `handler.current` answers while it runs."""
        return self.log_subject if self.request is None else self.request

    @property
    def may_have_limit(self) -> bool:
        """Whether its call or its handler may have a time limit."""
        headers = self.lease.headers
        return self.handler.has_time_limit or (
            headers is not None and not LIMIT_HEADERS.isdisjoint(headers)
        )

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """
        Its time limit and its soft time limit in seconds: those of its call, else its handler's.
        """
        handler, headers = self.handler, self.lease.headers
        if headers is None or self.parts is not None:
            return handler.time_limit, handler.soft_time_limit
        limit, soft = (
            control.seconds(headers.get(TIME_LIMIT_HEADER)),
            control.seconds(headers.get(SOFT_TIME_LIMIT_HEADER)),
        )
        return (
            handler.time_limit if limit is None else limit,
            handler.soft_time_limit if soft is None else soft,
        )

    def is_gone(self) -> bool:
        """
        Whether it must not begin any more: its outcome is decided, or its lease ran out and another
        worker may have the message.
        """
        if self.expires <= time.monotonic():
            self.over = True
        return self.over

    def open_parts(self) -> list[WorkerDelivery]:
        """The deliveries of this unit: itself, or the batch's parts that are not over."""
        return [self] if self.parts is None else [part for part in self.parts if not part.over]

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The handler's arguments. Raises Reject if the body cannot be decoded to them."""
        if self.parts is None:
            return self.handler.arguments(self.lease)
        return (self.messages,), {}

    def subject(self) -> Message | list[Any]:
        """
        What middlewares get: the message, or a batch's list of messages. Raises Reject if the body
        cannot be decoded.
        """
        if self.messages is not None:
            return self.messages
        try:
            return codec.message_of(self.lease)
        except ValueError as error:
            raise Reject(str(error)) from error

    def outcomes(
        self, returned: Any, error: BaseException | None
    ) -> list[tuple[WorkerDelivery, BaseException | None]]:
        """
        Each delivery with its error or None. An error of the handler is the error of all; a batch
        handler may return a list with one of each.
        """
        if self.parts is None:
            return [(self, error)]
        if error is not None or returned is None:
            return [(part, error) for part in self.parts]
        # Not a subclass's own iterator, which may raise.
        errors = list.copy(returned) if issubclass(type(returned), list) else None
        if (
            errors is None
            or len(errors) != len(self.parts)
            or not all(one is None or issubclass(type(one), BaseException) for one in errors)
        ):
            wrong = TypeError(
                "a batch handler returns None, or a list with None or an exception for each of its"
                f" {len(self.parts)} messages, got {storable.shown(returned, 200)}"
            )
            return [(part, wrong) for part in self.parts]
        return list(zip(self.parts, errors, strict=True))
