"""
Tokens: who may use the API, with which scopes and topics; stored as records of the namespace.

A token is `lw_ID_SECRET`: the id finds the record, which has the hash of the secret. The secret is
32 random bytes and a checksum, so a token that was cut or mistyped is recognized without a read.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import threading
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import msgspec

from laneway import arguments, units
from laneway.engines.base import Records
from laneway.errors import Refused, UsageError
from laneway.gateway.login.access import SCOPES, Caller
from laneway.gateway.login.local_login import HINTS
from laneway.gateway.problems import Problem
from laneway.policy import CONTROL, check_pattern
from laneway.runtime.runtime import Runtime
from laneway.units import Duration

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH, SECRET_LENGTH, CHECKSUM_LENGTH = 8, 43, 6
"""43 digits of 62 hold 32 bytes, 6 hold a CRC-32."""

CACHE_SECONDS = 1.0
"""How long a token's record is used before it is read again: a revoked token ends within this."""

MAX_CACHED = 10_000
"""Most records that are kept in memory."""

USED_SECONDS = 60
"""The minimum time between two writes of `last_used`."""

BAD_TOKENS, BAD_SECONDS = 10, 60.0
"""
After as many bad tokens in as many seconds an address is told only that they are too many. Its good
tokens are served: an address may be that of a proxy, with all its clients.
"""

READ_TOGETHER = 1000
"""Tokens that are read in one call."""

MAX_ADDRESSES = 10_000
"""Addresses whose bad tokens are counted."""

ROUNDING_SECONDS = 1e-6
"""By how much a request may come too early for its token's rate: times are rounded."""

MAX_NAME = 100
MIN_EXPIRES = 0.001


class Token(msgspec.Struct, omit_defaults=True, kw_only=True):
    """
    A token's record. Times are microseconds since 1970.

    `hash`: SHA-256 of the secret. `topics`: patterns (None: all topics). `rate`: requests a second.
    """

    name: str
    hash: str
    scopes: list[str]
    topics: list[str] | None = None
    rate: float | None = None
    created_us: int = 0
    expires_us: int | None = None
    last_used_us: int | None = None


_read = msgspec.json.Decoder(Token).decode
_write = msgspec.json.Encoder().encode


# Create, list, revoke: also the command line


def create(
    engine: Records,
    name: str,
    scopes: Sequence[str],
    *,
    topics: Sequence[str] | None = None,
    expires: Duration | None = None,
    rate: float | str | None = None,
) -> tuple[str, str, Token]:
    """
    Create a token. Returns its id, its text, which is not stored, and its record.

    Arguments: `scopes`: of `SCOPES`; `topics`: patterns (None: all); `expires`: after how long;
    `rate`: requests a second, such as `"100/s"`. Raises UsageError, BadPolicy.
    """
    _check_name(name)
    for scope in scopes:
        if scope not in SCOPES:
            raise UsageError(f'token: unknown scope "{scope:.80}"; available: {", ".join(SCOPES)}')
    if not scopes:
        raise UsageError(f"token: expected at least one scope of {', '.join(SCOPES)}")
    now_us, expires_us = time.time_ns() // 1000, None
    if expires is not None:
        seconds = arguments.seconds("token", "expires", expires, least=MIN_EXPIRES)
        expires_us = now_us + round(seconds * units.SECOND)
    token = Token(
        name=name,
        hash="",
        scopes=[scope for scope in SCOPES if scope in scopes],
        topics=None if topics is None else [check_pattern(each) for each in topics],
        rate=_rate(rate),
        created_us=now_us,
        expires_us=expires_us,
    )
    while True:
        token_id, secret, text = new_text()
        token.hash = hashlib.sha256(secret.encode()).hexdigest()
        if engine.record_swap("token", token_id, None, _write(token)):
            return token_id, text, token


def new_text() -> tuple[str, str, str]:
    """The id, secret and text of a token that no namespace has yet: see `accept`."""
    token_id = _digits(secrets.randbits(64), 64)[-ID_LENGTH:]
    secret = _digits(secrets.randbits(256), SECRET_LENGTH)
    return token_id, secret, f"lw_{token_id}_{secret}{_checksum(token_id, secret)}"


def accept(engine: Records, text: str, name: str, scopes: Sequence[str]) -> None:
    """
    Make a token valid whose text is known, unless it is. Raises UsageError if it is not a token, or
    another one has its id.
    """
    parsed = parse(text)
    if parsed is None:
        raise UsageError("token: the text is cut or mistyped")
    token_id, secret = parsed
    token = Token(
        name=name,
        hash=hashlib.sha256(secret.encode()).hexdigest(),
        scopes=list(scopes),
        created_us=time.time_ns() // 1000,
    )
    if engine.record_swap("token", token_id, None, _write(token)):
        return
    (stored,) = engine.record_read("token", [token_id])
    if stored is None or _read(stored).hash != token.hash:
        raise UsageError(f'token: another token has the id "{token_id}"')


