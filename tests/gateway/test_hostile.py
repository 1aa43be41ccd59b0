"""Requests that no honest client sends, against a server: an answer or an end, and a quiet log."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import logging
import math
import re
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from laneway import Laneway
from laneway.errors import EngineUnavailable
from laneway.gateway import gateway as gateway_module, server, services
from laneway.gateway.gateway import Gateway
from laneway.gateway.http import EXCHANGE, Disconnected, Request, Stream
from tests.gateway.conftest import Api, serving
from tests.gateway.test_server import call

HOST = b"host: localhost\r\n"
PATH = b"/v1/topics/hostile/messages"
OPEN = b"POST " + PATH + b" HTTP/1.1\r\n" + HOST + b"content-type: application/json\r\n"


def exchange(
    port: int, *sent: bytes, until_closed: bool = False, half_closes: bool = False
) -> bytes:
    """
    What a server answers until it closes the connection or, unless `until_closed`, the answer is
    complete. `half_closes`: the client closes its sending side.
    """
    answer = b""
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.settimeout(20)
        try:
            for piece in sent:
                raw.sendall(piece)
            if half_closes:
                raw.shutdown(socket.SHUT_WR)
            while chunk := raw.recv(65_536):
                answer += chunk
                length = re.search(rb"content-length: (\d+)", answer)
                head, end, body = answer.partition(b"\r\n\r\n")
                is_whole = head and end and length is not None and len(body) >= int(length[1])
                if is_whole and not until_closed:
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


def packed(value: object) -> bytes:
    """A message in MessagePack."""
    sent = post(msgspec.msgpack.encode(value), PATH).replace(b"/json", b"/msgpack")
    return sent.replace(b"host:", b"accept: application/json\r\nhost:")


REFUSED: list[tuple[int, bytes]] = [
    # Not HTTP, or not honest about its length
    (400, b"\x16\x03\x01\x02\x00\x01\x00"),
    (400, b"GET /healthz\r\n\r\n"),
    (400, b"GET /healthz HTTP/0.9\r\n\r\n"),
    (400, b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n"),
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
    (400, get(b"/v1/topics", b"host: localhost", b"host: evil.example")),
    (400, get(b"/healthz", b"accept: */*")),
    (405, b"CONNECT evil.example:443 HTTP/1.1\r\nhost: evil.example:443\r\n\r\n"),
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
    (415, post(b"\x1f\x8b\x08" + bytes(1000), PATH, b"content-encoding: gzip")),
    (415, post(b"\x1f\x8b\x08", PATH + b"?raw=1", b"content-encoding: br")),
    (400, post(b"{}", PATH, b"idempotency-key: \xe9")),
    (400, post(b"{}", PATH, b"idempotency-key: a", b"idempotency-key: b")),
    (400, post(b"{}", PATH + b"?raw=1", b"x-laneway-key: \xe9")),
    (400, packed({"body": [{"a": math.inf}]})),
    (400, packed({"body": math.nan})),
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
    key = post(b'{"id": "\xc3\xa9"}', PATH, b"idempotency-key: \xc3\xa9", b"content-encoding: ")
    assert '{"id":"é",' in exchange(api.port, key).decode()
    assert b" 201 Created" in exchange(api.port, packed({"body": [1.5, {"a": None}]}))
    twice = b'{"body": 1, "body": {"a": 1, "a": 2}}'  # as JSON says, the last one counts
    assert b" 201 Created" in exchange(api.port, post(twice))


def test_pipeline(api: Api) -> None:
    """Many requests at once are answered in their order, on one connection."""
    with socket.create_connection(("127.0.0.1", api.port)) as raw:
        raw.settimeout(20)
        paths = [b"/healthz", b"/problems/not-found"] * 200
        last = get(paths[-1], b"host: localhost", b"connection: close")
        raw.sendall(b"".join(map(get, paths[:-1])) + last)
        answer = b""
        while chunk := raw.recv(65_536):
            answer += chunk
    found = re.findall(rb'\{"status":"ok"\}|\{"type":"not-found"', answer)
    assert found == [b'{"status":"ok"}', b'{"type":"not-found"'] * 200


def test_refusal_behind_another_request(api: Api) -> None:
    """The client does not take it for the answer to that one."""
    for behind in (b"\x16\x03\x01", get(b"/healthz", b"x: " + b"y" * 40_000)):
        both = post(b'{"body": 2}', b"/v1/topics/before/messages") + behind
        answer = exchange(api.port, both, until_closed=True)
        assert answer.startswith(b"HTTP/1.1 201 ")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert api("GET", "/healthz").json == {"status": "ok"}


ENDLESS: list[tuple[bytes, bytes]] = [
    (b"GET / HTTP/1.1\r\nx: ", b"a" * 65_536),
    (b"GET / HTTP/1.1\r\n", b"a:\r\n" * 16_384),
    (OPEN + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: ", b"a" * 65_536),
    (OPEN + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 10_000),
    (OPEN + b"transfer-encoding: chunked\r\n\r\n2;", b"a" * 65_536),
    (OPEN + b"transfer-encoding: chunked\r\n\r\n", b"0" * 65_536),
    (b"", b"\r\n" * 32_768),
]


@pytest.mark.parametrize(("sent", "rest"), ENDLESS, ids=lambda each: str(each)[-40:])
def test_parts_without_end(api: Api, sent: bytes, rest: bytes) -> None:
    """A header, trailer, extension or number that does not end is not collected."""
    answer = exchange(api.port, sent, rest, until_closed=True)
    assert re.match(rb"HTTP/1.1 4(00|31) ", answer) or not answer  # reset while it still sent


def test_trailers_are_no_headers(api: Api) -> None:
    """A proxy that checks headers may pass them on unseen."""
    trailer = b"0\r\nidempotency-key: hidden\r\n\r\n"
    chunked = OPEN + b"transfer-encoding: chunked\r\n\r\nb\r\n" + b'{"body": 1}\r\n' + trailer
    last = get(b"/healthz", b"host: localhost", b"connection: close")
    answer = exchange(api.port, chunked + post(b'{"body": 1}') + last, until_closed=True)
    assert answer.count(b"HTTP/1.1 201 ") == 2
    assert b"hidden" not in answer


def test_half_closed_client_gets_its_answers(api: Api) -> None:
    """A client that closes its sending side has them all, of many requests too; then it ends."""
    for count in (1, 300):
        sent = post(b'{"body": 1}') * count
        answer = exchange(api.port, sent, half_closes=True, until_closed=True)
        assert answer.count(b"HTTP/1.1 201 ") == count
    for sent in (b"", b"GET /heal", OPEN + b"content-length: 9\r\n\r\n{"):
        assert exchange(api.port, sent, half_closes=True, until_closed=True) == b""


def test_offers_of_other_protocols(api: Api) -> None:
    """Java's client offers HTTP/2 with each request, also with a body: it is served as usual."""
    offer = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMA")
    both = post(b'{"body": 1}', PATH, *offer) + post(b'{"body": 2}', PATH, *offer)
    last = get(b"/healthz", b"host: localhost", b"connection: close", *offer)
    head, _, body = both.partition(b"\r\n\r\n")
    for sent in ((both, last), (head + b"\r\n\r\n", body + last)):
        answer = exchange(api.port, *sent, until_closed=True)
        assert (answer.count(b"HTTP/1.1 201 "), answer.count(b"HTTP/1.1 200 ")) == (2, 1)


