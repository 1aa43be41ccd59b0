"""
One connection of a client, with limits: a protocol on the parser `httptools`.

A client that is too slow does not keep a connection, nor one whose head is too large. If requests
are sent without waiting for answers, few are decoded ahead; the others wait as bytes.
None of these grows without bound: the number of connections, the size of a head or trailer, the
time until a head is complete, the requests that wait for an answer, and the time for which a client
does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import deque
from email.utils import formatdate
from typing import Any
from urllib.parse import unquote, urlsplit

from laneway.errors import UsageError
from laneway.gateway.exchange import Exchange, refusal
from laneway.gateway.http import EXCHANGE, IDLE_SECONDS, MAX_HEAD, Headers
from laneway.gateway.proxies import Proxies

HANDSHAKE_SECONDS = 10.0
"""How long a client may take for its handshake."""

MAX_BEYOND = 100
"""
How many connections above the limit may complete their handshakes, because only then they can be
told why they are refused. Those above are closed.
"""


# TLS handshakes of new connections: counted with the connections, and bounded. asyncio tells a
# server of a TLS connection only when its handshake is complete. Until then a client that sends
# nothing would hold a socket that no limit counts.


class Handshakes(set["_Handshake"]):
    """The connections of a server that are in their handshakes."""

    def accept(self, connection: _Connection, context: ssl.SSLContext) -> asyncio.Protocol:
        """The protocol of an accepted socket, which becomes `connection`."""
        return _Handshake(self, context, connection)

    def end(self) -> None:
        """End all of them."""
        for handshake in list(self):
            handshake.end()


class _Handshake(asyncio.Protocol):
    """A connection until its handshake is complete; then its `connection` has it."""

    def __init__(
        self, others: Handshakes, context: ssl.SSLContext, connection: _Connection
    ) -> None:
        self._others = others
        self._context = context
        self._connection = connection
        self._arrived: list[bytes] = []
        """What came with the end of the handshake, for the connection."""
        self._is_lost = False
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._connection.is_refused(MAX_BEYOND):
            assert isinstance(transport, asyncio.Transport)
            transport.abort()
            return
        self._transport = transport  # type: ignore[assignment]
        self._others.add(self)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    async def _shake_hands(self, transport: Any) -> None:
        encrypted = None
        try:
            with contextlib.suppress(OSError):  # the client's: it has gone, or speaks no TLS
                encrypted = await asyncio.get_running_loop().start_tls(
                    transport,
                    self,
                    self._context,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                )
        finally:
            self._others.discard(self)
        if encrypted is None or self._is_lost:
            return
        encrypted.set_protocol(self._connection)
        self._connection.connection_made(encrypted)
        for data in self._arrived:
            if not encrypted.is_closing():  # it was refused
                self._connection.data_received(data)

    def data_received(self, data: bytes) -> None:
        self._arrived.append(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._is_lost = True

    def end(self) -> None:
        """Close the connection, even if its handshake has not begun."""
        self._others.discard(self)
        if self._task is not None and self._transport is not None:
            self._task.cancel()
            self._transport.abort()


try:
    import httptools
except ImportError as error:  # pragma: no cover
    raise UsageError(
        f"serve: {error.name} is not installed; pip install 'laneway[gateway]'"
    ) from error


log = logging.getLogger("laneway.gateway.connection")

PIECE = 4096
"""Bytes that are parsed in one step: a bound of the requests that one piece holds."""

MAX_HELD = 64 << 10
"""Once this many bytes wait behind unanswered requests, no more is read."""

FAREWELL_SECONDS = 1.0
"""How long clients may take to close TLS when the server stops."""

VERSIONS = ("1.1", "1.0")
"""Of HTTP. The parser accepts others, such as a request of HTTP/0.9, which has no headers."""

HEADER_LINE = len(b": \r\n")
"""The length of a header without its name and value."""

_NOT_HTTP = refusal("bad-request", "the request is not HTTP/1.1")
_NO_HOST = refusal("bad-request", "expected one Host header")
_NO_TUNNEL = refusal("method-not-allowed", "the gateway is not a proxy")
_HEAD_TOO_LARGE = refusal("header-too-large", f"the head has more than {MAX_HEAD:,} bytes")


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


def _address(transport: Any, name: str) -> tuple[str, int] | None:
    """The address of one side; None if its socket has none."""
    found = transport.get_extra_info(name)
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None


class _Refused(Exception):
    """Ends the parser of a connection."""


class Served:
    """What a server serves, and the connections that it has."""

    def __init__(self, app: Any, max_connections: int, proxies: Proxies | None = None) -> None:
        """`app`: an application, as ASGI has it. `proxies`: whose headers are believed."""
        self.app = app
        self.max_connections = max_connections
        self.proxies = proxies
        self.connections: set[_Connection] = set()
        self.handshakes = Handshakes()
        self.tasks: set[asyncio.Task[None]] = set()
        self._one_ended = asyncio.Event()
        self._date = 0, b""

    def accept(self, context: ssl.SSLContext | None) -> asyncio.Protocol:
        """The protocol of a socket that was accepted. `context`: of TLS."""
        connection = _Connection(self)
        if context is None:
            return connection
        # asyncio's own way counts no connection before its handshake ends
        return self.handshakes.accept(connection, context)

    def date(self) -> bytes:
        """The header with the present time."""
        now = int(time.time())
        if self._date[0] != now:
            self._date = now, b"date: %b\r\n" % formatdate(now, usegmt=True).encode()
        return self._date[1]

    def start(self, exchange: Exchange) -> None:
        """Let the application answer a request."""
        task = asyncio.get_running_loop().create_task(exchange.run(self.app))
        self.tasks.add(task)
        task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._one_ended.set()

    def remove(self, connection: _Connection) -> None:
        """A connection was lost."""
        self.connections.discard(connection)
        self._one_ended.set()

    async def stop(self, seconds: float) -> None:
        """
        End the connections after the answers to what has arrived. After `seconds`, or when it
        is cancelled, requests without an answer are cancelled.
        """
        self.handshakes.end()
        for connection in list(self.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(seconds):
                while self.connections or self.tasks:
                    self._one_ended.clear()
                    await self._one_ended.wait()
        if self.tasks:
            log.error("%d requests had no answer in time and are cancelled", len(self.tasks))
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.transport.abort()


class _Connection(asyncio.Protocol):
    """A connection with limits."""

    transport: Any

    def __init__(self, served: Served) -> None:
        self._served = served
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self.date = served.date
        self.drained = asyncio.Event()
        """Set while the client reads what is sent."""
        self.drained.set()
        self._exchange: Exchange | None = None
        """The last request whose head is complete."""
        self._open: deque[Exchange] = deque()
        """Requests without an answer: one that is served, and those behind it."""
        self._url = b""
        self._headers: Headers = []
        self._awaits_go_ahead = False
        self._head_bytes = self._hosts = 0
        self._idle_bytes = 0
        """Bytes since a head was complete or a part of a body came."""
        self._held = b""
        """What arrived behind requests without an answer, and is not parsed yet."""
        self._offers_upgrade = False
        """The present head asks for another protocol."""
        self._is_deaf = False
        """What arrives is not parsed: it follows something that is not HTTP."""
        self._is_half_closed = False
        self._gone: asyncio.Future[None] | None = None
        self._awaits_head_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    # The connection

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._client = _address(transport, "peername")
        self._server = _address(transport, "sockname")
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        is_refused = self.is_refused()
        self._served.connections.add(self)
        if is_refused:
            most = self._served.max_connections
            transport.write(refusal("stopping", f"the gateway has {most:,} connections"))
            transport.close()
            return
        _notice_vanished(transport)
        self._await_head()

    def is_refused(self, beyond: int = 0) -> bool:
        """Whether the server has as many connections as it may have, and `beyond`."""
        served = self._served
        return len(served.connections) + len(served.handshakes) >= served.max_connections + beyond

    def eof_received(self) -> bool:
        """
        The client sends nothing more. It gets the answers to what it has sent, but what waits
        for something on its behalf is told that it is gone: a client that hung up looks the same.
        """
        self._is_half_closed = True
        self._set_gone()
        # TLS cannot be closed on one side.
        return not (self._has_served() or self._scheme == "https" or self.transport.is_closing())

    def _has_waiting(self) -> bool:
        """Whether a request waits for the answer to another one."""
        return len(self._open) > 1

    def _has_served(self) -> bool:
        """Whether all that arrived has its answer, but for a part of a request."""
        if self._has_waiting() or self._held:
            return False
        last = self._exchange
        return last is None or last.is_done or last.has_more

    def shutdown(self) -> None:
        """End it after the answers to what has arrived."""
        if self._exchange is None or self._exchange.is_done:
            self.transport.close()
        else:
            self._exchange.keep_alive = False
        if self._scheme == "https":
            self._loop.call_later(FAREWELL_SECONDS, self._end_closing)

    def _end_closing(self) -> None:
        """Do not wait for a client that does not take part in closing TLS."""
        if self.transport.is_closing():
            self.transport.abort()
        else:
            self._loop.call_later(FAREWELL_SECONDS, self._end_closing)

    def connection_lost(self, _: Exception | None) -> None:
        self._served.remove(self)
        self._cancel_timers()
        for exchange in self._open:
            exchange.lose()
        self.drained.set()  # what is sent goes nowhere
        self._set_gone()

    @property
    def is_gone(self) -> bool:
        """See `Exchange`."""
        return self._is_half_closed or self.transport.is_closing()

    def when_gone(self) -> asyncio.Future[None]:
        """See `Exchange`."""
        if self._gone is None or self._gone.done():
            self._gone = self._loop.create_future()
            if self.is_gone:
                self._gone.set_result(None)
        return self._gone

    def _set_gone(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    # What arrives

    def data_received(self, data: bytes) -> None:
        if self._has_waiting() or self._held:
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
            if self._has_waiting():
                self._hold(data[start:])
                return
            self._parse(view[start : start + PIECE])
            if self._is_deaf or self.transport.is_closing():
                return

    def _parse(self, piece: bytes | memoryview) -> None:
        self._idle_bytes += len(piece)
        while piece and not self._is_deaf:
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                piece = self._head_without_upgrade() + piece[upgrade.args[0] :]
            except httptools.HttpParserError:
                self._refuse(_NOT_HTTP)
                return
            else:
                break
        if self._idle_bytes > MAX_HEAD + PIECE:  # a header or trailer without an end
            self._refuse(_HEAD_TOO_LARGE)

    def _head_without_upgrade(self) -> bytes:
        """
        The head of a request that offers another protocol, without the offer, for a new parser: the
        old one knows no body of such a request. Java's client offers HTTP/2 with each request.
        """
        self._offers_upgrade = False
        version, method = self._parser.get_http_version().encode(), self._parser.get_method()
        lines = [b"%b: %b\r\n" % header for header in self._headers if header[0] != b"upgrade"]
        self._parser = httptools.HttpRequestParser(self)
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._url, version, b"".join(lines))

    def _hold(self, data: bytes) -> None:
        if not self._is_deaf:
            self._held += data
        if self._is_deaf or len(self._held) > MAX_HELD:
            self.transport.pause_reading()

    def _parse_held(self) -> None:
        held, self._held = self._held, b""
        if held:
            self._parse_pieces(held)
        if len(self._held) <= MAX_HELD:
            self.transport.resume_reading()

    # One request, as the parser tells of it

    def on_message_begin(self) -> None:
        self._head_bytes = self._hosts = 0
        self._url, self._headers, self._awaits_go_ahead = b"", [], False
        self._await_head()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + HEADER_LINE)
        if self._awaits_head_since is None:
            return  # a trailer: what a proxy has not seen in the head is no header
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self._awaits_go_ahead = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._parser.get_method() == b"CONNECT":
            self._refuse(_NO_TUNNEL)
            raise _Refused
        if self._parser.get_http_version() not in VERSIONS:
            self._refuse(_NOT_HTTP)
            raise _Refused
        if self._parser.should_upgrade():
            self._offers_upgrade = True
            return
        self._awaits_head_since = None
        self._idle_bytes = 0
        if not self._url.startswith((b"/", b"*")):
            self._name_host()
        elif self._hosts != 1 and (self._hosts or self._parser.get_http_version() == "1.1"):
            self._refuse(_NO_HOST)
            raise _Refused
        self._begin()

    def _begin(self) -> None:
        """Serve the request whose head is complete, or let it wait for those before it."""
        scope = self._scope()
        self._exchange = exchange = Exchange(
            self,
            scope,
            keep_alive=scope["http_version"] != "1.0" and self._parser.should_keep_alive(),
            awaits_go_ahead=self._awaits_go_ahead,
        )
        scope["extensions"] = {EXCHANGE: exchange}
        self._open.append(exchange)
        if not self._has_waiting():
            self._served.start(exchange)

    def _scope(self) -> dict[str, Any]:
        """The request, as ASGI has it."""
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self._parser.get_http_version(),
            "method": self._parser.get_method().decode("ascii"),
            "scheme": self._scheme,
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self._headers,
            "client": self._client,
            "server": self._server,
        }
        if self._served.proxies is not None:
            self._served.proxies.apply(scope)
        return scope

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        assert self._exchange is not None
        self._exchange.add(body)

    def on_message_complete(self) -> None:
        if self._offers_upgrade:
            return
        self._idle_bytes = 0
        assert self._exchange is not None
        self._exchange.end_body()

    def on_answered(self) -> None:
        """The next request has its turn."""
        self._open.popleft()
        if self.transport.is_closing():
            return
        if self._open:
            self._served.start(self._open[0])
        else:
            self._await_head()
        if not self._has_waiting():
            self._parse_held()
        if self._is_half_closed and self._has_served():
            self.transport.close()

    # What is answered

    def pause_writing(self) -> None:
        self._writing = self._loop.call_later(IDLE_SECONDS, self.transport.abort)
        self.drained.clear()

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        self.drained.set()

    def _await_head(self) -> None:
        """
        From now on the next head may take `IDLE_SECONDS`. One timer looks after all heads of a
        connection, because a new one for each request is dearer.
        """
        self._awaits_head_since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._check_head)

    def _check_head(self) -> None:
        self._timer = None
        if self._awaits_head_since is None:
            return
        left = self._awaits_head_since + IDLE_SECONDS - self._loop.time()
        if left <= 0:
            self.transport.abort()
        else:
            self._timer = self._loop.call_later(left, self._check_head)

    def _name_host(self) -> None:
        """A URL with a host instead of a path alone: its host counts, not that of the header."""
        host = urlsplit(self._url).netloc
        others = [header for header in self._headers if header[0] != b"host"]
        self._headers = [(b"host", host), *others]

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
        last = self._exchange
        if last is not None and not (last.is_done or last.has_more):
            last.keep_alive = False
            return
        if last is None or last.is_done or not (self._has_waiting() or last.has_begun):
            self.transport.write(answer)
        self.transport.close()

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._writing):
            if timer is not None:
                timer.cancel()
