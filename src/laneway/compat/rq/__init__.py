"""
RQ's API on Laneway: a simple RQ program runs after its import is changed.

    from redis import Redis
    from laneway.compat.rq import Queue

    queue = Queue("low", connection=Redis())
    job = queue.enqueue(count_words_at_url, "http://example.com")

Start a worker with `python -m laneway.compat.rq high low --url redis://localhost`.
docs/from-rq.md lists what is supported.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import Any, ClassVar, cast
from uuid import uuid4

import msgspec

from laneway import config
from laneway.app import Laneway
from laneway.compat.addresses import url_of
from laneway.compat.names import AbsentError, Finder
from laneway.errors import LanewayError, UsageError
from laneway.printable import escaped, without_passwords
from laneway.tasks import outcomes
from laneway.tasks.job import Job as _Job
from laneway.tasks.queue import Call, Dependency, name_of
from laneway.tasks.request import current_request
from laneway.working.error_details import describe
from laneway.working.log_format import TextLines

__all__ = [
    "Callback",
    "Dependency",
    "Job",
    "NoSuchJobError",
    "Queue",
    "Result",
    "Retry",
    "SimpleWorker",
    "Worker",
    "get_current_job",
]

DEFAULT_TIMEOUT = 180
"""Seconds that a job may run by default."""

FOREVER = 3_650 * 86_400
"""Seconds that -1 stands for: RQ has no end then, and Laneway ten years."""

_STATUS = {
    "pending": "queued",
    "delayed": "scheduled",
    "deferred": "deferred",
    "started": "started",
    "retry": "scheduled",
    "success": "finished",
    "failure": "failed",
    "dead": "failed",
    "expired": "canceled",
    "cancelled": "canceled",
}


JobStatus = StrEnum(  # type: ignore[misc]  # by state of Laneway
    "JobStatus",
    {name.upper(): name for name in [*dict.fromkeys(_STATUS.values()), "created", "stopped"]},
)
"""RQ's names of states."""


class NoSuchJobError(LanewayError):
    """There is no job with that id, or its result has expired."""


class Retry:
    """
    How often a job is retried, and the `interval` before each retry in seconds.

    The last one in a list of intervals is used for all further retries.
    """

    def __init__(self, max: int, interval: int | list[int] = 0) -> None:  # noqa: A002  # RQ's name
        if max < 1:
            raise UsageError(f"Retry: expected max to be at least 1, got {max}")
        self.max = max
        self.intervals = [interval] if isinstance(interval, int) else interval


class Callback:
    """
    A function for `on_success` or `on_failure`, or its name.

    `timeout` is ignored: it runs within the time that the job may run.
    """

    def __init__(self, func: Callable[..., Any] | str, timeout: float | str | None = None) -> None:
        self.func = func
        self.timeout = timeout


_applications: dict[tuple[str | None, str], Laneway] = {}
_lock = threading.RLock()


def application(connection: Any = None) -> Laneway:
    """
    The Laneway application for a connection: a Redis client, a URL or an application.

    None means the default store.
    """
    if isinstance(connection, Laneway):
        with _lock:
            _applications.setdefault((connection.url, connection.namespace), connection)
        return connection
    return _known(url_of(connection, "connection"))


