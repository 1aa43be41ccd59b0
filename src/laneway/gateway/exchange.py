"""
One request of a connection and its answer: ASGI's events, and `http.Exchange`.
"""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from laneway.gateway.http import SECURITY_HEADERS, Headers, Scope
from laneway.gateway.problems import KINDS, ProblemBody

if TYPE_CHECKING:

    class Connection(Protocol):
        """What an exchange needs of its connection."""

        transport: Any
        drained: asyncio.Event

        @property
        def is_gone(self) -> bool:
            """Whether the client has ended the connection, or its side of it."""

        def when_gone(self) -> asyncio.Future[None]:
            """Is done once the client is gone."""

        def date(self) -> bytes:
            """The line with the time."""

        def on_answered(self) -> None:
            """The answer is complete."""


log = logging.getLogger("laneway.gateway.connection")

MAX_UNREAD = 64 << 10
"""Once this many bytes of a body are unread, no more is received."""

STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode())
    for status in http.HTTPStatus
}

_SECURITY_LINES = b"".join(b"%s: %s\r\n" % header for header in SECURITY_HEADERS) + b"\r\n"


def refusal(kind: str, detail: str) -> bytes:
    """The last answer to a client, to what is not served."""
    status, title = KINDS[kind]
    body = msgspec.json.encode(ProblemBody(f"/problems/{kind}", title, status, detail))
    retry = b"retry-after: 1\r\n" if status == http.HTTPStatus.SERVICE_UNAVAILABLE else b""
    return (
        b"%scontent-type: application/problem+json\r\ncontent-length: %d\r\n%s"
        b"connection: close\r\n%s%s"
        % (STATUS_LINES[status], len(body), retry, _SECURITY_LINES, body)
    )


_DEFECT = refusal("internal-error", "the request could not be answered")
_STOPPED = refusal("stopping", "the gateway is stopping; send the request to another one")


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The lines of these headers. Raises ValueError."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    head = b"".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
        raise ValueError(f"expected each header to be one line, got {headers!r:.500}")
    return head


class Exchange:
    """A request whose head has arrived, until its answer is sent."""

    __slots__ = (
        "_arrived",
        "_awaits_go_ahead",
        "_body",
        "_connection",
        "_head",
        "_is_chunked",
        "_is_lost",
        "_is_read",
        "has_begun",
        "has_more",
        "is_done",
        "keep_alive",
        "scope",
    )

    def __init__(
        self, connection: Connection, scope: Scope, *, keep_alive: bool, awaits_go_ahead: bool
    ) -> None:
        """`awaits_go_ahead`: the client sends no body before it is told to."""
        self._connection = connection
        self.scope = scope
        self.keep_alive = keep_alive
        self._awaits_go_ahead = awaits_go_ahead
        self.has_more = True
        """More of the body may come."""
        self.has_begun = False
        """Its answer has."""
        self.is_done = False
        """Its answer is complete."""
        self._body = bytearray()
        self._arrived: asyncio.Event | None = None
        """Set when there is something for `receive`, which made it."""
        self._head = b""
        """The answer's head, until it is sent."""
        self._is_chunked = False
        self._is_lost = False
        self._is_read = False
        """The end of the body has been received."""

    # What the connection tells it

    def add(self, body: bytes) -> None:
        """A part of the body has come."""
        if self.is_done:
            return
        self._body += body
        if len(self._body) > MAX_UNREAD:
            self._connection.transport.pause_reading()
        self._wake()

    def end_body(self) -> None:
        """The body is complete."""
        self.has_more = False
        self._wake()

    def lose(self) -> None:
        """Nothing more reaches the client."""
        self._is_lost = True
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None:
            self._arrived.set()

    async def run(self, app: Any) -> None:
        """Let the application answer it."""
        transport = self._connection.transport
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self._end_early(_STOPPED)
            raise
        except Exception:
            log.exception("Exception in ASGI application")
            self._end_early(_DEFECT)
        else:
            if not self.is_done:
                transport.close()
        finally:
            self.scope.pop("extensions", None)  # its cycle would stay until a garbage collection

    def _end_early(self, answer: bytes) -> None:
        transport = self._connection.transport
        if not (self.has_begun or transport.is_closing()):
            transport.write(answer)
        transport.close()

    # ASGI's events

    async def receive(self) -> MutableMapping[str, Any]:
        """As ASGI has it."""
        transport = self._connection.transport
        if self._awaits_go_ahead and not transport.is_closing():
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._awaits_go_ahead = False
        if not self.has_arrived:
            self._arrived = asyncio.Event()
            transport.resume_reading()
            await self._arrived.wait()
            self._arrived = None
        if self._is_lost or self.is_done:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._take(), "more_body": self.has_more}

    @property
    def has_arrived(self) -> bool:
        """Whether `receive` returns immediately."""
        is_over = self._is_lost or self.is_done
        return is_over or bool(self._body) or not (self.has_more or self._is_read)

    def _take(self) -> bytes:
        self._is_read = not self.has_more
        content, self._body = bytes(self._body), bytearray()
        self._connection.transport.resume_reading()
        return content

    async def send(self, event: MutableMapping[str, Any]) -> None:
        """As ASGI has it."""
        if not self._connection.drained.is_set():
            await self._connection.drained.wait()
        if self._is_lost:
            return
        if event["type"] == "http.response.start":
            self._begin(event["status"], event["headers"])
            return
        body, transport = event.get("body", b""), self._connection.transport
        if self._is_chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = body if event.get("more_body") else body + b"0\r\n\r\n"
        transport.write(self._head + body)
        self._head = b""
        if not event.get("more_body"):
            self._end()

    def _begin(self, status: int, headers: Headers) -> None:
        """
        Make the head. Without a length it is sent now, and chunks or the connection's end tell the
        answer's end; else it is sent with the body.
        """
        has_length = any(name == b"content-length" for name, _ in headers)
        takes_chunks = self.scope["http_version"] == "1.1" and self.scope["method"] != "HEAD"
        self._is_chunked = takes_chunks and not has_length
        if self._awaits_go_ahead and self.has_more:
            self.keep_alive = False  # the client may send the body or not
        lines = [
            *headers,
            *([(b"transfer-encoding", b"chunked")] if self._is_chunked else ()),
            *(() if self.keep_alive else [(b"connection", b"close")]),
        ]
        self._head = b"%b%b%b\r\n" % (STATUS_LINES[status], self._connection.date(), _lines(lines))
        self.has_begun = True
        if not has_length:
            self._connection.transport.write(self._head)
            self._head = b""

    def _end(self) -> None:
        self.is_done = True
        self._wake()
        if not self.keep_alive:
            self._connection.transport.close()
        self._connection.on_answered()

    # See `http.Exchange`

    @property
    def is_lost(self) -> bool:
        """Whether nothing more reaches the client."""
        return bool(self._connection.transport.is_closing())

    @property
    def is_gone(self) -> bool:
        """Whether the client has ended the connection, or its side of it."""
        return self._connection.is_gone

    def close(self) -> None:
        """End the connection without an answer."""
        self._is_lost = True
        self._connection.transport.close()

    def when_gone(self) -> asyncio.Future[None]:
        """Is done once the client is gone."""
        return self._connection.when_gone()
