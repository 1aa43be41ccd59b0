"""The program of Celery that the workers of these tests run."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery, Task

import laneway.contrib.kombu
from laneway import Laneway

__all__ = ["laneway"]

app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ.get("BACKEND"))
app.conf.update(
    broker_transport_options={"durability": "memory", "lease": 2.0},
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
)

notes = Laneway(os.environ["BROKER"].removeprefix("laneway+"), namespace="notes")
"""Where tasks note what they do."""


def note(text: str) -> None:
    """Note something for the test."""
    notes.publish("notes", text)


@app.task
def say(text: str) -> str:
    note(text)
    return text


@app.task(bind=True, acks_late=True)
def hold(self: Task[Any, Any], seconds: float) -> None:
    """Note the process, and run for so long; the second delivery ends at once."""
    redelivered = self.request.delivery_info["redelivered"]
    note(f"{'again' if redelivered else 'first'} {os.getpid()}")
    if not redelivered:
        time.sleep(seconds)


@app.task
def add(left: int, right: int) -> int:
    return left + right


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def fail() -> None:
    raise ValueError("it failed")