def _known(url: str | None, namespace: str = "default") -> Laneway:
    with _lock:
        key = (url, namespace)
        if key not in _applications:
            _applications[key] = Laneway(url, namespace=namespace)
        return _applications[key]


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603  # another thread of the parent may have held it
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Job:
    """The handle of a job with RQ's API; the attribute `job` is Laneway's handle."""

    def __init__(self, job: _Job[Any]) -> None:
        self.job = job

    @classmethod
    def fetch(cls, id: str, connection: Any = None) -> Job:  # noqa: A002  # RQ's name
        """A job by its id. Raises NoSuchJobError."""
        job = cls(application(connection).job(id))
        if job.job.status == "unknown":
            raise NoSuchJobError(f"job {id}: unknown, or its result has expired")
        return job

    @classmethod
    def exists(cls, id: str, connection: Any = None) -> bool:  # noqa: A002  # RQ's name
        """Whether the job is known."""
        return application(connection).job(id).status != "unknown"

    @property
    def id(self) -> str:
        """Its id."""
        return self.job.id

    def get_id(self) -> str:
        """Its id."""
        return self.job.id

    @property
    def origin(self) -> str | None:
        """The name of its queue."""
        return self.job.topic

    def get_status(self, refresh: bool = True) -> str | None:
        """
        queued, started, deferred, scheduled, finished, failed or canceled, or None if unknown.
        """
        del refresh
        status = self.job.status
        return _STATUS.get(status, None if status == "unknown" else "started")

    is_queued = property(lambda self: self.get_status() == "queued")
    is_started = property(lambda self: self.get_status() == "started")
    is_deferred = property(lambda self: self.get_status() == "deferred")
    is_scheduled = property(lambda self: self.get_status() == "scheduled")
    is_finished = property(lambda self: self.get_status() == "finished")
    is_failed = property(lambda self: self.get_status() == "failed")
    is_canceled = property(lambda self: self.get_status() == "canceled")

    @property
    def result(self) -> Any:
        """The result; None until there is one."""
        return self.job.result

    def return_value(self, refresh: bool = True) -> Any:
        """The result; None until there is one."""
        del refresh
        return self.job.result

    def latest_result(self, timeout: float = 0) -> Result | None:
        """
        Wait up to `timeout` seconds for the result. None if it has none, or it has expired.
        """
        self.job.wait(timeout)
        return next(iter(self.results()), None)

    def results(self) -> list[Result]:
        """The result as a list of at most one: results of retried runs are not stored."""
        state = self.job.state()
        if not state.is_over:
            return []
        kind = (
            Result.Type.SUCCESSFUL
            if state.status == "success"
            else Result.Type.STOPPED
            if state.status == "cancelled"
            else Result.Type.FAILED
        )
        at = (
            datetime.fromtimestamp(state.finished_at, UTC)
            if state.finished_at is not None
            else None
        )
        return [
            Result(
                self.id,
                kind,
                at,
                state.result,
                None if state.status == "success" else state.traceback or state.error,
            )
        ]

    @property
    def created_at(self) -> datetime | None:
        """When it was published."""
        at = self.job.state().published_at
        return datetime.fromtimestamp(at, UTC) if at is not None else None

    @property
    def exc_info(self) -> str | None:
        """The traceback of its failure."""
        return self.job.traceback

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata that `save_meta` stores."""
        return self.job.meta

    def save_meta(self) -> None:
        """Store `meta`."""
        self.job.save_meta()

    def get_meta(self, refresh: bool = True) -> dict[str, Any]:
        """The stored metadata."""
        return dict(self.job.state().meta) if refresh else self.job.meta

    def get_position(self) -> int | None:
        """How many jobs of its queue precede it."""
        return self.job.get_position()

    def refresh(self) -> None:
        """Do nothing: every property reads the store."""

    def cancel(
        self,
        pipeline: Any = None,
        enqueue_dependents: bool = False,
        remove_from_dependencies: bool = False,
    ) -> None:
        """Cancel it. A running job is stopped; jobs that depend on it fail."""
        del pipeline
        if enqueue_dependents or remove_from_dependencies:
            raise UsageError(
                "Job.cancel: enqueue_dependents and remove_from_dependencies are not supported:"
                " jobs that depend on a cancelled job fail"
            )
        self.job.cancel()

    def delete(
        self, pipeline: Any = None, remove_from_queue: bool = True, delete_dependents: bool = False
    ) -> None:
        """Delete it and its result."""
        del pipeline
        if delete_dependents or not remove_from_queue:
            raise UsageError(
                "Job.delete: delete_dependents and remove_from_queue=False are not supported;"
                " delete each job separately"
            )
        self.job.delete()

    def requeue(self, at_front: bool = False) -> None:
        """Put a failed job back into its queue."""
        if at_front:
            raise UsageError(
                "Job.requeue: at_front is not supported: the job goes to the end of its queue"
            )
        self.job.requeue()

    @property
    def ended_at(self) -> datetime | None:
        """When it ended."""
        at = self.job.state().finished_at
        return datetime.fromtimestamp(at, UTC) if at is not None else None

    enqueued_at = created_at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AbsentError(
            f"Job.{name}: Laneway does not have it; run RQ itself on Laneway, see docs/from-rq.md"
        )

    def __repr__(self) -> str:
        return f"<Job {self.id}>"


ResultType = Enum("ResultType", ["SUCCESSFUL", "FAILED", "STOPPED", "RETRIED"])
"""The kinds of results."""


class Result(msgspec.Struct):
    """How a job ended."""

    job_id: str
    type: ResultType
    created_at: datetime | None
    return_value: Any = None
    exc_string: str | None = None
    Type: ClassVar = ResultType


class Queue:
    """A queue with RQ's API; the attribute `queue` is Laneway's queue."""

    def __init__(
        self,
        name: str = "default",
        connection: Any = None,
        default_timeout: float | str | None = None,
        is_async: bool = True,
        **unknown: object,
    ) -> None:
        config.refuse_unknown(
            "Queue",
            unknown.keys() - {"job_class", "serializer", "death_penalty_class"},
            ("name", "connection", "default_timeout"),
        )
        if unknown.get("serializer") is not None:
            raise UsageError(
                "Queue: serializer is not supported: arguments are sent as JSON, typed by the"
                " function's annotations"
            )
        self.app = application(connection)
        self.name = name
        timeout = default_timeout if default_timeout is not None else DEFAULT_TIMEOUT
        timeout = FOREVER if timeout == -1 else timeout
        self.queue = self.app.queue(
            name, isolation="process", default_timeout=cast("float", timeout)
        )
        self.queue.tags = "strict"
        self.app.policy(name, on_expiry="drop")  # RQ cancels a job whose ttl is over
        self._is_async = is_async

    def enqueue(self, f: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> Job:
        """
        Call a function in a worker.

        Options are among the keyword arguments; `args=` and `kwargs=` may hold the function's.
        """
        return self._enqueue(self._parsed(f, args, kwargs))

    @classmethod
    def _parsed(
        cls, f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], **due: datetime | timedelta
    ) -> Call:
        """The call of `enqueue`: whatever is no option of RQ's is for the function."""
        own = {name: kwargs.pop(name) for name in list(kwargs) if name in _OPTIONS | _UNSUPPORTED}
        if (
            not args
            and ("args" in kwargs or "kwargs" in kwargs)
            and not kwargs.keys() - {"args", "kwargs"}
        ):
            args, kwargs = tuple(kwargs.get("args") or ()), dict(kwargs.get("kwargs") or {})
        if "timeout" in kwargs and not _fits(f, args, kwargs):  # the option's name until RQ 1.0
            own.setdefault("job_timeout", kwargs.pop("timeout"))
        call = cls._call(f, args, kwargs, own)
        call.options.update(due)
        return call

    def enqueue_call(
        self,
        func: Callable[..., Any] | str,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        timeout: Any = None,
        **options: Any,
    ) -> Job:
        """Like `enqueue`, with the function's arguments as `args` and `kwargs`."""
        return self._enqueue(self.prepare_data(func, args, kwargs, timeout, **options))

    def enqueue_at(
        self, when: datetime, f: Callable[..., Any] | str, /, *args: Any, **kwargs: Any
    ) -> Job:
        """Like `enqueue`, due at a time; without a time zone it is local time."""
        at = when if when.tzinfo is not None else when.astimezone()
        return self._enqueue(self._parsed(f, args, kwargs, at=at))

    def enqueue_in(
        self, delta: timedelta, f: Callable[..., Any] | str, /, *args: Any, **kwargs: Any
    ) -> Job:
        """Like `enqueue`, due after `delta`."""
        return self._enqueue(self._parsed(f, args, kwargs, delay=max(delta, timedelta(0))))

    def enqueue_many(
        self, job_datas: Iterable[Call], pipeline: Any = None, **unknown: object
    ) -> list[Job]:
        """Publish calls that `prepare_data` returned."""
        del pipeline
        config.refuse_unknown("enqueue_many", unknown, ("job_datas",))
        return [Job(each) for each in self.queue.enqueue_many(list(job_datas))]

    @classmethod
    def prepare_data(
        cls,
        func: Callable[..., Any] | str,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        timeout: Any = None,
        **options: Any,
    ) -> Call:
        """A call to pass to `enqueue_many`, with the arguments of `enqueue_call`."""
        options = {"job_timeout": timeout, **options}
        given = {name: value for name, value in options.items() if value is not None}
        return cls._call(func, tuple(args or ()), dict(kwargs or {}), given)

    @staticmethod
    def _call(
        function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
    ) -> Call:
        for name in _UNSUPPORTED & options.keys():
            raise UsageError(f"enqueue: {name} is not supported")
        config.refuse_unknown("enqueue", options.keys() - _OPTIONS, _OPTIONS)
        options |= {name: FOREVER for name in _ENDLESS if options.get(name) == -1}
        retry = options.pop("retry", None)
        if isinstance(retry, Retry):
            options["retry"], options["retry_delay"] = retry.max, retry.intervals
        waits = options.get("depends_on")
        if waits is not None:
            options["depends_on"] = _unwrapped(waits)
        for name in ("on_success", "on_failure"):
            if isinstance(options.get(name), Callback):
                options[name] = options[name].func
        options.pop("pipeline", None)
        if not _fits(function, args, kwargs):
            function = name_of(function)  # its worker fails the job, as in RQ
        return Call(function, args, kwargs, options)

    def _enqueue(self, call: Call) -> Job:
        if not self._is_async:
            was_eager, self.app.runtime.eager = self.app.runtime.eager, True
            try:
                job = self.queue.enqueue_call(call.function, call.args, call.kwargs, **call.options)
                return Job(job)
            except Exception as error:
                if isinstance(error, LanewayError) and not isinstance(error, TypeError):
                    raise  # the call is wrong; arguments that do not fit fail the job, as in RQ
                job_id = call.options.get("job_id") or f"failed-{uuid4().hex}"
                failed = outcomes.read(outcomes.failure(describe(error)))
                return Job(_Job(self.app.runtime, job_id, self.name, local=failed))
            finally:
                self.app.runtime.eager = was_eager
        return Job(self.queue.enqueue_call(call.function, call.args, call.kwargs, **call.options))

    @property
    def jobs(self) -> list[Job]:
        """The waiting jobs, in order."""
        return [Job(each) for each in self.queue.jobs]

    def get_jobs(self) -> list[Job]:
        """The waiting jobs, in order."""
        return self.jobs

    @property
    def job_ids(self) -> list[str]:
        """The ids of the waiting jobs, in order."""
        return self.queue.job_ids

    def get_job_ids(self) -> list[str]:
        """The ids of the waiting jobs, in order."""
        return self.queue.job_ids

    @property
    def count(self) -> int:
        """The number of waiting jobs."""
        return self.queue.count

    def __len__(self) -> int:
        return self.queue.count

    def is_empty(self) -> bool:
        """Whether no job waits."""
        return self.queue.is_empty()

    def empty(self) -> int:
        """Cancel all waiting jobs."""
        return self.queue.empty()

    def delete(self, delete_jobs: bool = True) -> None:
        """Cancel all waiting jobs; an empty queue needs no deletion."""
        if delete_jobs:
            self.queue.empty()

    def fetch_job(self, job_id: str) -> Job | None:
        """One of its jobs, or None if unknown."""
        job = self.queue.fetch_job(job_id)
        return Job(job) if job is not None else None

    @property
    def failed_job_registry(self) -> FailedJobRegistry:
        """Its failed jobs."""
        return FailedJobRegistry(self)

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_registry"):
            raise UsageError(
                f"Queue.{name} is not supported; waiting jobs are in `jobs`, failed ones in"
                " `failed_job_registry`"
            )
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"


