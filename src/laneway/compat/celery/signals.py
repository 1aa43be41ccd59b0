"""
The names of `celery.signals`: `@task_success.connect`; for a program that observes all of its
tasks, in the process where they run. Those that are not sent here say at `connect` what to do.

A receiver's error is logged and changes nothing. `app.laneway.on_success` and the other hooks run
later: after the engine has stored the outcome, in their own thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from laneway.errors import UsageError
from laneway.working import worker_hooks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "after_task_publish",
    "before_task_publish",
    "task_failure",
    "task_postrun",
    "task_prerun",
    "task_retry",
    "task_success",
    "worker_ready",
    "worker_shutdown",
]

log = logging.getLogger("laneway.celery.signals")


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
worker_hooks.STARTED.append(worker_ready.send)
worker_hooks.STOPS.append(worker_shutdown.send)


def of_runs() -> bool:
    """Whether a signal of runs has receivers. Without a loop: each run of a task asks."""
    return bool(
        task_prerun.receivers
        or task_postrun.receivers
        or task_success.receivers
        or task_retry.receivers
        or task_failure.receivers
    )


_START = "connect worker_ready, which each process of a worker sends when it starts"
_END = "connect worker_shutdown, which each process of a worker sends when it ends"
_LOGGING = "set up `logging` where the program starts; a worker keeps what it finds"
_RUNS = "connect task_prerun"
_NO_BEAT = "workers fire schedules, and no beat process exists"

_INSTEAD = {
    "worker_process_init": _START,
    "worker_init": _START,
    "celeryd_init": _START,
    "celeryd_after_setup": _START,
    "import_modules": "use app.on_after_finalize",
    "worker_process_shutdown": _END,
    "worker_shutting_down": _END,
    "setup_logging": _LOGGING,
    "after_setup_logger": _LOGGING,
    "after_setup_task_logger": _LOGGING,
    "task_received": _RUNS,
    "task_sent": "connect after_task_publish",
    "task_revoked": "use app.laneway.on_dead, or read the state of the call",
    "task_rejected": "use app.laneway.on_dead",
    "task_unknown": "a message without a handler waits; see `laneway explain`",
    "task_internal_error": "connect task_failure",
    "heartbeat_sent": "see `laneway workers`",
    "beat_init": _NO_BEAT,
    "beat_embedded_init": _NO_BEAT,
}


class _NeverSent(Signal):
    """A signal that Laneway does not send."""

    def connect(self, receiver: Any = None, **_: Any) -> Any:
        """Raises UsageError, which says what to connect instead."""
        del receiver
        raise UsageError(f"signal {self.name}: Laneway does not send it; {self.__doc__}")


def __getattr__(name: str) -> Signal:
    if name in _INSTEAD:
        return _NeverSent(name, _INSTEAD[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