def listed(engine: Records, *, limit: int, after: str = "") -> list[tuple[str, Token]]:
    """The tokens by id, page by page."""
    return [
        (token_id, _read(record))
        for token_id, record in engine.records("token", limit=limit, after=after)
    ]


def revoke(engine: Records, token_id: str) -> Token:
    """Remove a token. Gateways refuse it within a second. Raises Refused if it does not exist."""
    while True:
        (record,) = engine.record_read("token", [token_id])
        if record is None:
            raise Refused(f'token: no token has the id "{token_id:.80}"')
        if engine.record_swap("token", token_id, record, None):
            return _read(record)


def _check_name(name: str) -> None:
    if not name or len(name) > MAX_NAME or CONTROL.search(name) or not name.isprintable():
        raise UsageError(
            f"token: expected a name of at most {MAX_NAME} printable characters, got {name!r:.120}"
        )


def _rate(rate: float | str | None) -> float | None:
    try:
        return None if rate is None else units.rate(rate)
    except ValueError as error:
        raise UsageError(f"token: rate: {error}") from error


def _digits(number: int, length: int) -> str:
    found = ""
    for _ in range(length):
        number, digit = divmod(number, len(DIGITS))
        found = DIGITS[digit] + found
    return found


def _checksum(token_id: str, secret: str) -> str:
    return _digits(zlib.crc32(f"{token_id}_{secret}".encode()), CHECKSUM_LENGTH)


def parse(text: str) -> tuple[str, str] | None:
    """The id and secret of a token's text, or None if its form or its checksum is wrong."""
    parts = text.split("_")
    if len(parts) != 3 or parts[0] != "lw" or not text.isascii():
        return None
    token_id, rest = parts[1:]
    secret, checksum = rest[:-CHECKSUM_LENGTH], rest[-CHECKSUM_LENGTH:]
    if len(secret) != SECRET_LENGTH or _checksum(token_id, secret) != checksum:
        return None
    return token_id, secret


# Checking requests


