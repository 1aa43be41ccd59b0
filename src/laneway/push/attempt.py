"""One request to an endpoint, as a sender has it, and what is shown of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.engines.base import Admin
from laneway.errors import DestinationUnavailable
from laneway.message import Lease
from laneway.push.answers import Answer, Released, Verdict, without_query
from laneway.push.delivery_log import MAX_MESSAGE, Entry, KeptMessage, Result
from laneway.push.signature import REPLAY_HEADER
from laneway.push.table import Record, is_secret_header

if TYPE_CHECKING:
    from laneway.push.targets import Target

HIDDEN = "…"
MAX_TEXT = 300
LEAST_SECRET = 8
"""
Characters of a word of a secret value that is looked for in answers. A shorter one, such as the
`Basic` of an authorization, may be in any text; whole values are looked for at any length.
"""

URL_HEADERS = frozenset({"location", "content-location", "refresh", "link"})
HIDDEN_HEADERS = frozenset({"webhook-signature"})
"""Besides secret ones: who has a signature could send the same request within minutes."""


class Attempt(msgspec.Struct):
    """One request. `unit`: the worker's delivery, or None if no request could be formed."""

    unit: Any
    target: Target
    lease: Lease
    headers: list[bytes]
    at_us: int
    is_probe: bool


def result_of(verdict: Verdict, error: BaseException | None) -> Result:
    """What becomes of the message; `"dead"` after its last retry is not known yet."""
    if verdict.effect == "dead":
        return "dead"
    if verdict.health == "gone" or isinstance(error, Released):
        return "released"
    if isinstance(error, DestinationUnavailable):
        return "backed_off"
    return "acked" if error is None else "retried"


def entry_of(
    attempt: Attempt,
    answer: Answer,
    verdict: Verdict,
    result: Result,
    sender: str,
    engine: Admin,
) -> Entry:
    """The entry of an attempt; called in the log's thread."""
    lease, record = attempt.lease, attempt.target.record
    if result == "retried" and lease.attempt > engine.policy_of(lease.topic).retries:
        result = "dead"
    headers, body = hidden(answer, attempt.headers, record)
    message = None
    if result == "acked" and record.log == "all":
        message = _kept(lease)
    return Entry(
        id=lease.id,
        attempt=lease.attempt,
        result=result,
        status=answer.status,
        error=answer.error,
        text=(verdict.text or f"HTTP {answer.status}")[:MAX_TEXT],
        ms=tuple(round(each, 2) for each in answer.milliseconds),
        sent=[f"{name}: {text}" for name, text in shown(attempt.headers, record)],
        got=headers,
        body=body,
        sender=sender,
        probe=attempt.is_probe,
        replay_of=(lease.headers or {}).get(REPLAY_HEADER),
        key=lease.key,
        message=message,
    )


def shown(headers: list[bytes], record: Record) -> Iterator[tuple[str, str]]:
    """A request's headers, without the values of secret ones."""
    for name, value, is_hidden in _lines(headers, record):
        yield name, HIDDEN if is_hidden else value


def hidden(answer: Answer, headers: list[bytes], record: Record) -> tuple[dict[str, str], str]:
    """An answer's headers and body, without secrets. `headers`: of the request."""
    secrets = _secrets(headers, record)
    kept = {
        name: HIDDEN
        if is_secret_header(name)
        else _without(without_query(text) if name in URL_HEADERS else text, secrets)
        for name, text in answer.headers.items()
    }
    return kept, _without(answer.body.decode(errors="backslashreplace"), secrets)


def _lines(headers: list[bytes], record: Record) -> Iterator[tuple[str, str, bool]]:
    """A request's headers: name, value, and whether it is secret."""
    for line in headers:
        name, _, value = line.decode("latin-1").partition(": ")
        if value:
            is_hidden = name in record.sealed or name in HIDDEN_HEADERS or is_secret_header(name)
            is_own = name == "idempotency-key"  # it is the webhook-id
            yield name, value, is_hidden and not is_own


def _secrets(headers: list[bytes], record: Record) -> list[str]:
    """
    What an answer must not show, as one of a receiver that repeats the request does: the values of
    secret headers, and their words, as that behind `Bearer`.
    """
    values = {value for _, value, is_hidden in _lines(headers, record) if is_hidden}
    words = {
        word for each in values for word in re.split("[ ,]", each) if len(word) >= LEAST_SECRET
    }
    return sorted(values | words, key=len, reverse=True)


def _without(text: str, secrets: list[str]) -> str:
    for each in secrets:
        text = text.replace(each, HIDDEN)
    return text


def _kept(lease: Lease) -> KeptMessage | None:
    if lease.bodies is not None or len(lease.body) > MAX_MESSAGE:
        return None
    return KeptMessage(lease.body, lease.headers, lease.key, lease.priority)
