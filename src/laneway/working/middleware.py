"""
What surrounds handlers: middlewares around each call, and hooks that are told how a message ended.

Hooks run in a thread of their own, after the engine has taken the settlement: what they are told is
so. A hook that raises is logged and changes nothing; a process that is killed between the
settlement and the hook tells nobody.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import queue
import threading
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from laneway import codec, texts
from laneway.errors import DestinationUnavailable, Reject, Retry, UsageError
from laneway.message import Message, SettlementAnswer
from laneway.producing.middleware import check_middleware

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from laneway.engines.base import FullEngine
    from laneway.message import Draft, Lease, Settlement

    Middleware = Callable[[Any], Generator[None, None, None]]
    Hook = Callable[..., object]

log = logging.getLogger("laneway.worker")

Kind = Literal["success", "failure", "retry", "dead", "back_off"]

BEHIND = 10_000
"""
So many endings that hooks have yet to be told of hold up the next messages: hooks that are slower
than handlers set the pace.
"""


class HandlingMiddlewares:
    """What an application has registered around its handlers."""

    def __init__(self) -> None:
        self._middlewares: list[Callable[[Any], contextlib.AbstractContextManager[None]]] = []
        self._hooks: dict[Kind, list[Hook]] = {
            "success": [],
            "failure": [],
            "retry": [],
            "dead": [],
            "back_off": [],
        }

    def add_middleware(self, middleware: Middleware) -> None:
        """Raises UsageError where it is no generator function."""
        check_middleware("around_handling", middleware)
        self._middlewares.append(contextlib.contextmanager(middleware))

    def add_hook(self, kind: Kind, hook: Hook) -> None:
        """Raises UsageError where it is no plain function."""
        if (
            not callable(hook)
            or inspect.iscoroutinefunction(hook)
            or inspect.isgeneratorfunction(hook)
        ):
            raise UsageError(
                f"on_{kind}: expected a plain function, got {hook!r}; hooks run in a thread, write"
                ' it as "def"'
            )
        self._hooks[kind].append(hook)

    @property
    def has_middlewares(self) -> bool:
        return bool(self._middlewares)

    @property
    def has_hooks(self) -> bool:
        return any(self._hooks.values())

    @contextlib.contextmanager
    def around(self, subject: Message | list[Any] | None) -> Iterator[None]:
        """
        Call the handler inside; the first middleware is the outermost. What it raises passes them
        all, and each may change it.
        """
        with contextlib.ExitStack() as stack:
            for middleware in self._middlewares:
                stack.enter_context(middleware(subject))
            yield

    def tell(self, kind: Kind, *arguments: object) -> None:
        for hook in self._hooks[kind]:
            try:
                hook(*arguments)
            except (
                BaseException
            ):  # also SystemExit: the next hook, and the next message's, are called all the same
                log.exception(
                    "the hook %s of on_%s failed", getattr(hook, "__qualname__", hook), kind
                )


class _Ended(msgspec.Struct):
    """How a handler ended, and what the engine made of it."""

    lease: Lease
    error: BaseException | None
    answer: str = ""


class HookThread(threading.Thread):
    """
    Tells hooks. `resume` is called, from this thread, when they have caught up after having been
    behind.
    """

    def __init__(self, middlewares: HandlingMiddlewares, resume: Callable[[], None]) -> None:
        super().__init__(name="laneway-hooks", daemon=True)
        self._middlewares = middlewares
        self._resume = resume
        self._expected: dict[int, _Ended] = {}
        self._ended: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()
        self._is_awaited = False

    def asks_to_wait(self) -> bool:
        """
        Whether hooks are so far behind that nothing more is to be begun before `resume` is called,
        as it will be then.
        """
        if self._ended.qsize() <= BEHIND:
            return False
        self._is_awaited = True
        # It may have told the last of them before it could see that.
        return self._ended.qsize() >= BEHIND // 2

    def expect(self, lease: Lease, error: BaseException | None) -> None:
        """Its settlement is on its way."""
        self._expected[lease.fence] = _Ended(lease, error)

    def told(self, settlements: Sequence[Settlement], answers: Sequence[str]) -> None:
        """The engine has answered."""
        for settlement, answer in zip(settlements, answers, strict=True):
            ended = self._expected.pop(settlement.fence, None)
            if ended is not None:
                ended.answer = answer
                self._ended.put(ended)

    def run(self) -> None:
        while (ended := self._ended.get()) is not None:
            try:
                self._tell(ended)
            except BaseException as error:  # noqa: BLE001  # a thread that ended here would hold the worker up for good
                log.warning(
                    "message %s in %s: hooks cannot be told of its end: %s",
                    ended.lease.id,
                    ended.lease.topic,
                    texts.of(error, 200),
                )
            if self._is_awaited and self._ended.qsize() < BEHIND // 2:
                self._is_awaited = False
                self._resume()

    def _tell(self, ended: _Ended) -> None:
        message, error = message_of(ended.lease), ended.error
        tell = self._middlewares.tell
        if error is None:
            if ended.answer == "acked":
                tell("success", message)
            return
        kind = type(error)  # not isinstance: it asks the error's own `__class__`
        if issubclass(kind, DestinationUnavailable) and ended.answer == "released":
            tell("back_off", message, error)
        if ended.answer in ("acked", "retried", "died") and not issubclass(kind, (Retry, Reject)):
            tell("failure", message, error)
        if ended.answer == "retried":
            tell("retry", message, error)
        elif ended.answer == "died":
            tell("dead", message, error)

    def end(self, seconds: float) -> None:
        """Tell what is left; waits for that."""
        self._ended.put(None)
        self.join(seconds)
        if self.is_alive():
            log.warning(
                "hooks are slow: %d endings were not told before the worker ended",
                self._ended.qsize(),
            )


class EngineWithHooks:
    """An engine that says what became of settlements."""

    def __init__(self, engine: FullEngine, hooks: HookThread) -> None:
        self._engine = engine
        self._hooks = hooks

    def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        publish: Mapping[int, Sequence[Draft]] | None = None,
        now_us: int | None = None,
    ) -> list[SettlementAnswer]:
        answers = self._engine.settle(settlements, publish=publish, now_us=now_us)
        self._hooks.told(settlements, answers)
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def message_of(lease: Lease) -> Message:
    """The message of a lease; a body that cannot be read stays as it is."""
    try:
        return codec.message_of(lease)
    except ValueError:
        return Message(
            lease.topic,
            lease.body,
            lease.key,
            lease.priority,
            id=lease.id,
            headers=lease.headers,
            attempt=lease.attempt,
        )
