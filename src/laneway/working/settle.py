"""The one place where all endings of a handler become settlements."""

from __future__ import annotations

import contextlib
import logging
import types
from typing import TYPE_CHECKING, Any

import msgspec

from laneway import texts, units
from laneway.errors import DestinationUnavailable, LanewayError, Reject, Retry
from laneway.message import Settlement
from laneway.working import traces

if TYPE_CHECKING:
    from laneway.units import Duration
    from laneway.working.work import Work

log = logging.getLogger("laneway.worker")

ERROR_FRAMES = 5
"""Innermost lines of a traceback that are kept with the message."""

ERROR_CHARACTERS = texts.MAX_ERROR
TRACEBACK_CHARACTERS = 20_000

MOST_CAUSES = 10
"""How far the causes of an error are followed: they may be a circle."""


class Details(msgspec.Struct, omit_defaults=True):
    """
    What is told of an error: `module:Class`, its text, its arguments where JSON can hold them, and
    the traceback.
    """

    type: str
    message: str
    traceback: str = ""
    args: list[Any] | None = None


class RemoteFailure(LanewayError):
    """
    An exception of a handler in a child process: all that came over is its text, and what is told
    of it.
    """

    def __init__(self, text: str, details: Details | None = None) -> None:
        super().__init__(text)
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.details)


class Portable(bytes):
    """What a function returns that is to leave the child process in which it ran."""


class ChildDied(LanewayError):
    """The child process that ran the handler ended before the handler did."""


CANNOT_SETTLE = "cannot be settled: "
"""
How the reason of a dead letter begins whose handler ended in a way that no settlement can say.
"""


class WorkerLost(LanewayError):
    """The worker that ran the handler ended before the handler did."""


def judge(work: Work, error: BaseException | None, cost_us: int) -> Settlement:
    """How a lease ends, from what its handler raised (None: it returned)."""
    handle, fence = work.lease.handle, work.lease.fence
    if error is None:
        return Settlement(handle, fence, "ack", cost_us=cost_us)
    kind = type(error)  # not isinstance: it asks the error's own `__class__`
    if issubclass(kind, Reject):
        return Settlement(
            handle,
            fence,
            "dead",
            reason=said(error, "reason"),
            error=said(error, "error"),
            cost_us=cost_us,
        )
    if issubclass(kind, Retry):
        return _again(
            Settlement(handle, fence, "retry", error=error_text(error), cost_us=cost_us),
            work,
            "delay",
            attribute(error, "delay"),
        )
    if issubclass(kind, DestinationUnavailable):
        settlement = Settlement(handle, fence, "rest", error=said(error, "reason"), cost_us=cost_us)
        return _again(settlement, work, "retry_after", attribute(error, "retry_after"))
    return Settlement(handle, fence, "retry", error=text_of(error), cost_us=cost_us)


def error_text(error: BaseException) -> str:
    """
    What is kept of an error with its message. Of a Retry: its reason, and the error that it was
    raised from or while handling.
    """
    if not issubclass(type(error), Retry):
        return text_of(error)
    reason, cause = said(error, "reason"), cause_of(error)
    told = [*([reason] if reason else []), *([text_of(cause)] if cause is not None else [])]
    return texts.clean("\n".join(told)) or "the handler asked for a retry"


def cause_of(error: BaseException) -> BaseException | None:
    """The error that it was raised from, else the one that was being handled."""
    names = (
        ["__cause__"] if attribute(error, "__suppress_context__") else ["__cause__", "__context__"]
    )
    found = [attribute(error, name) for name in names]
    return next((each for each in found if issubclass(type(each), BaseException)), None)


def impossible(
    work: Work, error: BaseException | None, fault: BaseException, cost_us: int
) -> Settlement:
    """
    The dead letter of a message whose handler ended in a way that cannot be settled; `fault`: what
    went wrong with that.
    """
    reason = (
        f"{CANNOT_SETTLE}{texts.type_name(type(fault))}: {texts.of(fault, texts.MAX_REASON // 2)}"
    )
    return Settlement(
        work.lease.handle,
        work.lease.fence,
        "dead",
        reason=reason,
        error=text_of(fault if error is None else error),
        cost_us=cost_us,
    )


def attribute(error: BaseException, name: str) -> Any:
    """
    What an error says of itself; None where a class of the user's own has left that out, or raises.
    """
    try:
        return getattr(error, name, None)
    except BaseException:  # noqa: BLE001  # a property may raise anything
        return None


