"""
Results of tasks: stored, awaited without polling, raised as themselves, watched, cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import laneway
from laneway import (
    JobCancelled,
    JobDead,
    JobExpired,
    JobFailed,
    Laneway,
    LanewayError,
    Reject,
    Task,
    UsageError,
    current_request,
)
from laneway.engines.valkey import wakeup
from laneway.tasks.outcomes import MAX_RESULT
from laneway.testing import eager, virtual
from laneway.testing.servers import Server
from tests.tasks import apart
from tests.tasks.apart import Odd, Order
from tests.tasks.conftest import MakeApp, working

SOON = 120.0


def test_a_result_is_what_the_task_says_that_it_returns(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    def order(number: int) -> Order:
        return Order(number, datetime(2026, 1, 1, tzinfo=UTC))

    @app.task
    async def nothing() -> None:
        pass

    @app.task(serializer="pickle")
    def anything() -> object:
        return {1: {2, 3}}

    with working(app):
        assert order.delay(5).get(SOON) == Order(5, datetime(2026, 1, 1, tzinfo=UTC))
        assert nothing.delay().get(SOON) is None
        assert anything.delay().get(SOON) == {1: {2, 3}}
        job = order.delay(6)
        job.wait(SOON)
        again = app.job(job.id)
        assert again.get() == {
            "number": 6,
            "at": "2026-01-01T00:00:00Z",
        }, "who only knows the id gets plain data"
        assert app.job(job.id, job.topic).get() == Order(6, datetime(2026, 1, 1, tzinfo=UTC))
        assert (again.status, again.ready(), again.successful(), again.failed()) == (
            "success",
            True,
            True,
            False,
        )
        assert again.to_dict()["finished_at"] == pytest.approx(time.time(), abs=60)
        with pytest.raises(JobFailed, match="pickled"):
            app.job(anything.delay().id).get(SOON)


@pytest.mark.parametrize("kind", ["thread", "async", "process"])
def test_an_error_comes_back_as_itself(make_app: MakeApp, kind: str) -> None:
    """
    With the remote traceback; where its class is not known here, or it cannot be rebuilt, JobFailed
    tells it.
    """
    app = make_app()
    function = failing_soon if kind == "async" else apart.failing.function
    task: Task[..., Any] = app.task(retries=0, isolation="process" if kind == "process" else None)(
        function
    )
    with working(app):
        job = task.delay("value")
        with pytest.raises(ValueError, match="bad value") as raised:
            job.get(SOON)
        assert "failing" in str(raised.value.__cause__)
        assert "failing" in str(job.traceback)
        library = f'File "{Path(laneway.__file__).parent}{os.sep}'
        assert str(job.traceback).count(library) <= 4
        assert job.status == "failure"
        assert job.state().error == "ValueError: bad value"
        assert isinstance(job.get(propagate=False), ValueError)
        with pytest.raises(Odd) as odd:
            task.delay("odd").get(SOON)
        assert odd.value.args == (1, 2)
        with pytest.raises(JobFailed, match="Unkind"):
            task.delay("unkind").get(SOON)
        with pytest.raises(Reject, match="not this one"):
            task.delay("reject").get(SOON)


async def failing_soon(how: str) -> None:
    apart.failing(how)


def test_an_isolated_task_gives_a_result(make_app: MakeApp) -> None:
    app = make_app()
    task: Task[..., Order] = app.task(isolation="process")(apart.order.function)
    with working(app):
        assert task.delay(3).get(SOON) == Order(3, datetime(2026, 1, 1, tzinfo=UTC))


def test_a_job_goes_through_its_states(make_app: MakeApp) -> None:
    app = make_app()
    goes_on = threading.Event()

    @app.task(bind=True, retries=1, backoff=0)
    def work(self: Task[..., Any]) -> str:
        if self.request.attempt == 1:
            self.update_state("COUNTING", {"current": 1, "total": 4})
            goes_on.wait(SOON)
            raise ValueError("once more")
        return "done"

    job = work.using(delay=100).enqueue()
    assert job.status == "delayed"
    job.cancel()
    job = work.delay()
    assert (job.status, job.get_position(), job.ready()) == ("pending", 0, False)
    seen: list[str] = []
    with working(app):
        for state in job.watch(SOON):
            seen.append(state.status)
            if state.status == "counting":
                assert state.info == {"current": 1, "total": 4}
                goes_on.set()
    assert seen[-1] == "success"
    assert "counting" in seen
    assert app.job("nobody has it").status == "unknown"


def test_a_result_is_forgotten_in_time(make_app: MakeApp) -> None:
    """After `result_ttl`, of the application, the task or the call."""
    app = make_app(result_ttl="1h", failure_ttl="2h")

    @app.task(result_ttl="2m")
    def task() -> int:
        return 1

    @app.task
    def usual() -> int:
        return 1

    assert app.engine.find(task.delay().id).headers["laneway-result-ttl"] == "120,7200"  # type: ignore[index, union-attr]
    assert app.engine.find(usual.delay().id).headers["laneway-result-ttl"] == "3600,7200"  # type: ignore[index, union-attr]
    ran = threading.Event()

    @app.task(result_ttl=1, failure_ttl=1)
    def soon_forgotten() -> None:
        ran.set()

    with working(app):
        assert usual.delay().get(SOON) == 1
        job = soon_forgotten.delay()
        assert job.status != "unknown"
        assert ran.wait(SOON)
        deadline = time.monotonic() + SOON
        while job.status != "unknown":
            assert time.monotonic() < deadline
            time.sleep(0.05)  # how long it is kept
    with pytest.raises(UsageError, match="result_ttl"):
        app.task(name="wrong", result_ttl="soon")(lambda: 1)


def test_a_result_that_nobody_keeps_cannot_be_waited_for(make_app: MakeApp) -> None:
    app = make_app()

    @app.task(ignore_result=True)
    def ignored() -> int:
        return 1

    @app.task
    def kept() -> int:
        return 1

    for job in (ignored.delay(), kept.using(ignore_result=True).enqueue()):
        with pytest.raises(UsageError, match="its result is not stored"):
            job.get()
    with working(app):
        assert ignored.using(ignore_result=False).enqueue().get(SOON) == 1


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ("x" * MAX_RESULT, "bytes, at most 1,048,576 are stored"),
        (object(), "cannot be stored"),
        (float("nan"), "nan"),
    ],
)
def test_what_cannot_be_kept_is_a_failure(make_app: MakeApp, returned: object, why: str) -> None:
    """Clearly, and not tried again; the message is a dead letter with the reason."""
    app = make_app()

    @app.task
    def task() -> Any:
        return returned

    with working(app):
        with pytest.raises(Reject, match=why):
            task.delay().get(SOON)
        assert why in app.dead_letters.list()[0].reason


def test_waiting_ends_with_the_time(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    def task() -> int:
        return 1

    job = task.delay()
    text = (
        f"job {job.id}: not finished within 0.05 s; it is pending, and no worker serves pool"
        ' "default"'
    )
    with pytest.raises(TimeoutError, match=text):
        job.get(0.05)
    assert not job.wait(0.05)

    async def wait() -> None:
        with pytest.raises(TimeoutError, match="it is pending"):
            await job.aget(timeout=0.05)

    asyncio.run(wait())


def test_jobs_are_awaited(make_app: MakeApp) -> None:
    """Hundreds at once, by one thread that listens."""
    app = make_app()

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task(retries=0)
    async def fail() -> None:
        raise ValueError("as itself")

    async def main() -> None:
        jobs = [await double.adelay(n) for n in range(300)]
        assert await asyncio.gather(*jobs) == [2 * n for n in range(300)]
        with pytest.raises(ValueError, match="as itself"):
            await fail.delay()
        states = [state.status async for state in double.delay(1).awatch()]
        assert states[-1] == "success"

    before = threading.active_count()
    with working(app):
        asyncio.run(main())
        assert threading.active_count() < before + 100


def test_who_waits_is_called(make_app: MakeApp) -> None:
    app = make_app()
    called: list[tuple[str, str]] = []
    both = threading.Semaphore(0)

    @app.task(retries=0)
    def task(how: str) -> str:
        if how == "fails":
            raise ValueError(how)
        return how

    def note(what: str) -> Any:
        def call(job: Any) -> None:
            called.append((what, job.status))
            both.release()

        return call

    with working(app):
        task.delay("returns").then(note("then"), note("error"))
        task.delay("fails").then(note("then"), note("error"))
        assert both.acquire(timeout=SOON)
        assert both.acquire(timeout=SOON)
    assert sorted(called) == [("error", "failure"), ("then", "success")]


def test_progress_is_reported(make_app: MakeApp) -> None:
    """By `get`, by a watcher, on a terminal as a bar; from a coroutine too."""
    app = make_app()
    was_seen = threading.Event()

    @app.task(bind=True)
    async def count(self: Task[..., Any], upto: int) -> int:
        for n in range(1, upto + 1):
            self.update_state(meta={"current": n, "total": upto, "message": f"at {n}"})
            await asyncio.to_thread(was_seen.wait, SOON)
            await asyncio.sleep(0.02)  # the work
        return upto

    states: list[Any] = []

    def see(state: Any) -> None:
        states.append(state)
        was_seen.set()

    with working(app):
        assert count.delay(5).get(SOON, on_message=see) == 5
        steps = [state.info["current"] for state in states[:-1]]
        assert steps
        assert steps == sorted(set(steps))
        assert {state.status for state in states[:-1]} == {"progress"}
        assert (states[-1].status, states[-1].result) == ("success", 5)
        seen: list[Any] = []
        assert asyncio.run(count.delay(3).aget(SOON, on_message=seen.append)) == 3
        assert seen[-1].status == "success"
        screen = StringIO()
        assert count.delay(5).follow(SOON, stream=screen).status == "success"
        assert "[##############################] 100%  success" in screen.getvalue()
        assert "at 5" in screen.getvalue()
        job = count.delay(3)
        job.get(SOON)
        assert job.progress == {"current": 3, "total": 3, "message": "at 3"}


def test_the_failure_is_the_last_message(make_app: MakeApp) -> None:
    app = make_app()

    @app.task(bind=True, retries=0)
    def fail(self: Task[..., Any]) -> None:
        self.update_state("HALFWAY", meta=1)
        raise ValueError("broken")

    states: list[Any] = []
    with working(app):
        error: object = fail.delay().get(SOON, propagate=False, on_message=states.append)
    assert isinstance(error, ValueError)
    assert states[-1].status == "failure"
    assert "broken" in states[-1].error
    assert {state.status for state in states[:-1]} <= {"halfway"}


@pytest.mark.parametrize("end", ["success", "failure", "expired", "cancelled"])
def test_a_job_keeps_its_topic_and_publish_time(make_app: MakeApp, end: str) -> None:
    """Also when only its id is known, and after the message is gone."""
    app = make_app()

    @app.task(topic="mail.{customer}", retries=0)
    def mail(customer: str) -> None:
        if customer == "bad":
            raise ValueError(customer)

    before = time.time()
    job = mail.using(ttl=0.001 if end == "expired" else "1h").enqueue(
        "bad" if end == "failure" else "acme"
    )
    if end == "cancelled":
        assert job.cancel()
    with working(app):
        job.wait(SOON)
    state = app.job(job.id).state()
    assert state.status == end
    assert state.topic == job.topic
    assert state.published_at == pytest.approx(before, abs=60)


def test_a_run_that_was_replaced_says_nothing_more(make_app: MakeApp) -> None:
    """Its lease is lost: what it notes is not kept."""
    app = make_app()

    @app.task
    def task() -> None:
        pass

    job = task.delay()
    (first,) = app.lease(1)
    first.release()
    (_,) = app.lease(1)
    assert not job.note("LATE", 1, first.lease.handle, first.lease.fence)
    assert job.status == "started"


def test_meta_is_kept_from_inside_and_outside(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    def task() -> None:
        request = current_request()
        assert request is not None
        job = app.job(request.id)
        job.meta["seen"] = True
        job.save_meta()

    job = task.delay()
    job.meta["by"] = "hand"
    job.save_meta()
    with working(app):
        job.get(SOON)
    assert app.job(job.id).meta == {"by": "hand", "seen": True}
    job.meta["wrong"] = object()
    with pytest.raises(UsageError, match="JSON cannot hold"):
        job.save_meta()


def test_what_runs_is_stopped(make_app: MakeApp) -> None:
    """
    A coroutine is cancelled, a child killed, a thread asked; each at once, long before its lease is
    prolonged.
    """
    app = make_app()
    began, ended = threading.Semaphore(0), threading.Semaphore(0)
    how: list[str] = []

    @app.task
    async def coroutine() -> None:
        try:
            began.release()
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            how.append("coroutine")
            ended.release()
            raise

    @app.task
    def thread() -> None:
        try:
            began.release()
            while True:
                time.sleep(0.005)  # the handler's own work
        except JobCancelled:
            how.append("thread")
            ended.release()
            raise

    with working(app):
        for task in (coroutine, thread):
            job = task.delay()
            assert began.acquire(timeout=SOON)
            assert job.status == "started"
            assert job.cancel()
            assert ended.acquire(timeout=SOON)
            with pytest.raises(JobCancelled):
                job.get(SOON)
            assert job.status == "cancelled"
            assert not job.cancel(), "it has ended already"
    assert how == ["coroutine", "thread"]
    assert app.topic("task.x").stats().leased == 0


def test_a_child_is_killed(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    task: Task[..., None] = app.task(isolation="process")(apart.endless.function)
    file = tmp_path / "pid"
    with working(app):
        job = task.delay(str(file))
        deadline = time.monotonic() + SOON
        while not (file.exists() and file.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.01)  # it writes its number when it runs
        assert job.cancel()
        pid = int(file.read_text())
        while is_running(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)  # until it is gone


def test_other_ends_are_reported(make_app: MakeApp) -> None:
    """Expired, purged, dead without an end of its own."""
    app = make_app()

    @app.task
    def task() -> None:
        pass

    expired = task.using(ttl=0.001).enqueue()
    time.sleep(0.01)  # its ttl
    purged = task.delay()
    unread = task.delay()
    app.engine.tick()
    with pytest.raises(JobExpired, match="its ttl ended"):
        expired.get(SOON)
    assert expired.status == "expired"
    app.topic("task.x").purge()
    app.topic(str(unread.topic)).purge()
    for job in (purged, unread):
        with pytest.raises(JobCancelled):
            job.get(SOON)
    nobodys = app.publish(
        "task.nobody",
        {"args": [], "kwargs": {}},
        headers={"laneway-task": "gone", "laneway-result-ttl": "60,60"},
    )
    (delivery,) = app.lease(1)
    delivery.dead("nobody wants it")
    job = app.job(nobodys.id)
    with pytest.raises(JobDead, match="nobody wants it"):
        job.get(SOON)
    assert job.requeue()
    assert job.status == "pending"
    job.delete()
    assert job.status == "unknown"


def test_a_job_that_is_redriven_has_not_ended(make_app: MakeApp) -> None:
    app = make_app()
    works = threading.Event()

    @app.task(retries=0)
    def task() -> str:
        if not works.is_set():
            raise ValueError("not yet")
        return "now"

    with working(app):
        job = task.delay()
        with pytest.raises(ValueError, match="not yet"):
            job.get(SOON)
        works.set()
        assert job.requeue()
        assert job.get(SOON) == "now"


def test_merged_calls_share_a_result(make_app: MakeApp) -> None:
    app = make_app()

    @app.task(key="{n}", merge="first")
    def task(n: int) -> int:
        return n

    first, second = task.delay(1), task.delay(1)
    assert (second.outcome, second.id) == ("merged", first.id)
    with working(app):
        assert second.get(SOON) == first.get(SOON) == 1


def test_jobs_of_two_topics_with_the_same_id(make_app: MakeApp) -> None:
    """Each has its own result, progress and end; cancelling or deleting one changes only that."""
    app = make_app()
    goes_on = {customer: threading.Event() for customer in ("slow", "stopped", "fast")}
    was_stopped, stopped = threading.Event(), []
    goes_on["fast"].set()

    @app.task(bind=True, topic="export.{customer}", id="export")
    async def export(self: Task[..., Any], customer: str) -> str:
        self.update_state(meta={"customer": customer})
        try:
            await asyncio.to_thread(goes_on[customer].wait, SOON)
        except asyncio.CancelledError:
            stopped.append(customer)
            was_stopped.set()
            raise
        return customer

    with working(app):
        slow, other, fast = (export.delay(customer) for customer in goes_on)
        assert slow.id == other.id == fast.id
        assert slow != other
        assert fast.get(SOON) == "fast"
        assert app.job("export", "export.fast").result == "fast"
        assert (slow.ready(), other.ready()) == (False, False)
        fast.delete()
        assert fast.status == "unknown"
        wait_for_progress = next(each for each in slow.watch(SOON) if each.info is not None)
        assert wait_for_progress.info == {"customer": "slow"}
        assert app.job("export").status == "unknown", "its topic depends on an argument"
        assert other.cancel()
        assert was_stopped.wait(SOON)
        goes_on["slow"].set()
        assert slow.get(SOON) == "slow"
        assert stopped == ["stopped"]
        with pytest.raises(JobCancelled):
            other.get(SOON)
        goes_on["stopped"].set()


def test_a_job_is_known_in_another_process(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    def task() -> int:
        return 41

    job = task.delay()
    program = (
        "import sys; from laneway import Laneway; "
        f"app = Laneway({app.url!r}, namespace={app.namespace!r}); job = app.job({job.id!r}); "
        "print(job.status, flush=True); print(job.get(30) + 1, flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "pending\n"
        with working(app):
            assert other.stdout.readline() == "42\n"


def test_waiting_inside_a_task_is_warned_of(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()

    @app.task
    def inner() -> int:
        return 1

    @app.task
    def outer() -> int:
        return inner.delay().get(SOON) + 1

    with working(app), caplog.at_level(logging.WARNING, "laneway.job"):
        assert outer.delay().get(SOON) == 2
    assert "waited for inside a task" in caplog.text


def test_jobs_in_the_tests_of_a_program() -> None:
    """Eager: the handle has the result. In a virtual world: once the worker has run."""
    app = Laneway("sqlite://")

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    @app.task
    def stop() -> None:
        raise StopIteration("early")

    with eager(app):
        assert add.delay(1, 2).get() == 3
        assert add.delay(1, 2).status == "success"
        with pytest.raises(StopIteration, match="early"):
            stop.delay()
    with virtual(app) as world:
        job = add.using(delay="1h").enqueue(1, 2)
        assert job.status == "delayed"
        with pytest.raises(
            UsageError,
            match=(
                r"it is delayed, and nothing runs on its own in a virtual world; call"
                r" world\.run\(\) first"
            ),
        ):
            job.get()
        world.run_all()
        assert job.get(0) == 3

        async def wait() -> int:
            return await job

        assert asyncio.run(wait()) == 3


def test_a_body_of_another_program_is_reported(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    def task(n: int) -> int:
        return n

    headers = {"laneway-task": task.name, "laneway-result-ttl": "60,60"}
    receipt = app.publish(str(task.delay(1).topic), ["nonsense"], headers=headers)
    with working(app), pytest.raises(LanewayError, match="not a call of task"):
        app.job(receipt.id).get(SOON)


def test_waiting_goes_on_through_a_restart_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A waiter for a job does not notice, except for a line in the log."""
    monkeypatch.setattr(wakeup, "LOOK_AGAIN", 0.5)
    with (
        Server(appendonly="yes", appendfsync="always") as server,
        Laneway(server.url, durability="fsync") as app,
    ):

        @app.task
        def task() -> str:
            return "there"

        job = task.delay()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(job.get, SOON)
            deadline = time.monotonic() + SOON
            while job.id not in str(server.run("PUBSUB", "CHANNELS")):
                assert time.monotonic() < deadline
                time.sleep(0.005)  # until it listens
            server.kill()
            server.start()
            with working(app):
                assert waiting.result() == "there"


def is_running(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
