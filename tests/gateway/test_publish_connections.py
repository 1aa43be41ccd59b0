"""Publish requests on a connection: their answers, order, and what a stop or a token changes."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from laneway import Laneway, Receipt
from laneway.errors import EngineUnavailable
from laneway.gateway import server
from laneway.gateway.gateway import Gateway
from laneway.gateway.login import tokens

PATH = b"/v1/topics/fast/messages"
JSON = b"content-type: application/json"


class Served:
    """A gateway on a server in a thread."""

    def __init__(self, app: Laneway) -> None:
        self.app, self.gateway = app, Gateway(app)
        options = server.Options(port=0)
        self._listening = server.listen(options)
        self.port = self._listening.getsockname()[1]
        self._server = server.create(self.gateway, options, self._listening, lambda _: None)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._server.serve())

    def stop(self) -> None:
        """Begin to stop."""
        self._server.stop()

    def close(self) -> None:
        self.stop()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.gateway.close()

    def connect(self) -> socket.socket:
        raw = socket.create_connection(("127.0.0.1", self.port))
        raw.settimeout(20)
        return raw

    def ask(self, sent: bytes) -> tuple[bytes, dict[str, str], Any]:
        """The status line, headers and body of an answer."""
        with self.connect() as raw:
            raw.sendall(sent)
            return answer_of(raw)


def answer_of(raw: socket.socket) -> tuple[bytes, dict[str, str], Any]:
    """The next answer of a connection."""
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        byte = raw.recv(1)
        assert byte, answer
        answer += byte
    status, *lines = answer.decode().strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    content = b""
    while len(content) < int(headers["content-length"]):
        content += raw.recv(int(headers["content-length"]) - len(content))
    packed = headers["content-type"].endswith("msgpack")
    return status.encode(), headers, content if packed else json.loads(content)


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    with Laneway(f"sqlite:///{folder}/laneway.db") as app:
        _ = app.engine
        served = Served(app)
        try:
            yield served
        finally:
            served.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("publish")) as served:
        yield served


def post(body: bytes, *headers: bytes, path: bytes = PATH, version: bytes = b"1.1") -> bytes:
    lines = b"".join(header + b"\r\n" for header in (b"host: localhost", *headers))
    head = b"POST %s HTTP/%s\r\n%s" % (path, version, lines)
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


def test_chunked(served: Served) -> None:
    """A body in chunks; a chunk that is none ends the connection."""
    head = b"POST %s HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n" % PATH
    status, _, _ = served.ask(head + b'5\r\n{"bod\r\n6\r\ny": 1}\r\n0\r\n\r\n')
    assert status == b"HTTP/1.1 201 Created"
    status, headers, _ = served.ask(head + b'5\r\n{"bod\r\nzz\r\n')
    assert status == b"HTTP/1.1 400 Bad Request"
    assert headers["connection"] == "close"


def test_pipeline(served: Served) -> None:
    """Requests that are sent at once are answered in their order."""
    ids = [f"pipelined-{n}" for n in range(12)]
    sent = b""
    for each in ids:
        sent += post(b'{"body": 1}', JSON, b"idempotency-key: " + each.encode())
    with served.connect() as raw:
        raw.sendall(sent)
        assert [answer_of(raw)[2]["id"] for _ in ids] == ids
        raw.sendall(post(b'{"body": 1}', JSON) + b"nonsense\r\n\r\n")
        status, headers, _ = answer_of(raw)
        assert (status, headers["connection"]) == (b"HTTP/1.1 201 Created", "close")
        assert raw.recv(1) == b""


def test_full(served: Served) -> None:
    """A full backlog is a problem, and the connection stays."""
    served.app.policy("narrow", max_backlog=1)
    path = b"/v1/topics/narrow/messages"
    assert served.ask(post(b"{}", JSON, path=path))[0].endswith(b"201 Created")
    with served.connect() as raw:
        for _ in range(2):
            raw.sendall(post(b"{}", JSON, path=path))
            status, headers, found = answer_of(raw)
            assert status.endswith(b"429 Too Many Requests")
            assert headers["retry-after"] == "1"
            assert found["type"] == "/problems/backlog-full"
            assert found["instance"] == path.decode()


def test_store_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the store is a problem, and a defect is one without details."""
    errors = [EngineUnavailable("the disk is full", applied=None), ValueError("a secret")]

    def fail(_: Any) -> list[Receipt]:
        raise errors[0]

    monkeypatch.setattr(served.app.runtime.producer.publisher, "_put", fail)
    status, headers, found = served.ask(post(b"{}", JSON))
    assert status == b"HTTP/1.1 503 Service Unavailable"
    assert (found["applied"], headers["retry-after"]) == ("perhaps", "1")

    def broken(*_: Any) -> None:
        raise errors[1]

    monkeypatch.setattr(served.app.runtime.producer, "send", broken)
    status, _, found = served.ask(post(b"{}", JSON))
    assert status == b"HTTP/1.1 500 Internal Server Error"
    assert "secret" not in found["detail"]


def held(served: Served, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, Any]:
    """A store that waits: what it has got a message, and what lets it go on."""
    arrived, go_on = threading.Event(), threading.Event()
    put = served.app.runtime.producer.publisher._put

    def slow(drafts: Any) -> Any:
        arrived.set()
        assert go_on.wait(20)
        return put(drafts)

    monkeypatch.setattr(served.app.runtime.producer.publisher, "_put", slow)
    return arrived, go_on


