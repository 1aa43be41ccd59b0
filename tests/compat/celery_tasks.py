"""A Celery program in which only the import was changed."""

from __future__ import annotations

import os
import threading
from typing import Any

from laneway.compat.celery import (
    Celery,
    Ignore,
    Reject,
    Task,
    crontab,
    get_task_logger,
    shared_task,
)

logger = get_task_logger(__name__)

app = Celery(
    "tasks",
    broker=os.environ.get("BROKER", "memory://"),
    backend=os.environ.get("BROKER", "memory://"),
)
app.conf.update(
    task_serializer="json", timezone="Europe/Berlin", enable_utc=True, result_expires=3600
)
app.conf.beat_schedule = {
    "add-every-30-seconds": {
        "task": "tests.compat.celery_tasks.add",
        "schedule": 30.0,
        "args": (16, 16),
    },
    "monday-morning": {
        "task": "tests.compat.celery_tasks.add",
        "schedule": crontab(hour=7, minute=30, day_of_week=1),
        "args": (1, 1),
    },
}
CALLED: list[Any] = []
GO = threading.Event()
"""Ends the work of `long`."""


@app.task
def add(x, y):
    logger.info("adding %s and %s", x, y)
    return x + y


@app.task(name="total")
def xsum(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=2, default_retry_delay=0.01)
def flaky(self, until):
    if self.request.retries < until:
        raise self.retry(exc=ValueError(f"attempt {self.request.retries}"))
    return self.request.retries


@app.task(autoretry_for=(KeyError,), retry_kwargs={"max_retries": 2, "countdown": 0.01})
def autoretried():
    CALLED.append("autoretried")
    raise KeyError("again")


@app.task
def fails():
    CALLED.append("fails")
    raise RuntimeError("at once")


@app.task
def ignores():
    raise Ignore


@app.task
def rejects():
    raise Reject("never", requeue=False)


@app.task(rate_limit="600/m", queue="slow")
def limited(n):
    return n


@shared_task
def shared(n):
    return 2 * n


class Recording(Task):
    """A custom task class with hooks."""

    abstract = True

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        del task_id, args, kwargs
        CALLED.append(("success", retval))

    def on_failure(
        self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: str
    ) -> None:
        del task_id, args, kwargs
        CALLED.append(("failure", str(exc), "Traceback" in einfo or "ValueError" in einfo))


@app.task(base=Recording)
def recorded(n):
    if n < 0:
        raise ValueError("below 0")
    return n


class Increment(Task):
    """A task that is a class."""

    name = "increment"

    def run(self, n: int) -> int:
        return n + 1


increment = app.register_task(Increment())


@app.task(bind=True)
def long(self, seconds):
    self.update_state(state="PROGRESS", meta={"done": 5, "total": 10})
    assert GO.wait(seconds)  # the work
    return self.request.id
