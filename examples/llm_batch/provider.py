"""A provider of a language model with limits: tokens per second, and calls at once."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKENS_PER_SECOND, CALLS_AT_ONCE = 4_000, 8
"""What the provider sells."""

BUCKET = 8_000
"""Tokens that may be used at once: those of two seconds."""

SECONDS_PER_TOKEN = 0.0003
"""How long the model takes."""


class Seen(NamedTuple):
    """A call that the provider got."""

    at: float
    customer: str
    document: int
    tokens: int
    status: int


class Provider(ThreadingHTTPServer):
    """Answers `POST /` with a summary, or with 429 and `Retry-After` beyond its limits."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[Seen] = []
        self.most_at_once = 0
        self._lock = threading.Lock()
        self._at_once = 0
        self._left, self._refilled = float(BUCKET), time.monotonic()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def begin(self, customer: str, document: int, tokens: int) -> int:
        """Admit a call, or not; returns its status."""
        with self._lock:
            now = time.monotonic()
            refill = (now - self._refilled) * TOKENS_PER_SECOND
            self._left, self._refilled = min(BUCKET, self._left + refill), now
            is_admitted = self._left >= tokens and self._at_once < CALLS_AT_ONCE
            if is_admitted:
                self._left -= tokens
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
            status = 200 if is_admitted else 429
            self.seen.append(Seen(now, customer, document, tokens, status))
            return status

    def end(self) -> None:
        """A call that was admitted is over."""
        with self._lock:
            self._at_once -= 1


class _Handler(BaseHTTPRequestHandler):
    server: Provider
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        tokens = asked["tokens"]
        status = self.server.begin(asked["customer"], asked["document"], tokens)
        if status == 200:
            time.sleep(tokens * SECONDS_PER_TOKEN)
            self.server.end()
        answer = json.dumps({"summary": " ".join(asked["text"].split()[:5])}).encode()
        self.send_response(status)
        if status == 429:
            self.send_header("retry-after", "1")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing: the provider keeps what it saw."""


@contextmanager
def running() -> Iterator[Provider]:
    """A provider that answers until the block ends."""
    with Provider() as provider:
        thread = threading.Thread(target=provider.serve_forever)
        thread.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            thread.join()
