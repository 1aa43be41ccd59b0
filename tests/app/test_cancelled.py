"""
A coroutine that is cancelled while it waits holds nothing up: not the process, not `close`, not
other waiters.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laneway import Laneway, delivery
from laneway.errors import EngineUnavailable
from laneway.message import Batch
from laneway.testing.servers import Server

LONG = 600
"""Seconds of a wait that nobody wants to wait for."""

CONSUMER = """
import asyncio, sys, time
from laneway import Laneway

app = Laneway(sys.argv[1])

async def main():
    leasing = asyncio.ensure_future(app.alease(1, wait=600))
    blocked = asyncio.ensure_future(app.apublish("full", 2))
    await asyncio.sleep(0.3)  # both wait by now; if not, they are cancelled sooner
    leasing.cancel()
    blocked.cancel()
    await asyncio.wait([leasing, blocked])

app.policy("full", max_backlog=1, on_full="block", paused=True)
app.publish("full", 1)
asyncio.run(main())
if sys.argv[2] == "close":
    app.close()
print("over", flush=True)
"""


@pytest.fixture(params=["file", "memory", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "valkey":
        with Server() as server:
            yield server.url
    else:
        yield f"sqlite:///{tmp_path}/q.db" if request.param == "file" else "sqlite://"


@pytest.fixture
def leasing_threads(monkeypatch: pytest.MonkeyPatch) -> set[threading.Thread]:
    """
    The threads in a call of `lease` that has its engine. Before that, a closed application opens
    again.
    """
    threads: set[threading.Thread] = set()
    lease, lease_batch = delivery.lease, delivery.lease_batch

    def counted(*args: Any) -> list[delivery.Delivery]:
        try:
            return lease(*args)
        finally:
            threads.discard(threading.current_thread())

    def counted_batch(*args: Any) -> Batch:
        threads.add(threading.current_thread())
        return lease_batch(*args)

    monkeypatch.setattr(delivery, "lease", counted)
    monkeypatch.setattr(delivery, "lease_batch", counted_batch)
    return threads


@pytest.mark.parametrize("end", ["close", "leave"])
def test_the_process_ends_at_once(url: str, end: str) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CONSUMER, url, end],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("over\n", "", 0)
    assert time.monotonic() - began < 40, "not the ten minutes of the wait"


def test_other_waiters_go_on(url: str, leasing_threads: set[threading.Thread]) -> None:
    """Only the wait of the one that was cancelled ends; what comes goes to the other."""

    async def consume() -> list[object]:
        first = asyncio.ensure_future(app.alease(1, wait=LONG))
        second = asyncio.ensure_future(app.alease(1, wait=LONG))
        await waiting(2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await waiting(1)
        await app.apublish("a", "x")
        return [delivery.message.body for delivery in await second]

    async def waiting(count: int) -> None:
        async with asyncio.timeout(30):
            while len(leasing_threads) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    with Laneway(url) as app:
        assert asyncio.run(consume()) == ["x"]


def test_close_ends_a_wait(url: str, leasing_threads: set[threading.Thread]) -> None:
    app = Laneway(url)
    with app:
        outcome: list[object] = []

        def lease() -> None:
            try:
                outcome.append(app.lease(1, wait=LONG))
            except EngineUnavailable as error:
                outcome.append(error)

        leasing = threading.Thread(target=lease, daemon=True)
        leasing.start()
        while leasing not in leasing_threads:
            time.sleep(0.01)
    leasing.join(30)
    assert not leasing.is_alive()
    assert "this engine was closed" in str(outcome[0]) or outcome == [[]]


def test_close_ends_a_wait_that_begins_meanwhile(
    url: str, leasing_threads: set[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait may begin at any moment of the call of close."""
    monkeypatch.setattr("laneway.engines.valkey.wakeup.LOOK_AGAIN", LONG)
    for n in range(100 if url == "sqlite://" else 30):
        app = Laneway(url)
        with app:
            leasing = threading.Thread(target=_lease_until_closed, args=(app,), daemon=True)
            leasing.start()
            while leasing not in leasing_threads:
                time.sleep(0.0005 * (n % 3))
        leasing.join(30)
        assert not leasing.is_alive()


def _lease_until_closed(app: Laneway) -> None:
    with contextlib.suppress(EngineUnavailable):
        app.lease(1, wait=LONG)
