"""
A worker inside an async program or a thread: how it starts and stops, and that nothing is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from laneway import Laneway, Message, UsageError
from laneway.working.user_imports import importing
from tests.working.support import until

SOON = 120.0
"""Seconds after which something that should happen has not; the machine may be busy."""

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, MutableMapping
    from pathlib import Path


def handling(app: Laneway, kind: str = "async") -> tuple[list[object], asyncio.Event]:
    """Register a handler of "t" that records the bodies it gets."""
    seen: list[object] = []
    came = asyncio.Event()

    async def ahandle(message: Message) -> None:
        seen.append(message.body)
        came.set()

    def handle(message: Message) -> None:
        seen.append(message.body)
        loop.call_soon_threadsafe(came.set)

    loop = asyncio.get_running_loop()
    app.handler("t")(ahandle if kind == "async" else handle)
    return seen, came


async def _serve(app: Laneway, kind: str) -> None:
    seen, came = handling(app, kind)
    async with app.worker(concurrency=2) as worker:
        await app.apublish("t", 1)
        await asyncio.wait_for(came.wait(), SOON)
    assert seen == [1]
    await app.apublish("t", 2)
    assert worker is not None
    assert seen == [1]  # it has ended
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_async_with(app: Laneway, kind: str) -> None:
    """It handles messages inside the block and none after it; no task is left on the event loop."""
    asyncio.run(_serve(app, kind))


def test_arun_worker_burst(app: Laneway) -> None:
    """`arun_worker` with burst returns what was handled."""

    async def main() -> None:
        seen, _ = handling(app)
        await app.apublish_many([Message("t", n) for n in range(5)])
        summary = await app.arun_worker(burst=True)
        assert (summary.acked, set(seen)) == (5, {0, 1, 2, 3, 4})

    asyncio.run(main())


def test_stop_from_another_thread(app: Laneway) -> None:
    """`stop` may be called from any thread, also before the worker has started."""

    async def main() -> None:
        handling(app)
        worker = app.worker()
        running = asyncio.create_task(worker.arun())
        await app.apublish("t")
        threading.Thread(target=worker.stop).start()
        await asyncio.wait_for(running, SOON)
        early = app.worker()
        early.stop()
        await asyncio.wait_for(early.arun(), SOON)

    asyncio.run(main())


def test_astop_returns_what_was_handled(app: Laneway) -> None:
    """`await worker.astop()` ends the worker inside the block and returns its summary."""

    async def main() -> None:
        _, came = handling(app)
        async with app.worker() as worker:
            await app.apublish("t")
            await asyncio.wait_for(came.wait(), SOON)
            assert (await worker.astop()).acked == 1

    asyncio.run(main())


def test_cancelling_stops_in_order(app: Laneway) -> None:
    """A cancelled `arun_worker` lets the running handler end, and its message is acked."""

    async def main() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        @app.handler("t")
        async def handle(_: Message) -> None:
            begun.set()
            await go_on.wait()

        await app.apublish("t")
        running = asyncio.create_task(app.arun_worker())
        await asyncio.wait_for(begun.wait(), SOON)
        running.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, SOON)
        assert (await app.topic("t").astats()).done == 1

    asyncio.run(main())


def test_cancelling_twice_stops_at_once(app: Laneway) -> None:
    """The second cancellation does not wait for handlers; their messages are released."""

    async def main() -> None:
        begun = asyncio.Event()

        @app.handler("t")
        async def handle(_: Message) -> None:
            begun.set()
            await asyncio.sleep(3600)

        await app.apublish("t")
        running = asyncio.create_task(app.arun_worker(grace="1h"))
        await asyncio.wait_for(begun.wait(), SOON)
        running.cancel()
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, SOON)
        assert (await app.topic("t").astats()).waiting == 1
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_aclose_ends_the_workers_first(app: Laneway) -> None:
    """
    `aclose` stops this application's workers, on this event loop and in threads, before it closes
    the engine.
    """

    async def main() -> None:
        _, came = handling(app)
        here = asyncio.create_task(app.arun_worker())
        other = app.worker()
        thread = threading.Thread(target=other.run)
        thread.start()
        await asyncio.to_thread(until, lambda: len(app.runtime.workers._workers) == 2, SOON)
        await app.apublish("t")
        await asyncio.wait_for(came.wait(), SOON)
        await app.aclose()
        await asyncio.wait_for(here, SOON)
        thread.join(SOON)
        assert not thread.is_alive()

    asyncio.run(main())


def test_close_on_the_workers_loop_says_what_to_do(app: Laneway) -> None:
    """
    A blocking close on the worker's own event loop is refused, because it would wait for itself.
    """

    async def main() -> None:
        handling(app)
        async with app.worker():
            with pytest.raises(UsageError, match=r"await app\.aclose\(\)"):
                app.close()

    asyncio.run(main())


def test_close_in_a_handler_is_refused(app: Laneway) -> None:
    """
    A close in a handler is refused: it would wait for the worker, which waits for the handler.
    """
    app.policy("t", retries=0)

    @app.handler("t")
    def handle(_: Message) -> None:
        app.close()

    app.publish("t")
    assert app.run_worker(burst=True).died == 1
    assert "a handler cannot close the application that runs it" in (
        app.dead_letters.list("t")[0].error or ""
    )


def test_a_worker_that_waits_gets_what_a_busy_one_cannot_start(app: Laneway) -> None:
    """A second notification must not let the busy worker keep the next message for itself."""

    @app.handler("a")
    async def handle(message: Message) -> None:
        began.release()
        await both.wait()

    async def run() -> None:
        async with app.worker(concurrency=1), app.worker(concurrency=1):
            for n in range(2):
                await app.apublish("a", n)
                await asyncio.wait_for(began.acquire(), 30)
            both.set()

    for _ in range(5):
        began, both = asyncio.Semaphore(0), asyncio.Event()
        asyncio.run(run())


def test_two_workers_in_one_process(app: Laneway) -> None:
    """Each message is handled by one of two workers; ending one does not affect the other."""

    async def main() -> None:
        seen, came = handling(app)
        async with app.worker(concurrency=5):
            async with app.worker(concurrency=5):
                await app.apublish_many([Message("t", n) for n in range(200)])
                assert await app.topic("t").await_done(timeout=SOON)
            came.clear()
            await app.apublish("t", 200)
            await asyncio.wait_for(came.wait(), SOON)
        assert len(seen) == 201

    asyncio.run(main())


def test_no_signal_handler_is_installed(app: Laneway) -> None:
    """
    The program's own handlers of SIGTERM and SIGINT stay, also on an event loop in the main thread.
    """

    async def main() -> None:
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        handling(app)
        async with app.worker():
            assert [
                signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)
            ] == before
            assert signal.set_wakeup_fd(-1) == -1

    asyncio.run(main())


def test_a_worker_that_cannot_start_raises(tmp_path: Path) -> None:
    """Entering the block raises if there are no handlers or the store cannot be opened."""

    async def main() -> None:
        app = Laneway(f"sqlite:///{tmp_path}/no/such/folder.db")
        with pytest.raises(UsageError, match="no handlers"):
            async with app.worker():
                pass
        handling(app)
        with pytest.raises(Exception, match="does not exist"):
            async with app.worker():
                pass

    asyncio.run(main())


def test_used_once_and_options(app: Laneway) -> None:
    """A wrong option and a second use raise an error that names the mistake."""

    async def main() -> None:
        handling(app)
        worker = app.worker(burst=True)
        await worker.arun()
        with pytest.raises(UsageError, match="used once"):
            await worker.arun()
        with pytest.raises(UsageError, match='unknown option "procesess"'):
            app.worker(procesess=2)  # type: ignore[call-arg]
        with pytest.raises(UsageError, match='unknown option "processes"'):
            app.worker(processes=2)  # type: ignore[call-arg]

    asyncio.run(main())


def test_run_worker_in_a_running_loop(app: Laneway) -> None:
    """The error says what to use instead; no coroutine is left that is never awaited."""

    async def main() -> None:
        handling(app)
        with pytest.raises(UsageError, match=r"use await app\.arun_worker\(\)"):
            app.run_worker(burst=True)

    asyncio.run(main())


@pytest.mark.parametrize("call", ["run_worker", "arun_worker", "worker"])
def test_while_a_worker_imports_the_module(app: Laneway, call: str) -> None:
    """
    A module that starts a worker at its top level gets an error that says where the call belongs.
    """

    async def main() -> None:
        if call == "arun_worker":
            await app.arun_worker()
        async with app.worker():
            pass

    app.handler("t")(print)
    start = app.run_worker if call == "run_worker" else lambda: asyncio.run(main())
    with (
        importing("shop"),
        pytest.raises(
            UsageError, match=r'shop is being imported by a worker.*if __name__ == "__main__":'
        ),
    ):
        start()


PROGRAM = """
from laneway import Laneway
app = Laneway("sqlite:///work.db")
app.handler("t")(print)
app.publish("t", 17)
app.run_worker(burst=True)
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_the_command_says_where_run_worker_belongs(tmp_path: Path, processes: int) -> None:
    """
    `laneway worker shop:app` prints one line and exits with 2 if the module runs a worker itself.
    """
    (tmp_path / "shop.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "laneway", "worker", "shop:app", "--processes", str(processes)]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2, ended.stderr
    assert 'if __name__ == "__main__":' in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_inside_starlettes_lifespan(tmp_path: Path) -> None:
    """
    A web application's lifespan starts and stops the worker; a route publishes, the handler
    answers.
    """
    from starlette import applications, responses, routing

    app = Laneway(f"sqlite:///{tmp_path}/web.db")
    bodies: list[object] = []
    started: list[str] = []

    @app.handler("mail.*")
    async def mail(message: Message) -> None:
        bodies.append(message.body)
        came.set()

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with app.worker():
            started.append("started")
            yield
        started.append("stopped")
        await app.aclose()

    async def order(_: object) -> object:
        receipt = await app.apublish("mail.acme", 42)
        return responses.PlainTextResponse(receipt.id)

    web = applications.Starlette(routes=[routing.Route("/order", order)], lifespan=lifespan)

    async def main() -> None:
        requests: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        answers: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        serving = asyncio.create_task(
            web(
                {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}},
                requests.get,
                answers.put,
            )
        )
        await requests.put({"type": "lifespan.startup"})
        assert (await asyncio.wait_for(answers.get(), SOON))["type"] == "lifespan.startup.complete"
        assert started == ["started"]
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/order",
            "headers": [],
            "query_string": b"",
            "http_version": "1.1",
        }
        await web(scope, requests.get, answers.put)
        assert (await answers.get())["status"] == 200
        await asyncio.wait_for(came.wait(), SOON)
        await requests.put({"type": "lifespan.shutdown"})
        await asyncio.wait_for(serving, SOON)

    came = asyncio.Event()
    asyncio.run(main())
    assert bodies == [42]
    assert started == ["started", "stopped"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    until(
        lambda: (
            not [
                thread
                for thread in threading.enumerate()
                if thread.name in ("laneway-engine", "laneway-wakeup", "laneway-arrivals")
            ]
        ),
        SOON,
    )
