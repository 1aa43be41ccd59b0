"""The names of `celery.signals`. Those that are not sent here say at `connect` what to do."""

from typing import Any

from laneway.errors import UsageError
from laneway.signals import (
    Signal,
    after_task_publish,
    before_task_publish,
    task_failure,
    task_postrun,
    task_prerun,
    task_retry,
    task_success,
    worker_ready,
    worker_shutdown,
)

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
