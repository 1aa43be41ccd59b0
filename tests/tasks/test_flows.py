"""
Calls that follow each other: chains, groups, chords, nested; links; failures in the middle;
cancelling; workers that are killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from laneway import (
    BadMessage,
    JobCancelled,
    JobDead,
    JobExpired,
    Laneway,
    Task,
    UsageError,
    chain,
    chord,
    group,
)
from laneway.engines.base import UNTIL_SIGNALLED_US
from laneway.testing import eager, virtual
from tests.seeds import seed_for
from tests.tasks.conftest import MakeApp, working

SOON = 120.0


class Tasks:
    """The tasks of the flows in these tests."""

    def __init__(self, app: Laneway) -> None:
        self.app = app
        self.called: list[Any] = []

        @app.task(name="add")
        def add(a: int, b: int) -> int:
            return a + b

        @app.task(name="double")
        async def double(n: int) -> int:
            return 2 * n

        @app.task(name="total")
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        @app.task(name="fail", retries=0)
        def fail(*args: Any) -> int:
            raise ValueError(f"no: {args}")

        @app.task(name="note")
        def note(*what: Any) -> None:
            self.called.append(what)

        self.add, self.double, self.total, self.fail, self.note = add, double, total, fail, note


@contextmanager
def at_work(make_app: MakeApp) -> Iterator[Tasks]:
    tasks = Tasks(make_app())
    with working(tasks.app):
        yield tasks


def test_results_pass_on(make_app: MakeApp) -> None:
    with at_work(make_app) as t:
        assert (t.add.s(1, 2) | t.add.s(10) | t.double.s()).enqueue().get(SOON) == 26
        assert chain(t.add.s(1, 2), t.add.s(10)).delay().get(SOON) == 13
        assert chain(t.add.s(2), t.double.s()).delay(5).get(SOON) == 14, (
            "what delay says goes first"
        )
        assert (t.add.s(1, 2) | t.add.si(5, 5)).enqueue().get(SOON) == 10, "si takes nothing"
        assert chain(t.add.s(1, 1)).enqueue().get(SOON) == 2
        job = (t.add.s(1, 2) | t.add.s(10)).enqueue()
        assert job.get(SOON) == 13
        assert job.parent is not None
        assert job.parent.get(SOON) == 3


def test_groups_and_chords(make_app: MakeApp) -> None:
    with at_work(make_app) as t:
        call = group(t.add.s(n, n) for n in range(5)).enqueue()
        assert call.get(SOON) == [0, 2, 4, 6, 8]
        assert (
            len(call),
            call.ready(),
            call.successful(),
            call.failed(),
            call.completed_count(),
        ) == (5, True, True, False, 5)
        assert chord([t.add.s(n, n) for n in range(5)], t.total.s()).enqueue().get(SOON) == 20
        assert chord(t.add.s(n, n) for n in range(3))(t.total.s()).get(SOON) == 6, (
            "Celery's way of writing it"
        )
        assert (group(t.add.s(1, 1), t.add.s(2, 2)) | t.total.s()).enqueue().get(SOON) == 6
        assert chord([], t.total.s()).enqueue().get(SOON) == 0, "of nothing too"
        assert group(t.add.s(1, 1)).enqueue().get(SOON) == [2]


def test_nested(make_app: MakeApp) -> None:
    with at_work(make_app) as t:
        assert (
            t.add.s(1, 1) | group(t.add.s(10), t.add.s(20)) | t.total.s() | t.add.s(1000)
        ).enqueue().get(SOON) == 1034
        two = group(t.add.s(1, 1), t.add.s(2, 2)) | group(t.total.s(), t.total.s() | t.double.s())
        assert two.enqueue().get(SOON) == [6, 12]
        deep = chord(
            [chord([t.add.s(n, n) for n in range(3)], t.total.s()) for _ in range(3)], t.total.s()
        )
        assert deep.enqueue().get(SOON) == 18
        assert group(group(t.add.s(1, 1)), group(t.add.s(2, 2), t.add.s(3, 3))).enqueue().get(
            SOON
        ) == [2, 4, 6]
        assert (
            chain(chain(t.add.s(1, 1), t.double.s()), chain(t.double.s())).enqueue().get(SOON) == 8
        )


def test_chunks(make_app: MakeApp) -> None:
    """Many calls in few messages."""
    with at_work(make_app) as t:
        assert t.add.chunks([(n, n) for n in range(10)], 4).enqueue().get(SOON) == [
            [0, 2, 4, 6],
            [8, 10, 12, 14],
            [16, 18],
        ]
        assert t.double.chunks([(n,) for n in range(3)], 2).enqueue().get(SOON) == [[0, 2], [4]]
        with pytest.raises(BadMessage, match="missing a required argument"):
            t.add.chunks([(1,)], 2)


def test_a_chord_of_thousands(make_app: MakeApp) -> None:
    """
    Each member costs one signal, the body gets all results at once; messages that open the flow
    signal a hundred each.
    """
    with at_work(make_app) as t:
        before = t.app.engine.overview().published
        assert (
            chord([t.double.s(n) for n in range(3_000)], t.total.s()).enqueue().get(300)
            == 8_997_000
        )
        openers = (
            1 + 31 + 1
        )  # the root, what it signals, and the message that would end the flow in an hour
        assert t.app.engine.overview().published - before == 3_001 + openers


def test_what_is_linked_is_called(make_app: MakeApp) -> None:
    with at_work(make_app) as t:
        job = t.add.using(
            link=[t.note.s("linked"), t.note.si("without")], link_error=t.note.s()
        ).enqueue(1, 2)
        assert job.get(SOON) == 3
        failed = t.fail.using(link=t.note.s("never"), link_error=t.note.s()).enqueue(7)
        assert isinstance(failed.get(SOON, propagate=False), ValueError)
        until(lambda: len(t.called) == 3)
    (without,) = [what for what in t.called if what == ("without",)]
    assert without
    assert (3, "linked") in t.called
    (arguments,) = [what for what in t.called if len(what) == 3]
    assert arguments[:2] == (failed.id, "ValueError: no: (7,)")
    assert "Traceback" in arguments[2]


def until(is_so: Any) -> None:
    deadline = time.monotonic() + SOON
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # what is waited for has no handle


def test_a_failure_in_the_middle_reaches_the_end(make_app: MakeApp) -> None:
    """The error as itself at the handle, the error's handler once, and nothing behind it runs."""
    with at_work(make_app) as t:
        job = (
            (t.add.s(1, 1) | t.fail.s() | t.note.s("never") | t.note.s("nor this"))
            .on_error(t.note.si("error"))
            .enqueue()
        )
        with pytest.raises(ValueError, match=r"no: \(2,\)"):
            job.get(SOON)
        assert [each.status for each in job.before] == ["success", "failure", "failure"]
        until(lambda: t.called)
        body = chord([t.add.s(1, 1), t.fail.s(5), t.add.s(2, 2)], t.note.s("never")).enqueue()
        with pytest.raises(ValueError, match="no:"):
            body.get(SOON)
        members = group(t.add.s(1, 1), t.fail.s(5)).enqueue()
        with pytest.raises(ValueError, match="no:"):
            members.get(SOON)
        assert members.get(SOON, propagate=False)[0] == 2
        assert members.failed()
    assert t.called == [("error",)]


