"""The names of `celery.exceptions`."""

from laneway.compat.celery.errors import (
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeLimitExceeded,
    TimeoutError,  # noqa: A004  # Celery's name
    WorkerLostError,
)

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
