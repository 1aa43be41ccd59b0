"""Names can be imported where Celery and RQ have them; only the package's name changes."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from laneway import UsageError

CELERY = """
from celery import Celery, signals, states
from celery.app.task import Task
from celery.app.base import Celery as same
from celery.app.log import TaskFormatter
from celery import chunks, maybe_signature, uuid
from celery.canvas import chain, chunks, group, maybe_signature
from celery.exceptions import Ignore, SoftTimeLimitExceeded, TimeoutError
from celery.result import AsyncResult
from celery.schedules import BaseSchedule, crontab, schedule, solar
from celery.signals import task_success
from celery.states import SUCCESS
from celery.signals import after_setup_logger, setup_logging, task_received, worker_process_init
from celery.utils import uuid
from celery.utils.log import get_logger, get_task_logger
from celery._state import get_current_task
assert signals.task_success is task_success and states.SUCCESS == SUCCESS and same is Celery
assert issubclass(type(Celery("tasks", broker="sqlite:///:memory:").task(print)), Task)
assert issubclass(crontab, BaseSchedule) and get_current_task() is None
from celery import beat, bootsteps, exceptions
from celery.beat import Scheduler
from celery.exceptions import ChordError, NotRegistered
import celery.worker.request
try:
    raise ChordError("lost")
except NotRegistered:
    raise SystemExit("another error")
except exceptions.ChordError:
    pass
assert beat.Scheduler is Scheduler and not hasattr(bootsteps, "__wrapped__")
"""
RQ = """
from rq import Connection, Queue, requeue_job
from rq.job import Job, JobStatus, NoSuchJobError
from rq import Job as same
from rq import job as module
from rq.decorators import job
from rq.exceptions import NoSuchJobError as also
from rq.queue import Queue as Same
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.worker import Worker
assert Job is same and module.Job is Job and callable(job)
assert also is NoSuchJobError and Same is Queue and JobStatus.FINISHED == "finished"
registry = FailedJobRegistry("low", connection="sqlite://")
assert registry.count == 0
"""


@pytest.mark.parametrize(("package", "program"), [("celery", CELERY), ("rq", RQ)])
def test_imports_of_programs(package: str, program: str) -> None:
    source = program.replace(f"from {package}", f"from laneway.compat.{package}")
    source = source.replace(f"import {package}", f"import laneway.compat.{package}")
    subprocess.run([sys.executable, "-W", "error", "-c", source], check=True, timeout=60)


@pytest.mark.parametrize(
    ("module", "name", "sentence"),
    [
        ("celery.beat", "Scheduler", "workers fire the schedules"),
        ("celery.bootsteps", "StartStopStep", "connect signals.worker_ready"),
        ("celery.worker.control", "control_command", "see app.control"),
        ("celery.utils.time", "maybe_timedelta", "run Celery itself on Laneway"),
        ("celery", "chunks", "use task.chunks"),
        ("rq", "cancel_job", "use Job.fetch"),
        ("rq.registry", "StartedJobRegistry", "see queue.jobs"),
        ("rq", "Connection", "give each Queue and Worker its connection"),
        ("rq.cron", "CronScheduler", "every worker finds due jobs"),
        ("rq.executions", "Execution", "rq worker --worker-class laneway.contrib.rq.Worker"),
    ],
)
def test_names_that_do_not_exist_here(module: str, name: str, sentence: str) -> None:
    """Calling one, deriving from it or reading from it raises one sentence with the way out."""
    absent = getattr(importlib.import_module(f"laneway.compat.{module}"), name)
    for use in (absent, lambda: type("Own", (absent,), {}), lambda: absent.of_it):
        with pytest.raises((UsageError, TypeError)) as raised:
            use()
        assert isinstance(raised.value, TypeError) or sentence in str(raised.value)
    with pytest.raises(UsageError, match="Laneway does not have it"):
        exec("class Own(absent): pass", {"absent": absent})


@pytest.mark.parametrize("module", ["celery.nonsense", "rq.nonsense", "celery.states.nonsense"])
def test_modules_that_the_original_lacks(module: str) -> None:
    with pytest.raises(ImportError, match="nonsense"):
        importlib.import_module(f"laneway.compat.{module}")


EVERY_NAME = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
count = 0
for found in pkgutil.walk_packages(package.__path__, f"{sys.argv[1]}.", onerror=print):
    if found.name.endswith("__main__"):
        continue
    try:
        module = importlib.import_module(found.name)
    except Exception:
        continue  # it needs another package
    here = importlib.import_module(f"laneway.compat.{found.name}")
    own = [
        name
        for name, each in vars(module).items()
        if getattr(each, "__module__", None) == found.name
    ]
    for name in getattr(module, "__all__", own):
        count += not name.startswith("_")
        assert name.startswith("_") or hasattr(here, name), (found.name, name)
assert count > 20
"""


@pytest.mark.parametrize("package", ["celery", "rq"])
def test_every_name_can_be_imported(package: str) -> None:
    """What the original's modules export can be imported from the same modules here."""
    pytest.importorskip(package)
    subprocess.run([sys.executable, "-c", EVERY_NAME, package], check=True, timeout=60)
