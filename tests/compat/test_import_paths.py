"""Programs import from the modules of Celery and RQ; only the package's name changes."""

from __future__ import annotations

import subprocess
import sys

import pytest

CELERY = """
from celery import Celery, signals, states
from celery.app.task import Task
from celery import chunks, maybe_signature, uuid
from celery.canvas import chain, chunks, group, maybe_signature
from celery.exceptions import Ignore, SoftTimeLimitExceeded, TimeoutError
from celery.result import AsyncResult
from celery.schedules import crontab, schedule, solar
from celery.signals import task_success
from celery.states import SUCCESS
from celery.signals import after_setup_logger, setup_logging, task_received, worker_process_init
from celery.utils import uuid
from celery.utils.log import get_task_logger
assert signals.task_success is task_success and states.SUCCESS == SUCCESS
assert issubclass(type(Celery("tasks", broker="sqlite:///:memory:").task(print)), Task)
"""
RQ = """
from rq import Connection, Queue, requeue_job
from rq.job import Job, NoSuchJobError
from rq import Job as same
from rq import job as module
from rq.decorators import job
assert Job is same and module.Job is Job and callable(job)
"""


@pytest.mark.parametrize(("package", "program"), [("celery", CELERY), ("rq", RQ)])
def test_imports_of_programs(package: str, program: str) -> None:
    source = program.replace(f"from {package}", f"from laneway.compat.{package}")
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
