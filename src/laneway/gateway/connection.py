"""
One connection of a client: uvicorn's, with limits, and with short ways for small exchanges.

A client that is too slow does not keep a connection, nor one whose head is too large. A request
whose body is there already is read without waiting, and an answer is sent with one write: the
`Exchange` of `http`, which `Request` uses where a server has it.
"""

from __future__ import annotations

import asyncio
import http
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from laneway.errors import UsageError
from laneway.gateway.http import EXCHANGE, IDLE_SECONDS, MAX_HEAD, SECURITY_HEADERS
from laneway.gateway.problems import KINDS, ProblemBody

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError as error:  # pragma: no cover
    raise UsageError(
        f'serve: {error.name} is not installed; run: pip install "laneway[gateway]"'
    ) from error

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from laneway.gateway.http import Headers

CLIENT_ERRORS = logging.getLogger("laneway.gateway.connection")
"""Where connections log. No line for each request that is not HTTP: any client could send many."""

CLIENT_ERRORS.setLevel(logging.ERROR)
CLIENT_ERRORS.addFilter(
    # A request that a stopping server cancels, as one whose body never comes, is no error.
    lambda line: not (line.exc_info and isinstance(line.exc_info[1], asyncio.CancelledError))
)

STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode())
    for status in http.HTTPStatus
}


_SECURITY_LINES = b"".join(b"%s: %s\r\n" % header for header in SECURITY_HEADERS) + b"\r\n"
_LAST_LINES = b"connection: close\r\n" + _SECURITY_LINES
"""The end of the head of a connection's last answer."""


def protocol(max_connections: int) -> type[HttpToolsProtocol]:
    """The connection's protocol, with its limits."""
    return type("Connection", (_Connection,), {"max_connections": max_connections})


def _refusal(kind: str, detail: str) -> bytes:
    """An answer to a client whose request is not read."""
    status, title = KINDS[kind]
    body = msgspec.json.encode(ProblemBody(f"/problems/{kind}", title, status, detail))
    retry = b"retry-after: 1\r\n" if status == http.HTTPStatus.SERVICE_UNAVAILABLE else b""
    return (
        b"%scontent-type: application/problem+json\r\ncontent-length: %d\r\n%s"
        b"connection: close\r\n%s%s"
        % (STATUS_LINES[status], len(body), retry, _SECURITY_LINES, body)
    )


_NOT_HTTP = _refusal("bad-request", "what arrived is not HTTP/1.1")
_HEAD_TOO_LARGE = _refusal("header-too-large", f"the head has more than {MAX_HEAD:,} bytes")


class _HeadTooLarge(Exception):
    """Ends the parser of a connection."""


class Exchange:
    """What the server does for one request past ASGI's events. See `http.Exchange`."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def body(self) -> bytes | None:
        """The whole body, if it has arrived."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        content = bytes(cycle.body)
        cycle.body = bytearray()
        cycle.message_event.clear()
        cycle.flow.resume_reading()
        return content

    @property
    def is_gone(self) -> bool:
        """Whether nothing more reaches the client."""
        return self._cycle.transport.is_closing()

    def respond(self, status: int, headers: Headers, body: bytes) -> bool:
        """Send a whole answer at once. False: the client reads too slowly; nothing was sent."""
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.response_started:
            return False
        if cycle.disconnected:
            return True
        lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]  # `date`
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise ValueError(f"expected each header to be one line, got {headers!r:.500}")
        end = _SECURITY_LINES if cycle.keep_alive else _LAST_LINES
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(b"".join((STATUS_LINES[status], head, end, body)))
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True


class _Connection(HttpToolsProtocol):
    """
    A connection with limits.

    uvicorn bounds none of these: the number of connections, the size of a head, the time until it
    is complete, and the time for which a client does not read.
    """

    max_connections = 1000
    _head_bytes = 0
    _awaits_head_since: float | None = None
    _timer: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.logger = CLIENT_ERRORS
        if len(self.connections) > self.max_connections:
            transport.write(
                _refusal("stopping", f"the gateway has {self.max_connections:,} connections")
            )
            transport.close()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._await_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn's, in one call, because a request has many."""
        self._count(len(name) + len(value))
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def send_400_response(self, msg: str) -> None:
        del msg
        self._refuse(_NOT_HTTP)

    def on_headers_complete(self) -> None:
        self._awaits_head_since = None
        if not self.url.startswith((b"/", b"*")):
            self._name_host()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.scope["extensions"] = {EXCHANGE: Exchange(self.cycle)}  # type: ignore[dict-item]

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._await_head()

    def pause_writing(self) -> None:
        self._writing = self.loop.call_later(IDLE_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    def _await_head(self) -> None:
        """
        From now on the next head may take `IDLE_SECONDS`. One timer looks after all heads of a
        connection, because a new one for each request is dearer.
        """
        self._awaits_head_since = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(IDLE_SECONDS, self._check_head)

    def _check_head(self) -> None:
        self._timer = None
        if self._awaits_head_since is None:
            return
        left = self._awaits_head_since + IDLE_SECONDS - self.loop.time()
        if left <= 0:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(left, self._check_head)

    def _name_host(self) -> None:
        """A URL with a host instead of a path alone: its host counts, not that of the header."""
        host = urlsplit(self.url).netloc
        self.headers[:] = [(b"host", host), *(each for each in self.headers if each[0] != b"host")]

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD:
            self._refuse(_HEAD_TOO_LARGE)
            raise _HeadTooLarge  # the parser ends, so nobody serves the request

    def _refuse(self, answer: bytes) -> None:
        """
        Close the connection, and say why, unless an answer is being sent or a request before this
        one has none yet: its client would take this for it.
        """
        if self.transport.is_closing():
            return
        cycle = self.cycle
        is_done = cycle is None or cycle.response_complete
        is_of_this = not self.pipeline and not is_done and cycle.more_body
        if is_done or (is_of_this and not cycle.response_started):
            self.transport.write(answer)
        self.transport.close()

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._writing):
            if timer is not None:
                timer.cancel()
