"""RQ programs run when only their import is changed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis

from laneway import Laneway, UsageError
from laneway.compat import rq
from laneway.compat.addresses import url_of
from laneway.compat.rq import (
    Callback,
    Dependency,
    Job,
    NoSuchJobError,
    Queue,
    Retry,
    SimpleWorker,
    Worker,
    get_current_job,
)
from laneway.compat.rq.decorators import job
from laneway.testing.servers import Server
from tests.compat import rq_functions as functions
from tests.conformance.valkey_setups import server


@pytest.fixture
def connection() -> Iterator[Laneway]:
    with Laneway(server().url, namespace=uuid4().hex) as app:
        yield app


def test_first_steps(connection: Laneway) -> None:
    """A job has RQ's attributes before and after it runs."""
    queue = Queue(connection=connection)
    job = queue.enqueue(functions.count_words, "one two three")
    assert (job.get_id(), job.get_status(), job.result, job.origin, job.is_queued) == (
        job.id,
        "queued",
        None,
        "default",
        True,
    )
    assert (len(queue), queue.count, queue.job_ids, queue.jobs) == (1, 1, [job.id], [job])
    assert SimpleWorker([queue], connection=connection).work(burst=True)
    assert (job.get_status(), job.result, job.return_value(), job.is_finished) == (
        "finished",
        3,
        3,
        True,
    )
    assert job.ended_at is not None
    assert job.ended_at <= datetime.now(UTC)
    assert not SimpleWorker([queue]).work(burst=True), "nothing is left"


def test_enqueue_methods(connection: Laneway) -> None:
    """Functions are enqueued by name, with options, later, and many at once."""
    queue = Queue("low", connection=connection, default_timeout=60)
    jobs = [
        queue.enqueue("tests.compat.rq_functions.count_words", "a"),
        queue.enqueue(functions.count_words, args=("a b",), kwargs={}),
        queue.enqueue_call(func=functions.count_words, args=("a b c",), timeout=30, result_ttl=500),
        queue.enqueue_in(timedelta(seconds=0), functions.count_words, "a"),
        queue.enqueue_at(datetime.now() - timedelta(seconds=1), functions.count_words, "a b"),  # noqa: DTZ005  # as RQ's pages have it
        *queue.enqueue_many(
            [Queue.prepare_data(functions.count_words, ("a b c d",), job_id="mine")]
        ),
    ]
    later = queue.enqueue_in(timedelta(hours=1), functions.count_words, "a")
    assert later.get_status() == "scheduled"
    SimpleWorker(["low"], connection=connection).work(burst=True)
    assert [each.result for each in jobs] == [1, 2, 3, 1, 2, 4]
    assert Job.fetch("mine", connection=connection).result == 4
    assert Job.exists("mine", connection=connection)
    with pytest.raises(NoSuchJobError, match="job nobody"):
        Job.fetch("nobody", connection=connection)
    later.cancel()
    assert later.is_canceled
    later.delete()
    assert queue.fetch_job(later.id) is None


def test_failures(connection: Laneway) -> None:
    """Failed jobs are in the registry, which requeues or removes them."""
    queue = Queue(connection=connection)
    failed = queue.enqueue(functions.fails)
    again = queue.enqueue(functions.fails, retry=Retry(max=2, interval=[0, 0]))
    SimpleWorker([queue]).work(burst=True)
    assert (failed.get_status(), failed.is_failed) == ("failed", True)
    assert "ValueError: always" in str(failed.exc_info)
    assert set(queue.failed_job_registry.get_job_ids()) == {failed.id, again.id}
    assert len(queue.failed_job_registry) == 2
    assert (failed in queue.failed_job_registry, again.id in queue.failed_job_registry) == (
        True,
        True,
    )
    queue.failed_job_registry.requeue(failed)
    assert failed.get_status() == "queued"
    assert failed not in queue.failed_job_registry
    with pytest.raises(NoSuchJobError, match="not among the failed jobs"):
        queue.failed_job_registry.requeue(failed)
    queue.failed_job_registry.remove(again)
    assert queue.failed_job_registry.count == 0


def test_dependencies_and_meta(connection: Laneway) -> None:
    """A dependent job waits, and a job saves its metadata."""
    queue = Queue(connection=connection)
    first = queue.enqueue(functions.fails)
    second = queue.enqueue(
        functions.count_words, "a", depends_on=Dependency([first], allow_failure=True)
    )
    third = queue.enqueue(functions.saves_meta, depends_on=[second], meta={"from": "outside"})
    assert (second.get_status(), third.is_deferred) == ("deferred", True)
    SimpleWorker([queue]).work(burst=True)
    assert second.result == 1
    assert third.get_meta() == {"from": "outside", "handled": True}
    assert get_current_job() is None


