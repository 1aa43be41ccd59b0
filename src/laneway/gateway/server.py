"""`laneway serve`: the gateway on a server of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from laneway import headers as control
from laneway.errors import UsageError
from laneway.gateway.connection import Served
from laneway.gateway.login import access
from laneway.gateway.proxies import Proxies
from laneway.working.event_loop import handled

log = logging.getLogger("laneway.gateway")

STOP_SECONDS = 10
"""How long requests may continue after the server was told to stop."""

BACKLOG = 1024
"""Connections that the system holds until the server accepts them."""

ACCEPT_LOG_SECONDS = 60.0
"""How often the log has that no connection can be accepted."""


class Application(Protocol):
    """What a server requires of its application: a `Gateway`, or a front for several."""

    prefix: str

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, as ASGI calls it."""

    def stop(self) -> None:
        """End the waiting requests."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    How the server listens.

    - `host`, `port`: the address; port 0: any free one.
    - `certificate`, `key`: paths of PEM files, or None for plain HTTP.
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

    `is_open`: whether a token exists, or the operator admits everyone.
    """
    if access.is_loopback(host) or is_open:
        return
    raise UsageError(
        f"serve: {host} can be reached from other machines, and no token exists yet; add"
        " --token-file PATH, or create one with `laneway token create NAME --scope SCOPE`, or add"
        " --insecure to let everyone in"
    )


def serve(gateway: Application, options: Options, tell: Callable[[str], None]) -> None:
    """
    Serve until SIGTERM or SIGINT. `tell`: gets the URL when the server accepts connections.

    Raises UsageError if the address or the certificate cannot be used.
    """
    with listen(options) as listening:
        asyncio.run(create(gateway, options, listening, tell).serve())


def create(
    gateway: Application, options: Options, listening: socket.socket, tell: Callable[[str], None]
) -> Server:
    """
    The server of a listening socket; `await server.serve()` runs it.

    Raises UsageError if the certificate cannot be used.
    """
    context = _tls(options)
    _allow_files(2 * options.max_connections)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"{'http' if context is None else 'https'}://{shown}:{port}{gateway.prefix}"
    return Server(gateway, options, listening, context, lambda: tell(url))


def _tls(options: Options) -> ssl.SSLContext | None:
    """The certificate, if there is one. Raises UsageError."""
    if options.certificate is None:
        if options.key:
            raise UsageError(
                f"serve: --tls-key {options.key} has no effect without its --tls-certificate"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.certificate, options.key)
    except OSError as error:  # including TLS errors
        files = f"--tls-certificate {options.certificate}"
        files += f" with --tls-key {options.key}" if options.key else ""
        reason = error.strerror or error
        raise UsageError(
            f"serve: {files}: expected PEM files of a certificate and its key ({reason})"
        ) from error
    return context


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


class Server:
    """
    Accepts connections until it is told to stop; then it ends what waits, and the connections.

    Outside the main thread it handles no signals.
    """

    def __init__(
        self,
        gateway: Application,
        options: Options,
        listening: socket.socket,
        context: ssl.SSLContext | None,
        started: Callable[[], None],
    ) -> None:
        """`context`: None: plain HTTP. `started`: called when it accepts connections."""
        self._gateway = gateway
        self._stop_seconds = options.stop_seconds
        self._listening = listening
        self._context = context
        self._tell = started
        proxies = Proxies(options.trusted_proxies) if options.trusted_proxies else None
        self.served = Served(gateway, options.max_connections, proxies)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()
        self._is_stopped = False
        self._ending: asyncio.Task[None] | None = None
        self._logged_at = -ACCEPT_LOG_SECONDS

    def stop(self) -> None:
        """Begin to stop, from any thread."""
        self._is_stopped = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stopped.set)

    async def serve(self) -> None:
        """Serve until `stop`, or a signal."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_error)
        if self._is_stopped:  # before it began
            self._stopped.set()
        with handled((signal.SIGINT, signal.SIGTERM), self._on_signal):
            accepting = await self._loop.create_server(
                lambda: self.served.accept(self._context), sock=self._listening, backlog=BACKLOG
            )
            self._tell()
            await self._stopped.wait()
            self._gateway.stop()
            accepting.close()
            self._ending = asyncio.create_task(self.served.stop(self._stop_seconds))
            await self._ending

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio would log: while no file is free, a thousand tracebacks a second.

        It plans a new attempt for each failed one, and a stop does not cancel them.
        """
        if not context["message"].startswith("socket.accept()"):
            if not (self._stopped.is_set() and "._start_serving(" in context["message"]):
                loop.default_exception_handler(context)
        elif loop.time() >= self._logged_at + ACCEPT_LOG_SECONDS:
            self._logged_at = loop.time()
            log.error(
                "no connection can be accepted (%s); new ones wait: raise the limit of open files"
                " (ulimit -n), or lower --max-connections",
                context["exception"],
            )

    def _on_signal(self, *_: object) -> None:
        """Stop; a second signal lets it wait for no request."""
        if self._ending is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._ending.cancel)
        self.stop()
