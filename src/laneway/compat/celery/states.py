"""Celery's names of task states."""

PENDING = "PENDING"
RECEIVED = "RECEIVED"
STARTED = "STARTED"
SUCCESS = "SUCCESS"
FAILURE = "FAILURE"
REVOKED = "REVOKED"
RETRY = "RETRY"
IGNORED = "IGNORED"
REJECTED = "REJECTED"
READY_STATES = frozenset({SUCCESS, FAILURE, REVOKED})
UNREADY_STATES = frozenset({PENDING, RECEIVED, STARTED, RETRY})
EXCEPTION_STATES = frozenset({RETRY, FAILURE, REVOKED})

OF_STATUS = {
    "unknown": PENDING,
    "pending": PENDING,
    "delayed": PENDING,
    "deferred": PENDING,
    "started": PENDING,
    "retry": RETRY,
    "success": SUCCESS,
    "failure": FAILURE,
    "dead": FAILURE,
    "expired": REVOKED,
    "cancelled": REVOKED,
}
"""By the status of Laneway's job."""
