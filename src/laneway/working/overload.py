"""What a handler's error says about the destination, for topics with `concurrency="auto"`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.errors import Reject, Retry
from laneway.working.error_details import RemoteFailure, attribute, cause_of
from laneway.working.time_limits import SoftTimeLimit, TimeLimit

if TYPE_CHECKING:
    from laneway.message import Overload

BUSY_STATUSES = (429, 503)
"""HTTP: too many requests; service unavailable."""

_STATUS_NAMES = ("status_code", "status", "code")
"""Where HTTP clients keep a response's status: httpx and requests, aiohttp, urllib."""


def overload_of(error: BaseException) -> Overload | None:
    """
    Whether a handler's error is a timeout, an answer of an overloaded destination, or neither.

    HTTP clients' errors are recognized by their names and attributes. A Retry or Reject counts as
    the error that it was raised from. Never raises.
    """
    kind = type(error)  # not isinstance, which asks the error's own `__class__`
    if issubclass(kind, (Retry, Reject)):
        cause = cause_of(error)
        return overload_of(cause) if cause is not None and _is_other(cause) else None
    if issubclass(kind, (TimeLimit, SoftTimeLimit)) or _names_timeout(error):
        return "timeout"
    if issubclass(kind, ConnectionRefusedError) or _status(error) in BUSY_STATUSES:
        return "answer"
    return None


def _is_other(cause: BaseException) -> bool:
    return not issubclass(type(cause), (Retry, Reject))


def _names_timeout(error: BaseException) -> bool:
    """Whether one of its classes is a timeout by name: `TimeoutError`, `httpx.ReadTimeout` …"""
    if type(error) is RemoteFailure and error.details is not None:
        return "Timeout" in error.details.type
    return any("Timeout" in each.__name__ for each in type(error).__mro__)


def _status(error: BaseException) -> int | None:
    """The status of the HTTP response that it is about."""
    for holder in (error, attribute(error, "response")):
        if holder is None:
            continue
        for name in _STATUS_NAMES:
            status = attribute(holder, name)
            if type(status) is int:
                return status
    return None
