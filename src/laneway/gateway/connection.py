"""
One connection of a client: uvicorn's, with limits, and with short ways for small exchanges.

A client that is too slow does not keep a connection, nor one whose head is too large. Of requests
that are sent without waiting for answers, few are taken in at once; the others wait as bytes. A
request whose body is there already is read without waiting, and an answer is sent with one write:
the `Exchange` of `http`, which `Request` uses where a server has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import socket
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from laneway.errors import UsageError
from laneway.gateway.http import EXCHANGE, IDLE_SECONDS, MAX_HEAD, SECURITY_HEADERS
from laneway.gateway.problems import KINDS, ProblemBody

try:
    import httptools
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError as error:  # pragma: no cover
    raise UsageError(
        f"serve: {error.name} is not installed; pip install 'laneway[gateway]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Collection

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from laneway.gateway.fast_path import FastPath
    from laneway.gateway.http import Headers, Response

CLIENT_ERRORS = logging.getLogger("laneway.gateway.connection")
"""Where connections log. No line for each request that is not HTTP: any client could send many."""

CLIENT_ERRORS.setLevel(logging.ERROR)
CLIENT_ERRORS.addFilter(
    # A request that a stopping server cancels, as one whose body never comes, is no error.
    lambda line: not (line.exc_info and isinstance(line.exc_info[1], asyncio.CancelledError))
)

PIECE = 4096
"""Bytes that are parsed at once: a bound of the requests that one piece holds."""

MAX_HELD = 64 << 10
"""Bytes behind requests without an answer from which on no more is read."""

FAREWELL_SECONDS = 1.0
"""How long clients may take to close TLS when the server stops."""

HEADER_LINE = len(b": \r\n")
"""What a header has beside its name and value."""

STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode())
    for status in http.HTTPStatus
}


_SECURITY_LINES = b"".join(b"%s: %s\r\n" % header for header in SECURITY_HEADERS) + b"\r\n"
_LAST_LINES = b"connection: close\r\n" + _SECURITY_LINES
"""The end of the head of a connection's last answer."""


def protocol(max_connections: int, handshakes: Collection[object] = ()) -> type[HttpToolsProtocol]:
    """
    The connection's protocol, with its limits. `handshakes`: of connections that become some of it.
    """
    limits = {"max_connections": max_connections, "handshakes": handshakes}
    return type("Connection", (_Connection,), limits)


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
_NO_HOST = _refusal("bad-request", "expected one Host header")
_NO_TUNNEL = _refusal("method-not-allowed", "the gateway is no proxy")
_HEAD_TOO_LARGE = _refusal("header-too-large", f"the head has more than {MAX_HEAD:,} bytes")


def _notice_vanished(transport: Any) -> None:
    """
    End the connection if the client confirms nothing for `IDLE_SECONDS`: it lost its power or its
    network, and what is sent to a stream would be repeated for a quarter of an hour.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux
    if option is not None:
        with contextlib.suppress(OSError):  # another kind of socket
            connected = transport.get_extra_info("socket")
            connected.setsockopt(socket.IPPROTO_TCP, option, round(IDLE_SECONDS * 1000))


class _NobodyWaits:
    """What uvicorn sets when something arrived or was sent, where nobody waits for that."""

    def set(self) -> None:
        pass


class _FastCycle:
    """A request on the fast path, as uvicorn sees it: in place of its `RequestResponseCycle`."""

    __slots__ = ("_connection", "disconnected", "keep_alive", "response_complete")

    more_body = response_started = False
    message_event = _NobodyWaits()

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.disconnected = self.response_complete = False
        self.keep_alive = True

    def respond(self, response: Response) -> None:
        """Send the answer."""
        self.response_complete = True
        if self.disconnected:
            return
        connection, body = self._connection, response.body
        transport = connection.transport
        head = _first_lines(connection.server_state.default_headers, response)
        end = _SECURITY_LINES if self.keep_alive else _LAST_LINES
        transport.write(b"%bcontent-length: %d\r\n%b%b" % (head, len(body), end, body))
        if not self.keep_alive:
            transport.close()
        connection.on_response_complete()


class _Refused(Exception):
    """Ends the parser of a connection."""


def _head(default_headers: Headers, headers: Headers) -> bytes:
    """The lines of these headers and of the server's, such as `date`. Raises ValueError."""
    lines = [b"%b: %b\r\n" % header for header in (*default_headers, *headers)]
    head = b"".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
        raise ValueError(f"expected each header to be one line, got {headers!r:.500}")
    return head


