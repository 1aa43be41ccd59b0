"""Celery programs run when only their import is changed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from laneway import UsageError
from laneway.compat.celery import (
    AsyncResult,
    Celery,
    Task,
    chain,
    chord,
    crontab,
    current_app,
    group,
    maybe_signature,
    schedule,
    signals,
    signature,
    solar,
    states,
    uuid,
)
from laneway.testing import virtual
from tests.compat import celery_tasks as tasks
from tests.conformance.valkey_setups import server
from tests.tasks.conftest import working
from tests.working.support import until

SOON = 120.0


@pytest.fixture(autouse=True)
def app() -> Iterator[Celery]:
    tasks.CALLED.clear()
    tasks.app.set_current()  # other test modules create applications
    tasks.app.laneway.engine.topic_purge("celery")
    with working(tasks.app.laneway):
        yield tasks.app


def test_first_steps() -> None:
    """A call returns an `AsyncResult` with Celery's attributes."""
    result = tasks.add.delay(4, 4)
    assert result.get(timeout=SOON) == 8
    assert (result.ready(), result.successful(), result.failed(), result.state, result.status) == (
        True,
        True,
        False,
        "SUCCESS",
        "SUCCESS",
    )
    assert result.result == result.info == 8
    assert str(result) == result.id == result.task_id
    assert (
        AsyncResult(result.id).get(SOON)
        == tasks.app.AsyncResult(result.id).get(SOON)
        == tasks.add.AsyncResult(result.id).get(SOON)
        == 8
    )
    assert result.date_done is not None
    result.forget()
    assert result.state == states.PENDING
    assert tasks.add(1, 2) == 3, "calling the task calls the function"
    assert tasks.add.name == "tests.compat.celery_tasks.add"


def test_errors_and_retries() -> None:
    """An exception is final unless it is in `autoretry_for` or the task calls `retry`."""
    result = tasks.fails.delay()
    with pytest.raises(RuntimeError, match="at once"):
        result.get(timeout=SOON)
    assert (result.state, result.failed()) == ("FAILURE", True)
    assert isinstance(result.result, RuntimeError)
    assert "RuntimeError: at once" in str(result.traceback)
    assert tasks.CALLED == ["fails"]
    assert tasks.flaky.delay(2).get(SOON) == 2
    with pytest.raises(ValueError, match="attempt 2"):
        tasks.flaky.delay(5).get(SOON)
    with pytest.raises(KeyError):
        tasks.autoretried.delay().get(SOON)
    assert tasks.CALLED.count("autoretried") == 3
    assert tasks.ignores.delay().get(SOON) is None
    assert isinstance(tasks.rejects.delay().get(SOON, propagate=False), Exception)


def test_canvas() -> None:
    """Chains, groups, chords, maps, chunks and links work as in Celery's documentation."""
    add, xsum = tasks.add, tasks.xsum
    assert chain(add.s(2, 2), add.s(4), add.s(8))().get(SOON) == 16, "a chain can be called"
    assert group(add.s(n, n) for n in range(2))().get(SOON) == [0, 2]
    assert chain(add.s(2, 2), add.s(4), add.s(8)).delay().get(SOON) == 16
    assert (add.s(2, 2) | add.s(4)).apply_async().get(SOON) == 8
    members = group(add.s(n, n) for n in range(5)).apply_async()
    assert members.get(SOON) == members.join(SOON) == [0, 2, 4, 6, 8]
    assert (
        members.completed_count(),
        members.ready(),
        members.successful(),
        members.waiting(),
    ) == (5, True, True, False)
    assert chord((add.s(n, n) for n in range(10)), xsum.s()).apply_async().get(SOON) == 90
    assert chord([add.s(n, n) for n in range(10)])(xsum.s()).get(SOON) == 90
    assert add.signature((2, 2), countdown=0).delay().get(SOON) == 4
    assert add.signature((2, 2), countdown=-5).delay().get(SOON) == 4
    assert add.apply_async((2, 3), countdown=-0.5).get(SOON) == 5
    assert signature("total", args=([1, 2],)).delay().get(SOON) == 3
    assert add.apply_async((2, 2), link=add.s(16)).get(SOON) == 4
    assert xsum.map([[1, 2], [3, 4]]).delay().get(SOON) == [3, 7]
    assert add.starmap([(1, 2), (3, 4)]).apply_async().get(SOON) == [3, 7]
    assert xsum.map([[1, 2], [3, 4]])() == add.starmap([(1, 2), (3, 4)])() == [3, 7]
    assert (add.starmap([(1, 2), (3, 4)]) | xsum.s()).delay().get(SOON) == 10
    assert add.chunks([(n, n) for n in range(4)], 2).apply_async().get(SOON) == [[0, 2], [4, 6]]
    result = chain(add.s(1, 1), add.s(1)).delay()
    assert result.get(SOON) == 3
    assert result.parent.get(SOON) == 2
    one = add.s(2)
    assert one.clone((1,), expires=60).delay().get(SOON) == 3
    assert (one.args, one.options) == ((2,), {})
    assert add.si(1, 2).clone((5,)).args == (1, 2)


