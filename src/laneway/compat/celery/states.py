"""Celery's names of task states."""

PENDING, RECEIVED, STARTED, RETRY = "PENDING", "RECEIVED", "STARTED", "RETRY"
SUCCESS, FAILURE, REVOKED = "SUCCESS", "FAILURE", "REVOKED"
IGNORED, REJECTED = "IGNORED", "REJECTED"
READY_STATES = frozenset({SUCCESS, FAILURE, REVOKED})
UNREADY_STATES = frozenset({PENDING, RECEIVED, STARTED, RETRY})
EXCEPTION_STATES = frozenset({RETRY, FAILURE, REVOKED})

PROPAGATE_STATES = frozenset({FAILURE, REVOKED})
PRECEDENCE = [SUCCESS, FAILURE, None, REVOKED, STARTED, RECEIVED, REJECTED, RETRY, PENDING]


def precedence(state: str) -> int:
    """The place of a state in `PRECEDENCE`; unknown states share that of None."""
    return PRECEDENCE.index(state if state in PRECEDENCE else None)


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
