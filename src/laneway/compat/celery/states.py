"""The names of `celery.states`."""

from laneway.compat.celery.errors import states

PENDING = states.PENDING
RECEIVED = states.RECEIVED
STARTED = states.STARTED
SUCCESS = states.SUCCESS
FAILURE = states.FAILURE
REVOKED = states.REVOKED
RETRY = states.RETRY
IGNORED = states.IGNORED
READY_STATES = states.READYSTATES
UNREADY_STATES = states.UNREADYSTATES
EXCEPTION_STATES = states.EXCEPTIONSTATES