def test_queues_by_priority_in_children(connection: Laneway) -> None:
    """A worker runs queues in order, and each job in a child process."""
    high, low = Queue("high", connection=connection), Queue("low", connection=connection)
    jobs = [low.enqueue(functions.count_words, "a"), high.enqueue(functions.count_words, "a b")]
    assert Worker([high, "low"], connection=connection).work(burst=True)
    assert [each.result for each in jobs] == [1, 2]
    ended = [each.ended_at for each in jobs]
    assert ended[1] < ended[0]  # type: ignore[operator]


def test_job_decorator(connection: Laneway) -> None:
    """`@job` adds `delay` to a function."""
    count = job("low", connection=connection, timeout=90)(functions.count_words)
    enqueued = count.delay("a b")  # type: ignore[attr-defined]
    SimpleWorker(["low"], connection=connection).work(burst=True)
    assert enqueued.result == 2


def test_options_of_a_decorated_function(connection: Laneway) -> None:
    """As in RQ, `depends_on`, `job_id` and `at_front` of `delay` are not the function's."""
    count: Any = job("low", connection=connection)(functions.count_words)
    first = count.delay("a b", job_id="mine")
    second = count.delay("a", depends_on=first)
    third = count.delay("a b c", at_front=True)
    assert (first.id, second.is_deferred) == ("mine", True)
    assert Queue("low", connection=connection).job_ids[0] == third.id
    SimpleWorker(["low"], connection=connection).work(burst=True)
    assert (first.result, second.result, third.result) == (2, 1, 3)


def test_times_as_rq_writes_them(connection: Laneway) -> None:
    """-1 is no limit, "1h" is 3,600 s, and a delay that is over is none."""
    queue = Queue(connection=connection)
    endless = queue.enqueue(
        functions.count_words, "a", job_timeout=-1, result_ttl=-1, failure_ttl=-1, ttl=-1
    )
    late = queue.enqueue_in(timedelta(seconds=-5), functions.count_words, "a", job_timeout="1h")
    assert late.get_status() == "queued"
    SimpleWorker([queue]).work(burst=True)
    assert (endless.result, late.result) == (1, 1)


def test_arguments_that_are_no_options_of_rq(connection: Laneway) -> None:
    """Arguments such as `timeout` and `delay` are the function's; RQ has no such options."""
    queue = Queue(connection=connection)
    about: dict[str, Any] = {"timeout": 5, "delay": 600, "at": "noon", "retry_delay": 3}
    jobs = [
        queue.enqueue(functions.fetches, "u", **about),
        queue.enqueue_in(timedelta(0), functions.fetches, "u", **about),
        queue.enqueue_at(datetime(2020, 1, 1, tzinfo=UTC), functions.fetches, "u", **about),
    ]
    SimpleWorker([queue]).work(burst=True)
    assert [each.result for each in jobs] == [["u", 5, 600, "noon", 3]] * 3


@pytest.mark.parametrize("kind", [Worker, SimpleWorker])
def test_callbacks_know_their_job(connection: Laneway, kind: type[Worker]) -> None:
    """A callback reads and changes its job, in a child process too, and by an id of the user's."""
    queue, end = Queue(connection=connection), functions.notes_end
    good = queue.enqueue(
        functions.count_words, "a b", job_id="mine", meta={"of": 1}, on_success=Callback(end, 90)
    )
    bad = queue.enqueue(functions.fails, on_failure=Callback("tests.compat.rq_functions.notes_end"))
    kind([queue]).work(burst=True)
    assert (good.get_meta(), good.result) == ({"of": 1, "ended as": "started: 2"}, 2)
    assert bad.get_meta() == {"ended as": "started: always"}


def test_is_async_false_as_a_worker_would(connection: Laneway) -> None:
    """A job that runs in the caller has its id and metadata; its failure is not raised there."""
    connection.runtime.eager = True
    queue = Queue(is_async=False, connection=connection)
    good = queue.enqueue(functions.count_words, "a b", job_id="mine", meta={"of": 1})
    assert (good.id, good.meta, good.result, good.is_finished) == ("mine", {"of": 1}, 2, True)
    bad = queue.enqueue(functions.fails, job_id="bad")
    assert (bad.id, bad.is_failed, bad.result) == ("bad", True, None)
    assert "ValueError: always" in str(bad.exc_info)
    assert connection.runtime.eager, "it was so before"
    with pytest.raises(UsageError):
        queue.enqueue("tests.compat.rq_functions.missing")