def _fits(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function takes these arguments; True if its signature is unknown here."""
    try:
        _signature(function).bind(*args, **kwargs)
    except ValueError:
        return True
    except TypeError:
        return not callable(function)
    return True


_signature = functools.lru_cache(maxsize=1_024)(inspect.signature)

_OPTIONS = frozenset(
    {
        "job_timeout",
        "result_ttl",
        "failure_ttl",
        "ttl",
        "depends_on",
        "job_id",
        "at_front",
        "description",
        "on_success",
        "on_failure",
        "retry",
        "meta",
        "pipeline",
    }
)


_UNSUPPORTED = frozenset({"on_stopped", "repeat"})
"""RQ's options without a counterpart here."""

_ENDLESS = ("job_timeout", "result_ttl", "failure_ttl", "ttl")
"""Options that may be -1."""


class FailedJobRegistry:
    """The failed jobs of a queue, or of a queue's name: its dead letters."""

    def __init__(
        self,
        name: Queue | str = "default",
        connection: Any = None,
        job_class: object = None,
        queue: Queue | None = None,
        **_: object,
    ) -> None:
        del job_class
        if queue is None:
            queue = name if isinstance(name, Queue) else Queue(name, connection=connection)
        self._topic = queue.app.topic(queue.name)
        self._engine = queue.app.engine

    def get_job_ids(self) -> list[str]:
        """Their ids, the oldest first."""
        return [str(letter.message.id) for letter in self._topic.dead_letters(limit=1_000)]

    @property
    def count(self) -> int:
        """The number of failed jobs."""
        return self._topic.stats().dead

    def __len__(self) -> int:
        return self.count

    def requeue(self, job_or_id: Job | str) -> None:
        """Put a job back into its queue. Raises NoSuchJobError if it is not here."""
        job_id = job_or_id.id if isinstance(job_or_id, Job) else job_or_id
        if not self._topic.redrive([job_id]):
            raise NoSuchJobError(f"job {job_id}: not among the failed jobs")

    def __contains__(self, job_or_id: Job | str) -> bool:
        job_id = job_or_id.id if isinstance(job_or_id, Job) else job_or_id
        view = self._engine.find(job_id, self._topic.name)
        return view is not None and view.state == "dead"

    def remove(self, job_or_id: Job | str, **_: object) -> None:
        """Delete a job."""
        self._topic.drop_dead_letters([job_or_id.id if isinstance(job_or_id, Job) else job_or_id])


def requeue_job(job_id: str, connection: Any = None, **_: object) -> None:
    """Put a failed job back into its queue. Raises NoSuchJobError."""
    Job.fetch(job_id, connection).requeue()


def _unwrapped(jobs: Any) -> Any:
    """Replace jobs of this module by Laneway's."""
    if isinstance(jobs, Dependency):
        return Dependency(_unwrapped(jobs.jobs), jobs.allow_failure)
    if isinstance(jobs, (list, tuple)):
        return [_unwrapped(each) for each in jobs]
    return jobs.job if isinstance(jobs, Job) else jobs


def get_current_job(connection: Any = None) -> Job | None:
    """The job that runs the caller; None outside of a job."""
    request = current_request()
    if request is None:
        return None
    app = (
        _known(*request.store)
        if connection is None and request.store is not None
        else application(connection)
    )
    return Job(app.job(request.id, request.topic))


class Worker:
    """
    A worker for queues, in the given order. Each job runs in a child process that can be killed.
    """

    isolation = "process"

    def __init__(
        self, queues: Any, connection: Any = None, name: str | None = None, **unknown: object
    ) -> None:
        passed = {
            "job_class",
            "queue_class",
            "exception_handlers",
            "default_worker_ttl",
            "default_result_ttl",
            "log_job_description",
            "serializer",
        }
        config.refuse_unknown("Worker", unknown.keys() - passed, ("queues", "connection", "name"))
        if unknown.get("exception_handlers"):
            raise UsageError(
                "Worker: exception_handlers are not supported; use on_failure= with the job, or"
                " app.laneway.on_failure"
            )
        listed = queues if isinstance(queues, (list, tuple)) else [queues]
        if not listed:
            raise UsageError("Worker: expected at least one queue, got none")
        self.app = listed[0].app if isinstance(listed[0], Queue) else application(connection)
        self.name = name
        self.queues = [each.name if isinstance(each, Queue) else str(each) for each in listed]
        for each in self.queues:
            self.app.queue(each, isolation=cast("Any", self.isolation)).tags = "strict"
            self.app.policy(each, on_expiry="drop")

    def work(
        self,
        burst: bool = False,
        logging_level: str | int | None = None,
        date_format: str | None = None,
        log_format: str | None = None,
        max_jobs: int | None = None,
        with_scheduler: bool = False,
        concurrency: int = 1,
        **unknown: object,
    ) -> bool:
        """
        Run jobs until stopped, with `burst` until none is left, with `max_jobs` that many.

        Returns whether any job ran. Logs each job, as in RQ, unless the program has set up logging.
        `with_scheduler` is ignored: every worker finds due jobs.
        `concurrency`: concurrent jobs (RQ runs one).
        """
        del with_scheduler
        usual = [("dequeue_strategy", "default"), *((name, None) for name in unknown)]
        config.refuse_unknown(
            "Worker.work",
            [name for name, value in unknown.items() if (name, value) not in usual],
            ("burst", "logging_level", "date_format", "log_format", "max_jobs", "concurrency"),
        )
        handler = logging.StreamHandler()
        handler.setFormatter(
            TextLines("%(asctime)s %(message)s")
            if log_format is date_format is None
            else logging.Formatter(log_format, date_format)
        )
        logging.basicConfig(level=logging_level or "INFO", handlers=[handler])  # unless it was done
        return (
            self.app.run_worker(
                topics=self.queues, burst=burst, concurrency=concurrency, max_messages=max_jobs
            ).handled
            > 0
        )


class SimpleWorker(Worker):
    """A worker that runs jobs in its own process."""

    isolation = "thread"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `python -m laneway.compat.rq high low`, like `rq worker high low`."""
    parser = argparse.ArgumentParser(
        prog="python -m laneway.compat.rq",
        description="Run the jobs of queues, in the given order.",
    )
    parser.add_argument("queues", nargs="*", default=["default"])
    parser.add_argument(
        "-u",
        "--url",
        help="the store: redis://localhost, sqlite:///jobs.db; default: $LANEWAY_URL, ./laneway.db",
    )
    parser.add_argument("-b", "--burst", action="store_true", help="exit when no job is left")
    parser.add_argument(
        "-c", "--concurrency", type=int, default=1, help="concurrent jobs (default 1)"
    )
    parser.add_argument(
        "-P", "--path", default=".", help="folder to import modules from (default: .)"
    )
    options = parser.parse_args(arguments)
    sys.path.insert(0, options.path)
    try:
        Worker(options.queues, connection=options.url).work(
            burst=options.burst, concurrency=options.concurrency
        )
    except LanewayError as error:
        sys.stderr.write(f"Error: {escaped(without_passwords(str(error)))}\n")
        return 1
    return 0


_QUEUES = "see queue.jobs, `laneway topics` and `laneway explain`"
_SCHEDULER = "every worker finds due jobs; for repeated ones see app.laneway.schedule(…)"
_CONNECTION = "give each Queue and Worker its connection, like Queue(connection=redis)"

_FINDER = Finder(
    __name__,
    {
        **dict.fromkeys(
            (
                "callbacks",
                "cli",
                "contrib",
                "defaults",
                "dependency",
                "dummy",
                "exceptions",
                "executions",
                "job",
                "job_lifecycle",
                "local",
                "maintenance",
                "queue",
                "repeat",
                "results",
                "scripts",
                "suspension",
                "timeouts",
                "types",
                "utils",
                "version",
                "worker",
            )
        ),
        "command": "see job.cancel(), and `laneway workers`",
        "connections": _CONNECTION,
        "cron": _SCHEDULER,
        "cron_job_registry": _SCHEDULER,
        "cron_scheduler_registry": _SCHEDULER,
        "group": "see app.laneway.task and its groups",
        "intermediate_queue": _QUEUES,
        "logutils": "set up `logging`",
        "rate_limit": "give the queue a policy: app.policy(name, rate=, concurrency=)",
        "registry": _QUEUES,
        "scheduler": _SCHEDULER,
        "serializers": "arguments and results are JSON",
        "webhook": "use on_success and on_failure",
        "worker_pool": "use `laneway worker --processes 4`",
        "worker_registration": "see `laneway workers`",
        **dict.fromkeys(
            (
                "Connection",
                "push_connection()",
                "pop_connection()",
                "use_connection()",
                "get_current_connection()",
            ),
            _CONNECTION,
        ),
        "cancel_job()": "use Job.fetch(id).cancel()",
        "get_current_worker()": "see `laneway workers`",
        "Repeat": _SCHEDULER,
        "RateLimit": "give the queue a policy: app.policy(name, rate=, concurrency=)",
        "Webhook": "use on_success and on_failure",
    },
    "run RQ itself on Laneway: rq worker --worker-class laneway.contrib.rq.Worker, see"
    " docs/from-rq.md",
)
__getattr__ = _FINDER.getter(__name__)