def test_retries_come_before_a_failure(make_app: MakeApp) -> None:
    tasks = Tasks(make_app())
    attempts: list[int] = []

    @tasks.app.task(bind=True, retries=2, backoff=0)
    def at_last(self: Task[..., Any]) -> int:
        attempts.append(self.request.attempt)
        if len(attempts) < 3:
            raise ValueError("not yet")
        return 5

    @tasks.app.task(retries=1, backoff=0)
    def never() -> int:
        raise ValueError("never")

    with working(tasks.app):
        assert (at_last.s() | tasks.double.s()).enqueue().get(SOON) == 10
        with pytest.raises(ValueError, match="never"):
            (never.s() | tasks.double.s()).enqueue().get(SOON)
        assert tasks.app.dead_letters.list()[0].reason.startswith(
            "retries used up (2 attempts): ValueError: never"
        )
    assert attempts == [1, 2, 3]


def test_a_flow_is_cancelled(make_app: MakeApp) -> None:
    """What waits, what waits for that, and what runs."""
    tasks = Tasks(make_app())
    began, ended = threading.Event(), threading.Event()

    @tasks.app.task
    async def endless() -> None:
        began.set()
        try:
            await asyncio.sleep(100)
        finally:
            ended.set()

    waiting = (
        tasks.add.signature((1, 1), delay=100) | tasks.double.s() | tasks.double.s()
    ).enqueue()
    is_spread = (
        tasks.app.engine.capabilities.shards > 1
    )  # the flow is stored in several steps, and not open yet
    assert [job.status for job in (*waiting.before, waiting)] == [
        "deferred" if is_spread else "delayed",
        "deferred",
        "deferred",
    ]
    assert waiting.cancel()
    assert [job.status for job in (*waiting.before, waiting)] == ["cancelled"] * 3
    with working(tasks.app):
        running = (endless.s() | tasks.note.si("never")).enqueue()
        assert began.wait(SOON)
        assert running.before[0].cancel(), "one step: those behind it fail"
        assert ended.wait(SOON)
        with pytest.raises(JobCancelled):
            running.get(SOON)
        members = group(tasks.add.signature((1, n), delay=100) for n in range(3)).enqueue()
        assert members.cancel() == 3
        until(lambda: tasks.app.engine.overview().waiting == 0)
    assert tasks.called == []