_known_lines: dict[tuple[int, bytes, bytes], tuple[Headers, bytes]] = {}
"""By status, content type and `Cache-Control`: what `_first_lines` returned last."""


def _first_lines(default_headers: Headers, response: Response) -> bytes:
    """The head of an answer but for its length and `SECURITY_HEADERS`. Raises ValueError."""
    kind = (response.status, response.content_type, response.cache)
    if not response.headers:
        headers, lines = _known_lines.get(kind, (None, b""))
        if headers is default_headers:  # the server has new ones each second
            return lines
    status, content_type, cache = kind
    headers = [(b"content-type", content_type), (b"cache-control", cache), *response.headers]
    lines = STATUS_LINES[status] + _head(default_headers, headers)
    if not response.headers:
        _known_lines[kind] = default_headers, lines
    return lines


class Exchange:
    """What the server does for one request past ASGI's events. See `http.Exchange`."""

    __slots__ = ("_connection", "_cycle")

    def __init__(self, connection: _Connection, cycle: RequestResponseCycle) -> None:
        self._connection = connection
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
    def is_lost(self) -> bool:
        """Whether nothing more reaches the client."""
        return self._cycle.transport.is_closing()

    @property
    def is_gone(self) -> bool:
        """Whether the client has ended the connection, or its side of it."""
        return self._connection.is_gone

    def close(self) -> None:
        """End the connection without an answer."""
        self._cycle.disconnected = True
        self._cycle.transport.close()

    def when_gone(self) -> asyncio.Future[None]:
        """Is done once the client is gone."""
        return self._connection.when_gone()

    def respond(self, status: int, headers: Headers, body: bytes) -> bool:
        """Send a whole answer at once. False: the client reads too slowly; nothing was sent."""
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.response_started:
            return False
        if cycle.disconnected:
            return True
        if cycle.waiting_for_100_continue and cycle.more_body:
            cycle.keep_alive = False  # the client may send the body or not
        head = _head(cycle.default_headers, headers)
        end = _SECURITY_LINES if cycle.keep_alive else _LAST_LINES
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(b"".join((STATUS_LINES[status], head, end, body)))
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        self._unlink()
        return True

    def begin_stream(self) -> None:
        """An answer without a length begins. In HTTP/1.0 the end of the connection ends it."""
        if self._cycle.scope["http_version"] == "1.0":
            self._cycle.chunked_encoding = False
            self._cycle.expected_content_length = sys.maxsize

    def end_stream(self) -> None:
        """The answer ends with the next event."""
        self._cycle.expected_content_length = 0
        self._unlink()

    def _unlink(self) -> None:
        """Leave the request's scope, which would keep all of it until a garbage collection."""
        self._cycle.scope.pop("extensions", None)


