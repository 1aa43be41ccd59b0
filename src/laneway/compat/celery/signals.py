"""The names of `celery.signals` that there are here."""

from laneway.signals import (
    after_task_publish,
    before_task_publish,
    task_failure,
    task_postrun,
    task_prerun,
    task_retry,
    task_success,
    worker_ready,
    worker_shutdown,
)

__all__ = [
    "after_task_publish",
    "before_task_publish",
    "task_failure",
    "task_postrun",
    "task_prerun",
    "task_retry",
    "task_success",
    "worker_ready",
    "worker_shutdown",
]
