"""One delivery inside a worker: its lease, who handles it, and how far it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from laneway import codec, texts
from laneway import headers as control
from laneway.errors import Reject
from laneway.working.handler import SOFT_TIME_LIMIT_HEADER, TIME_LIMIT_HEADER

if TYPE_CHECKING:
    import asyncio

    from laneway.message import Lease, Message
    from laneway.working.handler import Handler


class Runner(Protocol):
    """Whatever runs a delivery, and can be told to end it."""

    def warn(self, delivery: WorkerDelivery, error: Exception) -> None:
        """Raise the error in the handler, which may tidy up."""
        ...

    def stop(self, delivery: WorkerDelivery, error: Exception) -> None:
        """End the handler, for good where that is possible; the error says why."""
        ...


class WorkerDelivery:
    """
    A delivery on its way: buffered, begun, over.

    `expires` is the lease's end by this process's monotonic clock; `length_us` how long leases of
    its topic are. `over` is set once its end is decided: what a handler does later changes nothing.
    A batch is a whole of several `parts`, with the `messages` that its handler gets.
    """

    __slots__ = (
        "began",
        "expires",
        "handler",
        "lease",
        "length_us",
        "messages",
        "over",
        "parts",
        "runner",
        "timers",
        "whole",
    )

    def __init__(self, lease: Lease, handler: Handler, expires: float, length_us: int) -> None:
        self.lease = lease
        self.handler = handler
        self.expires = expires
        self.length_us = length_us
        self.began = 0.0
        self.over = False
        self.parts: list[WorkerDelivery] | None = None
        self.messages: list[Any] | None = None
        self.whole: WorkerDelivery | None = None
        self.runner: Runner | None = None
        self.timers: list[asyncio.TimerHandle] | None = None

    @staticmethod
    def batch_of(parts: list[WorkerDelivery], messages: list[Any]) -> WorkerDelivery:
        """Several deliveries for one call of a batch handler."""
        first = parts[0]
        whole = WorkerDelivery(first.lease, first.handler, first.expires, first.length_us)
        whole.parts = parts
        whole.messages = messages
        for part in parts:
            part.whole = whole
        return whole

    @property
    def handle_and_fence(self) -> tuple[int, int]:
        """What the engine needs to find the lease."""
        return self.lease.handle, self.lease.fence

    @property
    def log_subject(self) -> Any:
        """What log lines of the handler are about, see `handler.fields`."""
        return (
            self.lease
            if self.parts is None
            else {"topic": self.lease.topic, "messages": len(self.parts)}
        )

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """
        How long it may run, and after how long it is warned: what its call says, or its handler.
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
        Whether it is not to be begun any more: its end is decided, or its lease ran out and
        somebody else has it.
        """
        if self.expires <= time.monotonic():
            self.over = True
        return self.over

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the handler is called with. Raises Reject where the body cannot be that."""
        if self.parts is None:
            return self.handler.arguments(self.lease)
        return (self.messages,), {}

    def subject(self) -> Message | list[Any]:
        """
        What middlewares get: the message, or the list of a batch. Raises Reject where the body
        cannot be read.
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
        What became of each delivery: an error holds for all; a batch may return one outcome for
        each.
        """
        if self.parts is None:
            return [(self, error)]
        if error is not None or returned is None:
            return [(part, error) for part in self.parts]
        each = (
            list.copy(returned) if issubclass(type(returned), list) else None
        )  # not its own iterator, which may raise
        if (
            each is None
            or len(each) != len(self.parts)
            or not all(_is_outcome(one) for one in each)
        ):
            wrong = TypeError(
                "a batch handler returns None, or a list with None or an exception for each of its"
                f" {len(self.parts)} messages, got {texts.shown(returned, 200)}"
            )
            return [(part, wrong) for part in self.parts]
        return list(zip(self.parts, each, strict=True))


def _is_outcome(value: object) -> bool:
    return value is None or issubclass(type(value), BaseException)
