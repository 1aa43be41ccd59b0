"""Functions that RQ runs."""

from __future__ import annotations

import os
import signal
from typing import Any

from rq import get_current_job

from laneway.contrib.rq import Queue

RAN: list[str] = []
"""What has run in this process."""


def record(name: str) -> str:
    RAN.append(name)
    return name


def append(path: str, line: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def fail() -> None:
    raise ValueError("always")


def fail_once() -> int:
    job = get_current_job()
    assert job is not None
    RAN.append("fails")
    if job.retries_left == 0:
        return 1
    raise ValueError("once")


def leased_now(name: str) -> int:
    job = get_current_job()
    assert job is not None
    assert job.connection is not None
    return Queue(name, connection=job.connection).laneway.topic(name).stats().leased


def enqueue_another(name: str) -> str:
    job = get_current_job()
    assert job is not None
    assert job.connection is not None
    return str(Queue(name, connection=job.connection).enqueue(record, "another").id)


def die(**_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
