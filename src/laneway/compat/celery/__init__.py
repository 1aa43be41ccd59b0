"""
Celery's API on Laneway: a simple Celery program runs after its import is changed.

    from laneway.compat.celery import Celery

    app = Celery("tasks", broker="redis://localhost")

    @app.task
    def add(x, y):
        return x + y

Start a worker with `laneway worker tasks:app`. docs/from-celery.md lists what is supported, name by
name. Using a name that is not supported raises an error that names it.
"""

from __future__ import annotations

from laneway.compat.celery import exceptions, signals, states
from laneway.compat.celery.application import Celery
from laneway.compat.celery.current import (
    TaskFormatter,
    current_app,
    current_task,
    get_current_task,
    maybe_signature,
    shared_task,
    signature,
    uuid,
)
from laneway.compat.celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeLimitExceeded,
    WorkerLostError,
)
from laneway.compat.celery.flows import Signature, chain, chord, group
from laneway.compat.celery.results import AsyncResult, EagerResult, GroupResult
from laneway.compat.celery.task import Task
from laneway.compat.celery.when import BaseSchedule, crontab, schedule, solar
from laneway.compat.names import Finder
from laneway.tasks.context import get_task_logger

subtask, get_logger = signature, get_task_logger
VERSION = (5, 7, 0)
"""The version of Celery whose names these are."""

__all__ = [
    "AsyncResult",
    "BaseSchedule",
    "Celery",
    "EagerResult",
    "GroupResult",
    "Ignore",
    "MaxRetriesExceededError",
    "Reject",
    "Retry",
    "Signature",
    "SoftTimeLimitExceeded",
    "Task",
    "TaskFormatter",
    "TaskRevokedError",
    "TimeLimitExceeded",
    "WorkerLostError",
    "chain",
    "chord",
    "crontab",
    "current_app",
    "current_task",
    "get_current_task",
    "get_logger",
    "get_task_logger",
    "group",
    "maybe_signature",
    "schedule",
    "shared_task",
    "signals",
    "signature",
    "solar",
    "states",
    "subtask",
    "uuid",
]

_BEAT = "workers fire the schedules of beat_schedule; see app.laneway.schedules"
_LOG = "connect signals.setup_logging, or set up `logging`"

_FINDER = Finder(
    __name__,
    {
        "_state": None,
        "app": None,
        "app.control": "see app.control, and `laneway workers`",
        "app.log": _LOG,
        "app.routes": "see task_routes",
        "apps": None,
        "backends": "results are stored with the messages",
        "beat": _BEAT,
        "bin": "see `python -m laneway.compat.celery` and `laneway`",
        "canvas": None,
        "bootsteps": "connect signals.worker_ready and worker_shutdown, or run Celery itself on"
        " Laneway: laneway.contrib.kombu",
        "concurrency": "write tasks as coroutines, or use isolation='process'",
        "contrib": None,
        "contrib.django": "use app.task and `delay_on_commit` of laneway.contrib.django",
        "contrib.testing": "use laneway.testing and task_always_eager",
        "contrib.pytest": "use laneway.testing and task_always_eager",
        "events": "see `laneway top`, `laneway serve` and signals",
        "fixups": None,
        "loaders": None,
        "local": None,
        "platforms": "start it under systemd or another supervisor",
        "result": None,
        "schedules": None,
        "security": None,
        "utils": None,
        "worker": None,
        "worker.control": "see app.control, and `laneway workers`",
        "control_command()": "see app.control, and `laneway workers`",
        "inspect_command()": "see app.control, and `laneway workers`",
        "replace()": "return the call's result, or make the flow before",
        "chunks()": "use task.chunks",
        "xmap()": "use task.map",
        "xstarmap()": "use task.starmap",
    },
    "run Celery itself on Laneway: laneway.contrib.kombu, see docs/from-celery.md",
)
for _module in (exceptions, states):
    _module.__dict__["__getattr__"] = _FINDER.getter(_module.__name__)
__getattr__ = _FINDER.getter(__name__)
