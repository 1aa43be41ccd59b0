"""The names of `celery.exceptions`."""

from laneway.compat.celery.errors import (
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeLimitExceeded,
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
    "WorkerLostError",
]
