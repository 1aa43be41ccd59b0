"""
Middlewares around publishing: each gets the message, and then the receipt.

A middleware is a generator function that yields the message and receives the receipt.
It works for single messages and streams, threads and coroutines: the caller decides how to wait
between its two halves.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from laneway.errors import UsageError
from laneway.message import Draft, Message, Receipt

Middleware = Callable[[Message], Generator[Message, Receipt, None]]
Put = Callable[[list[Draft]], list[Receipt]]


class Passage:
    """
    One message's way through the middlewares: the first that was registered gets it first, and its
    receipt last.
    """

    __slots__ = ("_entered", "message", "receipt")

    def __init__(self, middlewares: Sequence[Middleware], message: Message) -> None:
        self.message = message
        self.receipt = Receipt("", message.topic)
        self._entered: list[tuple[Middleware, Generator[Message, Receipt, None]]] = []
        for middleware in middlewares:
            try:
                self._enter(middleware)
            except BaseException as error:  # noqa: BLE001  # the middlewares before it get the error, then it is raised
                self.fail(error)

    def _enter(self, middleware: Middleware) -> None:
        generator = middleware(self.message)
        changed = next(generator, None)
        if not isinstance(changed, Message):
            raise UsageError(
                f"{_name(middleware)}: a middleware of publish yields the message, this one yielded"
                f" {changed!r:.80}"
            )
        self._entered.append((middleware, generator))
        self.message = changed

    def leave(self, receipt: Receipt) -> None:
        """The message was published: give each middleware the receipt. Raises what one raises."""
        self.receipt = receipt
        while self._entered:
            middleware, generator = self._entered.pop()
            try:
                generator.send(receipt)
            except StopIteration:
                continue
            except BaseException as error:  # noqa: BLE001  # the middlewares before it get the error, then it is raised
                self.fail(error)
            self.fail(
                UsageError(f"{_name(middleware)}: a middleware yields once, this one yielded again")
            )

    def fail(self, error: BaseException) -> None:
        """
        The message was not published: raise the error in each middleware, which may raise another
        one instead. Always raises.
        """
        cause = error
        while self._entered:
            _, generator = self._entered.pop()
            try:
                generator.throw(error)
            except StopIteration:
                continue  # a middleware cannot turn an error into a receipt
            except BaseException as other:  # noqa: BLE001  # replaces the error
                error = other
        if error is cause:
            raise error
        raise error from cause


class Middlewares:
    """All middlewares of publish, in the order in which they were registered."""

    def __init__(self) -> None:
        self.all: list[Middleware] = []
        """In the order in which they were added."""

    def __bool__(self) -> bool:
        return bool(self.all)

    def add(self, middleware: Middleware) -> None:
        """Add a middleware; it gets messages after those before it. Raises UsageError."""
        check_middleware("around_publish", middleware)
        self.all.append(middleware)

    @contextmanager
    def around(self, message: Message) -> Iterator[Passage]:
        """In this block, publish the passage's `message` and set its `receipt`."""
        passage = Passage(self.all, message)
        try:
            yield passage
        except BaseException as error:  # noqa: BLE001  # raised again by fail
            passage.fail(error)
        else:
            passage.leave(passage.receipt)

    @contextmanager
    def around_many(self, messages: Iterable[Message], put: Put) -> Iterator[PassageStream]:
        """As `around`, for a stream that is published in batches by `put`."""
        stream = PassageStream(self.all, messages, put)
        try:
            yield stream
        except BaseException as error:
            stream.end(error)
            raise
        else:
            stream.end(None)


class PassageStream:
    """
    Many messages on their way through the middlewares, which get the receipts batch by batch.
    """

    def __init__(
        self, middlewares: Sequence[Middleware], messages: Iterable[Message], put: Put
    ) -> None:
        self._middlewares = middlewares
        self._messages = messages
        self._put = put
        self._unanswered: deque[Passage] = deque()
        # The last batch's, by the draft's identity: they may be published again.
        self._refused: dict[int, tuple[Draft, Passage]] = {}

    def __iter__(self) -> Iterator[Message]:
        for message in self._messages:
            if isinstance(message, Message):
                self._unanswered.append(Passage(self._middlewares, message))
                yield self._unanswered[-1].message
            else:
                yield message  # encoding it raises the error

    def put(self, drafts: list[Draft]) -> list[Receipt]:
        """Publish a batch; the middlewares get the receipts of the accepted messages."""
        if id(drafts[0]) in self._refused:  # refused before
            passages = [self._refused.pop(id(draft))[1] for draft in drafts]
        else:
            self._leave_refused()
            passages = [self._unanswered.popleft() for _ in drafts]
        try:
            receipts = self._put(drafts)
        except BaseException as error:
            for passage in passages[1:]:
                _quietly(passage.fail, error)
            passages[0].fail(error)
            raise
        for draft, passage, receipt in zip(drafts, passages, receipts, strict=True):
            if receipt.outcome == "refused":
                passage.receipt = receipt
                self._refused[id(draft)] = draft, passage
            else:
                passage.leave(receipt)
        return receipts

    def end(self, error: BaseException | None) -> None:
        """
        Give refused messages their receipts, and the error to those that were not published.
        """
        self._leave_refused()
        if error is not None:
            for passage in self._unanswered:
                _quietly(passage.fail, error)

    def _leave_refused(self) -> None:
        refused, self._refused = self._refused, {}
        for _, passage in refused.values():
            passage.leave(passage.receipt)


def _quietly(call: Callable[[BaseException], None], error: BaseException) -> None:
    """Call with the error, and ignore what that raises: one error is raised for the batch."""
    with suppress(BaseException):
        call(error)


def check_middleware(call: str, middleware: Callable[..., Any]) -> None:
    """Raise UsageError if a middleware is no generator function."""
    if not inspect.isgeneratorfunction(middleware):
        raise UsageError(f"{call}: expected a function that yields once, got {_name(middleware)}")


def _name(middleware: object) -> str:
    return str(getattr(middleware, "__qualname__", repr(middleware)))
