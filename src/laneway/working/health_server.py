"""
`--health-port`: whether the worker lives, and whether its store answers, over HTTP for Kubernetes
and the like.

`GET /live`: the event loop turns and the engine thread is alive; on 503 restart the process. `GET
/ready`: the worker has started, is not stopping, and the store has answered within some seconds.
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
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import TYPE_CHECKING, Any, ClassVar, cast

from laneway.errors import LanewayError, UsageError
from laneway.safetext import without_passwords

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("laneway.worker")

LOOP_SECONDS = 5.0
"""How long the event loop may take to turn."""

STORE_SECONDS = 3.0
"""How long the store may take to answer."""

RECENT_SECONDS = 5.0
"""An answer of the store counts for so long."""

STOP_LOOK_SECONDS = 0.1
"""How soon the server sees that it is to end."""

REQUEST_SECONDS = 5.0
"""How long a client may take to ask."""


class HealthServer:
    """Serves from `start` to `close`. The probes are called in the server's thread."""

    def __init__(
        self,
        address: str,
        port: int,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        is_alive: Callable[[], bool],
        is_serving: Callable[[], bool],
        ask_store: Callable[[], object],
    ) -> None:
        self._call_soon = call_soon
        self._is_alive = is_alive
        self._is_serving = is_serving
        self._ask_store = ask_store
        self._answered = -RECENT_SECONDS
        self._asking: Future[object] | None = None
        self._asker = ThreadPoolExecutor(1, thread_name_prefix="laneway-health")
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
        self._asker.shutdown(wait=False, cancel_futures=True)

    # Probes: what is wrong, or None

    def _live(self) -> str | None:
        turned = threading.Event()
        try:
            self._call_soon(turned.set)
        except RuntimeError:
            return "the event loop has ended"
        if not turned.wait(LOOP_SECONDS):
            return f"the event loop has not turned for {LOOP_SECONDS:g} s: a handler blocks it"
        return None if self._is_alive() else "the engine thread has ended"

    def _ready(self) -> str | None:
        if not self._is_serving():
            return "the worker is stopping"
        if time.monotonic() - self._answered < RECENT_SECONDS:
            return None
        if self._asking is None:  # at most one at a time: a store that is away answers none
            self._asking = self._asker.submit(self._ask_store)
        try:
            self._asking.result(STORE_SECONDS)
        except NotYet:
            return f"the store has not answered for {STORE_SECONDS:g} s"
        except LanewayError as error:
            self._asking = None
            return f"the store cannot be used: {without_passwords(str(error))}"
        self._asking = None
        self._answered = time.monotonic()
        return None


class _Server(http.server.HTTPServer):
    probes: dict[str, Callable[[], str | None]]

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        log.debug("health: a request of %s failed: %s", client_address, sys.exception())


class _ServerV6(_Server):
    address_family: int = socket.AF_INET6


class _Request(http.server.BaseHTTPRequestHandler):
    timeout: ClassVar[float | None] = REQUEST_SECONDS

    def do_GET(self) -> None:
        probe = cast("_Server", self.server).probes.get(self.path.partition("?")[0])
        if probe is None:
            self._answer(404, {"error": "there are /live and /ready"})
            return
        wrong = probe()
        self._answer(
            200 if wrong is None else 503,
            {"ok": wrong is None, **({"error": wrong} if wrong is not None else {})},
        )

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status: int, what: dict[str, object]) -> None:
        body = json.dumps(what).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "laneway"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """A probe every few seconds is no news."""
