"""
Patterns from RQ's documentation: prepare_data, results, max_jobs, types of arguments, attributes
of jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from laneway import BadMessage, Laneway, UsageError
from laneway.compat.rq import Queue, Result, SimpleWorker, Worker
from tests.compat import rq_functions as functions
from tests.conformance.valkey_setups import server
from tests.working.support import until


@pytest.fixture(params=["sqlite", "valkey"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Laneway]:
    url = f"sqlite:///{tmp_path}/q.db" if request.param == "sqlite" else server().url
    with Laneway(url, namespace=uuid4().hex) as app:
        yield app


def test_max_jobs(connection: Laneway) -> None:
    """A worker exits after `max_jobs` jobs, with and without burst; unknown options are refused."""
    queue = Queue("patterns", connection=connection)
    jobs = [queue.enqueue(functions.count_words, "a") for _ in range(3)]
    worker = SimpleWorker([queue], connection=connection)
    assert worker.work(burst=True, max_jobs=1)
    assert [job.is_finished for job in jobs] == [True, False, False]
    assert worker.work(max_jobs=1)
    assert [job.is_finished for job in jobs] == [True, True, False]
    with pytest.raises(UsageError, match="max_idle_time"):
        worker.work(burst=True, max_idle_time=5)
    with pytest.raises(UsageError, match="enqueue_dependents"):
        jobs[2].cancel(enqueue_dependents=True)


def test_prepare_data_and_results(connection: Laneway) -> None:
    """`prepare_data` takes RQ's arguments, and a result has its type."""
    queue = Queue("patterns", connection=connection)
    returns, fails = queue.enqueue_many(
        [
            Queue.prepare_data(functions.count_words, ("one two",), job_id="mine", timeout=60),
            Queue.prepare_data(functions.fails, kwargs={}),
        ]
    )
    assert returns.latest_result() is None
    SimpleWorker([queue], connection=connection).work(burst=True)
    result = returns.latest_result(timeout=60)
    assert result is not None
    assert (returns.id, result.type, result.return_value, result.exc_string) == (
        "mine",
        Result.Type.SUCCESSFUL,
        2,
        None,
    )
    failed = fails.latest_result(timeout=60)
    assert failed is not None
    assert (failed.type, failed.return_value) == (Result.Type.FAILED, None)
    assert "Error" in str(failed.exc_string)
    assert [each.type for each in returns.results()] == [Result.Type.SUCCESSFUL]


def test_names_are_not_imported(connection: Laneway) -> None:
    """Enqueueing a function by name does not import it: a web process may not have it."""
    queue = Queue("patterns", connection=connection)
    queue.enqueue("nobody.has.this", 1)
    before = set(sys.modules)
    job = queue.enqueue("tests.compat.rq_functions.count_words", "a b")
    assert set(sys.modules) == before
    assert SimpleWorker([queue], connection=connection).work(max_jobs=1)
    assert job.return_value() == 2


VALUES = [
    datetime(2027, 1, 1, tzinfo=UTC),
    datetime(2027, 1, 1),  # noqa: DTZ001
    date(2027, 1, 1),
    timedelta(seconds=5),
    UUID(int=5),
    Decimal("1.50"),
    b"x",
    (1, (2, 3)),
    {1, 2},
    frozenset({3}),
    {1: 2, (1, 2): [b"y"]},
    {"__type__": "datetime", "__value__": "no"},
    [None, True, 1.5, "text"],
]


def test_types_of_arguments(connection: Laneway) -> None:
    """
    Arguments and results of unannotated functions keep their types; other types are refused.
    """
    queue = Queue("patterns", connection=connection)
    jobs = [queue.enqueue(functions.same, value) for value in VALUES]
    named = queue.enqueue(functions.same, value=(1, 2))
    SimpleWorker([queue], connection=connection).work(burst=True)
    for value, job in zip([*VALUES, (1, 2)], [*jobs, named], strict=True):
        assert (type(job.return_value()), job.return_value()) == (type(value), value)
    with pytest.raises(BadMessage, match="would change when it is stored"):
        queue.enqueue(functions.same, object())


def test_attributes(connection: Laneway) -> None:
    """
    A job knows when it was enqueued, whether just enqueued or fetched; the error of another
    attribute names RQ itself.
    """
    queue = Queue("patterns", connection=connection)
    enqueued = queue.enqueue(functions.count_words, "a b", description="counts", job_timeout=70)
    fetched = queue.fetch_job(enqueued.id)
    assert fetched is not None
    for job in (enqueued, fetched):
        assert isinstance(job.created_at, datetime)
        assert not hasattr(job, "description")
        with pytest.raises(UsageError, match="run RQ itself"):
            job.to_dict()
    SimpleWorker([queue], connection=connection).work(burst=True)
    assert enqueued.enqueued_at is not None


def test_ttl(connection: Laneway) -> None:
    """A job whose ttl is over is canceled, not failed."""
    queue = Queue("patterns", connection=connection)
    job = queue.enqueue(functions.count_words, "a", ttl=0.1)
    until(lambda: (connection.engine.tick(), job.get_status() == "canceled")[1])
    assert job.get_status() == "canceled"
    assert len(queue.failed_job_registry) == 0


@pytest.mark.parametrize("kind", [Worker, SimpleWorker])
def test_what_rq_accepts(connection: Laneway, kind: type[Worker]) -> None:
    """
    A call whose arguments do not fit is a failed job, not an error of its caller. `timeout` is
    `job_timeout` unless the function has an argument of that name. Results keep their types.
    """
    queue = Queue("patterns", connection=connection)
    calls = [Queue.prepare_data(functions.count_words, (1, 2)), Queue.prepare_data(functions.fails)]
    wrong = [queue.enqueue(functions.count_words), *queue.enqueue_many(calls)]
    good = queue.enqueue(functions.same, ("a", {1}), timeout="1h")
    kind([queue]).work(burst=True)
    assert [job.is_failed for job in wrong] == [True] * 3
    assert "missing a required argument: 'text'" in str(wrong[0].exc_info)
    assert good.result == ("a", {1})
    eager = Queue("patterns", connection=connection, is_async=False)
    assert eager.enqueue(functions.count_words).is_failed


def test_types_of_celery_arguments(connection: Laneway) -> None:
    """Arguments and results of Celery tasks keep the types that kombu keeps, in chains too."""
    from laneway.compat.celery import Celery, chain
    from tests.tasks.conftest import working

    app = Celery(
        "types", broker=connection.url, namespace=connection.namespace, set_as_current=False
    )

    @app.task
    def same(value):
        assert type(value).__name__ in (
            "datetime",
            "date",
            "UUID",
            "Decimal",
            "bytes",
            "dict",
            "list",
        ), type(value)
        return value

    values: list[Any] = [*VALUES[:3], *VALUES[4:7], {"at": [VALUES[0]]}]
    with app, working(app.laneway):
        for value in values:
            assert same.delay(value).get(timeout=120) == value
            assert chain(same.s(value), same.s())().get(timeout=120) == value
