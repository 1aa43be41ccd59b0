"""
Sessions: how a browser that has logged in with a token identifies itself.

`POST /login` takes the token and answers with a cookie. The cookie names the token and has a
signature; it does not hold the token's secret. All gateways of a namespace sign with the same key.
A session ends 12 hours after its cookie was renewed, 7 days after the login, when the token is
revoked or expires, and at `POST /logout`. Scopes and topics are those that the token has now.

A browser sends the cookie even for requests that a page of another site makes. `check` therefore
lets in only requests of the gateway's own pages:

- no request that a page of another site (or of another port) makes, except the navigation to a
  page, which changes nothing;
- a change only if the browser reports that it comes from the same origin, and if it is JSON, from
  htmx, or a form with the session's `csrf` field: a form of another origin can be none of these.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import struct
import threading
import time
from collections.abc import Collection

import msgspec

from laneway.engines.base import Records
from laneway.gateway.http import Request
from laneway.gateway.login import local_login, origins
from laneway.gateway.login.access import EVERYTHING, SESSION_SECONDS, Caller, Session
from laneway.gateway.login.shared_key import shared_key
from laneway.gateway.login.tokens import TokenCheck, unauthenticated
from laneway.gateway.problems import Problem
from laneway.gateway.routing import Route
from laneway.runtime.runtime import Runtime

KEY = "session key"
"""The name of the key that signs cookies, as `shared_key` keeps it."""

RENEW_SECONDS = 3600
"""A cookie of this age is replaced, as long as the browser is used."""

CACHE_SECONDS = 1.0
"""How long a session is used before it is read again whether it has ended."""

MAX_CACHED = 10_000
"""Most sessions that are kept in memory."""

MAX_SWEPT = 1000
"""Most records of ended sessions that a logout looks at, to remove old ones."""

_FIELDS = struct.Struct(">16s8sQQ")


def _signature(key: bytes, purpose: bytes, content: bytes) -> bytes:
    return hmac.digest(key, purpose + b"\0" + content, "sha256")


def _csrf(key: bytes, session_id: bytes) -> str:
    return _signature(key, b"csrf", session_id).hex()


def write(key: bytes, session: Session) -> str:
    """The cookie's value."""
    fields = _FIELDS.pack(
        bytes.fromhex(session.id), session.token.encode(), session.login_s, session.renewed_s
    )
    signed = fields + _signature(key, b"session", fields)
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")


def read(key: bytes, cookie: str) -> Session | None:
    """The session of a cookie's value, or None if it is another namespace's or has ended."""
    try:
        signed = base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4))
    except (ValueError, binascii.Error):
        return None
    fields, signature = signed[: _FIELDS.size], signed[_FIELDS.size :]
    if not hmac.compare_digest(signature, _signature(key, b"session", fields)):
        return None
    session_id, token, login_s, renewed_s = _FIELDS.unpack(fields)
    session = Session(session_id.hex(), token.decode(), login_s, renewed_s, _csrf(key, session_id))
    return session if time.time() < session.expires_s else None


# Cookies


def check_secure(request: Request) -> None:
    """
    Refuse a login whose cookie would travel as plain text. Raises Problem.

    Without HTTPS a browser may log in to its own machine only (or through a tunnel to it).
    """
    if not origins.is_secure(request) and not origins.has_local_name(request):
        raise Problem(
            "forbidden",
            "a login needs HTTPS: serve it with --tls-certificate, or behind a proxy that is named"
            " with --trusted-proxy; without HTTPS it works at http://localhost",
        )


def _name(request: Request) -> str:
    # Browsers take a cookie with __Host- only over HTTPS and from this very host, so a neighbor
    # host cannot set one. Without HTTPS, gateways of one machine differ by their ports only, and
    # cookies do not regard ports.
    if origins.is_secure(request):
        return "__Host-laneway"
    port = (request.header(b"host") or "").rpartition(":")[2]
    return f"laneway-{port}" if port.isascii() and port.isdigit() else "laneway"


def cookie_header(request: Request, value: str, seconds: int) -> tuple[bytes, bytes]:
    """The header that stores the session's cookie; with 0 seconds it removes it."""
    secure = "; Secure" if origins.is_secure(request) else ""
    text = f"{_name(request)}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    return b"set-cookie", text.encode()


def _cookie(request: Request) -> str | None:
    """The value of the session's cookie."""
    if b"cookie" not in request.header_bytes:
        return None
    name = _name(request)
    for key, value in request.headers:
        if key == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                found, separator, text = pair.strip().partition("=")
                if separator and found == name:
                    return text
    return None


# Requests that no page of the gateway has made


def check(request: Request, route: Route) -> None:
    """
    Refuse a request with a cookie that no page of the gateway has made. Raises Problem.

    The field `csrf` of a form is not in this: see `check_form`.
    """
    if request.method in origins.SAFE_METHODS and route.scope != "consume":
        if origins.is_of_other_site(request) and not (
            route.is_page and origins.is_navigation(request)
        ):
            raise _of_other_site()
        return
    if not origins.is_same_origin(request):
        raise _of_other_site()
    if request.method in origins.SAFE_METHODS or (route.is_page and route.form is not None):
        return
    is_json = request.content_type == "application/json"
    if not is_json and not origins.is_of_htmx(request):
        raise Problem(
            "forbidden",
            "a change by a session needs the header content-type: application/json (or HX-Request),"
            " which no form of another site can send; a program sends a token: Authorization:"
            " Bearer lw_…",
        )


