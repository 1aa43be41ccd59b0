"""A worker on a machine whose clock is changed or whose disk is full."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from laneway import EngineUnavailable, Laneway, Message
from laneway.engines import base
from laneway.units import SECOND
from laneway.working import settler
from laneway.working.settler import Reconnection
from tests.working.support import StoppedClock

HOUR = 3600


def test_a_clock_that_is_set_back_delays_no_ready_message(
    app: Laneway, clock: StoppedClock, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Ready messages run, delayed ones wait, and nothing is lost; a warning names the store and what
    to do.
    """
    app.policy("t", lease=5)
    app.publish_many(Message("t", n) for n in range(20))
    app.publish("t", "later", delay=60)
    seen: list[object] = []

    @app.handler("t")
    async def handle(message: Message) -> None:
        if message.body == 3:
            clock.now_us -= HOUR * SECOND
        seen.append(message.body)
        await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING, "laneway.engine"):
        app.run_worker(burst=True, concurrency=1)
        app.publish_many(Message("t", n) for n in range(20, 40))
        app.run_worker(burst=True)
    assert sorted(each for each in seen if isinstance(each, int)) == list(range(40))
    assert app.engine.overview().waiting == 1
    (warning,) = caplog.messages
    assert "clock is 3600 s behind the store's time" in warning
    assert str(app.url.removeprefix("sqlite:///")) in warning
    clock.now_us += (HOUR + 120) * SECOND
    app.run_worker(burst=True)
    assert seen[-1] == "later"


def test_a_clock_that_is_set_forward_expires_leases_and_loses_nothing(
    app: Laneway, clock: StoppedClock
) -> None:
    """
    A running handler's lease has expired: it is stopped, and the message is delivered again.
    Delayed messages run once.
    """
    app.policy("t", lease=5, retries=0)
    app.publish("t", "long")
    app.publish("t", "later", delay=600)
    seen: list[object] = []

    @app.handler("t")
    async def handle(message: Message) -> None:
        seen.append(message.body)
        if seen == ["long"]:
            clock.now_us += HOUR * SECOND
            app.engine.tick()  # as any other worker would
            await asyncio.sleep(600)

    began = time.monotonic()
    summary = app.run_worker(burst=True, concurrency=2)
    assert time.monotonic() - began < 120
    assert seen.count("later") == 1
    assert seen.count("long") == 2
    assert (summary.acked, summary.died) == (2, 0)


def test_a_full_disk_fails_publishers_and_the_worker_continues_with_room(
    tmp_path: Path,
) -> None:
    """The publisher gets one clear error, and each accepted message is handled."""
    program = """
import resource, signal, sys
from laneway import EngineUnavailable, Laneway, Message
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
app = Laneway(sys.argv[1])
done = []
@app.handler("*")
async def handle(message): done.append(message.body)
app.publish("a", 0)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, most))
accepted, reason = 1, ""
try:
    while accepted < 100_000:
        app.publish("a", accepted, headers={"h": "x" * 1000})
        accepted += 1
except EngineUnavailable as error:
    reason = str(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
app.publish("a", accepted)
app.run_worker(burst=True)
print(sorted(done) == list(range(accepted + 1)), accepted > 1, reason)
"""
    source = str(Path(__file__).parents[2] / "src")
    output = subprocess.run(
        [sys.executable, "-c", program, f"sqlite:///{tmp_path}/q.db"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": source},
        timeout=60,
    ).stdout
    assert output.startswith("True True ")
    assert "q.db" in output
    assert "disk" in output


def test_a_handler_that_stops_the_event_loop_ends_nothing(app: Laneway) -> None:
    """The worker continues, and so do the other messages."""
    seen: list[object] = []

    @app.handler("a")
    async def handle(message: Message) -> None:
        if message.body == "stop":
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0)
        seen.append(message.body)

    app.publish_many(Message("a", body) for body in ("one", "stop", "two"))
    assert app.run_worker(burst=True).acked == 3
    assert sorted(map(str, seen)) == ["one", "stop", "two"]


def test_a_dead_letter_without_a_handler_is_reported_to_hooks(
    app: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """on_dead is called for a message that died because no worker had a handler."""
    monkeypatch.setattr(base, "UNHANDLED_FIRST_US", 50_000)
    app.policy("b", on_unhandled=0.001)
    dead: list[str] = []
    app.handler("a")(lambda message: None)
    app.on_dead(lambda message, _: dead.append(message.topic))
    app.publish("b")
    for _ in range(200):
        app.run_worker(burst=True)
        if dead:
            break
        time.sleep(0.1)  # until the message comes back
    assert dead == ["b"]


def test_an_outage_is_one_warning_and_its_end_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the worker tries, and however many of its threads do."""
    caplog.set_level(logging.INFO, "laneway")
    seconds = iter(range(100))  # each look at the clock is a second after the last one
    monkeypatch.setattr(settler, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    reconnection = Reconnection()
    reconnection.succeeded()
    for _ in range(2):
        for _ in range(3):
            reconnection.wait(EngineUnavailable("no answer"), lambda: True)
        reconnection.succeeded()
        reconnection.succeeded()
    away, back = caplog.messages[:2]
    assert away == "store unavailable; retrying until it answers: no answer"
    assert back.startswith("store answers again, 4.0 s after")
    assert len(caplog.messages) == 4
