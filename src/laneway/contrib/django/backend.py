"""
The backend of Django's tasks: `django.tasks` from Django 6 on, before that the package
`django-tasks`.

A task is enqueued as a call of `run` or `arun`, in the topic `django.` and the queue's name. What
is known of it is one record: it is the message's body at first, the progress while it runs, and
the result at the end.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import traceback
from collections.abc import Iterable
from datetime import datetime
from importlib import import_module
from typing import Any
from uuid import uuid4

from asgiref.sync import sync_to_async
from django import VERSION
from django.apps import apps
from django.core import checks
from django.core.exceptions import SuspiciousOperation
from django.utils import timezone
from django.utils.module_loading import import_string

from laneway import DestinationUnavailable, JobState, Retry
from laneway.contrib.django.application import application
from laneway.contrib.django.options import given, outbox_connection

Record = dict[str, Any]

LIBRARY = "django.tasks" if VERSION >= (6, 0) else "django_tasks"
base: Any = import_module(f"{LIBRARY}.base")
signals: Any = import_module(f"{LIBRARY}.signals")
Backend: Any = import_module(f"{LIBRARY}.backends.base").BaseTaskBackend
DoesNotExist: Any = import_module(f"{LIBRARY}.exceptions").TaskResultDoesNotExist
normalize_json: Any = (
    import_module("django.utils.json") if VERSION >= (6, 0) else import_module("django_tasks.utils")
).normalize_json
READY, RUNNING, FAILED, SUCCESSFUL = (
    getattr(base.TaskResultStatus, name) for name in ("READY", "RUNNING", "FAILED", "SUCCESSFUL")
)

PREFIX = "django."
OPTIONS = frozenset({"OUTBOX", "RESULT_TTL"})
WAITING = frozenset({"pending", "delayed", "deferred", "retry", "started"})
"""States of a job before it runs: one that has started reports that it is running."""

TIMES = ("enqueued_at", "started_at", "last_attempted_at", "finished_at")

app = application()
if "retries" not in given().get("POLICIES", {}).get(f"{PREFIX}*", {}):
    app.policy(f"{PREFIX}*", retries=0)  # as with Django's other backends


class LanewayBackend(Backend):
    """
    Runs tasks in Laneway's workers.

    `OPTIONS`: with `"OUTBOX": True` a task is enqueued in the transaction of the database with the
    outbox. `"RESULT_TTL"`: how long results are kept (default: `"1d"`).
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a task. Returns its result, which is not there yet."""
        self.validate_task(task)
        record: Record = {
            "task": task.module_path,
            "backend": self.alias,
            "queue_name": task.queue_name,
            "priority": task.priority,
            "run_after": _text(task.run_after),
            "args": normalize_json(list(args)),
            "kwargs": normalize_json(kwargs),
            "enqueued_at": _text(timezone.now()),
        }
        ttl = self.options.get("RESULT_TTL", "1d")
        job = (
            (arun if inspect.iscoroutinefunction(task.func) else run)
            .using(
                id=f"{task.queue_name}:{uuid4().hex}",  # `get_result` has only the id
                priority=task.priority,
                at=_aware(task.run_after),
                connection=outbox_connection() if self.options.get("OUTBOX") else None,
                result_ttl=ttl,
                failure_ttl=ttl,
            )
            .enqueue(task.queue_name, record)
        )
        result = _result(job.id, task, record, READY)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """
        The result of a task, from any process. Raises TaskResultDoesNotExist if no task has this
        id, or if its result is no longer kept.
        """
        result_id = str(result_id)
        topic = PREFIX + result_id.rpartition(":")[0]
        if topic == PREFIX:
            raise DoesNotExist(result_id)
        state = app.job(result_id, topic).state()
        record: Record | None = state.result if state.status == "success" else state.info
        if record is None and (message := app.explain(result_id, topic).message) is not None:
            record = _record_of(message.body)
        if not isinstance(record, dict) or "task" not in record:
            raise DoesNotExist(result_id)
        return _result(result_id, _task(record), record, _status(state), state)

    def check(self, **options: Any) -> Iterable[Any]:
        """Check the options, and that the app is installed."""
        yield from super().check(**options)
        if not apps.is_installed("laneway.contrib.django"):
            yield checks.Error(
                f'TASKS["{self.alias}"]: the app is not installed',
                hint='Add "laneway.contrib.django" to INSTALLED_APPS.',
                id="laneway.E002",
            )
        for name in sorted(self.options.keys() - OPTIONS):
            yield checks.Error(
                f'TASKS["{self.alias}"]: unknown option "{name}"',
                hint=f"There are: {', '.join(sorted(OPTIONS))}.",
                id="laneway.E003",
            )


def _record_of(body: bytes) -> Record | None:
    """The record of a message that nobody has run."""
    try:
        record: Record = json.loads(body)["args"][1]
    except (ValueError, LookupError, TypeError):
        return None  # of another task
    return record


def _task(record: Record) -> Any:
    task = import_string(record["task"])
    if not isinstance(task, base.Task):
        raise SuspiciousOperation(f"{record['task']} is no task")
    return task.using(
        priority=record["priority"],
        queue_name=record["queue_name"],
        run_after=_time(record["run_after"]),
        backend=record["backend"],
    )


def _status(state: JobState) -> Any:
    if state.is_over:
        return SUCCESSFUL if state.status == "success" else FAILED
    return READY if state.status in WAITING else RUNNING


def _result(
    result_id: str, task: Any, record: Record, status: Any, state: JobState | None = None
) -> Any:
    errors = [base.TaskError(**error) for error in record.get("errors", [])]
    times = {name: _time(record.get(name)) for name in TIMES}
    if state is not None and status == FAILED:
        times["finished_at"] = times["finished_at"] or _time(state.finished_at)
        if not errors:  # its worker was killed, or it was cancelled
            text = state.traceback or state.error or state.status
            errors.append(
                base.TaskError(exception_class_path="laneway.errors.JobDead", traceback=text)
            )
    result = base.TaskResult(
        id=result_id,
        task=task,
        status=status,
        args=record["args"],
        kwargs=record["kwargs"],
        backend=record["backend"],
        errors=errors,
        worker_ids=list(record.get("worker_ids", [])),
        **times,
    )
    object.__setattr__(result, "_return_value", record.get("return_value"))
    return result


def _aware(moment: datetime | None) -> datetime | None:
    naive = moment is not None and timezone.is_naive(moment)
    return timezone.make_aware(moment) if naive else moment


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _time(value: str | float | None) -> datetime | None:
    if isinstance(value, float):
        return datetime.fromtimestamp(value, timezone.get_default_timezone())
    return None if value is None else datetime.fromisoformat(value)


# In workers


class _Run:
    """One run of a task: its record, and the signals of Django."""

    def __init__(self, task: Any, record: Record) -> None:
        """`task`: `run` or `arun`."""
        self._own = task
        self._request = task.request
        self._record = record
        self._task = _task(record)
        self._sender = type(self._task.get_backend())

    def begin(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Store that it runs. Returns the function's arguments."""
        if self._request.attempt > 1:
            before = app.job(self._request.id, self._request.topic).state().info
            self._record |= before or {}
        now = _text(timezone.now())
        self._record.setdefault("started_at", now)
        self._record["last_attempted_at"] = now
        worker = f"{socket.gethostname()}:{os.getpid()}"
        self._record["worker_ids"] = [*self._record.get("worker_ids", []), worker]
        self._store()
        result = self._send(signals.task_started, RUNNING)
        context = (base.TaskContext(task_result=result),) if self._task.takes_context else ()
        return (*context, *self._record["args"]), self._record["kwargs"]

    def returned(self, value: Any) -> Record:
        """The record with what the function returned."""
        self._record |= {"return_value": value, "finished_at": _text(timezone.now())}
        self._send(signals.task_finished, SUCCESSFUL)
        return self._record

    def failed(self, error: BaseException) -> None:
        """Store the error."""
        kind = type(error)
        details = {
            "exception_class_path": f"{kind.__module__}.{kind.__qualname__}",
            "traceback": "".join(traceback.format_exception(error)),
        }
        self._record["errors"] = [*self._record.get("errors", []), details]
        is_final = self._request.retries >= self._own.retries_limit(self._request)
        if is_final:
            self._record["finished_at"] = _text(timezone.now())
        self._store()
        if is_final:
            self._send(signals.task_finished, FAILED)

    def _store(self) -> None:
        self._own.update_state("RUNNING", self._record)

    def _send(self, signal: Any, status: Any) -> Any:
        result = _result(self._request.id, self._task, self._record, status)
        signal.send(self._sender, task_result=result)
        return result


@app.task(name="django.run", bind=True, topic=PREFIX + "{queue}")
def run(self: Any, queue: str, record: Record) -> Record:
    """Run a task of a plain function."""
    del queue
    this = _Run(self, record)
    args, kwargs = this.begin()
    try:
        return this.returned(normalize_json(import_string(record["task"]).func(*args, **kwargs)))
    except (Retry, DestinationUnavailable):
        raise
    except BaseException as error:
        this.failed(error)
        raise


@app.task(name="django.arun", bind=True, topic=PREFIX + "{queue}")
async def arun(self: Any, queue: str, record: Record) -> Record:
    """Run a task of a coroutine function; receivers of signals run in a thread."""
    del queue
    this = await sync_to_async(_Run)(self, record)
    args, kwargs = await sync_to_async(this.begin)()
    try:
        returned = await import_string(record["task"]).func(*args, **kwargs)
        return await sync_to_async(this.returned)(normalize_json(returned))
    except (Retry, DestinationUnavailable, asyncio.CancelledError):
        raise
    except BaseException as error:
        await sync_to_async(this.failed)(error)
        raise
