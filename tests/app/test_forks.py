"""
A forked child uses an application that its parent has used: gunicorn's --preload, multiprocessing's
fork.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from laneway import Laneway, Message
from laneway.engines.base import Settings
from laneway.engines.shared import forking
from laneway.engines.sqlite.delivery_log import DeliveryLogFile
from laneway.engines.sqlite.store import Store
from laneway.producing.spool_file import SpoolFile
from laneway.working.child_processes import SpawnedProcess
from laneway.working.standby_renewal import StandbyRenewal
from tests.conformance.valkey_setups import server
from tests.working.support import Running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHILDREN = 12
SECONDS = 120.0

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)


@pytest.fixture(params=["sqlite", "valkey"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Laneway]:
    """An application with a task."""
    url = f"sqlite:///{tmp_path}/forks.db" if request.param == "sqlite" else server().url
    with Laneway(url, namespace=f"fork-{uuid4().hex}") as app:

        @app.task(topic="sums")
        def add(one: int, other: int) -> int:
            return one + other

        app.add = add  # type: ignore[attr-defined]
        yield app


def in_child(do: Callable[[], object]) -> int:
    """Do something in a forked child; returns its id. It ends with 0 if that was done."""
    pid = os.fork()
    if pid:
        return pid
    try:
        do()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def codes(pids: list[int]) -> list[int | None]:
    """How the children ended; None: not at all, so that they were killed."""
    deadline = time.monotonic() + SECONDS
    found: list[int | None] = []
    for pid in pids:
        status = 0
        ended = 0
        while not ended and time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            time.sleep(0 if ended else 0.01)  # waitpid has no timeout
        if not ended:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        found.append(os.waitstatus_to_exitcode(status) if ended else None)
    return found


def use(app: Laneway) -> None:
    """Every way into the store."""
    app.publish("plain", 1)
    app.publish_many([Message("plain", n) for n in range(3)])
    for delivery in app.lease(2, topics=["plain"]):
        delivery.ack()
    app.add.delay(1, 2)  # type: ignore[attr-defined]
    app.explain("nobody")
    app.topics()


async def ause(app: Laneway) -> None:
    """Every way into the store, awaited."""
    await asyncio.gather(*(app.apublish("plain", n) for n in range(3)))
    await app.apublish_many([Message("plain", n) for n in range(3)])
    for delivery in await app.alease(2, topics=["plain"]):
        await delivery.aack()
    job = await app.add.adelay(1, 2)  # type: ignore[attr-defined]
    with pytest.raises(TimeoutError):
        await job.aget(timeout=0.01)
    await app.atopics()


def test_a_child_uses_what_its_parent_has_used(app: Laneway) -> None:
    """Each call returns in the child, sync and async, after the parent has made each of them."""
    use(app)
    asyncio.run(ause(app))

    def do() -> None:
        use(app)
        asyncio.run(ause(app))

    assert codes([in_child(do) for _ in range(3)]) == [0, 0, 0]
    use(app)
    asyncio.run(ause(app))


def test_children_while_the_parents_threads_publish(app: Laneway) -> None:
    """
    A fork in the middle of the parent's publishing leaves neither side waiting, and loses nothing.
    """
    stop = threading.Event()
    published = [0, 0, 0, 0]

    def publish(place: int) -> None:
        while not stop.is_set():
            app.publish("parent", place)
            published[place] += 1

    threads = [threading.Thread(target=publish, args=(place,)) for place in range(len(published))]
    for thread in threads:
        thread.start()

    def do() -> None:
        for n in range(5):
            app.publish("child", n)
        asyncio.run(app.apublish("child", 5))

    try:
        pids = []
        for _ in range(CHILDREN):
            pids.append(in_child(do))
            time.sleep(0.01)  # so that forks meet different moments of a commit
        assert codes(pids) == [0] * CHILDREN
    finally:
        stop.set()
        for thread in threads:
            thread.join(SECONDS)
    assert app.topic("child").stats().waiting == CHILDREN * 6
    assert app.topic("parent").stats().waiting == sum(published)


def test_the_parent_may_close_while_children_go_on(app: Laneway) -> None:
    """
    What a child publishes after its parent let go of the store is there: it has locks of its own on
    the file.
    """
    app.publish("before")
    reading, writing = os.pipe()

    def do() -> None:
        app.publish("child", 0)
        os.read(reading, 1)
        for n in range(20):
            app.publish("child", n)

    pids = [in_child(do) for _ in range(2)]
    while app.topic("child").stats().waiting < 2:
        time.sleep(0.01)  # other processes publish
    app.close()
    os.write(writing, b"xx")
    assert codes(pids) == [0, 0]
    assert app.topic("child").stats().waiting == 42


def test_a_worker_in_a_child(app: Laneway) -> None:
    """A child runs a worker, and waits for jobs that the parent's worker runs."""
    job = app.add.delay(1, 1)  # type: ignore[attr-defined]
    with pytest.raises(TimeoutError):
        job.get(timeout=0.01)

    def work() -> None:
        assert app.run_worker(burst=True).acked == 1

    assert codes([in_child(work)]) == [0]
    assert job.get(timeout=60) == 2

    def wait() -> None:
        assert app.add.delay(2, 2).get(timeout=60) == 4  # type: ignore[attr-defined]

    with Running(app):
        assert codes([in_child(wait) for _ in range(3)]) == [0, 0, 0]


