"""Many connections at once, and requests that nobody would write."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import resource
import socket
import string
from collections.abc import Iterator
from typing import Any

import pytest

from laneway import Laneway
from laneway.gateway.gateway import Gateway
from laneway.gateway.route_table import ROUTES
from tests.gateway.conftest import Api, serving
from tests.gateway.test_server import call
from tests.seeds import seed_for

CONNECTIONS = 1000
FUZZED = int(os.environ.get("GATEWAY_FUZZ", "1500"))
"""Requests with random parts; `make fuzz-gateway` sends 100,000."""
SEED = seed_for("GATEWAY_FUZZ", "FUZZ_SEED")


def request(path: str, body: bytes) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body


def test_thousand_connections(store: str, app: Laneway) -> None:
    """A thousand clients publish at the same time, and again over the same connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * CONNECTIONS:
        pytest.skip(f"a process may have {hard} files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * CONNECTIONS), hard))

    async def client(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(request("/v1/topics/crowd/messages", b'{"body": 1}'))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 201 ")
            await reader.readuntil(b"}")
        writer.close()

    async def run(port: int) -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*(client(port) for _ in range(CONNECTIONS)))

    try:
        with serving(store) as (api, _):
            asyncio.run(run(api.port))
            assert api("GET", "/v1/topics/crowd").json["waiting"] == 2 * CONNECTIONS
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Fuzz

BODIES: tuple[Any, ...] = (
    {"body": {"a": [1, "ä", None]}, "key": "k", "priority": 1, "delay": "1m", "id": "x"},
    [{"topic": "a.b", "body": 1}, {"topic": "c"}],
    {"n": 5, "wait": 0, "topics": ["a.b"], "pool": "default", "lease": 1},
    [{"receipt": "AAAA", "action": "retry", "delay": 1, "reason": "x", "publish": []}],
    {"topic": "a.b", "ids": ["x"], "limit": 3, "rate": "1/s", "dry_run": True},
    {"rate": "5/s", "concurrency": 3, "burst": 2, "retries": 3, "backoff": [1, 2]},
    {"name": "x", "scopes": ["read"], "topics": ["a.*"], "expires": "1h"},
    {"confirm": "a.b", "dry_run": True},
    {"share": 3, "fair_by": "time"},
    {"topic": "t", "every": "10m", "cron": "* * * * *", "missed": "one"},
    {"kind": "shared", "where": {"a": "b*"}},
)
STREAMS = frozenset(route.path for route in ROUTES if route.answer_type == "text/event-stream")
"""They have no end."""
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 1e308, 2**64, -(2**63), "", "x" * 300, "\x00", "a.*", "*", "ä\u202e"),
    *([], {}, [[]], {"": ""}, "10m", "soon", "2100-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
)
SEGMENTS = ("a.b", "a%2Fb", "%00", "%FF", "*", "push.*", "x" * 300, "..", "%E4", "1", "-1", "a%23b")


