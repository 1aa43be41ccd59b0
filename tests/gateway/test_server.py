"""The server: who is let in, probes, limits, and its end."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from laneway import Laneway, errors
from laneway.cli import main
from laneway.errors import EngineUnavailable, LanewayError
from laneway.gateway import gateway as gateway_module, http, problems
from laneway.gateway.gateway import Gateway
from laneway.gateway.login import tokens
from tests.gateway.conftest import Api, serving


async def call(gateway: Gateway, method: str, path: str, **scope: Any) -> tuple[int, bytes, Any]:
    """One request without a server: status, body, headers."""
    events: list[Any] = []
    bodies = [scope.pop("body", b"")]

    async def receive() -> dict[str, Any]:
        if not bodies:
            await asyncio.Event().wait()  # the client stays
        return {"type": "http.request", "body": bodies.pop()}

    async def send(event: Any) -> None:
        events.append(event)

    given = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        **scope,
    }
    await gateway(given, receive, send)
    start, *chunks = events
    return start["status"], b"".join(each["body"] for each in chunks), dict(start["headers"])


def test_probes(api: Api) -> None:
    """The process is up, and its store answers; no token and no local name is needed."""
    for path in ("/healthz", "/readyz"):
        answer = api("GET", path, headers={"host": "pod-1.cluster.example"})
        assert answer.json == {"status": "ok"}


def test_not_ready(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 with the reason, without passwords, if the store does not answer."""

    def fail(*_: object) -> int:
        raise EngineUnavailable("valkey://u:secret@host: refused")

    monkeypatch.setattr(type(gateway.services.runtime.engine), "time_us", fail)
    status, body, _ = asyncio.run(call(gateway, "GET", "/readyz"))
    assert status == 503
    assert b"refused" in body
    assert b"secret" not in body
    status, body, headers = asyncio.run(call(gateway, "GET", "/v1/topics/a"))
    assert status == 503
    assert b'"applied":"no"' in body
    assert headers[b"retry-after"] == b"1"


