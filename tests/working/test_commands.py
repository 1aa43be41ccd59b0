"""Commands to workers: drain and a dump of the stacks, from any process on the store."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from laneway import Laneway, Refused
from laneway.admin import workers as admin_workers
from laneway.cli import main
from laneway.engines.base import WorkerFacts
from laneway.units import SECOND
from laneway.working import commands
from tests.working.support import Running, until

SOON = 120.0


def test_stacks(app: Laneway) -> None:
    """The answer has the messages, the threads and the coroutines, at once; no record is left."""
    done, sleeps = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    @app.handler("threads")
    def wait_in_a_thread(_: object) -> None:
        done.wait(SOON)

    @app.handler("coroutines")
    async def wait_in_a_coroutine(_: object) -> None:
        loops.append(asyncio.get_running_loop())
        await sleeps.wait()

    app.publish("threads", 1, id="slow one")
    app.publish("coroutines", 1)
    with Running(app, heartbeat_timeout=600):
        until(app.workers)
        (worker,) = app.workers()

        def shows(function: str) -> bool:
            return function in app.control.stacks(worker.id, timeout=SOON)

        for function in ("wait_in_a_thread", "wait_in_a_coroutine"):
            until(functools.partial(shows, function))
        stacks = app.control.stacks(worker.id, timeout=SOON)
        assert "threads slow one (attempt 1)" in stacks
        assert "thread laneway-heartbeat:" in stacks
        assert app.engine.records("command") == []
        done.set()
        loops[0].call_soon_threadsafe(sleeps.set)


STACKS_OF_A_THREAD_THAT_RETURNS = """
import gc, threading
from laneway.working.commands import stack_dump

returns, returned = threading.Semaphore(0), threading.Semaphore(0)

def call(depth):
    if depth:
        call(depth - 1)
    returns.acquire()
    returned.release()

def return_once(phase, _):
    if phase == "start":
        returns.release()
        returned.acquire(timeout=1)

thread = threading.Thread(target=call, args=(40,), daemon=True)
thread.start()
gc.callbacks.append(return_once)
gc.set_threshold(1)
stack_dump([], None)
gc.callbacks.clear()
print("over")
"""


def test_stacks_while_garbage_is_collected() -> None:
    """A collection of garbage lets other threads run; with it, Python 3.11 crashed here."""
    done = subprocess.run(
        [sys.executable, "-c", STACKS_OF_A_THREAD_THAT_RETURNS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("over\n", "", 0)


@pytest.mark.usefixtures("quick_heartbeats")
def test_drain(app: Laneway) -> None:
    """The worker takes no more messages, finishes what runs, and ends."""
    began, done = threading.Event(), threading.Event()

    @app.handler("a")
    def wait(_: object) -> None:
        began.set()
        done.wait(SOON)

    app.publish("a", 1)
    with Running(app, heartbeat_timeout=600, concurrency=1):
        assert began.wait(SOON)
        until(app.workers)
        (worker,) = app.workers()
        app.control.drain(worker.id, timeout=SOON)
        app.publish("a", 2)
        until(lambda: [each.state for each in app.workers()] == ["stopping"])
        done.set()
        until(lambda: app.workers() == [])
        assert app.topic("a").stats().waiting == 1


def test_refused_commands(app: Laneway, tmp_path: Path) -> None:
    """A worker that does not exist, does not answer, or has a command: each is said."""
    with pytest.raises(Refused, match='no worker "other"'):
        app.control.drain("other")
    app.engine.beat(WorkerFacts(id="silent"), dead_after_us=600 * SECOND, listed_us=700 * SECOND)
    with pytest.raises(Refused, match="nothing was changed"):
        asyncio.run(app.control.astacks("silent", timeout=0.1))
    assert app.engine.records("command") == []
    pending = commands.Command("drain", "x", app.engine.time_us() + 60 * SECOND)
    app.engine.record_swap("command", "silent", None, commands.encode(pending))
    with pytest.raises(Refused, match="another command"):
        app.control.drain("silent", timeout=0.1)
    old = commands.encode(commands.Command("drain", "x", 5))
    app.engine.record_swap("command", "silent", commands.encode(pending), old)
    assert not commands.obey(app.engine, "silent", [], None), "its time is over"
    with pytest.raises(Refused, match="did not answer"):
        admin_workers.command(app.engine, "silent", "drain", 0.1)
    store_url = f"sqlite:///{tmp_path}/laneway.db"
    result = CliRunner().invoke(main, ["-u", store_url, "drain", "none"])
    assert (result.exit_code, "no worker" in result.output) == (1, True)
    result = CliRunner().invoke(main, ["-u", store_url, "stacks", "silent", "--timeout", "0.1s"])
    assert (result.exit_code, "did not answer" in result.output) == (1, True)
