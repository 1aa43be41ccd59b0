"""
The middlewares that messages pass on their way to the engine: in, and back with the receipt.

A middleware is a generator function, so one shape serves single messages and streams, threads and
coroutines: whoever publishes waits between its two halves in his own way.
"""

from __future__ import annotations

import inspect
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from laneway.errors import UsageError
from laneway.message import Message, Receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from laneway.message import Draft

    Middleware = Callable[[Message], Generator[Message, Receipt, None]]
    Put = Callable[[list[Draft]], list[Receipt]]


class Passing:
    """
    One message on its way through the middlewares: in by the first that was registered, back by the
    last.
    """

    __slots__ = ("_entered", "message", "receipt")

    def __init__(self, middlewares: Sequence[Middleware], message: Message) -> None:
        self.message = message
        self.receipt = Receipt("", message.topic)
        self._entered: list[tuple[Middleware, Generator[Message, Receipt, None]]] = []
        for middleware in middlewares:
            try:
                self._enter(middleware)
            except BaseException as error:  # noqa: BLE001  # those before it are told, then it is raised
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
        """It was published: each middleware gets the receipt."""
        self.receipt = receipt
        while self._entered:
            middleware, generator = self._entered.pop()
            try:
                generator.send(receipt)
            except StopIteration:
                continue
            except BaseException as error:  # noqa: BLE001  # those before it are told, then it is raised
                self.fail(error)
            self.fail(
                UsageError(f"{_name(middleware)}: a middleware yields once, this one yielded again")
            )

    def fail(self, error: BaseException) -> None:
        """
        It was not published: each middleware gets the error, and may raise another one instead.
        Raises.
        """
        cause = error
        while self._entered:
            _, generator = self._entered.pop()
            try:
                generator.throw(error)
            except StopIteration:
                continue  # it cannot make a receipt out of an error
            except BaseException as other:  # noqa: BLE001  # goes on as the error
                error = other
        if error is cause:
            raise error
        raise error from cause


class Middlewares:
    """All middlewares of publish, in the order in which they were registered."""

    def __init__(self) -> None:
        self._middlewares: list[Middleware] = []

    def __bool__(self) -> bool:
        return bool(self._middlewares)

    def add(self, middleware: Middleware) -> None:
        """Raises UsageError where it is no generator function."""
        check_middleware("around_publish", middleware)
        self._middlewares.append(middleware)

    @contextmanager
    def around(self, message: Message) -> Iterator[Passing]:
        """Publish `message` of what this gives, and set its `receipt`."""
        passing = Passing(self._middlewares, message)
        try:
            yield passing
        except BaseException as error:  # noqa: BLE001  # raised again by fail
            passing.fail(error)
        else:
            passing.leave(passing.receipt)

    @contextmanager
    def around_many(self, messages: Iterable[Message], put: Put) -> Iterator[Stream]:
        """The same for a stream that is published in batches by `put`."""
        stream = Stream(self._middlewares, messages, put)
        try:
            yield stream
        except BaseException as error:
            stream.end(error)
            raise
        else:
            stream.end(None)


class Stream:
    """
    Many messages on their way: each goes back through the middlewares when its batch was answered.
    """

    def __init__(
        self, middlewares: Sequence[Middleware], messages: Iterable[Message], put: Put
    ) -> None:
        self._middlewares = middlewares
        self._messages = messages
        self._put = put
        self._coming: deque[Passing] = deque()
        self._refused: dict[
            int, tuple[Draft, Passing]
        ] = {}  # of the last batch, by the draft's identity: there may be room later

    def __iter__(self) -> Iterator[Message]:
        for message in self._messages:
            if isinstance(message, Message):
                self._coming.append(Passing(self._middlewares, message))
                yield self._coming[-1].message
            else:
                yield message  # whoever encodes it says what is wrong with it

    def put(self, drafts: list[Draft]) -> list[Receipt]:
        """As the engine's, and those that it took go back."""
        if id(drafts[0]) in self._refused:  # they are offered again
            passings = [self._refused.pop(id(draft))[1] for draft in drafts]
        else:
            self._leave_refused()
            passings = [self._coming.popleft() for _ in drafts]
        try:
            receipts = self._put(drafts)
        except BaseException as error:
            for passing in passings[1:]:
                _quietly(passing.fail, error)
            passings[0].fail(error)
            raise
        for draft, passing, receipt in zip(drafts, passings, receipts, strict=True):
            if receipt.outcome == "refused":
                passing.receipt = receipt
                self._refused[id(draft)] = draft, passing
            else:
                passing.leave(receipt)
        return receipts

    def end(self, error: BaseException | None) -> None:
        """
        What nobody offers again goes back with its refusal; what was not published is told the
        error.
        """
        self._leave_refused()
        if error is not None:
            for passing in self._coming:
                _quietly(passing.fail, error)

    def _leave_refused(self) -> None:
        refused, self._refused = self._refused, {}
        for _, passing in refused.values():
            passing.leave(passing.receipt)


def _quietly(call: Callable[[BaseException], None], error: BaseException) -> None:
    """One error is raised for all of a batch; this one is told of it."""
    with suppress(BaseException):
        call(error)


def check_middleware(call: str, middleware: Callable[..., Any]) -> None:
    """Raises UsageError where it is no generator function."""
    if not inspect.isgeneratorfunction(middleware):
        raise UsageError(f"{call}: expected a function that yields once, got {_name(middleware)}")


def _name(middleware: object) -> str:
    return str(getattr(middleware, "__qualname__", repr(middleware)))