def test_memory_of_a_pipeline(tmp_path: Path) -> None:
    """A client that sends requests and reads no answers does not fill the gateway's memory."""
    with serving(f"sqlite:///{tmp_path}/laneway.db") as (api, process):
        before = memory(process.pid)
        raws = [socket.create_connection(("127.0.0.1", api.port)) for _ in range(4)]
        for raw in raws:
            raw.settimeout(0.5)
            raw.sendall(post(b'{"wait": 60, "topics": ["pipe"]}', b"/v1/lease"))
            with pytest.raises(TimeoutError):
                raw.sendall(get(b"/healthz") * 400_000)
        assert memory(process.pid) - before < 20 << 20
        for raw in raws:
            raw.close()


def memory(process: int) -> int:
    """Bytes that a process has used at most."""
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(peak) << 10


def test_stream_to_an_old_client(tmp_path: Path) -> None:
    """HTTP/1.0 has no chunks: the answer ends with the connection."""
    lines = b'{"topic": "old", "body": 1}\n' * 2
    head = b"POST /v1/messages HTTP/1.0\r\ncontent-type: application/x-ndjson\r\n" + HOST
    request = head + b"content-length: %d\r\n\r\n" % len(lines) + lines
    with serving(f"sqlite:///{tmp_path}/laneway.db", "--insecure") as (api, _):
        answer = exchange(api.port, request, until_closed=True)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert [json.loads(line)["line"] for line in body.splitlines()] == [1, 2]


