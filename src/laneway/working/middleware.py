"""
Middlewares around handlers, and the hooks that are called with the end of a message.

Middlewares run where the handler runs; hooks run in a thread of their own (`hook_thread`).
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Generator, Iterator
from typing import Any, Literal

from laneway.errors import UsageError
from laneway.message import Message
from laneway.producing.middleware import check_middleware

Middleware = Callable[[Any], Generator[None, None, None]]
Hook = Callable[..., object]

log = logging.getLogger("laneway.worker")

HookKind = Literal["success", "failure", "retry", "dead", "back_off"]


class HandlingMiddlewares:
    """The middlewares and hooks that an application has registered for its handlers."""

    def __init__(self) -> None:
        self._middlewares: list[Callable[[Any], contextlib.AbstractContextManager[None]]] = []
        self._hooks: dict[HookKind, list[Hook]] = {
            "success": [],
            "failure": [],
            "retry": [],
            "dead": [],
            "back_off": [],
        }

    def add_middleware(self, middleware: Middleware) -> None:
        """
        Add a generator function that yields once; the first that is added is the outermost.

        It gets the message, or a batch's list of messages. What the handler raises is raised at its
        `yield`; it may suppress that error or raise another one.
        Raises UsageError if it is no generator function.
        """
        check_middleware("around_handling", middleware)
        self._middlewares.append(contextlib.contextmanager(middleware))

    def add_hook(self, kind: HookKind, hook: Hook) -> None:
        """
        Add a hook; hooks of one kind are called in the order in which they were added.

        - "success", with the message: its handler returned and it is acked.
        - "failure", with the message and the error: its handler raised an error that was none of
          Retry and Reject.
        - "retry", with the message and the error: it will be delivered again.
        - "dead", with the message and the error: it became a dead letter.
        - "back_off", with the message and the error: its topic backs off.

        An error that the hook raises is logged and changes nothing.
        Raises UsageError if it is no plain function.
        """
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
        """Whether there is a middleware."""
        return bool(self._middlewares)

    @property
    def has_hooks(self) -> bool:
        """Whether there is a hook of any kind."""
        return any(self._hooks.values())

    @contextlib.contextmanager
    def around(self, subject: Message | list[Any] | None) -> Iterator[None]:
        """Call the handler in this block; its error passes all middlewares, the innermost first."""
        with contextlib.ExitStack() as stack:
            for middleware in self._middlewares:
                stack.enter_context(middleware(subject))
            yield

    def call_hooks(self, kind: HookKind, *arguments: object) -> None:
        """Call all hooks of a kind; an error of one is logged."""
        for hook in self._hooks[kind]:
            try:
                hook(*arguments)
            except BaseException:  # also SystemExit: the other hooks are called all the same
                log.exception(
                    "the hook %s of on_%s failed", getattr(hook, "__qualname__", hook), kind
                )