class Fuzz:
    """Random requests, from a seed."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def changed(self, value: Any) -> Any:
        """The value with some of its parts replaced."""
        if self.chance.random() < 0.15:
            return self.chance.choice(VALUES)
        if isinstance(value, dict):
            found = {name: self.changed(each) for name, each in value.items()}
            if found and self.chance.random() < 0.2:
                del found[self.chance.choice(list(found))]
            if self.chance.random() < 0.1:
                found[self.word()] = self.chance.choice(VALUES)
            return found
        if isinstance(value, list):
            return [self.changed(each) for each in value]
        return value

    def word(self) -> str:
        return "".join(self.chance.choices(string.printable, k=self.chance.randrange(12)))

    def body(self) -> bytes:
        content = json.dumps(self.changed(self.chance.choice(BODIES))).encode()
        if self.chance.random() < 0.15:
            at = self.chance.randrange(len(content) + 1)
            content = content[:at] + self.chance.randbytes(3) + content[at + 1 :]
        if self.chance.random() < 0.05:
            content = content[: self.chance.randrange(len(content) + 1)]
        return content

    def request(self) -> dict[str, Any]:
        route = self.chance.choice(ROUTES)
        segments = [
            self.chance.choice(SEGMENTS) if part.startswith("{") else part
            for part in route.path.split("/")
        ]
        method = route.method if self.chance.random() < 0.9 else self.chance.choice(("PUT", "X"))
        names = [*route.query.__struct_fields__, "x"]
        query = "&".join(
            f"{self.chance.choice(names)}={self.chance.choice(('1', '-1', 'x', '', '%FF', 'a.*'))}"
            for _ in range(self.chance.choice((0, 0, 0, 1, 2)))
        )
        kinds = ("application/json",) * 6 + ("application/x-ndjson", "text/plain", "x", "")
        headers = [(b"host", b"localhost"), (b"content-type", self.chance.choice(kinds).encode())]
        if self.chance.random() < 0.2:
            names_of_headers = (b"if-match", b"idempotency-key", b"x-laneway-at", b"authorization")
            value = self.word().encode("latin-1", "replace")
            headers.append((self.chance.choice(names_of_headers), value))
        return {
            "method": method,
            "path": "/".join(segments),
            "query_string": query.encode(),
            "headers": headers,
            "body": self.body(),
        }


@pytest.fixture
def gateway(tmp_path: Any) -> Iterator[Gateway]:
    with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as app:
        gateway = Gateway(app, is_open=True)
        yield gateway
        gateway.close()


def test_random_requests(gateway: Gateway) -> None:
    """No request ends in a 500, whatever it contains."""
    print(f"FUZZ_SEED={SEED}")
    fuzz = Fuzz(random.Random(SEED))

    async def run() -> None:
        for _ in range(FUZZED):
            sent = fuzz.request()
            if sent["path"] in STREAMS:
                continue
            shown = dict(sent)
            status, body, _ = await call(gateway, sent.pop("method"), sent.pop("path"), **sent)
            is_busy = shown["path"] == "/readyz" and status == 503  # it says what is so
            assert status < 500 or is_busy, (shown, body)

    asyncio.run(run())


def test_random_bytes(api: Api) -> None:
    """What is no HTTP closes its connection and harms nobody else."""
    print(f"FUZZ_SEED={SEED}")
    chance = random.Random(SEED)
    valid = request("/v1/topics/a/messages", b'{"body": 1}')
    for _ in range(max(50, FUZZED // 20)):
        sent = bytearray(valid)
        for _ in range(chance.randrange(1, 6)):
            sent[chance.randrange(len(sent))] = chance.randrange(256)
        with socket.create_connection(("127.0.0.1", api.port), timeout=20) as connection:
            connection.sendall(sent[: chance.randrange(len(sent) + 1)])
            connection.shutdown(socket.SHUT_WR)
            try:
                answer = connection.recv(100)
            except ConnectionResetError:
                answer = b""
            assert not answer.startswith(b"HTTP/1.1 5")
    api("GET", "/healthz")


class Client:
    """A client that sends many requests at once, in pieces, and each in an unusual way."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def requests(self, count: int) -> bytes:
        return b"".join(map(self._request, range(count)))

    def _request(self, number: int) -> bytes:
        chance = self.chance
        lines = [b"host: localhost"]
        lines += [b"connection: Upgrade", b"upgrade: h2c"] if chance.random() < 0.2 else []
        lines += [b"x: " + b"y" * chance.randrange(9000)] if chance.random() < 0.3 else []
        if chance.random() < 0.2:
            return b"GET /problems/n%d HTTP/1.1\r\n%b\r\n\r\n" % (number, b"\r\n".join(lines))
        content = "x" * chance.choice([0, 100, 5000, 70_000])
        body = json.dumps({"body": content, "id": f"n{number}-{chance.random()}"}).encode()
        lines.append(b"content-type: application/json")
        if chance.random() < 0.4:
            lines.append(b"transfer-encoding: chunked")
            body = self._chunked(body)
        else:
            lines += [b"expect: 100-continue"] if chance.random() < 0.2 else []
            lines.append(b"content-length: %d" % len(body))
        head = b"POST /v1/topics/pieces/messages HTTP/1.1\r\n"
        return head + b"\r\n".join(lines) + b"\r\n\r\n" + body

    def _chunked(self, body: bytes) -> bytes:
        parts = []
        while body:
            size = self.chance.randrange(1, 8000)
            parts.append(b"%x;a=b\r\n%b\r\n" % (len(body[:size]), body[:size]))
            body = body[size:]
        return b"".join(parts) + b"0\r\nidempotency-key: hidden\r\n\r\n"

    async def exchange(self, port: int, sent: bytes) -> bytes:
        """All that is answered to a client that closes its sending side."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answers = asyncio.ensure_future(reader.read())
        size = self.chance.choice([100, 4096, 60_000, len(sent)])
        for first in range(0, len(sent), size):
            writer.write(sent[first : first + size])
            await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(60):
            found = await answers
        writer.close()
        return found


def test_random_pieces(api: Api) -> None:
    """Every request is answered, in order, however its bytes arrive."""
    print(f"FUZZ_SEED={SEED}")
    client = Client(random.Random(SEED))
    for _ in range(max(40, FUZZED // 40)):
        count = client.chance.choice([1, 3, 40])
        answer = asyncio.run(client.exchange(api.port, client.requests(count)))
        numbers = re.findall(rb'"instance":"/problems/n(\d+)"|"id":"n(\d+)-', answer)
        assert [int(one or other) for one, other in numbers] == list(range(count)), answer[-500:]
        assert b"hidden" not in answer
