"""
The names of `celery.signals`: `@task_success.connect`; for a program that observes all of its
tasks, in the process where they run. Those that are not sent here say at `connect` what to do.

A receiver's error is logged and changes nothing. `app.laneway.on_success` and the other hooks run
later: after the engine has stored the outcome, in their own thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from laneway.errors import UsageError
from laneway.working import worker_registry

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


_STARTS = "A process of a worker has started."
_STOPS = "A process of a worker stops."
_LOGGING = "A worker starts, and has set up logging: logger, the root."

SENT = {
    "before_task_publish": "Before a call is published: sender (the name), body, headers,"
    " routing_key (the topic).",
    "after_task_publish": "After a call was published: the same, and the id in headers['id'].",
    "task_prerun": "A run starts: task_id, task, args, kwargs.",
    "task_postrun": "A run has ended: task_id, task, args, kwargs, retval, state.",
    "task_success": "A run returned: result.",
    "task_retry": "A run will be retried: request, reason, einfo.",
    "task_failure": "A run failed for good: task_id, exception, args, kwargs, traceback, einfo.",
    "setup_logging": "A worker starts; a receiver sets up logging instead of it.",
    "after_setup_logger": _LOGGING,
    "after_setup_task_logger": _LOGGING,
    "celeryd_init": _STARTS,
    "celeryd_after_setup": _STARTS,
    "worker_init": _STARTS,
    "worker_process_init": _STARTS,
    "worker_ready": _STARTS,
    "worker_shutting_down": _STOPS,
    "worker_process_shutdown": _STOPS,
    "worker_shutdown": _STOPS,
}
"""The signals, and what they tell; those of workers have their order."""

globals().update(ALL := {name: Signal(name, doc) for name, doc in SENT.items()})
worker_registry.STARTED += [each.send for each in ALL.values() if each.__doc__ == _STARTS]
worker_registry.STOPS += [each.send for each in ALL.values() if each.__doc__ == _STOPS]


def of_logging() -> None:
    """Send the signals of logging; a worker does so when it starts."""
    fields = {"loglevel": logging.root.level, "logfile": None, "format": "", "colorize": False}
    ALL["setup_logging"].send(None, **fields)
    for name in ("after_setup_logger", "after_setup_task_logger"):
        ALL[name].send(None, logger=logging.root, **fields)


def of_runs() -> bool:
    """Whether a signal of runs has receivers. Without a loop: each run of a task asks."""
    return bool(
        ALL["task_prerun"].receivers
        or ALL["task_postrun"].receivers
        or ALL["task_success"].receivers
        or ALL["task_retry"].receivers
        or ALL["task_failure"].receivers
    )


_NO_BEAT = "workers fire schedules, and no beat process exists"

_INSTEAD = {
    "import_modules": "use app.on_after_finalize",
    "task_received": "connect task_prerun",
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
        """Raises UsageError, which names what to connect instead."""
        del receiver
        raise UsageError(f"signal {self.name}: Laneway does not send it; {self.__doc__}")


def __getattr__(name: str) -> Signal:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _NeverSent(name, _INSTEAD.get(name, "see docs/from-celery.md#schedules-control-signals"))
