"""The health port: whether the worker is alive, and whether its store answers."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from laneway import EngineUnavailable, Laneway, Message, UsageError
from laneway.working import health_server
from tests.working.support import Running, until

if TYPE_CHECKING:
    from collections.abc import Iterator


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def port(
    caplog: pytest.LogCaptureFixture, app: Laneway, monkeypatch: pytest.MonkeyPatch
) -> Iterator[int]:
    """The health port of a worker of the application, which runs during the test."""
    caplog.set_level("INFO", "laneway.worker")
    for name in ("LOOP_SECONDS", "STORE_SECONDS"):
        monkeypatch.setattr(health_server, name, 60.0)
    blocked, goes_on = threading.Event(), threading.Event()

    @app.handler("block")
    async def block(_: Message) -> None:
        blocked.set()
        goes_on.wait(120)  # it blocks the event loop

    app.block_began, app.block_ends = blocked, goes_on  # type: ignore[attr-defined]
    with Running(app, health_port=0):
        until(lambda: "is ready" in caplog.text, 60)
        found = re.search(r"http://127.0.0.1:(\d+)/live", caplog.text)
        assert found is not None
        yield int(found[1])
        goes_on.set()


def test_a_worker_that_works(port: int) -> None:
    """Both probes answer 200, any other path 404; the answer to HEAD has no body."""
    assert ask(port, "/live") == (200, '{"ok": true}\n')
    assert ask(port, "/ready") == (200, '{"ok": true}\n')
    assert ask(port, "/") == (404, '{"error": "not found; use /live or /ready"}\n')
    assert ask(port, "/ready?x=1", "HEAD") == (200, "")


def test_a_blocked_event_loop(app: Laneway, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """/live is 503 while a coroutine blocks the event loop, and 200 afterwards."""
    monkeypatch.setattr(health_server, "LOOP_SECONDS", 0.2)
    app.publish("block")
    assert app.block_began.wait(60)  # type: ignore[attr-defined]
    status, body = ask(port, "/live")
    assert (status, "a handler blocks it" in body) == (503, True)
    app.block_ends.set()  # type: ignore[attr-defined]
    monkeypatch.setattr(health_server, "LOOP_SECONDS", 60.0)
    assert ask(port, "/live")[0] == 200


def test_an_unavailable_store(app: Laneway, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    /ready answers 503 while the store fails or does not answer, /live stays 200; both answer 200
    once it is back.
    """
    back = threading.Event()
    real = app.engine.overview

    def fail(**_: object) -> object:
        raise EngineUnavailable("valkey://user:s3cret@host: gone")

    def hang(**_: object) -> object:
        back.wait(60)
        return real()

    def ask_store() -> None:
        app.engine.overview(now_us=None)

    monkeypatch.setattr(health_server, "RECENT_SECONDS", 0.0)
    monkeypatch.setattr(health_server, "STORE_SECONDS", 0.2)
    monkeypatch.setattr(app.engine, "overview", fail)
    # The worker has the method of before: ask through the engine.
    server = health_server.HealthServer(
        "127.0.0.1",
        0,
        call_soon=lambda call: call(),
        is_alive=lambda: True,
        is_serving=lambda: True,
        ask_store=ask_store,
    )
    server.start()
    own = int(server.url.rpartition(":")[2])
    try:
        status, body = ask(own, "/ready")
        assert (status, "cannot be used" in body, "s3cret" in body) == (503, True, False)
        monkeypatch.setattr(app.engine, "overview", hang)
        assert ask(own, "/ready")[0] == 503
        assert ask(own, "/ready")[0] == 503
        assert ask(own, "/live")[0] == 200
        back.set()
        monkeypatch.setattr(health_server, "STORE_SECONDS", 60.0)
        assert ask(own, "/ready")[0] == 200
    finally:
        server.close()
    assert ask(port, "/live")[0] == 200


def test_a_port_that_is_taken(app: Laneway) -> None:
    """A port that is in use is one error, before anything is leased."""
    app.handler("*")(print)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(
            UsageError, match=f"the health port {number} of 127.0.0.1 cannot be opened"
        ):
            app.run_worker(burst=True, health_port=number)
    with pytest.raises(UsageError, match="health_port"):
        app.run_worker(burst=True, health_port=65_536)
