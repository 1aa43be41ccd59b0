"""RQ's hand: any function by its name, with what RQ's users say of it."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from laneway import BadMessage, Dependency, JobFailed, Laneway, Queue, UsageError
from laneway.testing import eager
from tests.tasks import functions
from tests.tasks.conftest import MakeApp, working

SOON = 120.0


@pytest.fixture(autouse=True)
def _nothing_was_called() -> None:
    functions.CALLED.clear()


def test_any_function_is_called(make_app: MakeApp) -> None:
    """By itself or by its name, plain or a coroutine; with its arguments, and a result."""
    app = make_app()
    queue = app.queue("low")
    with working(app):
        assert queue.enqueue(functions.add, 1, b=2).get(SOON) == 3
        assert queue.enqueue("tests.tasks.functions.add", 1).get(SOON) == 1
        assert queue.enqueue(functions.double, 4).get(SOON) == 8
        with pytest.raises(ValueError, match="wrong"):
            queue.enqueue(functions.fail).get(SOON)
        assert queue.enqueue_call(functions.add, (1,), {"b": 5}, timeout=60).get(SOON) == 6


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda: 1, "defined inside another function"),
        ("tests.tasks.functions.nothing", "no function"),
        ("nowhere.at_all", "no function"),
        ("add", "expected a function or its name"),
        (5, "expected a function or its name"),
    ],
)
def test_what_is_no_function_is_refused(make_app: MakeApp, function: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make_app().queue().enqueue(function)


def test_wrong_calls_are_refused(make_app: MakeApp) -> None:
    queue = make_app().queue()
    with pytest.raises(BadMessage, match="unexpected keyword argument 'c'"):
        queue.enqueue(functions.add, 1, c=2)
    with pytest.raises(UsageError, match='did you mean "job_timeout"'):
        queue.enqueue_call(functions.add, (1,), job_timeuot=5)  # type: ignore[call-arg]


def test_a_queue_that_the_program_does_not_name_runs_nothing(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise every publisher could call any function."""
    publishing, serving = make_app(), make_app()
    job = publishing.queue("theirs").enqueue(functions.note, 1)
    serving.queue("ours")
    with working(serving):
        assert serving.queue("ours").enqueue(functions.add, 1, 2).get(SOON) == 3
        deadline = time.monotonic() + SOON
        while "no handler for message" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.01)  # until the worker has met it
    assert functions.CALLED == []
    assert job.status == "delayed"


def test_what_a_queue_holds(make_app: MakeApp) -> None:
    app = make_app()
    queue = app.queue("low")
    first = queue.enqueue(functions.add, 1)
    second = queue.enqueue(functions.add, 2, at_front=True, job_id="mine", description="adds 2")
    assert [job.id for job in queue.jobs] == queue.job_ids == ["mine", first.id]
    assert (queue.count, len(queue), second.get_position(), first.get_position()) == (2, 2, 0, 1)
    found = queue.fetch_job("mine")
    assert found is not None
    assert found.get_status() == "pending"
    assert queue.fetch_job("other") is None
    assert app.engine.find("mine", "low").headers["description"] == "adds 2"  # type: ignore[index, union-attr]
    assert queue.empty() == 2
    assert queue.is_empty()


def test_later_and_for_a_while(make_app: MakeApp) -> None:
    app = make_app()
    queue = app.queue()
    at = queue.enqueue_at(datetime.now(UTC) + timedelta(hours=1), functions.add, 1)
    in_ = queue.enqueue_in(timedelta(hours=1), functions.add, 1)
    assert at.status == in_.status == "delayed"
    assert queue.enqueue(functions.add, 1, ttl=500, result_ttl=7, failure_ttl=9).id
    views = app.engine.topic_peek("default")
    assert views[0].headers["laneway-result-ttl"] == "7,9"  # type: ignore[index]
    assert views[0].expires_us == views[0].published_us + 500_000_000
    with working(app):
        assert queue.enqueue_in(0.05, functions.add, 2).get(SOON) == 2


def test_many_at_once(make_app: MakeApp) -> None:
    app = make_app()
    queue = app.queue()
    jobs = queue.enqueue_many(Queue.prepare(functions.add, n, job_id=f"n{n}") for n in range(50))
    with working(app):
        assert [job.get(SOON) for job in jobs] == list(range(50))
    assert [job.id for job in jobs[:2]] == ["n0", "n1"]


def test_functions_behind_it_are_called(make_app: MakeApp) -> None:
    app = make_app()
    queue = app.queue()
    with working(app):
        good = queue.enqueue(
            functions.add, 1, on_success=functions.did_well, on_failure=functions.did_badly
        )
        bad = queue.enqueue(
            functions.fail, on_success=functions.did_well, on_failure=functions.did_badly
        )
        good.wait(SOON)
        bad.wait(SOON)
    assert sorted(functions.CALLED, key=str) == [
        ("badly", bad.id, ValueError, "wrong", True),
        ("well", good.id, 1),
    ]


