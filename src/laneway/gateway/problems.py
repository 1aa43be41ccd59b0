"""
Errors as `application/problem+json` (RFC 9457), with the texts of the library's errors.

`KINDS` has every kind of problem with its status and title. The kind of a LanewayError is its
`kind`, with dashes. What the gateway itself refuses is a `Problem`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from laneway.errors import BacklogFull, BadPolicy, EngineUnavailable, LanewayError
from laneway.printable import meant_or_known, without_passwords

T = TypeVar("T")

KINDS: dict[str, tuple[int, str]] = {
    "bad-request": (400, "The request is not valid"),
    "unknown-field": (400, "The request has a field that does not exist"),
    "usage-error": (400, "An argument is not valid"),
    "bad-policy": (400, "The policy is not valid"),
    "bad-message": (400, "The message or its topic is not valid"),
    "unauthenticated": (401, "The request needs a valid token"),
    "forbidden": (403, "The token does not allow this"),
    "not-found": (404, "The resource does not exist"),
    "unknown-handler": (404, "Nothing is registered under that name"),
    "method-not-allowed": (405, "The path does not support this method"),
    "request-timeout": (408, "The request took too long"),
    "conflict": (409, "The request conflicts with the current state"),
    "refused": (409, "The current state does not allow this"),
    "topic-in-use": (409, "The topic is in use"),
    "lease-lost": (409, "The lease has ended"),
    "gone": (410, "It has ended and is no longer stored"),
    "too-large": (413, "The request is too large"),
    "unsupported-media": (415, "The content type is not supported"),
    "backlog-full": (429, "The backlog is full"),
    "producer-full": (429, "The producer's buffer is full"),
    "rate-limited": (429, "Too many requests"),
    "header-too-large": (431, "The head of the request is too large"),
    "internal-error": (500, "Internal error of the gateway"),
    "engine-unavailable": (503, "The store does not answer"),
    "no-namespace": (503, "The namespace does not exist"),
    "engine-corrupt": (503, "The store is damaged"),
    "schema-mismatch": (503, "The store belongs to another version"),
    "stopping": (503, "The gateway is stopping"),
    "timeout": (504, "The store took too long"),
}
"""Status and title by kind."""

CLIENT_ERROR = 500
"""Statuses below this are the client's to correct."""

Headers = tuple[tuple[str, str], ...]


class ProblemBody(msgspec.Struct, omit_defaults=True):
    """
    A problem as it is sent.

    - `type`: `/problems/KIND`. `title`: what KIND means. `detail`: what happened here.
    - `instance`: the request's path. `request_id`: the same as in the gateway's log.
    - `pointer`: the wrong part of the request's body (a JSON pointer). `hint`: a correction.
    - `applied`: of a store that does not answer: whether the change may have happened.
    """

    type: str
    title: str
    status: int
    detail: str
    instance: str = ""
    pointer: str | None = None
    hint: str | None = None
    applied: str | None = None
    request_id: str = ""


class Problem(Exception):  # as RFC 9457 calls it
    """
    A request that the gateway refuses.

    `kind`: of `KINDS`. `detail`: the text. `headers`: for the answer, such as `Retry-After`.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        pointer: str | None = None,
        hint: str | None = None,
        headers: Headers = (),
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.pointer = pointer
        self.hint = hint
        self.headers = headers


def body_of(error: Exception) -> tuple[ProblemBody, Headers]:
    """The body of an error's answer, and headers that belong to it."""
    kind, pointer, hint, applied = "internal-error", None, None, None
    headers: Headers = ()
    detail = "the request failed; the gateway's log has more under the request_id"
    if isinstance(error, Problem):
        kind, pointer, hint, headers = error.kind, error.pointer, error.hint, error.headers
        detail = str(error)
    elif isinstance(error, LanewayError):
        kind, detail = _kind_of(error), without_passwords(str(error))
        pointer, hint = _setting_in(detail) if isinstance(error, BadPolicy) else (None, None)
        if isinstance(error, EngineUnavailable):
            applied = "perhaps" if error.applied is None else "no"
        if isinstance(error, (EngineUnavailable, BacklogFull)):
            headers = (("retry-after", "1"),)
    status, title = KINDS[kind]
    return (
        ProblemBody(
            f"/problems/{kind}", title, status, detail, pointer=pointer, hint=hint, applied=applied
        ),
        headers,
    )


def _setting_in(detail: str) -> tuple[str | None, str | None]:
    """The pointer to the setting that the text of a policy's error names, and its hint."""
    found, hint = _SETTING.search(detail), _MEANT.search(detail)
    name = (found[1] or found[2]) if found else None
    return f"#/{name}" if name else None, hint[1] if hint else None