def test_client_gone(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that goes before the answer: the message is stored, and nothing is logged."""
    arrived, go_on = held(served, monkeypatch)
    with served.connect() as raw:
        raw.sendall(post(b'{"id": "left"}', JSON, path=b"/v1/topics/gone/messages"))
        assert arrived.wait(20)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
    with served.connect() as half:
        half.sendall(post(b'{"id": "half"}', JSON, path=b"/v1/topics/gone/messages"))
        half.shutdown(socket.SHUT_WR)
        go_on.set()
        assert answer_of(half)[2] == {"id": "half", "outcome": "accepted"}
        assert half.recv(1) == b""
    assert served.app.publish("gone", 1, id="left").outcome == "duplicate"
    assert not caplog.records


def test_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is being stored when the server stops gets its answer."""
    with serving(tmp_path) as served:
        assert served.ask(post(b"{}", JSON))[0].endswith(b"201 Created")
        arrived, go_on = held(served, monkeypatch)
        with served.connect() as raw:
            raw.sendall(post(b"{}", JSON))
            assert arrived.wait(20)
            served.stop()
            go_on.set()
            status, _, _ = answer_of(raw)
            assert status == b"HTTP/1.1 201 Created"
            assert raw.recv(1) == b""


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token's scopes, topics and rate hold, and a request takes one permit."""
    monkeypatch.setattr(tokens, "CACHE_SECONDS", 600.0)  # the second request finds the token
    with serving(tmp_path) as served:
        engine = served.app.engine
        _, reader, _ = tokens.create(engine, "reader", ["read"])
        _, narrow, _ = tokens.create(engine, "narrow", ["publish"], topics=["other.*"])
        _, slow, _ = tokens.create(engine, "slow", ["publish"], rate=0.01)

        def sent(token: str) -> tuple[str, Any]:
            first = served.ask(post(b"{}", JSON, b"authorization: Bearer " + token.encode()))
            again = served.ask(post(b"{}", JSON, b"authorization: Bearer " + token.encode()))
            return re.sub(r"^HTTP/1.1 (\d+).*", r"\1", again[0].decode()), (first, again)

        status, (first, again) = sent(reader)
        assert status == "403"
        assert first[2]["detail"] == again[2]["detail"]
        assert "lacks the scope publish" in again[2]["detail"]
        status, (_, again) = sent(narrow)
        assert status == "403"
        assert "is for topics other.*, not for fast" in again[2]["detail"]
        status, (first, again) = sent(slow)
        assert (first[0], status) == (b"HTTP/1.1 201 Created", "429")
        assert 1 <= int(again[1]["retry-after"]) <= 200
        bad = served.ask(post(b"{}", JSON, b"authorization: Bearer " + b"lw_x"))
        assert bad[0] == b"HTTP/1.1 401 Unauthorized"
        assert bad[1]["www-authenticate"] == "Bearer"


def test_the_first_token_ends_open_access(tmp_path: Path) -> None:
    """A head that was answered without a token is not answered as soon as one is needed."""
    with serving(tmp_path) as served:
        request = post(b"{}", JSON)
        known = served.gateway.services.tokens
        assert [served.ask(request)[0] for _ in range(3)] == [b"HTTP/1.1 201 Created"] * 3
        _, token, _ = tokens.create(served.app.engine, "first", ["publish"])
        known._any = None
        assert served.ask(request)[0] == b"HTTP/1.1 401 Unauthorized"
        assert served.ask(request)[0] == b"HTTP/1.1 401 Unauthorized"
        request = post(b"{}", JSON, b"authorization: Bearer " + token.encode())
        assert [served.ask(request)[0] for _ in range(2)] == [b"HTTP/1.1 201 Created"] * 2
        tokens.revoke(served.app.engine, token.split("_")[1])
        known._cached.clear()
        assert served.ask(request)[0] == b"HTTP/1.1 401 Unauthorized"


REQUESTS = 20
"""More than the threads of a gateway."""


def test_one_read_of_a_token_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that come while a token's record is read wait for that read, and read no more."""
    with serving(tmp_path) as served:
        token_id, text, _ = tokens.create(served.app.engine, "test", ["publish"])
        services, engine = served.gateway.services, served.app.engine
        asked, reads, every_one_asks = 0, [], threading.Event()
        run_shared, record_read = services.run_shared, engine.record_read

        async def counted(function: Any, *arguments: Any) -> Any:
            nonlocal asked
            asked += function == services.tokens._read_wanted
            if asked == REQUESTS:
                every_one_asks.set()
            return await run_shared(function, *arguments)

        def slow_read(kind: Any, ids: list[str]) -> Any:
            reads.append(ids)
            assert every_one_asks.wait(20)
            return record_read(kind, ids)

        monkeypatch.setattr(services, "run_shared", counted)
        monkeypatch.setattr(engine, "record_read", slow_read)
        request = post(b'{"body": 1}', JSON, b"authorization: Bearer " + text.encode())
        with ExitStack() as stack:
            clients = [stack.enter_context(served.connect()) for _ in range(REQUESTS)]
            for client in clients:
                client.sendall(request)
            assert {answer_of(client)[0] for client in clients} == {b"HTTP/1.1 201 Created"}
        # The second one is of the write of `last_used`.
        assert reads == [[token_id]] * 2
