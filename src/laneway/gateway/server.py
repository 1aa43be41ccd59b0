"""`laneway serve`: the gateway on a server of its own (uvicorn)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from laneway.errors import UsageError
from laneway.gateway import access
from laneway.gateway.http import IDLE_SECONDS, MAX_HEAD
from laneway.gateway.problems import KINDS, ProblemBody

try:
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError as error:  # pragma: no cover
    raise UsageError(
        f'serve: {error.name} is not installed; run: pip install "laneway[gateway]"'
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from laneway.engines.base import Records

STOP_SECONDS = 10
"""How long requests may continue after the server was told to stop."""

BACKLOG = 1024
"""Connections that the system holds until the server accepts them."""


CLIENT_ERRORS = logging.getLogger("laneway.gateway.connection")
"""Where connections log. No line for each request that is not HTTP: any client could send many."""

CLIENT_ERRORS.setLevel(logging.ERROR)


class Served(Protocol):
    """What a server needs from what it serves: `Gateway`, or what stands before several."""

    prefix: str

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, as ASGI calls it."""

    def stop(self) -> None:
        """End the waiting requests."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    How the server listens.

    - `host`, `port`: the address; port 0: any free one.
    - `certificate`, `key`: paths of PEM files; None: plain HTTP.
    - `max_connections`: further ones are refused with 503.
    - `trusted_proxies`: addresses whose `X-Forwarded-…` headers are believed.
    - `stop_seconds`: how long requests may continue after the server was told to stop.
    """

    host: str = "127.0.0.1"
    port: int = 7878
    certificate: str | None = None
    key: str | None = None
    max_connections: int = 1000
    trusted_proxies: tuple[str, ...] = ()
    stop_seconds: int = STOP_SECONDS


def bind_of(text: str) -> tuple[str, int]:
    """Read `host:port`, `:port`, `host` or `[::1]:port`. Raises UsageError."""
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):
        host, port = text, "7878"
    if not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"serve: expected --bind to be HOST:PORT, got {text!r:.80}")
    return host.strip("[]") or "127.0.0.1", int(port)


def check_bind(host: str, engine: Records, *, is_open: bool) -> None:
    """Refuse to let other machines in without a token. Raises UsageError."""
    if access.is_loopback(host) or is_open or engine.records("token", limit=1):
        return
    raise UsageError(
        f"serve: {host} is reachable for other machines, and there is no token yet; create one with"
        " `laneway token create NAME --scope SCOPE`, or add --insecure to let everyone in"
    )


def serve(gateway: Served, options: Options, tell: Callable[[str], None]) -> None:
    """
    Serve until SIGTERM or SIGINT. `tell`: gets the URL when the server accepts connections.

    Raises UsageError if the address cannot be used.
    """
    listening = listen(options)
    server = create(gateway, options, listening, tell)
    asyncio.run(server.serve(sockets=[listening]))


def create(
    gateway: Served, options: Options, listening: socket.socket, tell: Callable[[str], None]
) -> Server:
    """The server of a listening socket; `await server.serve(sockets=[listening])` runs it."""
    config = uvicorn.Config(
        gateway,
        host=options.host,
        port=options.port,
        http=_protocol(options.max_connections),
        ws="none",
        lifespan="off",
        loop="asyncio",
        backlog=BACKLOG,
        timeout_keep_alive=round(IDLE_SECONDS),
        timeout_graceful_shutdown=options.stop_seconds,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
        proxy_headers=bool(options.trusted_proxies),
        forwarded_allow_ips=list(options.trusted_proxies) or None,
        server_header=False,
        access_log=False,
        log_config=None,
    )
    _allow_files(2 * options.max_connections)
    scheme = "https" if options.certificate else "http"
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return Server(config, gateway, lambda: tell(f"{scheme}://{shown}:{port}{gateway.prefix}"))


def listen(options: Options) -> socket.socket:
    """A socket that listens at the address. Raises UsageError."""
    listening = None
    try:
        (family, kind, number, _, address), *_ = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM
        )
        listening = socket.socket(family, kind, number)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise UsageError(
            f"serve: {options.host}:{options.port} cannot be used: {error.strerror or error}; name"
            " another address with --bind"
        ) from error
    return listening


def _allow_files(count: int) -> None:
    """Raise the process's own limit of open files, as far as the system lets it."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource  # noqa: PLC0415  # not on all systems

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < count:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


class Server(uvicorn.Server):
    """
    Ends waiting requests when it is told to stop, and returns instead of raising signals.

    `should_exit = True` stops it, from any thread. Outside the main thread it handles no signals.
    """

    def __init__(
        self, config: uvicorn.Config, gateway: Served, started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self._tell()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the requests, then the connections."""
        self._gateway.stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals that stop it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {
            each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for each, handler in handlers.items():
                signal.signal(each, handler)


def _protocol(max_connections: int) -> type[HttpToolsProtocol]:
    """The connection's protocol, with its limits."""
    return type("Connection", (_Connection,), {"max_connections": max_connections})


def _refusal(kind: str, detail: str) -> bytes:
    """An answer to a client whose request is not read."""
    status, title = KINDS[kind]
    body = msgspec.json.encode(ProblemBody(f"/problems/{kind}", title, status, detail))
    reason = {431: "Request Header Fields Too Large", 503: "Service Unavailable"}[status]
    return (
        b"HTTP/1.1 %d %s\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n"
        b"retry-after: 1\r\nconnection: close\r\n\r\n%s"
        % (status, reason.encode(), len(body), body)
    )


class _Connection(HttpToolsProtocol):
    """
    A connection that does not keep a client that is too slow, or whose head is too large.

    uvicorn bounds the time between two requests. This bounds the number of connections, the size
    of a head, the time until it is complete, and the time for which a client does not read.
    """

    max_connections = 1000
    _head_bytes = 0
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
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().on_headers_complete()

    def pause_writing(self) -> None:
        self._writing = self.loop.call_later(IDLE_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    def _await_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(IDLE_SECONDS, self.transport.abort)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD and not self.transport.is_closing():
            self.transport.write(
                _refusal("header-too-large", f"the head has more than {MAX_HEAD:,} bytes")
            )
            self.transport.close()

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._writing):
            if timer is not None:
                timer.cancel()
