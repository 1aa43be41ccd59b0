"""Errors that tasks raise, and the names of task states."""

from __future__ import annotations

from laneway.errors import HandlerSignal, JobCancelled, LanewayError
from laneway.errors import Reject as _Reject
from laneway.errors import Retry as _Retry
from laneway.working.error_details import WorkerLost
from laneway.working.time_limits import SoftTimeLimit, TimeLimit

SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError = SoftTimeLimit, TimeLimit, WorkerLost


Retry = _Retry
TaskRevokedError = JobCancelled


class MaxRetriesExceededError(LanewayError):
    """
    A task called `retry` after its last retry, without an error to fail with.
    """


class Ignore(HandlerSignal):
    """Raised in a task: it ends, and its state is not changed."""


class Reject(_Reject):
    """Raised in a task: it fails without a retry, or with `requeue=True` is retried at once."""

    def __init__(self, reason: object = "rejected", requeue: bool = False) -> None:
        super().__init__(str(reason))
        self.requeue = requeue


class states:  # noqa: N801  # Celery's name
    """Celery's names of task states."""

    PENDING = "PENDING"
    RECEIVED = "RECEIVED"
    STARTED = "STARTED"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    REVOKED = "REVOKED"
    RETRY = "RETRY"
    IGNORED = "IGNORED"
    READYSTATES = frozenset({SUCCESS, FAILURE, REVOKED})
    UNREADYSTATES = frozenset({PENDING, RECEIVED, STARTED, RETRY})
    EXCEPTIONSTATES = frozenset({RETRY, FAILURE, REVOKED})


STATES = {
    "unknown": states.PENDING,
    "pending": states.PENDING,
    "delayed": states.PENDING,
    "deferred": states.PENDING,
    "started": states.PENDING,
    "retry": states.RETRY,
    "success": states.SUCCESS,
    "failure": states.FAILURE,
    "dead": states.FAILURE,
    "expired": states.REVOKED,
    "cancelled": states.REVOKED,
}
