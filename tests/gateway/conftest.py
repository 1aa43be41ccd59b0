"""A gateway in a process of its own, and a client of it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from laneway import Laneway
from laneway.gateway import gateway as gateway_module
from laneway.gateway.gateway import Gateway
from laneway.gateway.routes import probes

TIMEOUT = 30.0

PATIENT = """
import functools

from laneway.cli import main
from laneway.gateway import gateway, server, services
from laneway.gateway.routes import probes, streaming

gateway.READ_SECONDS = probes.READY_SECONDS = streaming.TERM_SECONDS = 60.0
services.BODY_SECONDS = 0.2
server.Options = functools.partial(server.Options, stop_seconds=600)
main()
"""
"""
`laneway` where a busy machine is no store that is away. When it is told to stop, it would wait 10
minutes for a request that does not end by itself: then a test fails after `TIMEOUT`.
"""


class Answer:
    """One answer, with its body decoded."""

    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status = found.status
        self.headers = {name.lower(): value for name, value in found.getheaders()}
        self.content = found.read()

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.content.splitlines()]

    def __repr__(self) -> str:
        return f"<{self.status} {self.content[:2000]!r}>"


class Api:
    """A client of a gateway: `api("GET", "/v1/topics")`."""

    def __init__(self, port: int, prefix: str = "", token: str | None = None) -> None:
        self.port = port
        self.prefix = prefix
        self.token = token
        self.shown = ""
        """What the gateway's command printed when it had started."""

    def open(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        status: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request, JSON unless the body is bytes; insist on the status (a success)."""
        sent = {"authorization": f"Bearer {self.token}"} if self.token else {}
        if body is not None and not isinstance(body, bytes):
            body, sent["content-type"] = json.dumps(body).encode(), "application/json"
        connection = self.open()
        try:
            connection.request(method, self.prefix + path, body, {**sent, **(headers or {})})
            answer = Answer(connection.getresponse())
        finally:
            connection.close()
        expected = answer.status < 300 if status is None else answer.status == status
        assert expected, f"{method} {path}: {answer}"
        if answer.status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
        return answer

    def status(self, method: str, path: str) -> int:
        """The status of an answer, whatever it is."""
        connection = self.open()
        connection.request(method, path, headers={"authorization": f"Bearer {self.token}"})
        status = connection.getresponse().status
        connection.close()
        return status

    def publish(self, topic: str, body: Any = None, **options: Any) -> str:
        answer = self("POST", f"/v1/topics/{topic}/messages", {"body": body, **options})
        found: str = answer.json["id"]
        return found

    def lease(self, n: int = 1, **options: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self("POST", "/v1/lease", {"n": n, **options}).json[
            "deliveries"
        ]
        return found

    def settle(self, *settlements: dict[str, Any]) -> list[str]:
        return [each["outcome"] for each in self("POST", "/v1/settle", list(settlements)).json]

    def problem(self, method: str, path: str, body: Any = None, **options: Any) -> dict[str, Any]:
        """The problem that a request is answered with."""
        answer = self(method, path, body, status=options.pop("status", 400), **options)
        found: dict[str, Any] = answer.json
        assert found["status"] == answer.status
        assert found["title"]
        assert found["request_id"]
        return found


@contextmanager
def serving(
    url: str, *options: str, prefix: str = "", has_login: bool = False
) -> Iterator[tuple[Api, subprocess.Popen[str]]]:
    """A gateway of a store, in a process of its own that SIGTERM ends with exit code 0."""
    command = [sys.executable, "-c", PATIENT, "-u", url, "serve", "--bind", "127.0.0.1:0"]
    command += [] if has_login else ["--no-login"]
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"https?://127\.0\.0\.1:(\d+)", line)
        assert found, line + (process.communicate(timeout=TIMEOUT)[1] if not line else "")
        api = Api(int(found[1]), prefix)
        api.shown = line
        yield api, process
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True, scope="module")
def _patience() -> Iterator[None]:
    """A busy machine is no store that is away, also for gateways in this process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gateway_module, "READ_SECONDS", 60.0)
        patched.setattr(probes, "READY_SECONDS", 60.0)
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("store")
    return f"sqlite:///{folder}/laneway.db"


@pytest.fixture(scope="module")
def api(store: str) -> Iterator[Api]:
    with serving(store) as (api, _):
        yield api


@pytest.fixture
def app(store: str) -> Iterator[Laneway]:
    with Laneway(store) as app:
        _ = app.engine  # what is set from now on holds at once
        yield app


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway without a server."""
    with Laneway(f"sqlite:///{tmp_path}/laneway.db") as app:
        gateway = Gateway(app)
        yield gateway
        gateway.close()
