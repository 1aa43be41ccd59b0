"""What is kept of a handler's error: its text with the message, its details in the outcome."""

from __future__ import annotations

from typing import Any

import msgspec

from laneway import storable
from laneway.errors import LanewayError, Reject, Retry
from laneway.working import tracebacks

ERROR_FRAMES = 5
"""How many innermost frames of a traceback are kept with the message."""

ERROR_CHARACTERS = storable.MAX_ERROR
"""How long the text of an error may be; a longer one is cut."""

TRACEBACK_CHARACTERS = 20_000
"""How long the traceback in a result may be; the middle of a longer one is left out."""

MAX_CAUSES = 10
"""How many causes of an error are followed; they may be a circle."""


class Details(msgspec.Struct, omit_defaults=True):
    """
    What is kept of an error in a job's outcome: `module:Class`, its text, its traceback, and its
    arguments if JSON can hold them.
    """

    type: str
    message: str
    traceback: str = ""
    args: list[Any] | None = None


class RemoteFailure(LanewayError):
    """
    An exception of a handler in a child process, which sends only its text and its details.
    """

    def __init__(self, text: str, details: Details | None = None) -> None:
        super().__init__(text)
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.details)


class RemoteTraceback(Exception):  # it is none: it stands behind one
    """The traceback in the process that ran the handler."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}\n"""'


class ChildDied(LanewayError):
    """The child process that ran the handler ended before the handler did."""


class WorkerLost(LanewayError):
    """The worker that ran the handler ended before the handler did."""


def error_text(error: BaseException) -> str:
    """
    The text that is kept of an error with its message; never raises.

    For a Retry: its reason, then the error that it was raised from or while handling.
    """
    if not issubclass(type(error), Retry):
        return text_of(error)
    reason, cause = text_attribute(error, "reason"), cause_of(error)
    lines = [*([reason] if reason else []), *([text_of(cause)] if cause is not None else [])]
    return storable.clean("\n".join(lines)) or "the handler asked for a retry"


def cause_of(error: BaseException) -> BaseException | None:
    """The error that it was raised from, else the one that was being handled."""
    names = (
        ["__cause__"] if attribute(error, "__suppress_context__") else ["__cause__", "__context__"]
    )
    causes = (attribute(error, name) for name in names)
    return next((each for each in causes if issubclass(type(each), BaseException)), None)


def attribute(error: BaseException, name: str) -> Any:
    """
    An attribute of an error; None if the user's class lacks it or raises.
    """
    try:
        return getattr(error, name, None)
    except BaseException:  # noqa: BLE001  # a property may raise anything
        return None


def text_attribute(error: BaseException, name: str) -> str | None:
    """As `attribute`, as text; None if it is empty."""
    value = attribute(error, name)
    return None if value is None else storable.clean(value) or None


def describe(error: BaseException, depth: int = 0) -> Details:
    """
    The details of an error; never raises.

    For a Retry, or a Reject that stands for another error, those of the other error.
    """
    details = attribute(error, "details")
    if type(details) is Details:
        return details
    kind = type(error)
    cause = cause_of(error) if issubclass(kind, Retry) else attribute(error, "__cause__")
    stands_for_another = issubclass(kind, Retry) or (
        issubclass(kind, Reject) and attribute(error, "error") is not None
    )
    if (
        stands_for_another
        and cause is not None
        and issubclass(type(cause), BaseException)
        and depth < MAX_CAUSES
    ):
        return describe(cause, depth + 1)
    return Details(
        storable.qualified_name(kind),
        storable.of(error, ERROR_CHARACTERS),
        _traceback_of(error),
        _arguments_of(error),
    )


def _traceback_of(error: BaseException) -> str:
    try:
        trace = tracebacks.whole(error)
    except BaseException as fault:  # noqa: BLE001  # notes, causes and frames may run the user's code
        trace = (
            f"{storable.type_name(type(error))}: {storable.of(error)}\n"
            f"(its traceback cannot be read: {storable.type_name(type(fault))})"
        )
    if len(trace) > TRACEBACK_CHARACTERS:
        trace = f"{trace[: TRACEBACK_CHARACTERS // 2]}\n…\n{trace[-TRACEBACK_CHARACTERS // 2 :]}"
    return storable.clean(trace.rstrip(), 2 * TRACEBACK_CHARACTERS)


def _arguments_of(error: BaseException) -> list[Any] | None:
    """
    The error's arguments as JSON returns them; None if JSON cannot hold them.
    """
    try:
        encoded = msgspec.json.encode(error.args)
        decoded: list[Any] | None = (
            msgspec.json.decode(encoded) if len(encoded) <= ERROR_CHARACTERS else None
        )
    except BaseException:  # noqa: BLE001  # encoding runs the user's code
        return None
    return decoded


def text_of(error: BaseException) -> str:
    """An error's type, message and innermost frames, as kept with the message; never raises."""
    kind = type(error)
    if issubclass(kind, (RemoteFailure, ChildDied)):
        return storable.of(error, ERROR_CHARACTERS)
    try:
        head, frames = tracebacks.head(error), tracebacks.innermost(error, ERROR_FRAMES).rstrip()
    except BaseException:  # noqa: BLE001  # as in _traceback_of
        head, frames = f"{storable.type_name(kind)}: {storable.of(error)}", ""
    room = ERROR_CHARACTERS - min(len(frames), ERROR_CHARACTERS // 2)
    return storable.clean(f"{storable.clean(head, room - 1)}\n{frames}".rstrip(), ERROR_CHARACTERS)
