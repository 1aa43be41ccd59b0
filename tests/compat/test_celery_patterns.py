"""
Patterns from the documentation of Celery, Flask and Django: settings after tasks, Flask's task
class, eager flows, error handlers, states, Django's connections.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from laneway import UsageError
from laneway.compat.celery import (
    AsyncResult,
    Celery,
    Ignore,
    Task,
    chain,
    chord,
    group,
    shared_task,
    states,
)
from tests.conformance.valkey_setups import server
from tests.tasks.conftest import working

SOON = 120.0


@pytest.fixture(params=["sqlite", "valkey"])
def celery(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Celery]:
    url = f"sqlite:///{tmp_path}/q.db" if request.param == "sqlite" else server().url
    with Celery("patterns", broker=url, namespace=uuid4().hex) as app:
        yield app


@contextmanager
def runs(app: Celery) -> Iterator[None]:
    with working(app.finalize().laneway):
        yield


def test_settings_after_tasks(tmp_path: Path) -> None:
    """Settings may be set after the first task, as application factories do."""
    app = Celery("late")

    @app.task
    def add(one: int, other: int) -> int:
        return one + other

    app.conf.broker_url = f"sqlite:///{tmp_path}/late.db"
    app.conf.update(
        task_default_queue="late",
        task_serializer="msgpack",
        task_routes={"*.mul": {"queue": "other"}},
        task_time_limit=30,
    )
    app.config_from_object({"result_expires": 60})

    @app.task
    def mul(one: int, other: int) -> int:
        return one * other

    with app:
        job = add.delay(1, 2)
        assert app.laneway.url == f"sqlite:///{tmp_path}/late.db"
        assert (job.job.topic, add.serializer, add.handler.time_limit, app.laneway.result_ttl) == (
            "late",
            "msgpack",
            30,
            60,
        )
        assert app.laneway.engine.policy_of("late").retries > 1000
        with runs(app):
            assert job.get(timeout=SOON) == 3
            assert mul.delay(2, 3).get(timeout=SOON) == 6
        app.conf.task_default_queue = "later"  # task settings may change later
        assert add.delay(1, 1).job.topic == "later"
        with pytest.raises(UsageError, match="in use already"):
            app.conf.broker_url = "sqlite:///elsewhere.db"
    assert not Path("laneway.db").exists()


def test_task_class_with_call(celery: Celery) -> None:
    """
    Flask's pattern: `__call__` pushes the application context; `set_default` chooses the
    application of shared tasks.
    """
    context: list[str] = []

    class FlaskTask(Task):
        def __call__(self, *args: object, **kwargs: object) -> object:
            context.append("pushed")
            try:
                return self.run(*args, **kwargs)
            finally:
                context.pop()

    app = Celery("flask", task_cls=FlaskTask, broker=celery.conf.broker_url, namespace=uuid4().hex)
    app.set_default()

    @shared_task(ignore_result=False, name=uuid4().hex)
    def add(one: int, other: int) -> list[Any]:
        return [one + other, list(context)]

    @app.task(bind=True)
    def bound(self: Any, n: int) -> list[Any]:
        return [self.request.id, n, list(context)]

    with app, runs(app):
        assert add.delay(1, 2).get(timeout=SOON) == [3, ["pushed"]]
        job = bound.delay(5)
        assert job.get(timeout=SOON) == [job.id, 5, ["pushed"]]
    assert context == []
    celery.set_default()


def test_eager(celery: Celery) -> None:
    """Eager flows and retries run in the caller, and `request.is_eager` is set."""
    ran: list[int] = []

    @celery.task
    def add(one: int, other: int = 10) -> int:
        return one + other

    @celery.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @celery.task(bind=True, max_retries=2)
    def flaky(self: Any) -> str:
        ran.append(self.request.retries)
        assert self.request.is_eager
        if len(ran) < 3:
            raise self.retry(countdown=60)
        return str(self.request.id)

    @celery.task(bind=True, max_retries=1)
    def never(self: Any) -> None:
        try:
            raise LookupError("no")
        except LookupError as error:
            raise self.retry(exc=error) from error

    celery.conf.task_always_eager = True
    assert chain(add.s(1), add.s())().get() == 21
    assert (add.s(1) | add.s()).apply_async().get() == 21
    assert group(add.s(n) for n in range(3))().get() == [10, 11, 12]
    assert chord([add.s(n) for n in range(3)])(total.s()).get() == 33
    job = flaky.delay()
    assert (job.get(), ran, job.state) == (job.id, [0, 1, 2], "SUCCESS")
    failed = never.apply_async()
    assert (failed.state, failed.failed(), type(failed.result)) == ("FAILURE", True, LookupError)
    with pytest.raises(LookupError):
        failed.get()
    value = object()
    identity = celery.task(name="identity")(lambda: value)
    assert identity.delay().get() is value
    celery.conf.task_eager_propagates = True
    with pytest.raises(LookupError):
        never.delay()


def test_chain_of_one_and_empty_group(celery: Celery) -> None:
    """A chain of one task is that task, and an empty group in a chain is ignored."""

    @celery.task
    def pid() -> int:
        return threading.get_ident()

    @celery.task
    def double(n: int) -> int:
        return 2 * n

    with runs(celery):
        assert chain(pid.s())().get(timeout=SOON) != threading.get_ident()
        ends = group(double.s(2), double.s(4)) | group()
        assert ends.apply_async().get(timeout=SOON) == [4, 8]
        assert (double.s(1) | group()).apply_async().get(timeout=SOON) == 2


def test_nested_groups(celery: Celery) -> None:
    """Results of nested groups are nested lists."""

    @celery.task
    def add(one: int, other: int) -> int:
        return one + other

    @celery.task
    def same(value: Any) -> Any:
        return value

    inner = add.s(1, 1) | group(add.s(1), add.s(2))
    with runs(celery):
        result = group(add.s(0, 1), inner)()
        assert result.get(timeout=SOON) == [1, [3, 4]]
        assert [type(each).__name__ for each in result.results] == ["AsyncResult", "GroupResult"]
        assert chord([add.s(0, 1), inner], same.s())().get(timeout=SOON) == [1, [3, 4]]
        deeper = group(inner, add.s(5, 5) | group(same.s(), same.s() | group(same.s(), add.s(1))))
        assert deeper().get(timeout=SOON) == [[3, 4], [10, [10, 11]]]
        assert (deeper | same.s())().get(timeout=SOON) == [[3, 4], [10, [10, 11]]]


def test_error_handlers(celery: Celery) -> None:
    """
    Error handlers get (request, exc, traceback) or only the id, and their own arguments.

    A group's handler runs once for each member that fails.
    """
    reports: list[Any] = []
    ended = threading.Semaphore(0)

    @celery.task
    def fails(n: int) -> None:
        raise LookupError(f"order {n}")

    @celery.task
    def log_error(request: Any, exc: Any, traceback: Any) -> None:
        reports.append((request.id, type(exc), str(exc), "LookupError" in traceback))
        ended.release()

    @celery.task
    def by_id(uuid: str) -> None:
        reports.append(uuid)
        ended.release()

    @celery.task
    def with_more(request: Any, exc: Any, traceback: Any, more: str) -> None:
        reports.append((request.id, more))
        ended.release()

    def reported(count: int) -> list[Any]:
        for _ in range(count):
            assert ended.acquire(timeout=SOON)
        first = sorted(reports, key=str)
        reports.clear()
        return first

    with runs(celery):
        job = fails.apply_async((1,), link_error=log_error.s())
        assert reported(1) == [(job.id, LookupError, "order 1", True)]
        job = fails.apply_async((1,), link_error=by_id.s())
        assert reported(1) == [job.id]
        job = fails.apply_async((1,), link_error=with_more.s("extra"))
        assert reported(1) == [(job.id, "extra")]
        members = group(fails.s(n) for n in range(3)).apply_async(link_error=by_id.s())
        assert reported(3) == sorted(each.id for each in members)


def test_states(celery: Celery) -> None:
    """
    STARTED is shown only with `track_started`. After `Ignore` the state that the task has set
    remains.
    """
    go, at = threading.Event(), threading.Semaphore(0)

    @celery.task
    def waits() -> None:
        at.release()
        assert go.wait(SOON)

    @celery.task(track_started=True)
    def tracked() -> None:
        at.release()
        assert go.wait(SOON)

    @celery.task(bind=True)
    def custom(self: Any, state: str) -> None:
        self.update_state(state=state, meta={"why": "mine"})
        raise Ignore

    @celery.task
    def ignored() -> None:
        raise Ignore

    with runs(celery):
        plain, shown = waits.delay(), tracked.delay()
        assert at.acquire(timeout=SOON)
        assert at.acquire(timeout=SOON)
        assert (plain.state, plain.info) == (states.PENDING, None)
        assert (shown.state, shown.info) == (
            states.STARTED,
            {"pid": os.getpid(), "hostname": socket.gethostname()},
        )
        go.set()
        assert (plain.get(SOON), plain.state) == (None, "SUCCESS")
        for state in ("CUSTOM", "FAILURE"):
            job = custom.delay(state)
            ended = ignored.delay()
            assert ended.get(SOON) is None
            assert celery.laneway.topic("celery").wait_done(SOON)
            assert (AsyncResult(job.id, celery).state, job.info) == (state, {"why": "mine"})


PROGRAM = """
import os
from laneway.compat.celery import Celery