def test_custom_task_classes() -> None:
    """Custom classes may have hooks or a `run` method."""
    assert tasks.recorded.delay(1).get(SOON) == 1
    with pytest.raises(ValueError, match="below 0"):
        tasks.recorded.delay(-1).get(SOON)
    assert tasks.CALLED == [("success", 1), ("failure", "below 0", True)]
    assert tasks.increment.delay(4).get(SOON) == 5
    assert tasks.app.tasks["increment"].delay(5).get(SOON) == 6
    assert tasks.shared.delay(4).get(SOON) == 8
    assert tasks.limited.template.text == f"slow.{tasks.limited.name}"
    assert current_app.main == "tasks"
    with pytest.raises(NotImplementedError, match="define run"):
        Task().run()


def test_states_and_revoking() -> None:
    """`update_state` is visible while the task runs; a revoked task is REVOKED."""
    tasks.GO.clear()
    result = tasks.long.delay(240)
    deadline = time.monotonic() + SOON
    while result.state != "PROGRESS":
        assert time.monotonic() < deadline
        time.sleep(0.005)  # until it has started
    assert result.info == {"done": 5, "total": 10}
    tasks.GO.set()
    assert result.get(SOON) == result.id
    later = tasks.add.apply_async((1, 2), countdown=100, expires=200, priority=5)
    assert later.state == "PENDING"
    tasks.app.control.revoke(later.id)
    assert later.state == "REVOKED"
    with pytest.raises(UsageError, match=r"app\.control\.autoscale is not supported"):
        tasks.app.control.autoscale()
    with pytest.raises(UsageError, match="a group's handle"):
        _ = later.children


def test_inspecting_workers() -> None:
    """`ping` answers for the workers that run; the rest says what to use."""
    until(tasks.app.laneway.workers)
    inspect: Any = tasks.app.control.inspect(timeout=SOON)
    (worker,) = inspect.ping()
    assert tasks.app.control.ping(timeout=SOON) == [{worker: {"ok": "pong"}}]
    nobody: Any = tasks.app.control.inspect(["nobody"])
    assert nobody.ping() is None
    with pytest.raises(UsageError, match=r"inspect\(\)\.registered is not supported"):
        inspect.registered()


def test_small_names_of_celery() -> None:
    assert len(uuid()) == 36
    call = tasks.add.s(1, 2)
    assert (maybe_signature(None), maybe_signature(call)) == (None, call)


def test_a_signal_that_is_never_sent_says_what_to_connect() -> None:
    with pytest.raises(UsageError, match=r"task_received.*connect task_prerun"):
        signals.task_received.connect(print)
    assert not hasattr(signals, "_nonsense")


def test_send_task() -> None:
    """`send_task` publishes a call by name, also of a task that this program does not have."""
    assert tasks.app.send_task("total", ([1, 2, 3],)).get(SOON) == 6
    unknown = tasks.app.send_task("of.another.program", (1,), countdown=100)
    view = tasks.app.laneway.engine.find(unknown.id)
    assert view is not None
    assert (view.topic, view.headers["laneway-task"]) == ("celery", "of.another.program")  # type: ignore[index]
    unknown.revoke()