def said(error: BaseException, name: str) -> str | None:
    """As `attribute`, as text."""
    found = attribute(error, name)
    return None if found is None else texts.clean(found) or None


def _again(settlement: Settlement, work: Work, name: str, delay: Duration | None) -> Settlement:
    """
    With the delay that the handler asked for. Of one that cannot be, the message's history tells,
    and the policy's is taken.
    """
    if delay is not None:
        try:
            settlement.delay_us = max(0, units.microseconds(delay))
        except BaseException as error:  # noqa: BLE001  # it may be of a class of the user's own
            fault = f"({name}: {texts.of(error, 200)}; the policy's is taken)"
            log.warning(
                "message %s in %s: its handler asks for a delay that cannot be %s",
                work.lease.id,
                work.lease.topic,
                fault,
            )
            before = texts.clean(settlement.error or "", texts.MAX_ERROR - len(fault) - 1)
            settlement.error = f"{before} {fault}".lstrip()
    return settlement


def nonsense(handler: str, returned: Any) -> TypeError | None:
    """What a handler may return, but for a coroutine: its work was never done."""
    if issubclass(type(returned), types.CoroutineType):
        with contextlib.suppress(Exception):
            returned.close()
        return TypeError(
            f'handler {handler} returned a coroutine that nobody awaits; write it as "async def"'
        )
    return None


def give_back(work: Work, *, begun: bool, delay_us: int | None = None) -> Settlement:
    """A release: no attempt is counted; what was not begun gives its rate permit back too."""
    return Settlement(
        work.lease.handle, work.lease.fence, "release", begun=begun, delay_us=delay_us
    )


def describe(error: BaseException, depth: int = 0) -> Details:
    """
    What is told of an error; of a Retry, and of a Reject that was made of another error, that one.
    Never raises.
    """
    told = attribute(error, "details")
    if type(told) is Details:
        return told
    kind = type(error)
    cause = cause_of(error) if issubclass(kind, Retry) else attribute(error, "__cause__")
    stands_for_another = issubclass(kind, Retry) or (
        issubclass(kind, Reject) and attribute(error, "error") is not None
    )
    if (
        stands_for_another
        and cause is not None
        and issubclass(type(cause), BaseException)
        and depth < MOST_CAUSES
    ):
        return describe(cause, depth + 1)
    return Details(
        texts.qualified_name(kind),
        texts.of(error, ERROR_CHARACTERS),
        _traceback_of(error),
        _arguments_of(error),
    )


def _traceback_of(error: BaseException) -> str:
    try:
        trace = traces.whole(error)
    except BaseException as fault:  # noqa: BLE001  # notes, causes and frames may be of classes of the user's own
        trace = (
            f"{texts.type_name(type(error))}: {texts.of(error)}\n(its traceback cannot be read:"
            f" {texts.type_name(type(fault))})"
        )
    if len(trace) > TRACEBACK_CHARACTERS:
        trace = f"{trace[: TRACEBACK_CHARACTERS // 2]}\n…\n{trace[-TRACEBACK_CHARACTERS // 2 :]}"
    return texts.clean(trace.rstrip(), 2 * TRACEBACK_CHARACTERS)


def _arguments_of(error: BaseException) -> list[Any] | None:
    """
    As JSON gives them back; None where it cannot hold them: the error is told by its text alone
    then.
    """
    try:
        encoded = msgspec.json.encode(error.args)
        found: list[Any] | None = (
            msgspec.json.decode(encoded) if len(encoded) <= ERROR_CHARACTERS else None
        )
    except BaseException:  # noqa: BLE001  # encoding runs code of the user's own
        return None
    return found


def text_of(error: BaseException) -> str:
    """Type, message and the innermost frames, as they are kept with the message. Never raises."""
    kind = type(error)
    if issubclass(kind, (RemoteFailure, ChildDied)):
        return texts.of(error, ERROR_CHARACTERS)
    try:
        head, frames = traces.head(error), traces.innermost(error, ERROR_FRAMES).rstrip()
    except BaseException:  # noqa: BLE001  # as in _traceback_of
        head, frames = f"{texts.type_name(kind)}: {texts.of(error)}", ""
    room = ERROR_CHARACTERS - min(len(frames), ERROR_CHARACTERS // 2)
    return texts.clean(f"{texts.clean(head, room - 1)}\n{frames}".rstrip(), ERROR_CHARACTERS)