def test_an_end_that_no_handler_reported_reaches_the_end_of_the_flow(make_app: MakeApp) -> None:
    tasks = Tasks(make_app())
    expired = (tasks.add.signature((1, 1), ttl=0.01) | tasks.double.s()).enqueue()
    time.sleep(0.02)  # its ttl
    with working(tasks.app), pytest.raises(JobExpired):
        expired.get(SOON)
    dead = (tasks.add.s(1, 1) | tasks.double.s()).enqueue()
    tasks.app.policy("task.add", retries=0)
    (delivery,) = tasks.app.lease(1)
    delivery.retry()
    with working(tasks.app), pytest.raises(JobDead):
        dead.get(SOON)


def test_parts_are_distinguished(make_app: MakeApp) -> None:
    """A topic from arguments, a key, options of one call, other serializers."""
    tasks = Tasks(make_app())

    @tasks.app.task(topic="customer.{who}", key="{who}", serializer="pickle")
    def greet(n: int, who: str) -> set[int]:
        return {n, len(who)}

    @tasks.app.task(serializer="pickle")
    def count(found: set[int]) -> int:
        return len(found)

    with working(tasks.app):
        flow = tasks.add.s(1, 1) | greet.s("acme") | count.s()
        assert flow.enqueue().get(SOON) == 2
        assert (
            tasks.add.s(1, 1) | tasks.double.s().set(priority=9, topic="elsewhere", delay=0)
        ).enqueue().topic == "elsewhere"
    with pytest.raises(BadMessage, match="cannot contain the result of an earlier call"):
        (
            tasks.add.s(1, 1)
            | greet.s(who="x").set()
            | tasks.app.task(topic="by.{n}", name="by")(lambda n: n).s()
        ).enqueue()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda t: chain(t.add), "expected a call like"),
        (lambda t: t.add.s(1) | 5, "expected a call like"),
        (lambda _: chain(), "at least one call"),
        (lambda t: t.add.s(1, 1).link_error(t.add), "expected a call of a task"),
        (lambda t: t.add.s(1, 1).set(prioriti=5), 'did you mean "priority"'),
        (lambda t: (t.add.s(1, 1) | t.add.s()).enqueue(), "missing a required argument"),
        (
            lambda t: (t.add.s(1, 1) | Tasks(Laneway("sqlite://")).add.s(1)).enqueue(),
            "several applications",
        ),
    ],
)
def test_what_is_no_flow_is_refused(make: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make(Tasks(Laneway("sqlite://")))


@pytest.mark.parametrize(
    "policy",
    [
        {"partitions": 4},
        {"buckets": 2},
        {"serial": "hold"},
        {"merge": "all"},
        {"delivery": "at_most_once"},
        {"ttl": 60},
        {"dedupe": 60},
        {"rate": 1000, "concurrency": 2, "max_backlog": 100},
    ],
    ids=str,
)
def test_flows_under_every_policy(make_app: MakeApp, policy: dict[str, Any]) -> None:
    tasks = Tasks(make_app())
    app, add, total = tasks.app, tasks.add, tasks.total
    app.policy("flow.*", **policy)
    with working(app):
        assert (add.si(1, 2).set(topic="flow.1") | total.si([4]).set(topic="flow.2")).enqueue().get(
            SOON
        ) == 4
        members = [add.s(n, n).set(topic=f"flow.{n % 3}") for n in range(30)]
        assert chord(members, total.s().set(topic="flow.total")).enqueue().get(SOON) == 870
        keyed = (
            add.s(1, 1).set(topic="flow.1", key="k")
            | tasks.double.s().set(topic="flow.1", key="l")
            | tasks.double.s().set(topic="flow.2")
        )
        assert keyed.enqueue().get(SOON) == 8
        later = add.signature((1, 1), topic="flow.1", delay=50, key="k") | tasks.double.s().set(
            topic="flow.1"
        )
        job = later.enqueue()
        assert job.before[0].cancel()
        with pytest.raises(JobCancelled):
            job.get(SOON)
        until(lambda: app.engine.overview().waiting + app.engine.overview().leased == 0)
    assert [check for check in app.engine.doctor() if not check.ok] == []


@pytest.mark.parametrize("merge", ["first", "last", "all"])
def test_steps_are_not_merged(make_app: MakeApp, merge: Any) -> None:
    """Each of two flows with equal first steps ends, and so does a call that is equal to these."""
    tasks = Tasks(make_app())
    tasks.app.policy("flow.*", merge=merge)
    call = tasks.double.s(2).set(topic="flow.1", key="k")
    flow = chain(call, tasks.add.s(1))
    calls = [call.clone(), flow.clone(), flow.clone(), call.clone()]
    jobs = [each.enqueue() for each in calls]
    tasks.app.run_worker(burst=True)
    assert [job.get(timeout=SOON) for job in jobs] == [4, 5, 5, 4]


def test_flows_in_the_tests_of_a_program() -> None:
    t = Tasks(Laneway("sqlite://"))
    flow = t.add.s(1, 1) | group(t.add.s(10), t.double.s()) | t.total.s()
    with eager(t.app):
        assert flow.enqueue().get() == 16
        assert t.add.chunks([(1, 2), (3, 4)], 1).enqueue().get() == [[3], [7]]
    with virtual(t.app) as world:
        job = flow.enqueue()
        world.run_all()
        assert job.get(0) == 16


def test_a_flow_is_awaited(make_app: MakeApp) -> None:
    with at_work(make_app) as t:

        async def main() -> None:
            job = await (t.add.s(1, 1) | t.double.s()).aenqueue()
            assert await job == 4
            members = await group(t.add.s(n, n) for n in range(3)).adelay()
            assert await members == [0, 2, 4]

        asyncio.run(main())


def test_a_step_waits_until_it_may(make_app: MakeApp) -> None:
    """Deferred: reported as such, and explained."""
    tasks = Tasks(make_app())
    job = (tasks.add.s(1, 1) | tasks.double.s()).enqueue()
    assert job.status == "deferred"
    view = tasks.app.engine.find(job.id, job.topic)
    assert view is not None
    assert view.since_us == UNTIL_SIGNALLED_US
    reasons = tasks.app.explain(job.id, job.topic).reasons
    assert "waits for 1 of 1 jobs before it" in reasons[0]


def test_what_cannot_be_published_with_an_end_is_tried_again(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The topic of the error's handler is full: the message is handled again later; the others of the
    batch are settled.
    """
    monkeypatch.setattr("laneway.working.settler.FOLLOWER_RETRY_US", 50_000)
    tasks = Tasks(make_app())
    tasks.app.policy("task.note", max_backlog=1, paused=True)
    tasks.note.delay("fills it")
    failing = tasks.fail.s(1).on_error(tasks.note.si("error"))
    with working(tasks.app):
        job = failing.enqueue()
        assert tasks.add.delay(1, 1).get(SOON) == 2
        until(lambda: "cannot publish its follow-up" in caplog.text)
        assert not job.ready()
        tasks.app.policy("task.note", max_backlog=None, paused=False)
        with pytest.raises(ValueError, match="no:"):
            job.get(SOON)
        until(lambda: ("error",) in tasks.called)


ROUNDS = int(os.environ.get("LANEWAY_KILLS", "8"))

WORKER = """
import sys, time
from laneway import Laneway
app = Laneway(sys.argv[1], namespace=sys.argv[2])
app.policy("task.*", lease=1, retries=1000)
@app.task(name="step")
def step(n, by):
    with open(sys.argv[3], "a") as log:
        log.write(f"{n}\\n")
    time.sleep(0.002)  # the work: kills should fall into it
    return n + by
@app.task(name="total")
def total(numbers):
    return sum(numbers)
app.run_worker(concurrency=4)
"""


def test_flows_go_on_through_kills(make_app: MakeApp, tmp_path: Path) -> None:
    """Workers end with SIGKILL at any moment: no step is lost, and none is published twice."""
    seed = seed_for("LANEWAY_KILLS")
    print(f"LANEWAY_SEED={seed}")
    draw = random.Random(seed)
    app = make_app()
    app.policy("task.*", lease=1, retries=1000)

    @app.task(name="step")
    def step(n: int, by: int) -> int:
        return n + by

    @app.task(name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    flows = [
        chord([step.s(n, 1) | step.s(1) | step.s(1) for n in range(10)], total.s()) | step.s(1000)
        for _ in range(20)
    ]
    jobs = [flow.enqueue() for flow in flows]
    published = app.engine.overview().published
    log = tmp_path / "log"
    log.touch()
    program = [sys.executable, "-c", WORKER, app.url, app.namespace, str(log)]
    workers = [subprocess.Popen(program) for _ in range(2)]
    try:
        for _ in range(ROUNDS):
            size, deadline = log.stat().st_size, time.monotonic() + 60
            while (
                log.stat().st_size == size
                and time.monotonic() < deadline
                and not all(job.ready() for job in jobs)
            ):
                time.sleep(
                    0.005
                )  # until one of them is at work: it is another process's file that is looked at
            time.sleep(draw.uniform(0, 0.05))  # the moment of the kill is what is random
            victim = workers.pop(draw.randrange(len(workers)))
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            workers.append(subprocess.Popen(program))
        assert [job.get(300) for job in jobs] == [sum(range(10)) + 30 + 1000] * 20
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    overview = app.engine.overview()
    assert (overview.published, overview.waiting, overview.dead) == (published, 0, 0)
    assert [check for check in app.engine.doctor() if not check.ok] == []
