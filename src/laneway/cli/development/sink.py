"""
`laneway dev --sink`: a receiver of webhooks for trying push, with switches for how it answers.

Every request is received and shown, whatever its path; `/`, and paths that begin with `/_`, are the
receiver's own.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from laneway.cli.development import sink_page
from laneway.errors import UsageError

HOST = "127.0.0.1"
PORTS = 100
"""How many ports are tried, from the one that was asked for."""

MAX_ENTRIES = 200
"""The last requests, which are shown."""

MAX_BODY, MAX_SHOWN = 16 << 20, 16 << 10
"""Bytes of a body that are read, and that are kept."""

MAX_DELAY = 300.0
"""The longest delay in seconds."""

IDLE_SECONDS = 60.0
"""How long a connection may be silent."""

LOCAL_NAMES = ("127.0.0.1", "localhost")


class Sink:
    """Receives webhooks on a port of this machine, in threads."""

    def __init__(self, port: int) -> None:
        """Port 0: any. A port that is taken: the next free one. Raises UsageError."""
        self.switches = sink_page.Switches()
        self.entries: deque[sink_page.Entry] = deque(maxlen=MAX_ENTRIES)
        self._count = 0
        self._lock = threading.Lock()
        self._server = _listen(port, lambda *given: _Connection(self, *given))
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="laneway-sink",
            daemon=True,
        )

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return self._server.server_port

    @property
    def address(self) -> str:
        """The URL of its page."""
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Accept nothing more; requests that wait are given up."""
        self._server.shutdown()
        self._server.server_close()

    def add(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes, answer: str
    ) -> None:
        """Keep a request."""
        with self._lock:
            self._count += 1
            self.entries.appendleft(
                sink_page.Entry(
                    self._count,
                    time.time(),
                    method,
                    path,
                    headers,
                    body[:MAX_SHOWN],
                    len(body),
                    answer,
                )
            )

    def after(self, number: int) -> list[sink_page.Entry]:
        """The requests since that one, the newest first."""
        with self._lock:
            return [each for each in self.entries if each.number > number]


def switches_of(form: str) -> sink_page.Switches:
    """Read the switches of a form, like `status=503&delay=2`. Raises ValueError."""
    fields = {name: values[-1] for name, values in parse_qs(form, keep_blank_values=True).items()}
    unknown = fields.keys() - set(sink_page.Switches.__struct_fields__)
    if unknown:
        raise ValueError(f"unknown switch {min(unknown)!r:.40}; available: status, delay, close")
    status, delay = fields.get("status") or "200", fields.get("delay") or "0"
    if not status.isdecimal() or not 200 <= int(status) <= 599:
        raise ValueError(f"status: expected 200 to 599, got {status!r:.40}")
    try:
        seconds = float(delay)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_DELAY:
        raise ValueError(f"delay: expected 0 to {MAX_DELAY:g} seconds, got {delay!r:.40}")
    return sink_page.Switches(
        int(status), seconds, fields.get("close", "") not in ("", "no", "0", "false")
    )


def _listen(first: int, connection: Callable[..., _Connection]) -> ThreadingHTTPServer:
    for port in range(first, min(first + PORTS, 65_536)):
        try:
            server = _Server((HOST, port), connection)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UsageError(f"dev: --sink {port} cannot be used: {error.strerror}") from error
        else:
            return server
    raise UsageError(f"dev: the ports {first} to {port} are taken; name another one with --sink")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is no error."""


class _Connection(BaseHTTPRequestHandler):
    """One connection of a sender, or of the browser."""

    protocol_version = "HTTP/1.1"

    def __init__(self, sink: Sink, *given: Any) -> None:
        self._sink = sink
        super().__init__(*given)

    def setup(self) -> None:
        """Bound how long the connection may be silent."""
        self.request.settimeout(IDLE_SECONDS)
        super().setup()

    def handle_one_request(self) -> None:
        """Handle any method."""
        self.raw_requestline = self.rfile.readline(65_537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        path = urlsplit(self.path).path
        body = self._body()
        if body is None:
            self._answer(
                HTTPStatus.LENGTH_REQUIRED, b"expected a content-length up to 16 MiB", "text/plain"
            )
            self.close_connection = True
        elif (path == "/" and self.command in ("GET", "HEAD")) or path.startswith("/_"):
            self._own(path, body)
        else:
            self._receive(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base's name
        """The page shows the requests."""

    def _body(self) -> bytes | None:
        length = self.headers.get("content-length", "0")
        if "transfer-encoding" in self.headers or not length.isdecimal():
            return None
        return self.rfile.read(int(length)) if int(length) <= MAX_BODY else None

    def _receive(self, body: bytes) -> None:
        """A webhook."""
        switches = self._sink.switches
        answer = "closed" if switches.close else str(switches.status)
        if switches.delay:
            answer += f" after {switches.delay:g} s"
        self._sink.add(self.command, self.path, self.headers.items(), body, answer)
        time.sleep(switches.delay)
        if switches.close:
            self.close_connection = True
            return
        self._answer(switches.status, b"", "text/plain")

    def _own(self, path: str, body: bytes) -> None:
        """The page and its switches: for this machine's user, not for other sites."""
        host = self.headers.get("host", "").rpartition(":")[0] or self.headers.get("host", "")
        site = self.headers.get("sec-fetch-site", "none")
        if host not in LOCAL_NAMES or (
            self.command == "POST" and site not in ("none", "same-origin")
        ):
            self._answer(HTTPStatus.FORBIDDEN, b"for this machine only", "text/plain")
        elif path == "/_switches" and self.command == "POST":
            self._switch(body)
        elif path == "/":
            page = sink_page.page(self._sink.switches, self._sink.after(0))
            self._answer(HTTPStatus.OK, page, "text/html")
        elif path == "/_requests":
            after = parse_qs(urlsplit(self.path).query).get("after", ["0"])[0]
            newer = self._sink.after(int(after) if after.isdecimal() else 0)
            self._answer(HTTPStatus.OK, sink_page.entries(newer), "text/html")
        elif path in sink_page.FILES:
            kind, content = sink_page.FILES[path]
            self._answer(HTTPStatus.OK, content, kind)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"no such page", "text/plain")

    def _switch(self, body: bytes) -> None:
        try:
            self._sink.switches = switches_of(body.decode(errors="replace"))
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, str(error).encode(), "text/plain")
            return
        self._answer(HTTPStatus.SEE_OTHER, b"", "text/plain", ("location", "/"))

    def _answer(self, status: int, body: bytes, kind: str, *more: tuple[str, str]) -> None:
        self.send_response_only(status)
        for name, value in (
            ("content-type", f"{kind}; charset=utf-8"),
            ("content-security-policy", sink_page.POLICY),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-store"),
            *more,
        ):
            self.send_header(name, value)
        if status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
