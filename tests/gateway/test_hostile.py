"""Requests that no honest client sends, against a server: an answer or an end, and a quiet log."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import EngineUnavailable
from laneway.gateway import log_limit
from laneway.gateway.connection import CLIENT_ERRORS
from laneway.gateway.gateway import Gateway
from laneway.gateway.http import EXCHANGE, Disconnected, Request, Stream
from tests.gateway.conftest import Api, serving
from tests.gateway.test_server import call

HOST = b"host: localhost\r\n"
PATH = b"/v1/topics/hostile/messages"
OPEN = b"POST " + PATH + b" HTTP/1.1\r\n" + HOST + b"content-type: application/json\r\n"


def exchange(port: int, *sent: bytes) -> bytes:
    """What a server answers until it closes the connection or the answer is complete."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.settimeout(20)
        try:
            for piece in sent:
                raw.sendall(piece)
            while chunk := raw.recv(65_536):
                answer += chunk
                length = re.search(rb"content-length: (\d+)", answer)
                head, end, body = answer.partition(b"\r\n\r\n")
                if head and end and length is not None and len(body) >= int(length[1]):
                    break
        except ConnectionError:
            pass  # it was answered before all was read
    return answer


def get(target: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers or (HOST[:-2],))
    return b"GET " + target + b" HTTP/1.1\r\n" + lines + b"\r\n"


