"""Receivers that break HTTP, TLS and connections, and a sender that has no sockets left."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.push_endpoints import make_certificate
from laneway import Laneway
from laneway.push import transport
from laneway.push.answers import Answer, judge
from laneway.push.transport import Destination, Request, Settings, Transport
from tests.push.receiver import Receiver
from tests.server_groups import end_listening

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

Behavior = Callable[["Connection"], None]


class Connection:
    """A connection of a receiver that sends what a test says."""

    def __init__(self, file: socket.socket, requests: list[str]) -> None:
        self.file = file
        self._requests = requests

    def request(self) -> None:
        """Read a request; its path is added to the list."""
        content = b""
        while b"\r\n\r\n" not in content or not content.endswith(b"body"):
            found = self.file.recv(65_536)
            if not found:
                raise OSError
            content += found
        self._requests.append(content.split(b" ")[1].decode())

    def send(self, content: bytes) -> None:
        self.file.sendall(content)

    def flood(self, content: bytes, most: int = 64 << 20) -> None:
        for _ in range(most // len(content)):
            self.send(content)


class Server:
    """A receiver whose connections all behave in one way."""

    def __init__(self, behavior: Behavior, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[str] = []
        self.connections = 0
        self._behavior, self._context = behavior, context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                file, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(file,), daemon=True).start()

    def _serve(self, file: socket.socket) -> None:
        try:
            if self._context is not None:
                file = self._context.wrap_socket(file, server_side=True)
            self._behavior(Connection(file, self.requests))
        except OSError:
            pass
        finally:
            file.close()

    def close(self) -> None:
        end_listening(self._listener)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(behavior: Behavior, context: ssl.SSLContext | None = None) -> Server:
        servers.append(Server(behavior, context))
        return servers[-1]

    yield start
    for each in servers:
        each.close()


def answers(
    port: int,
    count: int = 1,
    *,
    scheme: str = "http",
    ca: str | None = None,
    go_on: threading.Semaphore | None = None,
    timeout_ms: int = 20_000,
) -> list[Answer]:
    """The answers to requests, one after the other; each waits for `go_on` before the next."""

    async def send() -> list[Answer]:
        loop = asyncio.get_running_loop()
        sender = Transport(loop, None)
        found = []
        for n in range(count):
            answered: asyncio.Future[Answer] = loop.create_future()
            settings = Settings(
                timeout_ms=timeout_ms, connect_timeout_ms=timeout_ms, ca=ca, http2=False
            )
            url = f"{scheme}://127.0.0.1:{port}/{n}"
            sender.start(
                Request(
                    destination=Destination(url=url, host="127.0.0.1", settings=settings),
                    headers=[b"expect:"],
                    body=b"body",
                    finished=answered.set_result,
                )
            )
            found.append(await asyncio.wait_for(answered, 60))
            if go_on is not None:
                assert await asyncio.to_thread(go_on.acquire, timeout=60)
            await asyncio.sleep(0)  # a connection that is idle may have received something
        sender.close()
        return found

    return asyncio.run(send())


@pytest.mark.parametrize(
    ("content", "ended"),
    [
        (b"HTTP/1.1 000 OK\r\ncontent-length: 0\r\n\r\n", "reset"),
        (b"HTTP/1.1 -20 OK\r\ncontent-length: 0\r\n\r\n", "reset"),
        (b"HTTP/2 200 OK\r\ncontent-length: 0\r\n\r\n", "reset"),
        (b"ICY 200 OK\r\n\r\nhello", "reset"),
        (b"HTTP/1.1 2", "reset"),
        (b"HTTP/1.1 199 x\r\n\r\n", "reset"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\na: b\r\n\r\n" + OK, 200),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "reset"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx", "reset"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nx", "reset"),
        (b"HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 0\r\n\r\n", "reset"),
        (b"HTTP/1.1 500 x\r\nretry-after:\r\n 7\r\ncontent-length: 0\r\n\r\n", 500),
        (CHUNKED + b"ffffffffffffffffff\r\n", "reset"),
        (CHUNKED + b"0\r\nHTTP/1.1: 500\r\nwebhook-retry: no\r\n\r\n", 200),
        (OK + b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n", 200),
    ],
)
def test_answers_that_are_hardly_http(
    serve: Callable[..., Server], content: bytes, ended: int | str
) -> None:
    """Each is a status or a broken connection, at once."""

    def behave(connection: Connection) -> None:
        connection.request()
        connection.send(content)

    (answer,) = answers(serve(behave).port)
    assert (answer.status or answer.error) == ended
    judge(answer)


@pytest.mark.parametrize(
    ("before", "content"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nx: ", b"a" * 65_536),
        (CHUNKED + b"0\r\n", b"x: y\r\n" * 1_000),
        (CHUNKED, b"1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\nx\r\n" * 1_000),
        (CHUNKED + b"1;", b"a" * 65_536),  # ends with the timeout
    ],
)
def test_answers_without_an_end(
    serve: Callable[..., Server], before: bytes, content: bytes
) -> None:
    """They are cut, or end with the timeout."""

    def behave(connection: Connection) -> None:
        connection.request()
        connection.send(before)
        connection.flood(content, 1 << 30)

    began = time.monotonic()
    (answer,) = answers(serve(behave).port, timeout_ms=1_000)
    assert time.monotonic() - began < 30
    assert answer.status in (100, 103, 200) or answer.error in ("too_large", "timeout")


def test_what_an_idle_connection_receives_answers_nothing(serve: Callable[..., Server]) -> None:
    """
    An answer that nobody asked for is not that of the next request, which would be acked and never
    received.
    """

    sent = threading.Semaphore(0)

    def behave(connection: Connection) -> None:
        while True:
            connection.request()
            connection.send(OK)
            time.sleep(0.02)  # the answer has been read by then, or it is read with what follows
            connection.send(b"HTTP/1.1 201 unasked\r\ncontent-length: 0\r\n\r\n")
            sent.release()

    server = serve(behave)
    assert [each.status for each in answers(server.port, 4, go_on=sent)] == [200] * 4
    assert server.requests == ["/0", "/1", "/2", "/3"]


def test_a_connection_that_is_closed_by_the_next_request(serve: Callable[..., Server]) -> None:
    """The request is sent again with a new connection."""

    def behave(connection: Connection) -> None:
        connection.request()
        connection.send(OK)
        connection.request()

    server = serve(behave)
    assert [each.status for each in answers(server.port, 3)] == [200] * 3
    assert set(server.requests) == {"/0", "/1", "/2"}


def test_tls(serve: Callable[..., Server], tmp_path: Path) -> None:
    """A connection is kept; what is not trusted, or no TLS, is an error of its own class."""
    path, authority = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)

    def behave(connection: Connection) -> None:
        while True:
            connection.request()
            connection.send(OK)

    server = serve(behave, context)
    found = answers(server.port, 3, scheme="https", ca=authority)
    assert [each.status for each in found] == [200] * 3
    assert server.connections == 1
    assert [each.error for each in answers(server.port, scheme="https")] == ["tls"]
    plain = serve(lambda connection: connection.send(OK))
    assert [each.error for each in answers(plain.port, scheme="https", ca=authority)] == ["tls"]
    silent = serve(lambda connection: connection.request())
    found = answers(silent.port, scheme="https", ca=authority, timeout_ms=500)
    assert [each.error for each in found] == ["timeout"]


def failing(monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> None:
    """The next sockets cannot be opened."""
    opened = transport._Opened
    left = [times]

    def open_socket(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(code, "none left")
        return opened(*arguments)

    monkeypatch.setattr(transport, "_Opened", open_socket)


def test_without_sockets_messages_wait(
    app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no fault of the receiver: no attempt is counted, and nothing for its breaker."""
    monkeypatch.setattr("laneway.push.sender.NO_SOCKET_SECONDS", 0.01)
    failing(monkeypatch, errno.EMFILE, 3)
    endpoint = app.endpoint("push.x", url=receiver.url("/200"), allow_private=True, log="all")
    app.publish("push.x", 1)
    deadline = time.monotonic() + 60
    while not receiver.requests and time.monotonic() < deadline:
        app.run_worker(burst=True)
    assert receiver.requests[0].headers["webhook-attempt"] == "1"
    assert endpoint.info().failures == 0
    assert [each.result for each in endpoint.attempts().attempts] == ["acked"]


