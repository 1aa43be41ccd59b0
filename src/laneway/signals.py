"""
Signals with Celery's names: `@task_success.connect`; for a program that observes all of its tasks,
in the process where they run.

A receiver's error is logged and changes nothing. `app.on_success` and the other hooks run later:
after the engine has stored the outcome, in their own thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("laneway.signals")

Receiver = TypeVar("Receiver", bound="Callable[..., Any]")


class Signal:
    """A list of receivers, which `send` calls with keywords."""

    def __init__(self, name: str, doc: str) -> None:
        self.name = name
        self.__doc__ = doc
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
        Connect a function, which is called with `sender` and other keywords. Also a decorator, with
        and without parentheses.

        `sender`: only for signals of this task, or of the task with this name. Receivers are always
        referenced strongly: `weak` and `dispatch_uid` are accepted and ignored.
        """
        del weak, dispatch_uid
        if receiver is None:
            return lambda function: self.connect(function, sender=sender)
        self.receivers.append((sender, receiver))
        return receiver

    def disconnect(self, receiver: Callable[..., Any], sender: Any = None) -> bool:
        """Disconnect a receiver. Returns False if it was not connected."""
        before = len(self.receivers)
        self.receivers = [each for each in self.receivers if each != (sender, receiver)]
        return len(self.receivers) < before

    def send(self, sender: Any, **fields: Any) -> None:
        """Call all receivers."""
        for wanted, receiver in list(self.receivers):
            if wanted is None or wanted is sender or wanted == getattr(sender, "name", None):
                try:
                    receiver(sender=sender, signal=self, **fields)
                except Exception:
                    log.exception("signal %s: %r failed", self.name, receiver)

    def __repr__(self) -> str:
        return f"<Signal {self.name}>"


before_task_publish = Signal(
    "before_task_publish",
    "Before a call is published: sender (the name), body, headers, routing_key (the topic).",
)
after_task_publish = Signal(
    "after_task_publish", "After a call was published: the same, and the id in headers['id']."
)
task_prerun = Signal("task_prerun", "A run starts: task_id, task, args, kwargs.")
task_postrun = Signal(
    "task_postrun", "A run has ended: task_id, task, args, kwargs, retval, state."
)
task_success = Signal("task_success", "A run returned: result.")
task_retry = Signal("task_retry", "A run will be retried: request, reason, einfo.")
task_failure = Signal(
    "task_failure",
    "A run failed for good: task_id, exception, args, kwargs, traceback, einfo.",
)
worker_ready = Signal("worker_ready", "A worker has started.")
worker_shutdown = Signal("worker_shutdown", "A worker stops.")


def of_runs() -> bool:
    """Whether a signal of runs has receivers. Without a loop: each run of a task asks."""
    return bool(
        task_prerun.receivers
        or task_postrun.receivers
        or task_success.receivers
        or task_retry.receivers
        or task_failure.receivers
    )
