"""
Patterns from the documentation of Celery, Flask and Django: settings after tasks, Flask's task
class, eager flows, error handlers, states, Django's connections.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from laneway import BadMessage, JobDead, UsageError
from laneway.compat.celery import (
    AsyncResult,
    Celery,
    Ignore,
    Task,
    application,
    chain,
    chord,
    current,
    current_app,
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


def test_a_set_is_refused_unless_it_is_annotated(celery: Celery) -> None:
    """
    As in Celery, a set is an error as an argument and as a result. It never becomes a list.
    """

    @celery.task
    def same(value: Any) -> Any:
        return {value} if value == "set" else value

    @celery.task
    def typed(value: set[int]) -> set[int]:
        return value | {3}

    for wrong in ({1, 2}, frozenset({1}), [{"deep": {1}}]):
        with pytest.raises(BadMessage, match="set would change when it is stored"):
            same.delay(wrong)
        with pytest.raises(BadMessage, match="set would change when it is stored"):
            same.apply_async(kwargs={"value": wrong})
    with runs(celery):
        assert typed.delay({1, 2}).get(SOON) == {1, 2, 3}
        with pytest.raises(JobDead, match="set would change when it is stored"):
            same.delay("set").get(SOON)


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
        assert (
            job.job.topic,
            add.serializer,
            add.handler.time_limit,
            app.laneway.runtime.result_ttl,
        ) == (
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

        async def awaited() -> Any:
            return await deeper()

        assert asyncio.run(awaited()) == [[3, 4], [10, [10, 11]]]
        later = group(add.s(n, n) for n in range(2)).apply_async(countdown=1_000)
        assert (later.waiting(), len(later), later[0] in later.children) == (True, 2, True)
        later.revoke()
        assert [each.state for each in later] == ["REVOKED"] * 2


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


def test_apply_async_of_a_class(celery: Celery) -> None:
    """
    Every call passes through an `apply_async` that a class overrides, which may refuse it: as
    celery-once does, or to add headers. Later calls of a flow and those of schedules do so when
    they start.
    """
    locks: set[int] = set()
    scheduled = threading.Event()
    celery.conf.CUSTOMER = "acme"

    class Locking(Task):
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            if args[0] in locks:
                raise LookupError("already queued")
            locks.add(args[0])
            if args[0] == 7:
                scheduled.set()
            options["headers"] = {"customer": self.app.conf.CUSTOMER}
            return super().apply_async(args, kwargs, **options)

        def after_return(self, status: str, retval: Any, task_id: str, args: Any, *_: Any) -> None:
            locks.discard(args[0])

    @celery.task
    def same(value: Any) -> Any:
        return value

    @celery.task(base=Locking, bind=True)
    def work(self: Any, n: int) -> Any:
        return [self.request.headers["customer"], n, n in locks]

    locks.add(1)
    for publish in (
        lambda: work.delay(1),
        lambda: work.s(1).delay(),
        lambda: work.apply_async((1,), link=same.s()),
        work.si(1) | same.s(),
        lambda: chain(work.s(1), same.s()).apply_async(),
        group(same.s(0), work.s(1)),
        lambda: work.using(priority=5).enqueue(1),
        lambda: asyncio.run(work.adelay(1)),
    ):
        with pytest.raises(LookupError, match="already queued"):
            publish()
    assert celery.laneway.topic("celery").stats().waiting == 0
    locks.clear()
    celery.add_periodic_task(0.2, work.s(7), name="often")
    celery.laneway.schedules.install()
    with runs(celery):
        assert scheduled.wait(SOON)
        jobs = [work.delay(1), work.s(2).delay(), work.apply_async((3,), link=same.s())]
        jobs += [chain(work.s(4), same.s())(), chain(same.s(5), work.s())()]
        assert [job.get(SOON) for job in jobs] == [["acme", n, True] for n in range(1, 6)]
        locks.add(6)
        with pytest.raises(LookupError, match="already queued"):
            chain(same.s(6), work.s())().get(SOON)
        assert locks >= {6}, "a call that was refused does not release the lock of another"


def test_request(celery: Celery) -> None:
    """`self.request` knows the flow around a run, and `__dict__` has Celery's fields only."""

    @celery.task(bind=True)
    def step(self: Any, *before: Any) -> Any:
        request = self.request
        return [*(before[0] if before else []), [request.id, request.root_id, request.parent_id]]

    @celery.task(bind=True)
    def last(self: Any, before: Any) -> Any:
        return [before, self.request.chain, self.request.__dict__]

    @celery.task(bind=True)
    def followed(self: Any) -> tuple[int, int]:
        return len(self.request.chain), len(self.request.callbacks)

    with runs(celery):
        flow = chain(step.s(), step.s(), last.s())()
        steps, after, shown = flow.get(SOON)
        ids = [each[0] for each in steps]
        assert steps == [[ids[0], ids[0], None], [ids[1], ids[0], ids[0]]]
        assert (shown["id"], shown["root_id"], shown["parent_id"]) == (flow.id, ids[0], ids[1])
        assert (after, shown["args"][0], shown["retries"]) == ([], steps, 0)
        assert not {"handle", "fence", "_request"} & shown.keys()
        assert chain(followed.s(), last.s())().get(SOON)[0] == [1, 1]
        assert last.delay(0).get(SOON)[1] is None
    assert (step.request.id, step.request.callbacks) == (None, None)
    assert step.request.called_directly


