"""The names of `celery.exceptions`: errors that tasks raise."""

from __future__ import annotations

import builtins

from laneway.errors import (
    HandlerSignal,
    JobCancelled,
    LanewayError,
    Reject as _Reject,
    Retry as _Retry,
)
from laneway.working.error_details import WorkerLost
from laneway.working.time_limits import SoftTimeLimit, TimeLimit

SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError = SoftTimeLimit, TimeLimit, WorkerLost
Retry, TaskRevokedError = _Retry, JobCancelled
TimeoutError = builtins.TimeoutError  # noqa: A001  # Celery's name; `get` raises it

__all__ = [
    "Ignore",
    "MaxRetriesExceededError",
    "Reject",
    "Retry",
    "SoftTimeLimitExceeded",
    "TaskRevokedError",
    "TimeLimitExceeded",
    "TimeoutError",
    "WorkerLostError",
]


class MaxRetriesExceededError(LanewayError):
    """
    A task called `retry` after its last retry, without an error to fail with.
    """


class Ignore(HandlerSignal):
    """Raised in a task: it ends, and its state is not changed."""


class Reject(_Reject):
    """Raised in a task: it fails without a retry, or with `requeue=True` is retried immediately."""

    def __init__(self, reason: object = "rejected", requeue: bool = False) -> None:
        super().__init__(str(reason))
        self.requeue = requeue
