"""The one place where all endings of a handler become settlements."""

from __future__ import annotations

import inspect
import logging
import traceback
from typing import TYPE_CHECKING, Any

import msgspec

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
TRACEBACK_CHARACTERS = 20_000


class Details(msgspec.Struct, omit_defaults=True):
    """What is told of an error: `module:Class`, its text, its arguments where JSON can hold them, and the traceback."""

    type: str
    message: str
    traceback: str = ""
    args: list[Any] | None = None


class RemoteFailure(FairleadError):
    """An exception of a handler in a child process: all that came over is its text, and what is told of it."""

    def __init__(self, text: str, details: Details | None = None) -> None:
        super().__init__(text)
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.details)


class Portable(bytes):
    """What a function returns that is to leave the child process in which it ran."""


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
    """What a handler may return, but for a coroutine: its work was never done."""
    if inspect.iscoroutine(returned):
        returned.close()
        return TypeError(f'handler {handler} returned a coroutine that nobody awaits; write it as "async def"')
    return None


def give_back(work: Work, *, begun: bool, delay_us: int | None = None) -> Settlement:
    """A release: no attempt is counted; what was not begun gives its rate permit back too."""
    return Settlement(work.lease.handle, work.lease.fence, "release", begun=begun, delay_us=delay_us)


def describe(error: BaseException) -> Details:
    """What is told of an error; of a Retry, and of a Reject that was made of another error, that one."""
    told: Details | None = getattr(error, "details", None)
    if told is not None:
        return told
    stands_for_another = isinstance(error, Retry) or (isinstance(error, Reject) and error.error is not None)
    if stands_for_another and error.__cause__ is not None:
        return describe(error.__cause__)
    kind = type(error)
    trace = "".join(traceback.format_exception(error))
    if len(trace) > TRACEBACK_CHARACTERS:
        trace = f"{trace[: TRACEBACK_CHARACTERS // 2]}\n…\n{trace[-TRACEBACK_CHARACTERS // 2 :]}"
    made = Details(f"{kind.__module__}:{kind.__qualname__}", str(error), trace.rstrip())
    try:
        if len(msgspec.json.encode(error.args)) <= ERROR_CHARACTERS:
            made.args = list(error.args)
    except (TypeError, ValueError, OverflowError, RecursionError):  # it is told by its text alone
        pass
    return made


def text_of(error: BaseException) -> str:
    """Type, message and the innermost frames, as they are kept with the message."""
    if isinstance(error, (RemoteFailure, ChildDied)):
        return str(error)
    head = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = "".join(traceback.format_tb(error.__traceback__)[-ERROR_FRAMES:]).rstrip()
    return f"{head}\n{frames}"[:ERROR_CHARACTERS].rstrip()