def test_periodic_tasks() -> None:
    """`beat_schedule` runs in the time zone of `timezone`, without a beat process."""
    laneway = tasks.app.laneway
    tasks.app.finalize()
    with virtual(laneway) as world:
        laneway.schedules.install()
        planned = {each.name: each for each in laneway.schedules.list()}
        assert planned.keys() >= {"add-every-30-seconds", "monday-morning"}
        assert planned["monday-morning"].next_at.astimezone().weekday() == 0
        world.later(31)
        world.run()
        assert laneway.engine.overview().done >= 1
    assert crontab(0, 0, day_of_month="1-7", day_of_week=1).line == "0 0 1-7 * &1"
    with pytest.raises(UsageError, match="'moonrise' is not supported"):
        solar("moonrise", 0, 0)
    with pytest.raises(UsageError, match="expected seconds, a timedelta"):
        tasks.app.add_periodic_task("hourly", tasks.add.s(1, 1))
    assert (
        tasks.app.add_periodic_task(schedule(60), tasks.add.s(1, 1), name="every minute")
        == "every minute"
    )


def test_settings(caplog: pytest.LogCaptureFixture) -> None:
    """
    Settings have new and old names. Those without a meaning here are ignored; unsupported ones are
    logged.
    """
    app = Celery("other", broker="memory://", set_as_current=False)
    with caplog.at_level(logging.WARNING):
        app.config_from_object(
            {
                "CELERY_TIMEZONE": "UTC",
                "CELERYBEAT_SCHEDULE": {},
                "CELERY_TASK_TIME_LIMIT": 5,
                "broker_pool_limit": 3,
            }
        )
    assert (
        app.conf.timezone,
        app.conf.beat_schedule,
        app.conf.task_time_limit,
        caplog.text,
    ) == ("UTC", {}, 5, "")
    app.config_from_object(
        SimpleNamespace(CELERY_TASK_DEFAULT_QUEUE="mine", OTHER=1), namespace="CELERY"
    )
    assert app.conf["task_default_queue"] == app.conf.get("task_default_queue") == "mine"
    app.conf.worker_coffee = "black"
    assert "worker_coffee is not supported" in caplog.text
    with pytest.raises(UsageError, match="'yaml' is not supported"):
        app.conf.task_serializer = "yaml"
    with pytest.raises(AttributeError, match="no setting nothing"):
        _ = app.conf.nothing
    routed = Celery("routed", broker="memory://", set_as_current=False)
    routed.conf.task_routes = {"feed.*": {"queue": "feeds"}, "web": "webs"}
    routed.conf.task_annotations = {"web": {"rate_limit": "10/s"}}
    assert routed.task(name="feed.read")(tasks.add.function).queue == "feeds"
    web = routed.task(name="web")(tasks.xsum.function)
    assert web.template.text == "webs.web"
    assert routed.laneway.engine.policy_of("webs.web").rate == 10
    assert routed.topics_of(["webs", "feeds"]) == ["webs.web", "webs", "feeds"]


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (
            lambda: Celery("x", broker="sqs://key@", set_as_current=False).laneway,
            r"sqs://\*\*\*@ is not a store that Laneway supports",
        ),
        (
            lambda: (
                Celery(
                    "x", broker="memory://", backend="db+sqlite:///r.db", set_as_current=False
                ).laneway
            ),
            "is not a store that Laneway supports",
        ),
        (
            lambda: (
                Celery(
                    "x", broker="memory://", backend="redis://elsewhere", set_as_current=False
                ).laneway
            ),
            "results are stored with the messages",
        ),
        (lambda: Celery("x", brokr="memory://"), 'did you mean "broker"'),
        (lambda: tasks.add.apply_async((1, 1), countdwn=1), 'did you mean "countdown"'),
        (lambda: signature("nothing"), 'there is no task "nothing"'),
    ],
)
def test_errors_of_unsupported_use(use: Any, error: str) -> None:
    """Every unsupported name or value raises an error that explains it."""
    with pytest.raises(UsageError, match=error):
        use()