def start_standby() -> None:
    """Start and end the process that renews a worker's leases."""
    standby = StandbyRenewal("sqlite://", Settings(), 60.0, room=1)
    standby.start()
    standby.close()


def start_process() -> None:
    """Start and end a process for handlers."""
    process = SpawnedProcess("builtins:id", ())
    assert process.exit_code(SECONDS) == 0
    process.pipe.close()


def forks_during(
    module: Any, name: str, start: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> list[bool]:
    """
    Fork while a thread calls this function of a module: whether the child existed before the call
    ended. The thread begins once the fork has begun. The child does the same.
    """
    begun, forked = threading.Event(), threading.Event()
    was_forked: list[bool] = []
    function = getattr(module, name)
    thread = threading.Thread(target=start)

    def slow(*args: object, **options: object) -> object:
        if threading.current_thread() is thread and not begun.is_set():
            begun.set()
            was_forked.append(forked.wait(0.2))
        return function(*args, **options)

    def begin(seconds: float) -> bool:
        del seconds
        if not thread.ident:
            thread.start()
            assert begun.wait(10)
        return True

    monkeypatch.setattr(module, name, slow)
    monkeypatch.setattr(forking, "LOCKED", [*forking.LOCKED])
    locked: Any = forking.Locked(lambda _, __: None)
    locked.acquire = begin
    child = in_child(start)
    forked.set()
    assert codes([child]) == [0]
    thread.join(SECONDS)
    return was_forked


@pytest.mark.parametrize("start", [start_standby, start_process])
def test_no_fork_while_a_process_is_started(
    start: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A fork waits until a thread has started its process: a child that inherits the pipes of the
    start would block the thread until the child ends.
    """
    assert forks_during(subprocess, "Popen", start, monkeypatch) == [False]


def use_store(folder: Path) -> None:
    """Open and close the file of a store."""
    Store(f"{folder}/store.db", "fsync").close()


def use_spool(folder: Path) -> None:
    """Open and close the file of a spool."""
    SpoolFile(f"{folder}/spool.db", syncs=False).close()


def use_delivery_log(folder: Path) -> None:
    """Read the log of a store without one, which is empty."""
    log = DeliveryLogFile(f"{folder}/store.db")
    assert log.read(None, limit=1, before=None, until_us=None) == []


@pytest.mark.parametrize("use", [use_store, use_spool, use_delivery_log])
def test_no_fork_while_a_file_is_opened(
    use: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A fork waits until a thread has opened its SQLite file: a child would inherit a mutex of SQLite
    that nobody releases, and could open and close no file.
    """
    assert forks_during(sqlite3, "connect", lambda: use(tmp_path), monkeypatch) == [False]