def test_slow_store(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that takes too long is answered; a change is not given up."""
    go_on = threading.Event()
    engine = gateway.services.runtime.engine

    def slow(*_: object, **__: object) -> object:
        assert go_on.wait(20)
        return {"unknown": "unknown"}

    monkeypatch.setattr(type(engine), "lookup", slow)
    monkeypatch.setattr(type(engine), "topic_purge", lambda *_: bool(slow()))
    monkeypatch.setattr(gateway_module, "READ_SECONDS", 0.05)
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]

    async def run() -> None:
        looked_up = {"topic": "a", "ids": ["x"]}
        sent: dict[str, Any] = {"headers": headers, "body": json.dumps(looked_up).encode()}
        status, body, found = await call(gateway, "POST", "/v1/lookup", **sent)
        assert (status, json.loads(body)["type"]) == (504, "/problems/timeout")
        assert found[b"retry-after"]
        sent["body"] = json.dumps({"confirm": "a"}).encode()
        purge = asyncio.create_task(call(gateway, "POST", "/v1/topics/a/purge", **sent))
        done, _ = await asyncio.wait({purge}, timeout=0.2)
        assert not done
        go_on.set()
        assert (await purge)[0] == 200

    asyncio.run(run())


def test_security_headers(api: Api) -> None:
    """Every answer has them, errors too."""
    for path in ("/healthz", "/v1/topics", "/nothing"):
        answer = api("GET", path, status=404 if path == "/nothing" else 200)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers
        assert answer.headers["date"].endswith("GMT")


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.x"])
def test_other_names(api: Api, host: str) -> None:
    """A page of another site does not reach the gateway by a name that points here."""
    problem = api.problem("GET", "/v1/topics", headers={"host": host}, status=403)
    assert "localhost" in problem["detail"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7878", "127.0.0.1", "[::1]:80"])
def test_local_names(api: Api, host: str) -> None:
    """The names of this machine, with any port."""
    api("GET", "/v1/topics", headers={"host": host})


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://localhost:3000"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
)
def test_pages_of_other_sites(api: Api, app: Laneway, headers: dict[str, str]) -> None:
    """A browser sends some requests to a local name for any page; they are refused."""
    message = {"content-type": "text/plain", "host": "localhost:7878", **headers}
    api.problem("POST", "/v1/topics/page/messages", b"1", headers=message, status=403)
    api.problem("POST", "/v1/topics/page/pause", headers=headers, status=403)
    assert app.topic("page").stats().waiting == 0


def test_own_pages(api: Api) -> None:
    """The gateway's own pages, and what a person types, are let in."""
    here = f"127.0.0.1:{api.port}"
    for headers in (
        {"sec-fetch-site": "same-origin", "origin": f"http://{here}"},
        {"sec-fetch-site": "none"},
        {"origin": f"http://{here}"},
    ):
        api("GET", "/v1/topics", headers={"host": here, **headers})


def test_other_machines(gateway: Gateway) -> None:
    """A client of another machine is refused, whatever name it uses."""
    status, body, _ = asyncio.run(call(gateway, "GET", "/v1/topics", client=("192.0.2.1", 1)))
    assert (status, b"own machine" in body) == (403, True)


@pytest.mark.parametrize(
    "head",
    [
        {"http_version": "1.0"},  # as nginx sends
        {"headers": [(b"x-forwarded-for", b"192.0.2.1")]},
        {"headers": [(b"x-forwarded-proto", b"https")]},
        {"headers": [(b"forwarded", b"for=192.0.2.1")]},
        {"headers": [(b"via", b"1.1 proxy")]},
        {"headers": [(b"x-real-ip", b"192.0.2.1")]},
    ],
)
def test_proxies(gateway: Gateway, head: dict[str, Any]) -> None:
    """Without tokens no request is answered that shows that a proxy sends it."""
    head = {**head, "headers": [(b"host", b"127.0.0.1:7878"), *head.get("headers", [])]}
    status, body, _ = asyncio.run(call(gateway, "GET", "/v1/topics", **head))
    assert (status, b"no request of a proxy" in body) == (403, True)
    _, text, _ = tokens.create(gateway.services.runtime.engine, "proxied", ["read"])
    head["headers"].append((b"authorization", f"Bearer {text}".encode()))
    assert asyncio.run(call(gateway, "GET", "/v1/topics", **head))[0] == 200


def test_a_proxy_that_publishes(api: Api) -> None:
    """A request of a proxy is refused although a client of this machine sent the same head."""
    head = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n"
    for version, status in ((b"1.1", b" 201 "), (b"1.1", b" 201 "), (b"1.0", b" 403 ")):
        with socket.create_connection(("127.0.0.1", api.port), timeout=20) as raw:
            path = b"POST /v1/topics/proxied/messages"
            raw.sendall(b'%s HTTP/%s\r\n%s{"body":1}' % (path, version, head))
            assert status in raw.recv(1000)


def test_bind(tmp_path: Path) -> None:
    """Other machines are let in only if that is said; wrong addresses are one line."""
    for bind, text in (
        ("0.0.0.0:0", "or add --insecure"),
        (":::0", "or add --insecure"),
        ("127.0.0.1:x", "HOST:PORT"),
        ("8080", "HOST:PORT or :PORT, got '8080'"),
        ("127.0.0.1:99999", "HOST:PORT"),
        ("127.0.0.1:²", "HOST:PORT"),
        ("[2001:db8::1", "--insecure"),
    ):
        result = CliRunner().invoke(main, ["-u", f"sqlite:///{tmp_path}/a", "serve", "-b", bind])
        assert result.exit_code == 2
        assert text in result.output
        assert result.output.count("\n") == 1
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(main, ["-u", f"sqlite:///{tmp_path}/a", "serve", "-b", bind])
        assert (result.exit_code, "cannot be used" in result.output) == (2, True)


def test_insecure_and_prefix(store: str) -> None:
    """With --insecure any name is good; behind a proxy everything works under its prefix."""
    with serving(store, "--insecure", "--root-path", "/queue", prefix="/queue") as (api, _):
        api("GET", "/v1/topics", headers={"host": "api.example"})


def test_paths_and_methods(api: Api) -> None:
    """Unknown paths are 404; other methods 405, with those that are allowed."""
    assert api.problem("GET", "/v1/topcs", status=404)["type"] == "/problems/not-found"
    assert api("GET", "/problems/not-found").json["status"] == 404
    answer = api("DELETE", "/v1/topics", status=405)
    assert answer.headers["allow"] == "GET, HEAD"
    assert api("OPTIONS", "/v1/endpoints", status=405).headers["allow"] == "GET, HEAD, PUT"
    assert api("GET", "/v1/lease", status=405).headers["allow"] == "POST"
    head = api("HEAD", "/v1/topics")
    assert (head.content, int(head.headers["content-length"]) > 0) == (b"", True)


def test_large_requests(api: Api) -> None:
    """A body or head above the limit is refused, before it has arrived."""
    connection = api.open()
    connection.putrequest("POST", "/v1/topics/a/messages")
    connection.putheader("content-length", str(http.MAX_BODY + 1))
    connection.putheader("content-type", "application/json")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    with socket.create_connection(("127.0.0.1", api.port)) as raw:
        raw.settimeout(20)
        raw.sendall(b"GET /healthz HTTP/1.1\r\n")
        line = b"x: %s\r\n" % (b"y" * 1000)
        with pytest.raises(OSError):  # noqa: PT011  # reset, or broken pipe
            raw.sendall(line * 10_000)
    api("GET", "/healthz")


def test_connections(store: str) -> None:
    """Above the limit a connection is refused with 503, and those there are go on."""
    with serving(store, "--max-connections", "3") as (api, _):
        kept = [api.open() for _ in range(3)]
        for connection in kept:
            connection.connect()
            connection.request("GET", "/healthz")
            connection.getresponse().read()
        with socket.create_connection(("127.0.0.1", api.port)) as raw:
            raw.settimeout(20)
            assert raw.recv(1000).startswith(b"HTTP/1.1 503 ")
        for connection in kept:
            connection.request("GET", "/healthz")
            assert connection.getresponse().read()
            connection.close()


def test_slow_clients(monkeypatch: pytest.MonkeyPatch, gateway: Gateway) -> None:
    """A head or body that does not arrive in time does not hold the connection."""
    from laneway.gateway import connection, server

    for module in (http, connection):
        monkeypatch.setattr(module, "IDLE_SECONDS", 0.2)

    async def exchange(port: int, sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        try:
            async with asyncio.timeout(20):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def run() -> None:
        options = server.Options(port=0, max_connections=10)
        listening = server.listen(options)
        serving = server.create(gateway, options, listening, lambda _: None)
        task = asyncio.create_task(serving.serve())
        port = listening.getsockname()[1]
        assert await exchange(port, b"") == b""
        assert await exchange(port, b"GET /heal") == b""
        assert await exchange(port, b"GET /healthz HTTP/1.1\r\nhost: loc") == b""
        monkeypatch.setattr(connection, "IDLE_SECONDS", 60.0)  # from here on heads arrive in time
        slow = b"POST /v1/lease HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(slow)
        async with asyncio.timeout(20):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 408 ")
        (slow_one,) = serving.served.connections
        assert slow_one._awaits_head_since is not None
        writer.close()
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # it ends connections of clients without a network
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            (found,) = serving.served.connections - {slow_one}
            served = found.transport.get_extra_info("socket")
            assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
            writer.close()
        serving.stop()
        await task

    asyncio.run(run())


def test_every_error_has_a_problem() -> None:
    """Each class of errors has its kind, with the library's own text, and no password."""

    def subclasses(kind: type[LanewayError]) -> list[type[LanewayError]]:
        return [kind, *(each for sub in kind.__subclasses__() for each in subclasses(sub))]

    for kind in subclasses(LanewayError):
        if getattr(errors, kind.__name__, None) is not kind:
            continue  # an engine's own, or a copy that was raised in another test's thread
        body, _ = problems.body_of(kind("topic a: valkey://u:secret@h does not fit"))
        assert body.status == problems.KINDS[body.type.removeprefix("/problems/")][0]
        assert "topic a" in body.detail
        assert "secret" not in body.detail
    own = {kind.kind.replace("_", "-") for kind in subclasses(errors.UsageError)}
    assert own <= problems.KINDS.keys()
    body, _ = problems.body_of(ValueError("a defect"))
    assert (body.status, "a defect" in body.detail) == (500, False)
