"""The one place where all endings of a handler become settlements."""

from __future__ import annotations

import inspect
import logging
import traceback
from typing import TYPE_CHECKING, Any

from fairlead import units
from fairlead.errors import DestinationUnwell, FairleadError, Reject, Retry
from fairlead.message import Settlement

if TYPE_CHECKING:
    from fairlead.units import Duration
    from fairlead.working.work import Work

log = logging.getLogger("fairlead.worker")

ERROR_FRAMES = 5
"""Innermost lines of a traceback that are kept with the message."""

ERROR_CHARACTERS = 4_000


class RemoteFailure(FairleadError):
    """An exception of a handler in a child process: all that came over is its text."""


class ChildDied(FairleadError):
    """The child process that ran the handler ended before the handler did."""


def judge(work: Work, error: BaseException | None, cost_us: int) -> Settlement:
    """How a lease ends, from what its handler raised (None: it returned)."""
    handle, fence = work.lease.handle, work.lease.fence
    match error:
        case None:
            return Settlement(handle, fence, "ack", cost_us=cost_us)
        case Reject():
            return Settlement(handle, fence, "dead", reason=error.reason, error=error.error, cost_us=cost_us)
        case Retry():
            return _again(Settlement(handle, fence, "retry", error=error.reason or None, cost_us=cost_us), "delay", error.delay)
        case DestinationUnwell():
            return _again(Settlement(handle, fence, "rest", error=error.reason, cost_us=cost_us), "retry_after", error.retry_after)
        case _:
            return Settlement(handle, fence, "retry", error=text_of(error), cost_us=cost_us)


def _again(settlement: Settlement, name: str, delay: Duration | None) -> Settlement:
    """With the delay that the handler asked for; one that cannot be read is told, and the policy's taken."""
    if delay is not None:
        try:
            settlement.delay_us = max(0, units.microseconds(delay))
        except (ValueError, OverflowError, TypeError) as error:
            settlement.error = f"{settlement.error or ''} ({name}: {error})".lstrip()
    return settlement


def nonsense(handler: str, returned: Any) -> TypeError | None:
    """What a handler returned is not looked at, but a coroutine means that its work was never done."""
    if inspect.iscoroutine(returned):
        returned.close()
        return TypeError(f'handler {handler} returned a coroutine that nobody awaits; write it as "async def"')
    log.debug("handler %s returned %.200r, which is not used", handler, returned)
    return None


def give_back(work: Work, *, begun: bool, delay_us: int | None = None) -> Settlement:
    """A release: no attempt is counted; what was not begun gives its rate permit back too."""
    return Settlement(work.lease.handle, work.lease.fence, "release", begun=begun, delay_us=delay_us)


def text_of(error: BaseException) -> str:
    """Type, message and the innermost frames, as they are kept with the message."""
    if isinstance(error, (RemoteFailure, ChildDied)):
        return str(error)
    head = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = "".join(traceback.format_tb(error.__traceback__)[-ERROR_FRAMES:]).rstrip()
    return f"{head}\n{frames}"[:ERROR_CHARACTERS].rstrip()
