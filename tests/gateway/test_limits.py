"""Receipts of tokens, fair waiting, MessagePack, other origins, token files, TLS, probes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from laneway import Laneway
from laneway.cli import main
from laneway.delivery import Wanted
from laneway.errors import UsageError
from laneway.gateway import connection, cors, server
from laneway.gateway.dashboard.dashboard import Dashboard
from laneway.gateway.gateway import Gateway
from laneway.gateway.login import token_file, tokens
from laneway.gateway.login.access import Caller
from laneway.gateway.problems import Problem
from laneway.gateway.waiting.long_poll import LINES_OF_CALLER, MAX_WAITING
from tests.gateway.conftest import Api, serving
from tests.gateway.test_server import call
from tests.gateway.test_sessions import running, visit

MSGPACK = {"content-type": "application/msgpack"}


def test_receipts_of_another_token(tmp_path: Path) -> None:
    """Who did not lease a message settles nothing, also with its receipt."""
    with Laneway(f"sqlite:///{tmp_path}/laneway.db") as app, running(app) as api:
        one, other = (
            Api(api.port, token=tokens.create(app.engine, name, ["consume"])[1])
            for name in ("one", "other")
        )
        app.publish("a", 1)
        (delivery,) = one.lease()
        for action in ("ack", "dead", "extend", "retry"):
            settlement = {"receipt": delivery["receipt"], "action": action, "delay": 5}
            assert other.settle(settlement) == ["lost"]
        assert app.topic("a").stats().leased == 1
        assert one.settle({"receipt": delivery["receipt"]}) == ["acked"]


def test_fair_share_of_lines(gateway: Gateway) -> None:
    """One token does not wait for so many different things that nobody else can."""
    polls = gateway.services.long_polls

    async def run() -> None:
        greedy, other = (Caller(name, frozenset(), token=name) for name in ("greedy", "other"))
        wanted = [Wanted(topics=(f"t{n}",)) for n in range(LINES_OF_CALLER + 1)]
        waiting = [
            asyncio.create_task(polls.lease(each, 1, 30, greedy, "")) for each in wanted[:-1]
        ]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="requests of this token wait"):
            await polls.lease(wanted[-1], 1, 30, greedy, "")
        waiting.append(asyncio.create_task(polls.lease(wanted[-1], 1, 30, other, "")))
        waiting.append(asyncio.create_task(polls.lease(wanted[0], 1, 30, greedy, "")))
        await asyncio.sleep(0)
        assert polls.count == LINES_OF_CALLER + 2
        polls.stop()
        assert [batch.leases for batch in await asyncio.gather(*waiting)] == [[]] * len(waiting)

    asyncio.run(run())


def test_msgpack(api: Api, app: Laneway) -> None:
    """Requests and answers may be MessagePack; bytes in it become base64."""
    body = msgspec.msgpack.encode({"body": {"ä": [1, None, 2.5]}, "key": "k", "id": "packed"})
    answer = api("POST", "/v1/topics/packed/messages", body, headers=MSGPACK)
    assert answer.headers["content-type"] == "application/msgpack"
    assert msgspec.msgpack.decode(answer.content)["id"] == "packed"
    packed = {"accept": "application/msgpack"}
    found = api("GET", "/v1/topics/packed/messages/packed", headers=packed)
    assert msgspec.msgpack.decode(found.content)["body"] == {"ä": [1, None, 2.5]}
    as_json = {**MSGPACK, "accept": "application/json"}
    content = msgspec.msgpack.encode({"n": 1, "topics": ["packed"]})
    (delivery,) = api("POST", "/v1/lease", content, headers=as_json).json["deliveries"]
    assert delivery["key"] == "k"
    binary = msgspec.msgpack.encode([{"topic": "packed", "body_base64": b"\x00\xff"}])
    api("POST", "/v1/messages", binary, headers=MSGPACK)
    assert api.lease(topics=["packed"])[0]["body_base64"] == "AP8="
    raw = api("POST", "/v1/topics/packed/messages?raw=1", body, headers=MSGPACK)
    assert raw.status == 201
    assert app.topic("packed").peek()[0].body == body
    for wrong in (
        b"",
        b"\xc1",
        body[:-3],
        msgspec.msgpack.encode([1]),
        b"\x91" * 5000,
        b"\xd4\1\2",
    ):
        refused = visit(api, "POST", "/v1/topics/packed/messages", MSGPACK, wrong)
        assert refused.status == 400, wrong
        assert msgspec.msgpack.decode(refused.content)["type"].startswith("/problems/")


def test_cross_origin(tmp_path: Path) -> None:
    """Pages of named origins may use a token; others, and sessions, may not."""
    origin = "https://shop.example"
    with Laneway(f"sqlite:///{tmp_path}/laneway.db") as app:
        _, text, _ = tokens.create(app.engine, "x", ["read", "publish"])
        gateway = Gateway(app, cors_origins=[origin])

        def ask(method: str, *headers: tuple[bytes, bytes]) -> tuple[int, dict[str, str]]:
            status, _, found = asyncio.run(
                call(gateway, method, "/v1/topics", headers=[(b"host", b"q.example"), *headers])
            )
            return status, {name.decode(): value.decode() for name, value in found.items()}

        bearer = (b"authorization", f"Bearer {text}".encode())
        preflight = (
            (b"access-control-request-method", b"GET"),
            (b"access-control-request-headers", b"authorization,content-type"),
        )
        status, headers = ask("OPTIONS", (b"origin", origin.encode()), *preflight)
        assert (status, headers["access-control-allow-origin"]) == (204, origin)
        assert headers["access-control-allow-headers"] == "authorization,content-type"
        assert "access-control-allow-credentials" not in headers
        bad = (b"access-control-request-headers", b"a\r\nb: c")
        _, headers = ask("OPTIONS", (b"origin", origin.encode()), preflight[0], bad)
        assert headers["access-control-allow-headers"] == "authorization"
        status, headers = ask("GET", (b"origin", origin.encode()), bearer)
        assert (status, headers["access-control-allow-origin"]) == (200, origin)
        assert headers["vary"] == "origin"
        for other in (b"https://evil.example", b"null", b"https://shop.example.evil", b""):
            status, headers = ask("OPTIONS", (b"origin", other), *preflight)
            assert (status, "access-control-allow-origin" in headers) == (405, False)
            status, headers = ask("GET", (b"origin", other), bearer)
            assert "access-control-allow-origin" not in headers
        status, headers = ask("GET", (b"origin", origin.encode()))
        assert (status, headers["access-control-allow-origin"]) == (401, origin)
        gateway.close()
    for wrong in ("*", "shop.example", "https://a.example/", "https://a:b", "ftp://a", "null"):
        with pytest.raises(UsageError, match="cors-origin"):
            cors.check_origin(wrong)
    assert cors.check_origin("http://[::1]:8080") == "http://[::1]:8080"


def test_token_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A missing file is created with a token; its token is valid in every store that reads it."""
    file = tmp_path / "token"
    with serving(f"sqlite:///{tmp_path}/one.db", "--token-file", str(file)) as (api, _):
        api.problem("GET", "/v1/topics", status=401)
        text = file.read_text().strip()
        assert file.stat().st_mode & 0o777 == 0o600
        Api(api.port, token=text)("GET", "/v1/tokens")
    with Laneway(f"sqlite:///{tmp_path}/two.db") as app:
        for _ in range(2):
            token_file.ensure(app.engine, str(file))
        assert [token.name for _, token in tokens.listed(app.engine, limit=9)] == ["token file"]
        cut = text[:-1] + ("a" if text[-1] != "a" else "b")
        for content in (cut, "", "lw_x", "\xff" * 9, text[:12] + "_" + text[13:]):
            file.write_text(content)
            with pytest.raises(UsageError, match="expected a token"):
                token_file.ensure(app.engine, str(file))
        with pytest.raises(UsageError, match="token-file"):
            token_file.ensure(app.engine, str(tmp_path))
        with pytest.raises(UsageError, match="token-file"):
            token_file.ensure(app.engine, str(tmp_path / "none" / "file"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1, with its key in the same file."""
    folder = tmp_path_factory.mktemp("tls")
    both, key = folder / "both.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    options = ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext"]
    subprocess.run(
        [*command, *options, "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", both],
        check=True,
        capture_output=True,
    )
    both.write_text(both.read_text() + key.read_text())
    return both


def test_tls(tmp_path: Path, certificate: Path) -> None:
    """The gateway serves HTTPS, and its login's cookie is Secure."""
    file = tmp_path / "token"
    served = ["--tls-certificate", str(certificate), "--tls-key", str(certificate)]
    store = f"sqlite:///{tmp_path}/laneway.db"
    with serving(store, *served, "--token-file", str(file)) as (api, _):
        context = ssl.create_default_context(cafile=str(certificate))
        url = f"https://127.0.0.1:{api.port}"
        sent = urllib.request.Request(
            f"{url}/login",
            json.dumps({"token": file.read_text().strip()}).encode(),
            {"content-type": "application/json", "origin": url},
        )
        with urllib.request.urlopen(sent, context=context) as answer:
            cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-laneway=")
        assert cookie.endswith("; Secure")
        with pytest.raises((OSError, http.client.HTTPException)):
            api("GET", "/healthz")


@contextmanager
def encrypting(
    gateway: Gateway, certificate: Path, max_connections: int
) -> Iterator[tuple[int, server.Server, Callable[[], str]]]:
    """A server with TLS in a thread: its port, itself, and the status line for a new client."""
    options = server.Options(port=0, certificate=str(certificate), max_connections=max_connections)
    listening = server.listen(options)
    port = listening.getsockname()[1]
    served = server.create(gateway, options, listening, lambda _: None)
    thread = threading.Thread(target=lambda: asyncio.run(served.serve()))
    thread.start()
    context = ssl.create_default_context(cafile=str(certificate))

    def status() -> str:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as client,
        ):
            client.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            return client.recv(100).decode().partition("\r\n")[0]

    try:
        yield port, served, status
    finally:
        served.stop()
        thread.join(20)
        assert not thread.is_alive()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def is_closed(raw: socket.socket) -> bool:
    """Wait until the server closes a connection. False: it has sent something."""
    try:
        return raw.recv(1) == b""
    except ConnectionError:
        return True


def test_handshakes_count(
    gateway: Gateway, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Connections in their TLS handshakes count. A few above the limit may complete theirs, and are
    told; further ones are closed.
    """
    monkeypatch.setattr(connection, "MAX_BEYOND", 2)
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 600.0)  # none ends by itself
    with (
        encrypting(gateway, certificate, 3) as (port, served, status),
        contextlib.ExitStack() as opened,
    ):
        assert status() == "HTTP/1.1 200 OK"

        def silent() -> socket.socket:
            raw = socket.create_connection(("127.0.0.1", port), timeout=20)
            return opened.enter_context(raw)

        def in_handshake(count: int) -> bool:
            return len(served.served.handshakes) == count

        clients = [silent() for _ in range(3)]
        wait_for(lambda: in_handshake(3))
        assert status() == "HTTP/1.1 503 Service Unavailable"
        assert gateway.services.answers.total() == 1  # nothing of a refused request was done
        clients += [silent() for _ in range(2)]
        wait_for(lambda: in_handshake(5))
        assert is_closed(silent())
        assert in_handshake(5)
        clients.pop().sendall(b"GET / HTTP/1.1\r\n\r\n")  # no TLS
        clients.pop().close()
        clients.pop().close()
        wait_for(lambda: in_handshake(2))
        assert status() == "HTTP/1.1 200 OK"
        served.stop()  # those that are left do not hold it up
        for client in clients:
            assert is_closed(client)


def test_handshakes_end(
    gateway: Gateway, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handshake that takes too long is ended."""
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.1)
    with (
        encrypting(gateway, certificate, 3) as (port, served, status),
        socket.create_connection(("127.0.0.1", port), timeout=20) as silent,
    ):
        silent.sendall(b"\x16\x03\x01")
        assert is_closed(silent)
        wait_for(lambda: not served.served.handshakes)
        monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 60.0)
        assert status() == "HTTP/1.1 200 OK"