def test_eager() -> None:
    """With `task_always_eager`, calls run in the caller."""
    app = Celery("eager", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True
    add = app.task(tasks.add.function)
    fails = app.task(tasks.fails.function)
    assert add.delay(1, 2).get() == 3
    assert add.apply((1, 2)).get() == 3
    assert fails.delay().state == "FAILURE"
    app.conf.task_eager_propagates = True
    with pytest.raises(RuntimeError, match="at once"):
        fails.delay()


FIRST_PAGE = """
from laneway.compat.celery import Celery

app = Celery('hello', broker='amqp://guest@localhost//')

@app.task
def hello():
    return 'hello world'
"""

PERIODIC = """
from laneway.compat.celery import Celery
from laneway.compat.celery import crontab

app = Celery()

@app.on_after_configure.connect
def setup_periodic_tasks(sender: Celery, **kwargs):
    sender.add_periodic_task(10.0, test.s('hello'), name='add every 10')
    sender.add_periodic_task(30.0, test.s('world'), expires=10)
    sender.add_periodic_task(crontab(hour=7, minute=30, day_of_week=1), test.s('Happy Mondays!'))

@app.task
def test(arg):
    print(arg)

@app.task
def add(x, y):
    z = x + y
    print(z)
"""

NEXT_STEPS = {
    "__init__": "",
    "celery": (
        """
from laneway.compat.celery import Celery

app = Celery('proj',
             broker='amqp://',
             backend='rpc://',
             include=['proj.tasks'])

# Optional configuration, see the application user guide.
app.conf.update(
    result_expires=3600,
)

if __name__ == '__main__':
    app.start()
"""
    ),
    "tasks": (
        """
from .celery import app


@app.task
def add(x, y):
    return x + y


@app.task
def xsum(numbers):
    return sum(numbers)
"""
    ),
}


def run(folder: Path, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=700,
        check=False,
        env=os.environ | {"LANEWAY_URL": "sqlite:///laneway.db"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(900)
def test_documented_programs(tmp_path: Path) -> None:
    """
    The programs of Celery's first pages run with another import, even with the broker URL in them
    if LANEWAY_URL is set.
    """
    (tmp_path / "hello.py").write_text(FIRST_PAGE)
    calling = (
        "import hello; r = hello.hello.delay(); hello.app.run_worker(burst=True);"
        " print(r.get(timeout=600))"
    )
    assert run(tmp_path, calling) == "hello world\n"
    (tmp_path / "periodic.py").write_text(PERIODIC)
    planned = (
        "import periodic; periodic.app.run_worker(burst=True);"
        " print(len(periodic.app.laneway.schedules.list()))"
    )
    # A task whose schedule falls into the run prints a line before.
    assert run(tmp_path, planned).splitlines()[-1] == "3"
    (tmp_path / "proj").mkdir()
    for name, text in NEXT_STEPS.items():
        (tmp_path / "proj" / f"{name}.py").write_text(text)
    worker = subprocess.Popen(
        [sys.executable, "-m", "laneway", "worker", "proj.celery:app", "-l", "error"],
        cwd=tmp_path,
        env=os.environ | {"LANEWAY_URL": "sqlite:///laneway.db"},
    )
    try:
        calling = """
from proj.tasks import add, xsum
from laneway.compat.celery import chain, group, chord
print(add.delay(2, 2).get(timeout=600), group(add.s(i, i) for i in range(10))().get(timeout=600),
      chain(add.s(4, 4) | add.s(8))().get(timeout=600),
      chord((add.s(i, i) for i in range(10)), xsum.s())().get(timeout=600),
      (group(add.s(i, i) for i in range(10)) | xsum.s())().get(timeout=600))
"""
        assert run(tmp_path, calling) == "4 [0, 2, 4, 6, 8, 10, 12, 14, 16, 18] 16 90 90\n"
    finally:
        worker.terminate()
        worker.wait(60)


def test_tutorial_on_the_command_line(tmp_path: Path) -> None:
    """The tutorial's module, a worker and a caller run as three processes."""
    url = f"{server().url.replace('valkey', 'redis')}"
    (tmp_path / "tasks.py").write_text(
        textwrap.dedent(f"""
        from laneway.compat.celery import Celery

        app = Celery('tutorial', broker='{url}', backend='{url}', namespace='n{os.getpid()}')

        @app.task
        def add(x, y):
            return x + y
        """)
    )
    calling = "from tasks import add; result = add.delay(4, 4); print(result.get(timeout=120))"
    worker = subprocess.Popen(
        [sys.executable, "-m", "laneway", "worker", "tasks:app", "-l", "warning"], cwd=tmp_path
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", calling],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert (done.stdout, done.stderr) == ("8\n", "")
    finally:
        worker.terminate()
        worker.wait(60)