def _kind_of(error: LanewayError) -> str:
    """The kind of the class, or of the nearest base that `KINDS` knows."""
    for base in type(error).__mro__:
        kind = getattr(base, "kind", "").replace("_", "-")
        if kind in KINDS:
            return kind
    return "internal-error"


# What a request's body or query has wrong

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a request's body may raise."""

MAX_TEXT = 500
"""Most characters of the decoder's text, which may repeat what was sent."""

_SETTING = re.compile(r': (?:unknown setting "(\w{1,80})"|(\w{1,80}): expected )')
_MEANT = re.compile(r'; (did you mean "\w{1,80}"\?)$')
_AT = re.compile(r" - at `\$(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
TRUNCATED = "Input data was truncated"
"""The decoder's message, even for half of a surrogate pair that few bytes follow."""

TAIL = 40
_HALF = re.compile(r"JSON is malformed: .* utf-16 surrogate pair \(byte (\d+)\)")
_HALF_AT_END = re.compile(
    rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\(?:u|\Z)).{1,5}\Z", re.DOTALL
)
_STEP = re.compile(r"\[(\d+)\]|\[\.\.\.\]|\.([^.\[]+)")


def converted(values: Mapping[str, Any], kind: type[T], what: str) -> T:
    """The values, which may be text, as a struct. Raises Problem; `what`: how it calls them."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(error, kind, what) from None


def read_json(decoder: msgspec.json.Decoder[T], content: bytes, what: str) -> T:
    """The decoded content. Raises Problem; `what`: how it calls the content."""
    try:
        return decoder.decode(content)
    except DECODE_ERRORS as error:
        raise invalid(error, decoder.type, what, content) from None


def invalid(error: Exception, kind: Any, what: str, content: bytes = b"") -> Problem:
    """
    The problem of a body or query that cannot be decoded.

    Arguments: `kind`: the type that was expected. `what`: how the text calls it. `content`: what
    was decoded, if it may be JSON.
    """
    if not isinstance(error, msgspec.ValidationError):
        return Problem("bad-request", f"{what}: {_reason(error, content)}")
    text = str(error)
    found = _AT.search(text)
    path = found[1] if found else ""
    text = _AT.sub("", text)
    steps = [index or name or "-" for index, name in _STEP.findall(path)]
    pointer = "#" + "".join(f"/{_escaped(step)}" for step in steps) if steps else None
    where = f"{what}: {'.'.join(steps)}" if steps else what
    unknown = _UNKNOWN.fullmatch(text)
    if unknown is None:
        text = f"{text[:1].lower()}{text[1:MAX_TEXT]}{_expected(text, kind, steps)}"
        return Problem("bad-request", f"{where}: {text}", pointer=pointer)
    name = unknown[1][:80]  # comparing takes time in proportion to its length, and much memory
    known = sorted(set(_fields(kind)))
    hint = meant_or_known(name, known).removeprefix("; ")
    return Problem(
        "unknown-field",
        f'{where}: unknown field "{name}"; {hint}',
        pointer=f"{pointer or '#'}/{_escaped(name)}",
        hint=hint,
    )


def _reason(error: Exception, content: bytes) -> str:
    """Why this is not JSON, or not MessagePack."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    reason = str(error)
    if reason == TRUNCATED:
        if _HALF_AT_END.search(content[-TAIL:]) is None:
            return "it ends too early"
        reason = ""
    elif (at := _HALF.fullmatch(reason)) is not None:
        reason = f", before byte {at[1]}"
    else:
        return reason
    return (
        f"it has half of a surrogate pair, such as \\ud83d{reason}; send both halves, or the"
        " character in UTF-8"
    )


def _expected(text: str, kind: Any, steps: Sequence[str]) -> str:
    """What the decoder's text leaves out: the values of an enum, and how times are written."""
    if "RFC3339" in text:
        return '; write it like "2026-11-22T14:00:00Z"'
    if "enum value" in text:
        for step in reversed(steps):
            if choices := sorted(set(_choices(kind, step))):
                return f"; expected one of {', '.join(choices)}"
    return ""


def _choices(kind: Any, name: str, *, is_in: bool = False) -> Iterator[str]:
    """The texts that a field of that name takes; `is_in`: `kind` is the type of the field."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            yield from _choices(field.type, name, is_in=field.encode_name == name)
    if is_in and get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    else:
        for part in get_args(kind):
            yield from _choices(part, name, is_in=is_in)


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _fields(kind: Any) -> Iterator[str]:
    """The names of all fields that a value of the type may have."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            yield field.encode_name
            yield from _fields(field.type)
    for part in get_args(kind):
        yield from _fields(part)