def test_is_async_false(connection: Laneway) -> None:
    """With `is_async=False` a job runs in the caller."""
    assert (
        Queue(is_async=False, connection=connection).enqueue(functions.count_words, "a b").result
        == 2
    )


def test_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis client or URL becomes the store's URL; a broker's URL needs LANEWAY_URL."""
    monkeypatch.delenv("LANEWAY_URL", raising=False)
    with pytest.raises(UsageError, match=r"broker_url: amqp://\S+ Laneway needs no broker.*set"):
        url_of("amqp://guest@localhost//", "broker_url")
    monkeypatch.setenv("LANEWAY_URL", "sqlite://")
    assert url_of("amqp://guest@localhost//", "broker_url") is None
    assert url_of(redis.Redis(host="h", port=7, db=3), "x") == "redis://h:7/3"
    assert (
        url_of(redis.Redis(host="h", username="u", password="p:w"), "x")
        == "redis://u:p%3Aw@h:6379/0"
    )
    assert url_of(redis.Redis(unix_socket_path="/run/r"), "x") == "unix:///run/r"
    assert url_of(redis.Redis(host="h", ssl=True), "x") == "rediss://h:6379/0"
    assert url_of("redis://h", "x") == "redis://h"
    assert url_of(None, "x") is None
    with pytest.raises(UsageError, match="expected a URL or a Redis client"):
        url_of(5, "x")


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda c: Queue("x", connection=c, serializer="pickle"), "serializer is not supported"),
        (
            lambda c: Queue("x", connection=c).started_job_registry,
            "started_job_registry is not supported",
        ),
        (lambda c: Worker([], connection=c), "expected at least one queue"),
        (
            lambda c: Queue("x", connection=c).enqueue("a.b", on_stopped="a.c"),
            "on_stopped is not supported",
        ),
        (lambda c: Queue("x", connection=c, default_timeot=5), 'did you mean "default_timeout"'),
        (
            lambda c: Worker(["x"], connection=c, exception_handlers=[print]),
            "exception_handlers are not supported",
        ),
        (
            lambda c: Queue("x", connection=c).enqueue_call(functions.fails, job_timout=5),
            'did you mean "job_timeout"',
        ),
        (lambda _: Retry(max=0), "at least 1"),
    ],
)
def test_errors_of_unsupported_use(connection: Laneway, use: Any, error: str) -> None:
    """Every unsupported name or value raises an error that explains it."""
    with pytest.raises(UsageError, match=error):
        use(connection)


def test_tutorial_on_the_command_line(tmp_path: Path) -> None:
    """The program of RQ's first page and a worker run as two processes."""
    with Server() as own:
        (tmp_path / "my_module.py").write_text(
            "def count_words_at_url(url):\n    return len(url.split('/'))\n"
        )
        (tmp_path / "first.py").write_text(
            textwrap.dedent(f"""
            from redis import Redis
            from laneway.compat.rq import Queue
            from my_module import count_words_at_url

            q = Queue(connection=Redis(port={own.port}))
            job = q.enqueue(count_words_at_url, 'http://nvie.com')
            print(job.id)
            """)
        )
        first = subprocess.run(
            [sys.executable, "first.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
        program = [
            sys.executable,
            "-m",
            "laneway.compat.rq",
            "high",
            "default",
            "--burst",
            "--url",
            f"redis://127.0.0.1:{own.port}",
        ]
        worker = subprocess.run(
            program,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env=dict(os.environ),
        )
        assert worker.returncode == 0, worker.stderr
        assert "call!my_module:count_words_at_url succeeded in" in worker.stderr
        assert (
            Job.fetch(first.stdout.strip(), connection=f"redis://127.0.0.1:{own.port}").result == 3
        )
        wrong = subprocess.run(
            [*program[:3], "--url", "sqs://x"],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert (wrong.returncode, wrong.stderr.startswith("Error: connection: sqs://")) == (1, True)


def test_a_name_that_is_not_supported_says_what_to_write() -> None:
    with pytest.raises(UsageError, match="give each Queue and Worker its connection"):
        rq.Connection(None)
    assert not hasattr(rq, "_nonsense")