def post(body: bytes, path: bytes = PATH, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    head = b"POST %s HTTP/1.1\r\n%scontent-type: application/json\r\n%s" % (path, HOST, lines)
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


REFUSED: list[tuple[int, bytes]] = [
    # Not HTTP, or not honest about its length
    (400, b"\x16\x03\x01\x02\x00\x01\x00"),
    (400, get(b"/v1/topics/\xff")),
    (400, get(b"/v1/topics", b"host : localhost")),
    (400, get(b"/v1/topics", b"host: localhost", b"x: a\0b")),
    (400, OPEN + b"content-length: -1\r\n\r\n"),
    (400, OPEN + b"content-length: 3\r\ncontent-length: 5\r\n\r\n{}}}}"),
    (400, OPEN + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    (400, OPEN + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n\r\n"),
    (413, OPEN + b"content-length: 99999999999\r\n\r\n"),
    (431, get(b"/healthz", b"x: " + b"y" * 40_000)),
    (431, get(b"/v1/topics?" + b"a=b&" * 10_000)),
    # Other names of the gateway
    (403, get(b"/v1/topics", b"host: evil.example")),
    (403, get(b"/v1/topics", b"host: localhost", b"host: evil.example")),
    (403, get(b"http://evil.example/v1/topics")),
    # Paths and queries
    (400, get(b"/v1/topics/%")),
    (400, get(b"/v1/topics/%zz")),
    (400, get(b"/v1/topics/%ED%A0%80")),
    (400, post(b"{}", b"/v1/topics/a%00b/messages")),
    (400, post(b"{}", b"/v1/topics/a%0d%0ab/messages")),
    (400, get(b"/v1/topics?limit=99999999999999999999999")),
    (400, get(b"/v1/topics?" + b"&".join(b"a%d=1" % n for n in range(300)))),
    (404, get(b"//v1/topics")),
    (404, b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n"),
    # Bodies
    (400, post(b'{"body": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
    (400, post(b'{"body": NaN}')),
    (400, post(b'{"body": 1e999}')),
    (400, post(b'{"body": "\\ud800"}')),
    (400, post(b'{"body": "\xff"}')),
    (400, post(b'{"id": "a\\u0000b"}')),
    (400, post(b"\x1f\x8b\x08" + bytes(1000), PATH, b"content-encoding: gzip")),
    (413, post(b"[" + b'{"topic":"m"},' * 1_000_000 + b'{"topic":"m"}]', b"/v1/messages")),
    (401, get(b"/v1/topics", b"host: localhost", b"authorization: Bearer \xff\xfe")),
]


@pytest.mark.parametrize(("status", "sent"), REFUSED, ids=lambda each: str(each)[:60])
def test_refused(api: Api, status: int, sent: bytes) -> None:
    """Each is refused by a problem, and the next client is served."""
    head, _, body = exchange(api.port, sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), (head, body)
    assert b"application/problem+json" in head
    assert b"nosniff" in head
    assert b"/problems/" in body
    assert api("GET", "/healthz").json == {"status": "ok"}


def test_accepted(api: Api) -> None:
    """What is unusual but allowed is served."""
    here = b"http://localhost:%d" % api.port
    assert b" 200 OK" in exchange(api.port, get(here + b"/v1/topics", b"host: evil.example"))
    old = exchange(api.port, b"GET /healthz HTTP/1.0\r\n\r\n")
    assert b"connection: close" in old
    expecting = exchange(api.port, post(b'{"body": 1}', PATH, b"expect: 100-continue"))
    assert b" 201 Created" in expecting
    api.publish("a%2Fb", 1)
    assert api("GET", "/v1/topics?pattern=a/b").json["topics"][0]["topic"] == "a/b"
    twice = b'{"body": 1, "body": {"a": 1, "a": 2}}'  # as JSON says, the last one counts
    assert b" 201 Created" in exchange(api.port, post(twice))


def test_pipeline(api: Api) -> None:
    """Many requests at once are answered in their order, on one connection."""
    with socket.create_connection(("127.0.0.1", api.port)) as raw:
        raw.settimeout(20)
        paths = [b"/healthz", b"/problems/not-found"] * 200
        raw.sendall(b"".join(map(get, paths[:-1])) + get(paths[-1], b"connection: close"))
        answer = b""
        while chunk := raw.recv(65_536):
            answer += chunk
    found = re.findall(rb'\{"status":"ok"\}|\{"type":"not-found"', answer)
    assert found == [b'{"status":"ok"}', b'{"type":"not-found"'] * 200


def test_refusal_behind_another_request(api: Api) -> None:
    """The client does not take it for the answer to that one."""
    for behind in (b"\x16\x03\x01", get(b"/healthz", b"x: " + b"y" * 40_000)):
        both = post(b'{"body": 2}', b"/v1/topics/before/messages") + behind
        answer = exchange(api.port, both)
        assert not answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
        assert api("GET", "/healthz").json == {"status": "ok"}


def test_body_without_end(api: Api) -> None:
    """A body of chunks that never ends is refused, and read no further."""
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    answer = exchange(api.port, OPEN + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 300)
    assert answer.startswith(b"HTTP/1.1 413 ") or not answer  # reset while it still sent


def test_quiet_log(tmp_path: Path) -> None:
    """What is not HTTP leaves no line each."""
    with serving(f"sqlite:///{tmp_path}/laneway.db") as (api, process):
        for _ in range(20):
            exchange(api.port, b"nonsense\r\n\r\n")
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert not errors


def test_requests_that_a_stop_cancels(caplog: pytest.LogCaptureFixture) -> None:
    """They are not logged as errors; other errors are."""
    for error in (asyncio.CancelledError("stopping"), ValueError("a fault")):
        CLIENT_ERRORS.error("Exception in ASGI application", exc_info=error)
    (line,) = caplog.records
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], ValueError)


def test_stream_to_a_client_that_has_gone() -> None:
    """Nothing more is written to a lost connection: asyncio would log each time."""

    class Gone:
        is_gone = True

    async def chunks() -> AsyncIterator[bytes]:
        yield b"1"

    async def run() -> list[str]:
        sent: list[str] = []

        async def send(event: Any) -> None:
            sent.append(event["type"])

        scope = {"method": "GET", "headers": [], "extensions": {EXCHANGE: Gone()}}
        request = Request(scope, None, send)  # type: ignore[arg-type]
        with pytest.raises(Disconnected):
            await request.stream(Stream(chunks()))
        return sent

    assert asyncio.run(run()) == ["http.response.start"]


def test_log_of_an_outage(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the store is away, some requests are logged; then how many more there were."""

    def fail(*_: object, **__: object) -> int:
        raise EngineUnavailable("refused")

    monkeypatch.setattr(type(gateway.services.host.engine), "topic_stats", fail)

    async def run() -> list[Any]:
        return [await call(gateway, "GET", "/v1/topics/a") for _ in range(50)]

    with caplog.at_level(logging.ERROR, "laneway.gateway"):
        assert {status for status, _, _ in asyncio.run(run())} == {503}
        assert len(caplog.records) == log_limit.LINES
        monkeypatch.setattr(log_limit, "SECONDS", 0.0)
        asyncio.run(call(gateway, "GET", "/v1/topics/a"))
    assert "40 more failed" in caplog.records[-1].getMessage()
