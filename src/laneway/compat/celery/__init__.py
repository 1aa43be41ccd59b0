"""
Celery's API on Laneway: a simple Celery program runs after its import is changed.

    from laneway.compat.celery import Celery

    app = Celery("tasks", broker="redis://localhost")

    @app.task
    def add(x, y):
        return x + y

Start a worker with `laneway worker tasks:app`. docs/from-celery.md lists what is supported, name by
name. Using a name that is not supported raises an error that says so.
"""

from __future__ import annotations

from laneway.compat.celery import signals, states
from laneway.compat.celery.application import Celery
from laneway.compat.celery.current import (
    chunks,
    current_app,
    current_task,
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
from laneway.compat.celery.when import crontab, schedule, solar
from laneway.tasks.context import get_task_logger

subtask = signature

__all__ = [
    "AsyncResult",
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
    "TaskRevokedError",
    "TimeLimitExceeded",
    "WorkerLostError",
    "chain",
    "chord",
    "chunks",
    "crontab",
    "current_app",
    "current_task",
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
