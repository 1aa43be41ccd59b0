"""Which errors of handlers say that the destination is overloaded."""

from __future__ import annotations

import urllib.error
from email.message import Message as Headers
from types import SimpleNamespace

import pytest

from laneway import DestinationUnavailable, Reject, Retry
from laneway.message import Overload
from laneway.working.outcome import overload_of
from laneway.working.time_limits import SoftTimeLimit, TimeLimit


class ReadTimeout(Exception):  # as httpx and requests call it
    pass


class StatusError(Exception):
    def __init__(self, status: int) -> None:
        self.response = SimpleNamespace(status_code=status)


class AiohttpError(Exception):
    status = 503


class Hostile(Exception):
    @property
    def response(self) -> object:
        raise SystemExit

    def __getattr__(self, name: str) -> object:
        raise KeyError(name)


def _raised_from(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError(), "timeout"),
        (ReadTimeout(), "timeout"),
        (TimeLimit("30 s"), "timeout"),
        (SoftTimeLimit("30 s"), "timeout"),
        (StatusError(429), "answer"),
        (StatusError(503), "answer"),
        (AiohttpError(), "answer"),
        (urllib.error.HTTPError("http://a", 429, "", Headers(), None), "answer"),
        (ConnectionRefusedError(), "answer"),
        (_raised_from(Retry("later"), TimeoutError()), "timeout"),
        (_raised_from(Reject("no"), StatusError(503)), "answer"),
        (StatusError(500), None),
        (ValueError(), None),
        (Retry("later"), None),
        (_raised_from(Retry("later"), Retry("later")), None),
        (DestinationUnavailable(), None),
        (Hostile(), None),
    ],
    ids=repr,
)
def test_errors(error: BaseException, expected: Overload | None) -> None:
    """Timeouts and answers of overloaded destinations are told from other errors."""
    assert overload_of(error) == expected
