"""`laneway serve`: the gateway on a server of its own (uvicorn)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from laneway import headers as control
from laneway.errors import UsageError
from laneway.gateway import access, connection
from laneway.gateway.handshake import Handshakes
from laneway.gateway.http import IDLE_SECONDS

try:
    import uvicorn
except ImportError as error:  # pragma: no cover
    raise UsageError(
        f"serve: {error.name} is not installed; pip install 'laneway[gateway]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STOP_SECONDS = 10
"""How long requests may continue after the server was told to stop."""

BACKLOG = 1024
"""Connections that the system holds until the server accepts them."""


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
    number = control.whole(port)
    if number is None or number > 65_535 or control.whole(host) is not None:
        raise UsageError(f"serve: expected --bind to be HOST:PORT or :PORT, got {text!r:.80}")
    return host.strip("[]") or "127.0.0.1", number


def check_bind(host: str, *, is_open: bool) -> None:
    """
    Refuse to let other machines in without a token. Raises UsageError.

    `is_open`: there is a token, or everyone is to be let in.
    """
    if access.is_loopback(host) or is_open:
        return
    raise UsageError(
        f"serve: {host} is reachable for other machines, and there is no token yet; add"
        " --token-file PATH, or create one with `laneway token create NAME --scope SCOPE`, or add"
        " --insecure to let everyone in"
    )


def serve(gateway: Served, options: Options, tell: Callable[[str], None]) -> None:
    """
    Serve until SIGTERM or SIGINT. `tell`: gets the URL when the server accepts connections.

    Raises UsageError if the address or the certificate cannot be used.
    """
    with listen(options) as listening:
        server = create(gateway, options, listening, tell)
        asyncio.run(server.serve(sockets=[listening]))


def create(
    gateway: Served, options: Options, listening: socket.socket, tell: Callable[[str], None]
) -> Server:
    """
    The server of a listening socket; `await server.serve(sockets=[listening])` runs it.

    Raises UsageError if the certificate cannot be used.
    """
    handshakes = Handshakes()
    config = uvicorn.Config(
        gateway,
        host=options.host,
        port=options.port,
        http=connection.protocol(options.max_connections, handshakes),
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
    _load(config, options)
    if config.ssl is not None:  # asyncio's own way counts no connection before its handshake ends
        protocol: Any = config.http_protocol_class
        config.http_protocol_class = handshakes.opener(protocol, config.ssl)  # type: ignore[assignment]
        config.ssl = None
    _allow_files(2 * options.max_connections)
    scheme = "https" if options.certificate else "http"
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"{scheme}://{shown}:{port}{gateway.prefix}"
    return Server(config, gateway, lambda: tell(url), handshakes)


def _load(config: uvicorn.Config, options: Options) -> None:
    """Read the certificate. Raises UsageError."""
    if options.key and not options.certificate:
        raise UsageError(
            f"serve: --tls-key {options.key} is of no use without its --tls-certificate"
        )
    try:
        config.load()
    except OSError as error:  # also of TLS
        files = f"--tls-certificate {options.certificate}"
        files += f" with --tls-key {options.key}" if options.key else ""
        reason = error.strerror or error
        raise UsageError(
            f"serve: {files}: expected PEM files of a certificate and its key ({reason})"
        ) from error


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
        self,
        config: uvicorn.Config,
        gateway: Served,
        started: Callable[[], None],
        handshakes: Handshakes | None = None,
    ) -> None:
        super().__init__(config)
        self._handshakes = Handshakes() if handshakes is None else handshakes
        self._gateway = gateway
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self._tell()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the requests, then the connections."""
        self._gateway.stop()
        self._handshakes.end()
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
