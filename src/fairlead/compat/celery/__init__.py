"""
Celery's face on fair queues: a simple Celery program runs after its import is changed.

    from fairlead.compat.celery import Celery

    app = Celery("tasks", broker="redis://localhost")

    @app.task
    def add(x, y):
        return x + y

Its worker: `fairlead worker tasks:app`. What it has and what it has not, name by name, is in docs/from-celery.md; what it has not says so.
"""

from __future__ import annotations

from typing import Any

from fairlead import signals
from fairlead.compat.celery.application import Celery
from fairlead.compat.celery.current import current_app, current_task, shared_task, signature
from fairlead.compat.celery.errors import (
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeLimitExceeded,
    WorkerLostError,
    states,
)
from fairlead.compat.celery.results import AsyncResult, EagerResult, GroupResult
from fairlead.compat.celery.task import Task
from fairlead.compat.celery.when import crontab, schedule, solar
from fairlead.tasks import canvas
from fairlead.tasks.canvas import Signature
from fairlead.tasks.carrying import get_task_logger

subtask = signature

# Their handles are AsyncResult and GroupResult here, which the types of these functions do not know.
chain: Any = canvas.chain
chord: Any = canvas.chord
group: Any = canvas.group

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
    "crontab",
    "current_app",
    "current_task",
    "get_task_logger",
    "group",
    "schedule",
    "shared_task",
    "signals",
    "signature",
    "solar",
    "states",
    "subtask",
]
