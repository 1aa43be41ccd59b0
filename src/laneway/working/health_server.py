"""
The HTTP server of `--health-port`, for the probes of Kubernetes and other supervisors.

- `GET /live`: the event loop responds and the engine thread is alive. After a 503, restart the
  process.
- `GET /ready`: the worker has started, is not stopping, its store has answered recently, and it
  has what its handlers need: the keys of endpoints.

One thread serves one request after the other.
"""

from __future__ import annotations

import http.server
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError as NotYet
from typing import Any, ClassVar, cast

from laneway.errors import LanewayError, UsageError
from laneway.printable import without_passwords

log = logging.getLogger("laneway.worker")

LOOP_SECONDS = 5.0
"""How long the event loop may take to respond; after that `/live` answers 503."""

STORE_SECONDS = 3.0
"""How long the store may take to answer; after that `/ready` answers 503."""

RECENT_SECONDS = 5.0
"""How long an answer of the store is valid; until then the store is not asked again."""

STOP_LOOK_SECONDS = 0.1
"""How often the server checks whether it is to end; the worker's end waits that long at most."""

REQUEST_SECONDS = 5.0
"""How long a client may take to send its request; then the connection is closed."""


class HealthServer:
    """
    Serves the two probes from `start` to `close`.

    `call_soon` calls a function on the worker's event loop. `is_alive`, `is_serving` and
    `ask_store` are called in the server's threads; `ask_store` returns what else is wrong.
    Raises UsageError if the port cannot be opened.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        is_alive: Callable[[], bool],
        is_serving: Callable[[], bool],
        ask_store: Callable[[], str | None],
    ) -> None:
        self._call_soon = call_soon
        self._is_alive = is_alive
        self._is_serving = is_serving
        self._ask_store = ask_store
        self._answered_at = -RECENT_SECONDS
        self._request: Future[str | None] | None = None
        self._store_thread = ThreadPoolExecutor(1, thread_name_prefix="laneway-health")
        server_class = _ServerV6 if ":" in address else _Server
        try:
            self._server = server_class((address, port), _Request)
        except OSError as error:
            raise UsageError(
                f"worker: the health port {port} of {address} cannot be opened"
                f" ({error.strerror or error}); choose another one"
            ) from error
        self._server.probes = {"/live": self._live, "/ready": self._ready}
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(STOP_LOOK_SECONDS,),
            name="laneway-health-port",
            daemon=True,
        )
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()
        log.info("health: %s/live and %s/ready", self.url, self.url)

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        self._store_thread.shutdown(wait=False, cancel_futures=True)

    # A probe returns what is wrong, or None.

    def _live(self) -> str | None:
        responded = threading.Event()
        try:
            self._call_soon(responded.set)
        except RuntimeError:
            return "the event loop has ended"
        if not responded.wait(LOOP_SECONDS):
            return f"the event loop has not responded for {LOOP_SECONDS:g} s: a handler blocks it"
        return None if self._is_alive() else "the engine thread has ended"

    def _ready(self) -> str | None:
        if not self._is_serving():
            return "the worker is stopping"
        if time.monotonic() - self._answered_at < RECENT_SECONDS:
            return None
        if (
            self._request is None
        ):  # at most one at a time: a store that is away answers none of them
            self._request = self._store_thread.submit(self._ask_store)
        try:
            problem = self._request.result(STORE_SECONDS)
        except NotYet:
            return f"the store has not answered for {STORE_SECONDS:g} s"
        except LanewayError as error:
            self._request = None
            return f"the store cannot be used: {without_passwords(str(error))}"
        self._request = None
        if problem is None:
            self._answered_at = time.monotonic()
        return problem


class _Server(http.server.HTTPServer):
    probes: dict[str, Callable[[], str | None]]

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        log.debug("health: a request from %s failed: %s", client_address, sys.exception())


class _ServerV6(_Server):
    address_family: int = socket.AF_INET6


class _Request(http.server.BaseHTTPRequestHandler):
    timeout: ClassVar[float | None] = REQUEST_SECONDS

    def do_GET(self) -> None:
        probe = cast("_Server", self.server).probes.get(self.path.partition("?")[0])
        if probe is None:
            self._answer(404, {"error": "not found; use /live or /ready"})
            return
        problem = probe()
        self._answer(
            200 if problem is None else 503,
            {"ok": problem is None, **({"error": problem} if problem is not None else {})},
        )

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status: int, answer: dict[str, object]) -> None:
        body = json.dumps(answer).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "laneway"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: there is a probe every few seconds."""
