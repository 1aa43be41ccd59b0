"""A dashboard on a server in this process, and a client that reads its pages."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn

from laneway import Laneway
from laneway.engines.base import WorkerFacts
from laneway.gateway.dashboard.dashboard import Dashboard
from laneway.gateway.dashboard.local_login_pages import LocalLoginPages
from laneway.gateway.dashboard.view import Link
from laneway.gateway.gateway import Gateway
from laneway.gateway.login.local_login import LocalLogin
from laneway.units import SECOND

TIMEOUT = 30.0
FORM = "application/x-www-form-urlencoded"

HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}\u202e"
"""A name, body or error that must be shown as it is."""


class Page:
    """An answer, read as a browser would."""

    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status = found.status
        self.headers = {name.lower(): value for name, value in found.getheaders()}
        self.content = found.read()

    @property
    def text(self) -> str:
        return self.content.decode()

    @property
    def words(self) -> str:
        """The text without markup, in one line."""
        text = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", self.text, flags=re.DOTALL)
        return re.sub(r"\s+", " ", unescape(text))

    def __repr__(self) -> str:
        return f"<{self.status} {self.text[:3000]}>"


class Browser:
    """Sends requests as a browser without JavaScript does; keeps its cookie."""

    def __init__(self, port: int, prefix: str = "") -> None:
        self.port = port
        self.prefix = prefix
        self.cookie = ""
        self.token = ""
        self.dashboard: Dashboard | None = None

    def send(self, method: str, path: str, body: str | None = None, **headers: str) -> Page:
        """Send a request, and read the answer, whatever it is."""
        connection = self._connection()
        try:
            self._request(connection, method, path, body, headers)
            return Page(connection.getresponse())
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)

    def _request(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: str | None,
        headers: dict[str, str],
    ) -> None:
        sent = {
            "accept": "text/html",
            "sec-fetch-site": "same-origin",
            "sec-fetch-mode": "navigate",
            **({"content-type": FORM} if body is not None else {}),
            **({"cookie": self.cookie} if self.cookie else {}),
            **({"authorization": f"Bearer {self.token}"} if self.token else {}),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        connection.request(method, path, body, sent)

    def get(self, path: str, status: int = 200, **headers: str) -> Page:
        """Open a page, with what the store has now instead of a second ago."""
        if self.dashboard is not None:
            self.dashboard.collector.forget()
        found = self.send("GET", self.prefix + path, **headers)
        assert found.status == status, found
        return found

    def json(self, path: str, method: str = "GET") -> Any:
        """What the API answers."""
        found = self.send(method, self.prefix + path, accept="application/json")
        assert found.status < 300, found
        return json.loads(found.content)

    def submit(self, action: str, status: int = 200, **fields: Any) -> Page:
        """Send the form of an action, and follow the redirection to the page after it."""
        pairs = [
            (name, each)
            for name, value in fields.items()
            for each in (value if isinstance(value, list) else [value])
        ]
        found = self.send("POST", f"{self.prefix}/actions/{action}", urlencode(pairs))
        if found.status != 303:
            assert found.status == status, found
            return found
        return self.send("GET", found.headers["location"])

    @contextlib.contextmanager
    def live(self, path: str) -> Iterator[Events]:
        """The events that keep a page live."""
        query, connection = urlencode({"of": path}), self._connection()
        try:
            target = f"{self.prefix}/live?{query}"
            self._request(connection, "GET", target, None, {"accept": "text/event-stream"})
            found = connection.getresponse()
            assert found.status == 200, found.read()
            yield Events(found)
            found.close()
        finally:
            connection.close()


class Events:
    """Server-sent events, one by one."""

    def __init__(self, found: http.client.HTTPResponse) -> None:
        self._found = found

    def next(self) -> tuple[str, Any]:
        """The next event's name and content."""
        name = ""
        while line := self._found.readline().decode().rstrip("\n"):
            kind, _, value = line.partition(": ")
            if kind == "event":
                name = value
            elif kind == "data":
                content = json.loads(value)
                self._found.readline()
                return name, content
        raise AssertionError("the stream has ended")

    def until_tick(self) -> dict[str, Any]:
        """The events up to the next tick, by name."""
        found: dict[str, Any] = {}
        while (event := self.next())[0] != "tick":
            found[event[0]] = event[1]
        return found | {"tick": event[1]}


@contextlib.contextmanager
def running(
    app: Laneway,
    *,
    prefix: str = "",
    is_open: bool = False,
    links: Sequence[Link] = (),
    login: LocalLogin | None = None,
) -> Iterator[Browser]:
    """A gateway with the dashboard, in this process."""
    dashboard = Dashboard(app, links)
    pages = [*([] if login is None else [LocalLoginPages(login)]), dashboard]
    gateway = Gateway(app, prefix=prefix, is_open=is_open, extensions=pages, local_login=login)
    config = uvicorn.Config(gateway, port=0, lifespan="off", ws="none", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until = time.monotonic() + TIMEOUT
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        browser = Browser(server.servers[0].sockets[0].getsockname()[1], prefix)
        browser.dashboard = dashboard
        yield browser
    finally:
        gateway.stop()
        server.should_exit = True
        thread.join(TIMEOUT)
        gateway.close()


def beat(app: Laneway, name: str = "worker-1", **facts: Any) -> None:
    """Store a worker's heartbeat, which counts until the tests have ended."""
    found = WorkerFacts(id=name, host="here", program="shop", concurrency=4, **facts)
    app.engine.beat(found, dead_after_us=3600 * SECOND, listed_us=3600 * SECOND)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/laneway.db") as app:
        _ = app.engine
        yield app


@pytest.fixture
def browser(app: Laneway) -> Iterator[Browser]:
    with running(app) as browser:
        yield browser