app = Celery("tasks", broker="sqlite:///q.db")

@app.task
def pid():
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
"""


def command(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(folder), *(each for each in sys.path if each)])
    environment = {**os.environ, "PYTHONPATH": paths, "LANEWAY_URL": "", **variables}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_several_processes(tmp_path: Path) -> None:
    """`laneway worker --processes 2` runs a Celery application."""
    (tmp_path / "program.py").write_text(PROGRAM)
    published = command(tmp_path, "-c", "import program\nfor _ in range(20): program.pid.delay()")
    assert published.returncode == 0, published.stderr
    ran = command(tmp_path, "-m", "laneway", "worker", "program:app", "--processes", "2", "--burst")
    assert ran.returncode == 0, ran.stderr
    assert len((tmp_path / "pids").read_text().split()) == 20


DJANGO = {
    "django/__init__.py": "def setup():\n    from django.apps import apps\n    apps.ready = True\n",
    "django/apps.py": (
        "from types import SimpleNamespace\nclass Apps:\n    ready = False\n    def"
        " get_app_configs(self):\n        assert self.ready\n        return"
        " [SimpleNamespace(name='shop')]\napps = Apps()\n"
    ),
    "django/db.py": (
        "calls = []\ndef reset_queries():\n    calls.append('reset')\n"
        "def close_old_connections():\n    calls.append('close')\n"
    ),
    "shop/__init__.py": "",
    "shop/tasks.py": (
        "from django.apps import apps\nassert apps.ready\nfrom laneway.compat.celery import"
        " shared_task\n@shared_task\ndef order():\n    from django.db import calls\n    return"
        " list(calls)\n"
    ),
    "proj.py": (
        'from laneway.compat.celery import Celery\napp = Celery("proj",'
        ' broker="sqlite:///q.db")\napp.autodiscover_tasks()\n'
    ),
}


def test_django(tmp_path: Path) -> None:
    """A worker sets Django up before it imports tasks, and closes old connections around runs."""
    for name, text in DJANGO.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    variables = {"DJANGO_SETTINGS_MODULE": "proj.settings"}
    published = command(
        tmp_path,
        "-c",
        "import proj; print([proj.app.send_task('shop.tasks.order').id for _ in range(2)][-1])",
    )
    assert published.returncode == 0, published.stderr
    ran = command(
        tmp_path, "-m", "laneway", "worker", "proj:app", "-c", "1", "--burst", **variables
    )
    assert "2 done" in ran.stderr
    read = command(
        tmp_path,
        "-c",
        f"import proj; print(proj.app.AsyncResult({published.stdout.strip()!r}).get(timeout=60))",
    )
    assert read.stdout.strip() == str(["reset", "close", "close", "reset", "close"]), read.stderr
