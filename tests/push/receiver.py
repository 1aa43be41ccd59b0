"""Receivers of webhooks on loopback, whose behavior the path of the URL names."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    method: str = "POST"


@dataclass
class Receiver:
    """
    Answers `/200` with that status, and behaves badly at `/hang`, `/endless`, `/big`, `/headers`,
    `/close` and `/garbage`. `answers` may have a function for a path, which returns status and
    headers; `$ALL` in one is those of the request, and `body` ends the body.
    """

    requests: list[Received] = field(default_factory=list)
    answers: dict[str, Callable[[], tuple[int, dict[str, str]]]] = field(default_factory=dict)
    released: threading.Event = field(default_factory=threading.Event)
    sent: int = 0
    port: int = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def of(self, path: str) -> list[Received]:
        return [each for each in self.requests if each.path == path]


def serve(receiver: Receiver) -> http.server.ThreadingHTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.requests.append(Received(self.path, headers, body, self.command))
            bad = getattr(self, f"do_{self.path.strip('/')}", None)
            if bad is not None:
                with contextlib.suppress(OSError):
                    bad()
                self.close_connection = True
                return
            status, more = receiver.answers.get(self.path, lambda: (_status(self.path), {}))()
            more = {name: text.replace("$ALL", repr(headers)) for name, text in more.items()}
            text = f"answer of {self.path}{more.pop('body', '')}".encode()
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_PUT = do_PATCH = do_POST  # noqa: N815  # the names that http.server calls

        def do_hang(self) -> None:
            receiver.released.wait(120)

        def do_endless(self) -> None:
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            while not receiver.released.wait(0.05):
                self.wfile.write(b"1\r\nx\r\n")
                self.wfile.flush()

        def do_big(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(1 << 30))
            self.end_headers()
            while receiver.sent < 1 << 30:
                self.wfile.write(b"x" * 65_536)
                receiver.sent += 65_536

        def do_headers(self) -> None:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            for n in range(100_000):
                self.wfile.write(b"x-%d: %s\r\n" % (n, b"y" * 1_000))

        def do_close(self) -> None:
            self.connection.shutdown(socket.SHUT_RDWR)

        def do_garbage(self) -> None:
            self.wfile.write(b"\x00\xff this is no HTTP\r\n\r\n")

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


def _status(path: str) -> int:
    last = path.rpartition("/")[2]
    return int(last) if last.isdigit() else 200
