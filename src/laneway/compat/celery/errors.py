"""What tasks raise, and the words for how they stand."""

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
    A task asked for one more retry than it may have, and named no error that it could end with.
    """


class Ignore(HandlerSignal):
    """Raised in a task: it is over, and nothing is told of it."""


class Reject(_Reject):
    """Raised in a task: it is never tried again. `requeue=True`: it is, at once."""

    def __init__(self, reason: object = "rejected", requeue: bool = False) -> None:
        super().__init__(str(reason))
        self.requeue = requeue


class states:  # noqa: N801  # Celery's name
    """Celery's words for how a task stands."""

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
