"""What is kept of an error with its message: its text, and details for results and logs."""

from __future__ import annotations

from typing import Any

import msgspec

from laneway import texts
from laneway.errors import LanewayError, Reject, Retry
from laneway.working import tracebacks

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


class ChildDied(LanewayError):
    """The child process that ran the handler ended before the handler did."""


class WorkerLost(LanewayError):
    """The worker that ran the handler ended before the handler did."""


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
        trace = tracebacks.whole(error)
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
        head, frames = tracebacks.head(error), tracebacks.innermost(error, ERROR_FRAMES).rstrip()
    except BaseException:  # noqa: BLE001  # as in _traceback_of
        head, frames = f"{texts.type_name(kind)}: {texts.of(error)}", ""
    room = ERROR_CHARACTERS - min(len(frames), ERROR_CHARACTERS // 2)
    return texts.clean(f"{texts.clean(head, room - 1)}\n{frames}".rstrip(), ERROR_CHARACTERS)