class _Connection(HttpToolsProtocol):
    """
    A connection with limits.

    uvicorn bounds none of these: the number of connections, the size of a head or trailer, the time
    until a head is complete, the requests that wait for an answer, and the time for which a client
    does not read.
    """

    max_connections = 1000
    handshakes: Collection[object] = ()
    """See `handshake.Handshakes`."""
    _fast_path: FastPath | None = None
    _fast_body: bytes | None = None
    """What arrived of the body of a request that may take the fast path; None: there is none."""
    _head_bytes = 0
    _hosts = 0
    _idle_bytes = 0
    """Bytes since a head was complete or a part of a body came."""
    _held = b""
    """What arrived behind requests without an answer, and is not parsed yet."""
    _offers_upgrade = False
    """The present head asks for another protocol."""
    _is_deaf = False
    """What arrives is not parsed: it follows something that is not HTTP."""
    _is_half_closed = False
    _gone: asyncio.Future[None] | None = None
    _awaits_head_since: float | None = None
    _timer: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    # The connection

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._fast_path = getattr(self.app, "fast_path", None)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.logger = CLIENT_ERRORS
        if len(self.connections) + len(self.handshakes) > self.max_connections:
            transport.write(
                _refusal("stopping", f"the gateway has {self.max_connections:,} connections")
            )
            transport.close()
            return
        _notice_vanished(transport)
        self._await_head()

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it
        """
        The client sends nothing more. It gets the answers to what it has sent, but what waits
        for something on its behalf is told that it is gone: a client that hung up looks the same.
        """
        self._is_half_closed = True
        self._set_gone()
        # TLS cannot be closed on one side.
        return not (self._has_served() or self.scheme == "https" or self.transport.is_closing())

    def _has_served(self) -> bool:
        """Whether all that arrived has its answer, but for a part of a request."""
        if self.pipeline or self._held:
            return False
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def shutdown(self) -> None:
        super().shutdown()
        if self.scheme == "https":
            self.loop.call_later(FAREWELL_SECONDS, self._end_closing)

    def _end_closing(self) -> None:
        """Do not wait for a client that does not take part in closing TLS."""
        if self.transport.is_closing():
            self.transport.abort()
        else:
            self.loop.call_later(FAREWELL_SECONDS, self._end_closing)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._set_gone()

    @property
    def is_gone(self) -> bool:
        """See `Exchange`."""
        return self._is_half_closed or self.transport.is_closing()

    def when_gone(self) -> asyncio.Future[None]:
        """See `Exchange`."""
        if self._gone is None or self._gone.done():
            self._gone = self.loop.create_future()
            if self.is_gone:
                self._gone.set_result(None)
        return self._gone

    def _set_gone(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    # What arrives

    def data_received(self, data: bytes) -> None:
        if self.pipeline or self._held:
            self._hold(data)
        else:
            self._parse_pieces(data)

    def _parse_pieces(self, data: bytes) -> None:
        """Parse piece by piece, until a request has to wait for the answer to another one."""
        if len(data) <= PIECE:
            self._parse(data)
            return
        view = memoryview(data)
        for start in range(0, len(data), PIECE):
            if self.pipeline:
                self._hold(data[start:])
                return
            self._parse(view[start : start + PIECE])
            if self._is_deaf or self.transport.is_closing():
                return

    def _parse(self, piece: bytes | memoryview) -> None:
        self._idle_bytes += len(piece)
        while piece and not self._is_deaf:
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                piece = self._head_without_upgrade() + piece[upgrade.args[0] :]
            except httptools.HttpParserError:
                self._refuse(_NOT_HTTP)
                return
            else:
                break
        if self._fast_body is not None:
            self._begin_cycle()  # the rest of the body comes later
        if self._idle_bytes > MAX_HEAD + PIECE:  # a header or trailer without an end
            self._refuse(_HEAD_TOO_LARGE)

    def _head_without_upgrade(self) -> bytes:
        """
        The head of a request that offers another protocol, without the offer, for a new parser: the
        old one knows no body of such a request. Java's client offers HTTP/2 with each request.
        """
        self._offers_upgrade = False
        version, method = self.parser.get_http_version().encode(), self.parser.get_method()
        lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(lines))

    def _hold(self, data: bytes) -> None:
        if not self._is_deaf:
            self._held += data
        if self._is_deaf or len(self._held) > MAX_HELD:
            self.flow.pause_reading()

    def _parse_held(self) -> None:
        held, self._held = self._held, b""
        if held:
            self._parse_pieces(held)
        if len(self._held) <= MAX_HELD:
            self.flow.resume_reading()

    # One request

    def on_message_begin(self) -> None:
        self._head_bytes = self._hosts = 0
        self._await_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn's and `_count`, in one call, because a request has many."""
        self._head_bytes += len(name) + len(value) + HEADER_LINE
        if self._head_bytes > MAX_HEAD:
            self._count(0)
        if self._awaits_head_since is None:
            return  # a trailer: what a proxy has not seen in the head is no header
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            self._refuse(_NO_TUNNEL)
            raise _Refused
        if self.parser.should_upgrade():
            self._offers_upgrade = True
            return
        self._awaits_head_since = None
        self._idle_bytes = 0
        if not self.url.startswith((b"/", b"*")):
            self._name_host()
        elif self._hosts != 1 and (self._hosts or self.parser.get_http_version() == "1.1"):
            self._refuse(_NO_HOST)
            raise _Refused
        if self._may_be_fast():
            self._fast_body = b""
        else:
            self._begin_cycle()

    def _may_be_fast(self) -> bool:
        """Whether the request may take the fast path, if its body has arrived as well."""
        parser = self.parser
        return (
            self._fast_path is not None
            and parser.get_method() == b"POST"
            and (self.cycle is None or self.cycle.response_complete)
            and not (self.expect_100_continue or self.flow.write_paused)
            and not (b"?" in self.url or b"#" in self.url)
            and parser.should_keep_alive()
            and parser.get_http_version() == "1.1"
        )

    def _begin_fast(self, content: bytes) -> bool:
        """Whether the fast path takes the request with this body."""
        assert self._fast_path is not None
        scope: Any = self.scope
        path = self.url.decode("ascii")
        scope["method"], scope["raw_path"], scope["query_string"] = "POST", self.url, b""
        scope["path"] = unquote(path) if "%" in path else path
        cycle = _FastCycle(self)
        if not self._fast_path.begin(scope, content, cycle.respond):
            return False
        self.cycle = cycle  # type: ignore[assignment]
        return True

    def _begin_cycle(self) -> None:
        """Serve the request whose head is complete by ASGI, with what has arrived of its body."""
        before, body, self._fast_body = self.cycle, self._fast_body, None
        super().on_headers_complete()
        if self.cycle is not before:
            self.scope["extensions"] = {EXCHANGE: Exchange(self, self.cycle)}  # type: ignore[dict-item]
        if self.pipeline:  # the base class reads no more, and would not see that the client goes
            self.flow.resume_reading()
        if body:
            super().on_body(body)

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        if self._fast_body is None:
            super().on_body(body)
        else:
            self._fast_body += body

    def on_message_complete(self) -> None:
        if self._offers_upgrade:
            return
        self._idle_bytes = 0
        if self._fast_body is not None:
            if self._begin_fast(self._fast_body):
                self._fast_body = None
                return
            self._begin_cycle()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._await_head()
        if not self.pipeline:
            self._parse_held()
        if self._is_half_closed and self._has_served():
            self.transport.close()

    # What is answered

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
            raise _Refused  # the parser ends, so nobody serves the request

    def _refuse(self, answer: bytes) -> None:
        """
        Close the connection, and say why, unless an answer is being sent. If requests before have
        no answer yet, they get it first; then nothing is said, because their clients would take it
        for an answer of theirs.
        """
        if self._is_deaf or self.transport.is_closing():
            return
        self._is_deaf = True
        cycle = self.cycle
        is_done = cycle is None or cycle.response_complete
        if not is_done and not cycle.more_body:
            cycle.keep_alive = False  # it is the last one
            return
        if is_done or not (self.pipeline or cycle.response_started):
            self.transport.write(answer)
        self.transport.close()

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._writing):
            if timer is not None:
                timer.cancel()
