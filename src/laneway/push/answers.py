"""What the end of a request means: for its message, and for the endpoint."""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from laneway.errors import DestinationUnavailable, LanewayError
from laneway.message import Action

ErrorClass = Literal[
    "dns", "refused", "tls", "timeout", "reset", "blocked", "too_large", "misconfigured"
]
"""
Why a request has no answer.

`"dns"`: the host's name was not resolved. `"refused"`: nothing listens there. `"tls"`: no trusted
encrypted connection. `"timeout"`. `"reset"`: the connection broke, or no HTTP came.
`"blocked"`: the address is not public. `"too_large"`: the answer's headers. `"misconfigured"`: no
request could be formed.
"""

Effect = Literal["ack", "retry", "dead", "back_off", "release"]
"""What happens to the message; see `Action` of settlements."""

Health = Literal[
    "success", "failure", "message", "busy", "gone", "auth", "misconfigured", "neutral"
]
"""
What the answer shows about the endpoint.

`"failure"`: counts for the breaker. `"message"`: a failure of the message; counts for the breaker
only if more than half of the last attempts were such. `"busy"`: it asks for a pause.
`"gone"`: it is disabled. `"auth"`: a failure; it needs attention after ten in a row.
`"misconfigured"`: its settings; it needs attention after three. `"neutral"`: nothing.
"""

MIN_RETRY_AFTER, MAX_RETRY_AFTER = 1.0, 3_600.0
"""Seconds. A longer `Retry-After` is cut, and a shorter one is ignored."""

OF_MESSAGE = frozenset({400, 404, 405, 413, 415, 422})
UNAUTHORIZED = frozenset({401, 403, 407})
BUSY = frozenset({429, 503})
GONE, CONFLICT = 410, 409


class Answer(msgspec.Struct, kw_only=True, gc=False):
    """
    How a request ended. `status`: the HTTP status, or 0 if no answer came; `error` explains why.
    `detail`: text about the error. `headers`: lower-case names, at most `MAX_HEADERS`. `body`: its
    first bytes.
    `milliseconds`: until the name was resolved, connected, encrypted, answered, ended. `is_ours`:
    the sender could not send: the receiver is not to blame.
    """

    status: int = 0
    error: ErrorClass | None = None
    detail: str = ""
    headers: dict[str, str] = {}
    body: bytes = b""
    milliseconds: tuple[float, ...] = ()
    is_ours: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """
    What an answer means. `delay`: seconds, or None for the delay of the policy or the back-off.
    `text`: for the message's history.
    """

    effect: Effect
    health: Health
    text: str = ""
    delay: float | None = None
    is_timeout: bool = False
    is_busy: bool = False
    """Whether it lowers the limit of `concurrency="auto"` without a back-off."""
    opens: bool = False
    """Whether it opens the breaker alone: every request to the endpoint would end in this way."""


SUCCESS = Verdict("ack", "success")


def judge(
    answer: Answer,
    *,
    dead_on: Collection[int] = (),
    duplicate_ok: bool = False,
    now: float = 0.0,
) -> Verdict:
    """What an answer means. Arguments: `now`: Unix seconds, for dates in `Retry-After`."""
    if answer.error is not None:
        return _without_answer(answer)
    status, headers = answer.status, answer.headers
    text = f"HTTP {status}"
    if 200 <= status < 300:
        return SUCCESS
    if headers.get("webhook-retry", "").strip().lower() == "no":
        return Verdict("dead", "neutral", f"{text}; the receiver wants no retry")
    if status == GONE:
        return Verdict("release", "gone", f"{text}: the endpoint is gone and was disabled")
    if status in BUSY:
        delay = retry_after(headers, now)
        text += "" if delay is None else f", Retry-After {delay:g} s"
        return Verdict("back_off", "busy", text, delay=delay)
    if status in dead_on:
        return Verdict("dead", "message", f"{text}; dead_on lists it")
    if status == CONFLICT:
        return Verdict("ack" if duplicate_ok else "retry", "neutral", text)
    if 300 <= status < 400:
        target = without_query(headers.get("location", ""))[:300]
        where = f"; change the URL to {target}" if target else ""
        return Verdict("retry", "failure", f"{text}: redirects are not followed{where}")
    if status in OF_MESSAGE:
        return Verdict("retry", "message", text)
    if status in UNAUTHORIZED:
        return Verdict("retry", "auth", f"{text}: the receiver refused the request's credentials")
    return Verdict("retry", "failure", text)


def _without_answer(answer: Answer) -> Verdict:
    text = f"{answer.error}: {answer.detail}" if answer.detail else str(answer.error)
    if answer.error == "misconfigured":
        return Verdict("dead", "misconfigured", text)
    if answer.error == "blocked":  # a name, which may have another address soon
        return Verdict("retry", "misconfigured", text)
    return Verdict(
        "retry",
        "failure",
        text,
        is_timeout=answer.error == "timeout",
        is_busy=answer.error == "refused",
        opens=answer.error == "dns",
    )


def without_query(url: str) -> str:
    """A URL of an answer without what may be secret: user, password, query and fragment."""
    plain = _QUERY.sub(r"\1…", url)
    return _USER.sub(r"\1…@", plain, count=1)


_QUERY = re.compile(r"([?#]).*", re.DOTALL)
_USER = re.compile(r"^(\s*(?:[^/]*:)?//)[^/]*@")


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """
    The header `Retry-After` (seconds or an HTTP date) in seconds, or None if it is not valid or
    less than a second, as from a receiver whose clock is slow.
    """
    text = headers.get("retry-after", "").strip()
    if not text or not text.isascii():
        return None
    try:
        seconds = float(text) if text.isdigit() else _date(text) - now
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    if not math.isfinite(seconds) or seconds < MIN_RETRY_AFTER:
        return None
    return min(seconds, MAX_RETRY_AFTER)


def _date(text: str) -> float:
    return email.utils.parsedate_to_datetime(text).timestamp()


# How an attempt ends that was no success, as the worker settles and logs it


class AttemptFailed(LanewayError):
    """A request failed: its message is tried again. `is_timeout`, `is_busy`: see `Verdict`."""

    kind = "attempt_failed"

    def __init__(self, text: str, *, is_timeout: bool = False, is_busy: bool = False) -> None:
        super().__init__(text)
        self.is_timeout = is_timeout
        self.is_busy = is_busy


class Released(DestinationUnavailable):
    """
    Nothing was sent, or the endpoint is gone: the message goes back, without an attempt.

    `delay`: seconds. `was_sent`: whether a request was made. `action`: of the settlement.
    """

    def __init__(
        self,
        text: str,
        *,
        delay: float | None = None,
        was_sent: bool = False,
        action: Action = "release",
    ) -> None:
        super().__init__(text)
        self.delay = delay
        self.was_sent = was_sent
        self.action: Action = action