def test_retries_and_meta(make_app: MakeApp) -> None:
    """Not retried unless the call asks for it."""
    app = make_app()
    app.policy("default", backoff=0)
    queue = app.queue()
    with working(app):
        job = queue.enqueue(functions.fail, meta={"for": "acme"})
        job.wait(SOON)
        assert job.meta == {"for": "acme"}
        assert app.dead_letters.list()[0].message.attempt == 1
        assert queue.enqueue(functions.fail, retry=2).wait(SOON)
        assert app.dead_letters.list()[1].message.attempt == 3


@pytest.mark.parametrize("isolation", [None, "process"])
def test_what_takes_too_long_is_stopped(make_app: MakeApp, isolation: Any) -> None:
    app = make_app()
    queue = app.queue("low", isolation=isolation)
    with working(app), pytest.raises(Exception, match=r"stopped after its time limit of 0\.3 s"):
        queue.enqueue(functions.endless, job_timeout=0.3).get(SOON)


def test_a_process_for_each(make_app: MakeApp) -> None:
    app = make_app()
    queue = app.queue("low", isolation="process", default_timeout=60)
    with working(app):
        assert queue.enqueue(functions.pid).get(SOON) != os.getpid()
        with pytest.raises(ValueError, match="wrong"):
            queue.enqueue(functions.fail).get(SOON)


def test_jobs_wait_for_others(make_app: MakeApp) -> None:
    """One or many; those that have ended already, and those that fail."""
    app = make_app()
    queue, other = app.queue(), app.queue("other")
    with working(app):
        done = queue.enqueue(functions.add, 1)
        done.get(SOON)
    slow = other.enqueue(functions.add, 2)
    third = queue.enqueue(functions.results_before, depends_on=[done, slow.id])
    last = queue.enqueue(functions.note, "last", depends_on=third)
    assert (third.status, last.status) == ("deferred", "deferred")
    with working(app):
        assert third.get(SOON) == [1, 2]
        last.get(SOON)
        assert functions.CALLED == [("last",)]
        bad = queue.enqueue(functions.fail)
        after = queue.enqueue(functions.note, "never", depends_on=bad)
        anyway = queue.enqueue(
            functions.results_before, depends_on=Dependency([bad, done], allow_failure=True)
        )
        with pytest.raises(ValueError, match="wrong"):
            after.get(SOON)
        assert anyway.get(SOON) == ["failure", 1]
        assert after.status == "failure"
    assert functions.CALLED == [("last",)]


def test_a_job_whose_dependency_is_cancelled_fails(make_app: MakeApp) -> None:
    app = make_app()
    queue = app.queue()
    first = queue.enqueue_in("1h", functions.add, 1)
    second = queue.enqueue(functions.add, 2, depends_on=first)
    third = queue.enqueue(functions.add, 3, depends_on=second)
    with working(app):
        assert first.cancel()
        for job in (second, third):
            with pytest.raises(JobFailed, match="cancelled"):
                job.get(SOON)


def test_cycles_and_strangers_are_refused(make_app: MakeApp) -> None:
    queue = make_app().queue()
    prepare = Queue.prepare
    with pytest.raises(UsageError, match="in a cycle: a → c → b → a"):
        queue.enqueue_many(
            [
                prepare(functions.add, 1, job_id="a", depends_on="c"),
                prepare(functions.add, 1, job_id="b", depends_on="a"),
                prepare(functions.add, 1, job_id="c", depends_on=["b"]),
            ]
        )
    with pytest.raises(UsageError, match="job x depends on itself"):
        queue.enqueue(functions.add, 1, job_id="x", depends_on="x")
    with pytest.raises(UsageError, match="names job nobody, which is unknown"):
        queue.enqueue(functions.add, 1, depends_on="nobody")
    assert queue.count == 0


def test_a_graph_in_any_order(make_app: MakeApp) -> None:
    app = make_app()
    queue = app.queue()
    prepare = Queue.prepare
    jobs = queue.enqueue_many(
        [
            prepare(functions.results_before, job_id="d", depends_on=["b", "c"]),
            prepare(functions.results_before, job_id="b", depends_on="a"),
            prepare(functions.add, 5, job_id="a"),
            prepare(functions.results_before, job_id="c", depends_on=["a"]),
        ]
    )
    with working(app):
        assert jobs[0].get(SOON) == [[5], [5]]


def test_queues_in_order(make_app: MakeApp) -> None:
    """A worker that serves named queues takes the first while it has anything."""
    app = make_app()
    low, high = app.queue("low"), app.queue("high")
    for n in range(3):
        low.enqueue(functions.note, "low", n)
        high.enqueue(functions.note, "high", n)
    app.run_worker(topics=["high", "low"], concurrency=1, burst=True)
    assert [what for what, _ in functions.CALLED] == ["high"] * 3 + ["low"] * 3


def test_eager_queues() -> None:
    app = Laneway("sqlite://")
    with eager(app):
        assert app.queue().enqueue(functions.add, 1, 2).get() == 3
