"""A receiver on loopback, and an application that pushes to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from laneway import Laneway
from laneway.push.secret_store import new_key
from tests.push.receiver import Receiver, serve


@pytest.fixture(scope="module")
def running() -> Iterator[Receiver]:
    receiver = Receiver()
    server = serve(receiver)
    yield receiver
    receiver.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def receiver(running: Receiver) -> Iterator[Receiver]:
    running.requests.clear()
    running.answers.clear()
    running.released.clear()
    running.sent = 0
    yield running
    running.released.set()


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    key = new_key()
    monkeypatch.setenv("LANEWAY_SECRETS_KEY", key)
    return key


@pytest.fixture
def app(key: str) -> Iterator[Laneway]:
    with Laneway("sqlite://") as application:
        application.policy("push.*", backoff=0, retries=2)
        application.push("push.*")
        yield application