def test_a_worker_serves_its_own_queues(celery: Celery) -> None:
    """Without -Q those of `task_queues`, else the default one; schedules run everywhere."""

    @celery.task
    def usual() -> str:
        return "ran"

    limited = celery.task(name="limited", rate_limit="600/m")(usual.function)
    special = celery.task(name="special", queue="gpu")(usual.function)
    celery.add_periodic_task(3600, usual.s(), name="hourly")
    jobs = [usual.delay(), limited.delay(), special.delay()]
    celery.run_worker(burst=True)
    assert [job.state for job in jobs] == ["SUCCESS", "SUCCESS", "PENDING"]
    assert celery.topics_of() == ["laneway.schedule.hourly", "celery.limited", "celery"]
    celery.conf.task_queues = [types.SimpleNamespace(name="gpu")]
    celery.laneway.run_worker(burst=True)
    assert jobs[2].state == "SUCCESS"


def test_what_celery_accepts(
    celery: Celery, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Unknown options of tasks are attributes, with one warning. Settings may be arguments. A call
    that has expired is revoked. Ignored results and empty groups are no errors, and a call whose
    arguments do not fit is a TypeError.
    """
    monkeypatch.setattr(application, "_WARNED", set())
    options: dict[str, Any] = {"once": {"graceful": True}, "max_retriez": 5}
    celery.task(name="one", **options)(lambda n: n)
    task = celery.task(name="two", **options)(lambda n: n)
    assert (task.once, task.max_retriez, task.max_retries) == ({"graceful": True}, 5, 3)
    warnings = [each.getMessage() for each in caplog.records if "is unknown" in each.message]
    assert sorted(warnings) == [
        f'task one: the option "{option}" is unknown and becomes an attribute of the task{hint}'
        for option, hint in (("max_retriez", '; did you mean "max_retries"?'), ("once", ""))
    ]
    assert Celery("x", task_time_limit=5, set_as_current=False).conf.task_time_limit == 5
    with pytest.raises(TypeError, match="missing a required argument: 'n'"):
        task.delay()
    assert group([]).delay().get() == group([]).apply_async().results == []
    with runs(celery):
        late = [task.apply_async((1,), expires=-1), task.s(1).set(expires=-1).delay()]
        late += [task.apply_async((1,), expires=datetime(2020, 1, 1))]  # noqa: DTZ001
        assert [job.get(SOON, propagate=False) for job in late]
        assert [job.state for job in late] == ["REVOKED"] * 3
        ignored = celery.task(name="ignored", ignore_result=True)(lambda: 5)
        assert ignored.delay().get() is None
        assert group(ignored.s(), task.s(1))().get(SOON) == [None, 1]


def test_shared_tasks_before_an_application(
    celery: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared task has its function's name, and calls of it can be made for later."""
    monkeypatch.setattr(current, "applications", [])

    @shared_task(name=uuid4().hex)
    def add(one: int, other: int) -> int:
        return one + other

    assert add.__name__ == "add"
    assert not hasattr(add, "queue")
    assert not hasattr(current_app, "conf")
    flow = add.s(1, 1) | add.s(2)
    with pytest.raises(UsageError, match="no Celery application yet"):
        flow.delay()
    celery.set_default()
    current.shared[-1](celery)
    with runs(celery):
        assert flow.delay().get(SOON) == 4


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
    "django/core/__init__.py": "",
    "django/core/checks.py": "def run_checks():\n    import shop.views\n",
    "shop/views.py": (
        "from laneway.compat.celery import shared_task\n@shared_task\ndef viewed():\n    return 5\n"
    ),
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
    """
    A worker sets Django up before it imports tasks, runs its checks, which import views with their
    tasks, and closes old connections around runs.
    """
    for name, text in DJANGO.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    variables = {"DJANGO_SETTINGS_MODULE": "proj.settings"}
    published = command(
        tmp_path,
        "-c",
        "import proj; proj.app.send_task('shop.views.viewed');"
        " print([proj.app.send_task('shop.tasks.order').id for _ in range(2)][-1])",
    )
    assert published.returncode == 0, published.stderr
    ran = command(
        tmp_path, "-m", "laneway", "worker", "proj:app", "-c", "1", "--burst", **variables
    )
    assert "3 done" in ran.stderr
    read = command(
        tmp_path,
        "-c",
        f"import proj; print(proj.app.AsyncResult({published.stdout.strip()!r}).get(timeout=60))",
    )
    around = ["reset", "close", "close"]
    assert read.stdout.strip() == str([*around, *around, "reset", "close"]), read.stderr