def test_an_address_family_that_this_machine_does_not_have(
    app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an address is not reached; it is not refused as a private one, which would be final."""
    failing(monkeypatch, errno.EAFNOSUPPORT, 1)
    app.endpoint("push.x", url=receiver.url("/200"), allow_private=True)
    app.publish("push.x", 1)
    app.run_worker(burst=True)
    assert app.dead_letters.list() == []
    assert app.topic("push.x").stats().done == 1


def test_a_fault_of_one_answer(
    app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails its message; the others of the same moment are not held up."""

    def judged(answer: Answer, **named: Any) -> Any:
        if b"/418" in answer.body:
            raise RuntimeError("a fault")
        return judge(answer, **named)

    monkeypatch.setattr("laneway.push.sender.judge", judged)
    for n in range(10):
        path = "/418" if n == 3 else "/200"
        app.endpoint(f"push.{n}", url=receiver.url(path), allow_private=True)
        app.publish(f"push.{n}", n)
    summary = app.run_worker(burst=True)
    assert summary.acked == 9
    assert [letter.message.topic for letter in app.dead_letters.list()] == ["push.3"]


def test_the_end_does_not_wait_for_names() -> None:
    """libcurl waits for names that are being resolved, which a hostile server never answers."""
    released, ended = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, multi: Any) -> None:
            self._multi = multi

        def close(self) -> None:
            released.wait(120)
            self._multi.close()
            ended.set()

    async def close() -> None:
        sender = Transport(asyncio.get_running_loop(), None)
        sender._multi = Slow(sender._multi)
        sender.close()

    began = time.monotonic()
    asyncio.run(close())
    assert time.monotonic() - began < 60
    released.set()
    assert ended.wait(60)


def test_idle_connections_leave_files_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the process's, within bounds."""
    resource = pytest.importorskip("resource")
    for files, connections in (
        (40, 16),
        (1_024, 256),
        (1_000_000, 1_024),
        (resource.RLIM_INFINITY, 1_024),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, most=files: (most, most))
        assert transport._max_connections() == connections