def test_refusal_of_an_announced_body(api: Api) -> None:
    """A client that waits for a go-ahead is not asked for a body that is too large."""
    expecting = OPEN + b"expect: 100-continue\r\ncontent-length: 99999999\r\n\r\n"
    answer = exchange(api.port, expecting, until_closed=True)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer


def test_stop_during_uploads(tmp_path: Path) -> None:
    """Lines are answered as far as they came, and the rest of them is refused."""
    line = b'{"topic": "up", "body": 1}\n'
    head = b"POST /v1/messages HTTP/1.1\r\ncontent-type: application/x-ndjson\r\n" + HOST
    with (
        serving(f"sqlite:///{tmp_path}/laneway.db") as (api, process),
        socket.create_connection(("127.0.0.1", api.port)) as raw,
    ):
        raw.settimeout(20)
        raw.sendall(head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(line), line))
        answer = b""
        while b"accepted" not in answer:
            answer += raw.recv(65_536)
        process.terminate()
        while chunk := raw.recv(65_536):
            answer += chunk
        process.wait(20)
    assert b'"line":2,"problem":"the gateway is stopping' in answer
    assert answer.endswith(b"0\r\n\r\n")
    assert services.BODY_SECONDS < server.STOP_SECONDS  # else the server would end them first


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


def test_log_without_files(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While no file is free for a connection, the log has one line; then it is served.

    asyncio would try to accept again after the stop has closed the socket: no traceback.
    """
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0.05)
    tries = itertools.count()

    class Listening(socket.socket):
        def accept(self) -> Any:
            if next(tries) < 3_000:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    options = server.Options(port=0)
    with Listening(fileno=server.listen(options).detach()) as listening:
        served = server.create(gateway, options, listening, lambda _: None)
        end = served.served.stop

        async def stop(seconds: float) -> None:
            await asyncio.sleep(0.1)  # all tries that asyncio has planned come in this time
            await end(seconds)

        monkeypatch.setattr(served.served, "stop", stop)
        thread = threading.Thread(target=asyncio.run, args=(served.serve(),))
        thread.start()
        answer = exchange(listening.getsockname()[1], get(b"/healthz"))
        served.stop()
        thread.join()
    assert answer.startswith(b"HTTP/1.1 200 ")
    (record,) = (each for each in caplog.records if each.levelno >= logging.ERROR)
    assert "no connection can be accepted" in record.getMessage()


def test_requests_that_a_stop_cancels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are answered by 503, and their number is logged once."""

    async def run(gateway: Gateway) -> bytes:
        options = server.Options(port=0, stop_seconds=0)
        listening = server.listen(options)
        serving = server.create(gateway, options, listening, lambda _: None)
        begun = asyncio.Event()

        async def never(*_: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(gateway, "_exchange", never)
        task = asyncio.create_task(serving.serve())
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(get(b"/healthz"))
        await begun.wait()
        serving.stop()
        answer = await reader.read()
        await task
        writer.close()
        return answer

    with Laneway(f"sqlite:///{tmp_path}/laneway.db") as app, closing(Gateway(app)) as gateway:
        assert asyncio.run(run(gateway)).startswith(b"HTTP/1.1 503 ")
    (line,) = caplog.records
    assert line.getMessage() == "1 requests had no answer in time and are cancelled"


def test_stream_to_a_client_that_has_gone() -> None:
    """Nothing more is written to a lost connection: asyncio would log each time."""

    class Gone:
        is_lost = True

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

    monkeypatch.setattr(type(gateway.services.runtime.engine), "topic_stats", fail)
    monkeypatch.setattr(gateway_module, "LOG_SECONDS", 600.0)

    async def run() -> list[Any]:
        return [await call(gateway, "GET", "/v1/topics/a") for _ in range(50)]

    with caplog.at_level(logging.ERROR, "laneway.gateway"):
        assert {status for status, _, _ in asyncio.run(run())} == {503}
        assert len(caplog.records) == gateway_module.LOG_LINES
        monkeypatch.setattr(gateway_module, "LOG_SECONDS", 0.0)
        asyncio.run(call(gateway, "GET", "/v1/topics/a"))
    assert "40 more failed" in caplog.records[-1].getMessage()