def check_form(request: Request, caller: Caller, csrf: str) -> None:
    """Refuse a form without the session's field `csrf`. Raises Problem."""
    if caller.session is None or origins.is_of_htmx(request):
        return
    if not hmac.compare_digest(csrf.encode(), caller.csrf.encode()):
        raise Problem(
            "forbidden",
            "the form does not belong to this session: its field csrf is missing or another one;"
            " load the page again",
        )


def _of_other_site() -> Problem:
    return Problem(
        "forbidden",
        "a session is used by the gateway's own pages only; a program sends a token: Authorization:"
        " Bearer lw_…",
    )


# Who sends a request


class Sessions:
    """The sessions as a gateway sees them, with a cache. Any thread may call it."""

    def __init__(
        self, runtime: Runtime, tokens: TokenCheck, login: local_login.LocalLogin | None = None
    ) -> None:
        """`login`: its sessions are valid, too, and its key signs all of them."""
        self._runtime = runtime
        self._tokens = tokens
        self._has_local = login is not None
        self._key = None if login is None else login.key
        self._lock = threading.Lock()
        self._read_at: dict[str, float] = {}

    def has_cookie(self, request: Request) -> bool:
        """Whether the request has the cookie of a session, valid or not."""
        return _cookie(request) is not None

    def cached(self, request: Request) -> Caller | None:
        """
        The caller of a session that is in memory, or None if it has to be read.

        Raises Problem if the session has ended, or the token was revoked.
        """
        if self._key is None:
            return None
        session = self._session(request, self._key)
        read_at = self._read_at.get(session.id)
        if read_at is None or time.monotonic() - read_at >= CACHE_SECONDS:
            return None
        caller = self._local_caller(session) or self._tokens.of_session(session.token)
        return None if caller is None else msgspec.structs.replace(caller, session=session)

    def read(self, request: Request) -> Caller:
        """As `cached`, as the store has it now. Blocks."""
        session = self._session(request, self._read_key())
        if self._runtime.engine.record_read("session", [session.id]) != [None]:
            raise _ended()
        with self._lock:
            if len(self._read_at) >= MAX_CACHED:
                self._read_at.clear()
            self._read_at[session.id] = time.monotonic()
        caller = self._local_caller(session) or self._tokens.read_of_session(session.token)
        return msgspec.structs.replace(caller, session=session)

    def _local_caller(self, session: Session) -> Caller | None:
        """The caller of a session that a local login began, or None if it has a token."""
        is_local = self._has_local and session.token == local_login.SESSION_OWNER
        return EVERYTHING if is_local else None

    def ended(self, sessions: Collection[Session]) -> dict[str, Problem]:
        """The ids of sessions that have ended, with the problem to answer. Blocks."""
        some, now_s = list(sessions), time.time()
        ids = [each.id for each in some]
        records = self._runtime.engine.record_read("session", ids) if ids else ()
        return {
            each.id: _ended()
            for each, record in zip(some, records, strict=True)
            if record is not None or each.expires_s <= now_s
        }

    def _session(self, request: Request, key: bytes) -> Session:
        session = read(key, _cookie(request) or "")
        if session is None:
            raise _ended()
        return session

    def _read_key(self) -> bytes:
        if self._key is None:
            self._key = shared_key(self._runtime.engine, KEY)
        return self._key

    # Begin, renew and end

    def begin(self, token_id: str) -> tuple[str, Session]:
        """A new session of a token: its cookie's value, and the session. Blocks."""
        key, now_s, session_id = self._read_key(), int(time.time()), secrets.token_bytes(16)
        session = Session(session_id.hex(), token_id, now_s, now_s, _csrf(key, session_id))
        return write(key, session), session

    def renewed(self, request: Request, session: Session) -> tuple[bytes, bytes] | None:
        """The header that replaces a session's cookie, or None if it is not old enough."""
        now_s = int(time.time())
        if now_s - session.renewed_s < RENEW_SECONDS or self._key is None:
            return None
        later = msgspec.structs.replace(session, renewed_s=now_s)
        return cookie_header(request, write(self._key, later), later.expires_s - now_s)

    def end(self, session: Session) -> None:
        """End a session, at all gateways within a second. Blocks."""
        engine, now_s = self._runtime.engine, int(time.time())
        record = b"%d" % (now_s + SESSION_SECONDS)
        engine.record_swap("session", session.id, None, record)
        with self._lock:
            self._read_at.pop(session.id, None)
        _sweep(engine, now_s)


def _sweep(engine: Records, now_s: int) -> None:
    """Remove the records of sessions whose cookies have ended by now."""
    for session_id, record in engine.records("session", limit=MAX_SWEPT):
        if int(record) < now_s:
            engine.record_swap("session", session_id, record, None)


def _ended() -> Problem:
    return unauthenticated("the session has ended; log in again")