class TokenCheck:
    """The tokens as a gateway sees them, with a cache. Any thread may call it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._cached: dict[str, tuple[Token | None, float]] = {}
        self._wanted: dict[str, None] = {}
        """The ids that the next read is about."""
        self._bad: dict[str, deque[float]] = {}
        self._free_at: dict[str, float] = {}
        self._any: tuple[bool, float] | None = None

    def are_there(self) -> bool | None:
        """Whether the namespace has tokens, or None if that has to be read."""
        if self._any is not None and time.monotonic() - self._any[1] < CACHE_SECONDS:
            return self._any[0]
        return None

    def read_whether_there(self) -> bool:
        """Whether the namespace has tokens. Blocks."""
        found = bool(self._runtime.engine.records("token", limit=1))
        self._any = found, time.monotonic()
        return found

    def cached(self, text: str, address: str) -> Caller | None:
        """
        The caller of a token whose record is in memory, or None if it has to be read.

        Raises Problem for a bad token.
        """
        parsed = parse(text)
        if parsed is None:
            raise self._bad_token(address, "the token is cut or mistyped")
        token_id, secret = parsed
        record, read_at = self._cached.get(token_id, (None, 0.0))
        if read_at and time.monotonic() - read_at < CACHE_SECONDS:
            return self._caller(token_id, secret, record, address)
        return None

    async def read(
        self, run_shared: Callable[..., Awaitable[Any]], text: str, address: str
    ) -> Caller:
        """
        As `cached`, with the record as the store has it now. One read at a time is about all tokens
        that came meanwhile, so bad ones take no threads from other requests. `run_shared`: of the
        gateway's `Services`.
        """
        parsed = parse(text)
        assert parsed is not None  # `cached` has parsed it
        token_id, secret = parsed
        found: dict[str, Token | None] = {}
        while token_id not in found:
            with self._lock:
                self._wanted[token_id] = None
            found = await run_shared(self._read_wanted)
        record = found[token_id]
        caller = self._caller(token_id, secret, record, address)
        if record is not None and _is_use_due(record):
            await run_shared(self._note_use, token_id)
        return caller

    def of_session(self, token_id: str) -> Caller | None:
        """
        The caller of a session that was opened with a token, or None if it has to be read.

        Raises Problem if the token has been revoked, or has expired.
        """
        record, read_at = self._cached.get(token_id, (None, 0.0))
        if read_at and time.monotonic() - read_at < CACHE_SECONDS:
            return self._session_caller(token_id, record)
        return None

    def read_of_session(self, token_id: str) -> Caller:
        """As `of_session`, with the record as the store has it now. Blocks."""
        record = self._read([token_id])[token_id]
        caller = self._session_caller(token_id, record)
        if record is not None and _is_use_due(record):
            self._note_use(token_id)
        return caller

    def ended(self, token_ids: Collection[str]) -> dict[str, Problem]:
        """The tokens that have been revoked or have expired, with the problem to answer. Blocks."""
        ids = list(token_ids)
        found: dict[str, Problem] = {}
        for token_id, stored in zip(
            ids, self._runtime.engine.record_read("token", ids) if ids else (), strict=True
        ):
            if stored is None:
                found[token_id] = unauthenticated("the token has been revoked")
            elif _has_expired(record := _read(stored)):
                found[token_id] = unauthenticated(f'the token "{record.name}" has expired')
        return found

    def _read_wanted(self) -> dict[str, Token | None]:
        """Read the first of the wanted tokens. Blocks."""
        with self._lock:
            ids = list(self._wanted)[:READ_TOGETHER]
            for token_id in ids:
                del self._wanted[token_id]
        return self._read(ids)

    def _read(self, ids: list[str]) -> dict[str, Token | None]:
        """The records of tokens, as the store has them now. Blocks."""
        stored = self._runtime.engine.record_read("token", ids) if ids else ()
        found = {
            token_id: None if record is None else _read(record)
            for token_id, record in zip(ids, stored, strict=True)
        }
        now = time.monotonic()
        with self._lock:
            if len(self._cached) + len(found) > MAX_CACHED:
                self._cached.clear()
            self._cached.update({token_id: (record, now) for token_id, record in found.items()})
        return found

    def _session_caller(self, token_id: str, record: Token | None) -> Caller:
        if record is None:
            raise unauthenticated("the session's token has been revoked; log in again")
        if _has_expired(record):
            raise unauthenticated(f'the token "{record.name}" has expired; log in again')
        return self._admitted(token_id, record)

    def _caller(self, token_id: str, secret: str, record: Token | None, address: str) -> Caller:
        found = hashlib.sha256(secret.encode()).hexdigest()
        if record is None or not hmac.compare_digest(found, record.hash):
            raise self._bad_token(address, "there is no such token; it may have been revoked")
        if _has_expired(record):
            raise self._bad_token(address, f'the token "{record.name}" has expired')
        return self._admitted(token_id, record)

    def _admitted(self, token_id: str, record: Token) -> Caller:
        if record.rate is not None:
            self._take(token_id, record)
        patterns = ("*",) if record.topics is None else tuple(record.topics)
        return Caller(record.name, frozenset(record.scopes), patterns, token_id)

    def _take(self, token_id: str, record: Token) -> None:
        """Take a permit of the token's rate. A burst may use those of one second."""
        assert record.rate is not None
        now = time.monotonic()
        with self._lock:
            if len(self._free_at) >= MAX_CACHED:
                self._free_at.clear()
            free_at = max(self._free_at.get(token_id, 0.0), now - 1.0) + 1 / record.rate
            early = free_at - now - max(0.0, 1 / record.rate - 1.0)
            if early > ROUNDING_SECONDS:
                raise Problem(
                    "rate-limited",
                    f'the token "{record.name}" may send {record.rate:g} requests a second',
                    headers=(("retry-after", str(math.ceil(early))),),
                )
            self._free_at[token_id] = free_at

    def _note_use(self, token_id: str) -> None:
        """Write that a token is used, unless that was written a moment ago. Blocks."""
        (stored,) = self._runtime.engine.record_read("token", [token_id])
        if stored is not None and _is_use_due(record := _read(stored)):
            record.last_used_us = time.time_ns() // 1000
            self._runtime.engine.record_swap("token", token_id, stored, _write(record))

    # Addresses that send bad tokens

    def _bad_token(self, address: str, detail: str) -> Problem:
        now = time.monotonic()
        if self._is_blocked(address):
            return Problem(
                "rate-limited",
                f"this address sent {BAD_TOKENS} bad tokens within {BAD_SECONDS:g} s; try again"
                " later",
                headers=(("retry-after", str(round(BAD_SECONDS))),),
            )
        with self._lock:
            if len(self._bad) >= MAX_ADDRESSES:
                self._bad.clear()
            self._bad.setdefault(address, deque(maxlen=BAD_TOKENS)).append(now)
        return unauthenticated(detail)

    def _is_blocked(self, address: str) -> bool:
        times = self._bad.get(address)
        if times is None or len(times) < BAD_TOKENS:
            return False
        return time.monotonic() - times[0] < BAD_SECONDS


def _is_use_due(record: Token) -> bool:
    """Whether `last_used` is to be written at the next use."""
    used_us = record.last_used_us
    return used_us is None or time.time_ns() // 1000 - used_us > USED_SECONDS * 1_000_000


def _has_expired(record: Token) -> bool:
    return record.expires_us is not None and record.expires_us <= time.time_ns() // 1000


def unauthenticated(detail: str) -> Problem:
    """The problem of a request without a good token."""
    return Problem("unauthenticated", detail, headers=(("www-authenticate", "Bearer"),))


def token_needed() -> Problem:
    """The problem of a request without a token where there are tokens."""
    return unauthenticated(HINTS[None])