def test_no_certificate(tmp_path: Path, certificate: Path) -> None:
    """A certificate or key that cannot be used is a usage error that names it."""
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    key = ("--tls-key", str(certificate))
    for given, named in (
        (("--tls-certificate", str(tmp_path / "none.pem"), *key), "none.pem"),
        (("--tls-certificate", str(wrong)), "wrong.pem"),
        (("--tls-certificate", str(certificate), "--tls-key", str(wrong)), "wrong.pem"),
        (key, "without its --tls-certificate"),
    ):
        command = ["-u", f"sqlite:///{tmp_path}/laneway.db", "serve", "--bind", "127.0.0.1:0"]
        found = CliRunner().invoke(main, [*command, *given])
        assert found.exit_code == 2, found.output
        assert named in found.output
        assert len(found.output.splitlines()) == 1


def test_trusted_proxy(tmp_path: Path) -> None:
    """What a proxy says of its client is believed only if the proxy is named."""
    store, file = f"sqlite:///{tmp_path}/laneway.db", tmp_path / "token"
    forwarded = {"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "https"}

    def log_in(*options: str) -> tuple[str, str]:
        with serving(store, "--token-file", str(file), *options) as (api, _):
            text = file.read_text().strip()
            answer = api("POST", "/login", {"token": text}, headers=forwarded)
            admin = Api(api.port, token=text)
            admin("POST", "/v1/topics/a/pause", headers=forwarded)
            change = admin("GET", "/v1/audit?limit=1").json["changes"][0]
            cookie, _, _ = answer.headers["set-cookie"].partition("=")
            return cookie.removesuffix(f"-{api.port}"), change["address"]

    assert log_in("--trusted-proxy", "10.0.0.0/8") == ("laneway", "127.0.0.1")
    assert log_in("--trusted-proxy", "127.0.0.0/8") == ("__Host-laneway", "203.0.113.9")


def test_ready_while_all_threads_are_busy(gateway: Gateway) -> None:
    """The probe has a thread of its own."""
    done = threading.Event()

    async def run() -> Any:
        for _ in range(100):
            gateway.services.threads.submit(done.wait)
        answers = [call(gateway, "GET", "/readyz") for _ in range(3)]
        found = await asyncio.gather(*answers)
        done.set()
        return found

    assert [status for status, _, _ in asyncio.run(run())] == [200] * 3


def test_embedding(tmp_path: Path) -> None:
    """Pages, and nothing else, may be shown in a frame of a named origin."""
    with Laneway(f"sqlite:///{tmp_path}/laneway.db") as app:
        origin = "https://portal.example"
        gateway = Gateway(app, extensions=[Dashboard(app)], embed_origins=[origin])
        for path, ancestors in (("/", origin), ("/login", "'none'"), ("/v1/topics", "'none'")):
            status, _, headers = asyncio.run(call(gateway, "GET", path))
            assert status == 200
            policy = headers[b"content-security-policy"].decode()
            assert f"frame-ancestors {ancestors};" in policy
        gateway.close()
    with pytest.raises(UsageError, match="embed-origin"):
        cors.check_origin("*", "--embed-origin")


def test_other_waits(gateway: Gateway) -> None:
    """Requests that wait for jobs and events are counted, and bounded for each token."""
    waits = gateway.services.waits
    one, other = (Caller(name, frozenset(), token=name) for name in ("one", "other"))
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_WAITING):
            waits.check(one)
            stack.enter_context(waits.of(one, "job"))
        with pytest.raises(Problem, match="wait already"):
            waits.check(one)
        waits.check(other)
        stack.enter_context(waits.of(other, "events"))
        _, body, _ = asyncio.run(call(gateway, "GET", "/metrics"))
    assert b'laneway_gateway_waiting{kind="job"} %d\n' % MAX_WAITING in body
    assert b'laneway_gateway_waiting{kind="events"} 1\n' in body
    assert b'laneway_recent_waiting_seconds_others{namespace="default",le="+Inf"} 0\n' in body
    waits.check(one)
    assert not +waits.by_kind
