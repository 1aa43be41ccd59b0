"""A worker whose event loop receives what publishes lease to it."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from laneway import Laneway, Message
from laneway.engines.sql import inbox
from laneway.engines.sqlite import wakeup
from laneway.engines.sqlite.engine import SqliteEngine
from laneway.engines.sqlite.wakeup import SERVES_ALL, SERVES_SOME, TAKES_LEASES
from tests.working.support import until

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK_CHARACTERS = 8
"""Of the pool, before the kind of a listener, in a socket's name."""


class Received:
    """A worker of one program, and another program that publishes to it while it is idle."""

    def __init__(self, app: Laneway, other: Laneway) -> None:
        self.other = other
        self.seen: list[object] = []
        self.blocks_seconds = 0.0
        app.handler("t")(self._handle)
        self.worker = app.worker(concurrency=20)

    async def _handle(self, message: Message) -> None:
        time.sleep(self.blocks_seconds)  # noqa: ASYNC251  # it blocks the event loop
        self.seen.append(message.body)

    def publish(self, topic: str, body: int) -> None:
        until(self._is_worker_waiting)
        self.other.publish(topic, body)

    def _is_worker_waiting(self) -> bool:
        engine = self.other.engine
        assert isinstance(engine, SqliteEngine)
        sockets = Path(engine._wakeup._folder).glob("*")  # there is none without the folder
        kinds = SERVES_ALL + SERVES_SOME + TAKES_LEASES  # SERVES_SOME: once it leases by patterns
        return any(each.name[MARK_CHARACTERS] in kinds for each in sockets)


@pytest.fixture
def received(app: Laneway, tmp_path: Path) -> Iterator[Received]:
    with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as other:
        received = Received(app, other)
        thread = threading.Thread(target=received.worker.run)
        thread.start()
        try:
            until(lambda: app.workers() != [])
            yield received
        finally:
            received.worker.stop()
            thread.join()


def test_message_without_handler(received: Received) -> None:
    """A worker that receives only a message without a handler goes on."""
    received.publish("other", 1)
    received.publish("t", 2)
    until(lambda: received.seen == [2])


def test_blocked_event_loop(received: Received, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is extended while the handler blocks the event loop that received it."""
    for module in (inbox, wakeup):
        monkeypatch.setattr(module, "SENT_LEASE_SECONDS", 2.0)
    received.blocks_seconds = 3.0
    received.publish("t", 1)
    until(lambda: received.seen != [])
    received.blocks_seconds = 0.0
    received.publish("t", 2)
    until(lambda: 2 in received.seen)
    assert received.seen == [1, 2]


def test_event_loop_without_files(
    app: Laneway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the event loop watches no files, the engine thread receives."""

    def add_reader(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", add_reader)
    with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as other:
        received = Received(app, other)
        thread = threading.Thread(target=received.worker.run)
        thread.start()
        try:
            until(lambda: app.workers() != [])
            for n in range(3):
                received.publish("t", n)
            until(lambda: received.seen == [0, 1, 2])
        finally:
            received.worker.stop()
            thread.join()
