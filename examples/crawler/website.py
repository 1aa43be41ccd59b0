"""
A folder of HTML served on several loopback hosts. Each page is on one host; the others redirect to
it. Some pages fail the first time, some are slow. Every request is logged.
"""

from __future__ import annotations

import threading
import time
import zlib
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

FAILS_FIRST, SLOW = 20, 25
"""One page of this many fails at its first request; one of this many takes 0.1 s."""


class Request(NamedTuple):
    """
    A request as the host saw it. `ended`: when the answer was ready, before the client received it.
    """

    began: float
    ended: float
    host: str
    path: str
    status: int
    agent: str


class Site:
    """The hosts and the log of their requests."""

    def __init__(self, folder: Path, hosts: int, port: int = 0) -> None:
        self.folder = folder
        self.log: list[Request] = []
        self._failed: set[str] = set()
        self._lock = threading.Lock()
        self._servers: list[ThreadingHTTPServer] = []
        for n in range(hosts):
            server = ThreadingHTTPServer((f"127.0.0.{n + 2}", port), partial(_Handler, self))
            server.daemon_threads = True
            port = server.server_address[1]
            self._servers.append(server)
        self.hosts = [f"127.0.0.{n + 2}:{port}" for n in range(hosts)]

    def start(self) -> Site:
        for server in self._servers:
            threading.Thread(
                target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
            ).start()
        return self

    def stop(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def pages(self) -> list[Request]:
        """The requests that were answered with a page."""
        return [request for request in list(self.log) if request.status == 200]

    def home(self, path: str) -> str:
        """The host that a page lives on: whole folders stay together."""
        return self.hosts[
            zlib.crc32(path.rpartition("/")[0].encode() + path[-9:-5].encode()) % len(self.hosts)
        ]

    def answer(self, host: str, path: str) -> tuple[int, bytes, str | None]:
        """(status, body, where to) of a page."""
        home = self.home(path)
        file = (self.folder / path.lstrip("/")).resolve()
        if (
            not file.is_relative_to(self.folder.resolve())
            or not file.is_file()
            or file.suffix != ".html"
        ):
            return 404, b"", None
        if home != host:
            return 301, b"", f"http://{home}{path}"
        draw = zlib.crc32(path.encode())
        with self._lock:
            if draw % FAILS_FIRST == 0 and path not in self._failed:
                self._failed.add(path)
                return 503, b"", None
        if draw % SLOW == 0:
            time.sleep(0.1)
        return 200, file.read_bytes(), None


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, site: Site, *rest: Any) -> None:
        self.site = site
        super().__init__(*rest)

    def do_GET(self) -> None:  # the standard library's name
        began = time.time()
        host = f"{self.server.server_address[0]}:{self.server.server_address[1]}"  # type: ignore[str-bytes-safe]
        status, body, where = self.site.answer(host, self.path)
        self.site.log.append(
            Request(began, time.time(), host, self.path, status, self.headers.get("User-Agent", ""))
        )
        self.send_response(status)
        if where is not None:
            self.send_header("Location", where)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The site has a log of its own."""
