"""
Signals by Celery's names: `@task_success.connect`; for what a whole program wants to know of its
tasks, in the process where it happens.

What a receiver raises is logged and changes nothing. `app.on_success` and its like are told of
settlements instead: once the engine has taken the outcome, in a thread of their own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("laneway.signals")

Receiver = TypeVar("Receiver", bound="Callable[..., Any]")


class Signal:
    """
    Something that receivers can be connected to; they are called with what `send` says, by
    keywords.
    """

    def __init__(self, name: str, what: str) -> None:
        self.name = name
        self.__doc__ = what
        self.receivers: list[tuple[Any, Callable[..., Any]]] = []

    def connect(
        self,
        receiver: Any = None,
        *,
        sender: Any = None,
        weak: bool = False,
        dispatch_uid: object = None,
    ) -> Any:
        """
        Have a function called with `sender` and more keywords; as a decorator, with and without
        parentheses.

        `sender`: only where that one sends (a task, or its name). Receivers are always held: `weak`
        and `dispatch_uid` are taken and mean nothing.
        """
        del weak, dispatch_uid
        if receiver is None:
            return lambda function: self.connect(function, sender=sender)
        self.receivers.append((sender, receiver))
        return receiver

    def disconnect(self, receiver: Callable[..., Any], sender: Any = None) -> bool:
        """Not any more; False: it was not connected."""
        before = len(self.receivers)
        self.receivers = [each for each in self.receivers if each != (sender, receiver)]
        return len(self.receivers) < before

    def send(self, sender: Any, **said: Any) -> None:
        """Call all receivers."""
        for wanted, receiver in list(self.receivers):
            if wanted is None or wanted is sender or wanted == getattr(sender, "name", None):
                try:
                    receiver(sender=sender, signal=self, **said)
                except Exception:
                    log.exception("signal %s: %r failed", self.name, receiver)

    def __repr__(self) -> str:
        return f"<Signal {self.name}>"


before_task_publish = Signal(
    "before_task_publish",
    "A call is about to be published: sender (the name), body, headers, routing_key (the topic).",
)
after_task_publish = Signal(
    "after_task_publish", "A call was published: the same, and task_id in headers['id']."
)
task_prerun = Signal("task_prerun", "A task begins: task_id, task, args, kwargs.")
task_postrun = Signal("task_postrun", "A task has run: task_id, task, args, kwargs, retval, state.")
task_success = Signal("task_success", "A task has returned: result.")
task_retry = Signal("task_retry", "A task will be tried again: request, reason, einfo.")
task_failure = Signal(
    "task_failure",
    "A task has failed for good: task_id, exception, args, kwargs, traceback, einfo.",
)
worker_ready = Signal("worker_ready", "A worker has begun.")
worker_shutdown = Signal("worker_shutdown", "A worker ends.")

OF_RUNS = (task_prerun, task_postrun, task_success, task_retry, task_failure)


def of_runs() -> bool:
    """Whether anybody wants to hear of runs."""
    return any(signal.receivers for signal in OF_RUNS)
