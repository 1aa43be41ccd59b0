"""
Programs without `if __name__ == "__main__"`: no child process runs them a second time, and none
outlives its worker.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway import Laneway
from laneway.working.child_processes import CannotStart
from tests.working.support import until
from tests.working.test_processes import runs

HEAD = """
import os, sys, time
with open("mains", "a") as file:
    file.write("main\\n")

def note(text):
    with open("notes", "a") as file:
        file.write(text + "\\n")
"""

NATIVE = """
from laneway import Laneway
app = Laneway("sqlite:///q.db")

@app.handler("jobs", isolation="process")
def work(message):
    note(f"{message.body} {os.getpid() != MAIN}")

@app.task(isolation="process")
def double(n):
    note(f"{n} {os.getpid() != MAIN}")
    return 2 * n

MAIN = os.getpid()
for n in range(3):
    app.publish("jobs", n)
job = double.delay(21)
summary = app.run_worker(burst=True, concurrency=2)
note(f"acked {summary.acked} result {job.get(timeout=0)}")
"""

SUPERVISED = """
from laneway import Laneway
app = Laneway("sqlite:///q.db")

@app.handler("jobs")
def work(message):
    note(f"{message.body} {os.getpid() != MAIN}")

MAIN = os.getpid()
for n in range(20):
    app.publish("jobs", n)
summary = app.run_worker(burst=True, processes=2)
note(f"acked {summary.acked}")
"""

RQ = """
from laneway.compat.rq import Queue, Worker
import functions

q = Queue("docs", connection="sqlite:///q.db")
jobs = [q.enqueue(functions.double, n) for n in range(6)]
w = Worker(["docs"], connection="sqlite:///q.db")
w.work(burst=True)
note(" ".join(f"{job.get_status()}:{job.return_value()}" for job in jobs))
"""

SLEEPS = """
from laneway import Laneway
app = Laneway("sqlite:///q.db")

@app.handler("jobs", isolation="process")
def work(message):
    note(f"{os.getpid()}")
    end = time.time() + 60
    while time.time() < end:
        pass

app.publish("jobs")
app.run_worker()
"""

FRESH = """
from laneway import Laneway
import functions
app = Laneway("sqlite:///q.db")
app.handler("jobs", isolation="process")(functions.sleep)
app.publish("jobs")
app.run_worker()
"""

FUNCTIONS = """
import os, time

def double(n):
    return 2 * n

def sleep(message):
    with open("notes", "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(60)
"""


def start(folder: Path, program: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(HEAD + program)
    (folder / "functions.py").write_text(FUNCTIONS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    return subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        (NATIVE, {"0 True", "1 True", "2 True", "21 True", "acked 4 result 42"}),
        (SUPERVISED, {*(f"{n} True" for n in range(20)), "acked 20"}),
        (RQ, {" ".join(f"finished:{2 * n}" for n in range(6))}),
    ],
    ids=["isolation", "processes", "rq"],
)
def test_the_main_module_runs_once(tmp_path: Path, program: str, lines: set[str]) -> None:
    """Other processes handle all messages, and the lines of the main module run once."""
    process = start(tmp_path, program)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert "Traceback" not in log
    assert (tmp_path / "mains").read_text() == "main\n"
    assert sorted((tmp_path / "notes").read_text().splitlines()) == sorted(lines)


@pytest.mark.parametrize("program", [SLEEPS, FRESH], ids=["copy", "fresh"])
def test_children_end_with_their_worker(tmp_path: Path, program: str) -> None:
    """A worker that is killed leaves no child process behind, whatever the child is doing."""
    process = start(tmp_path, program)
    try:
        until(
            lambda: (
                (tmp_path / "notes").exists() and (tmp_path / "notes").read_text().endswith("\n")
            )
        )
        child = int((tmp_path / "notes").read_text())
        assert child != process.pid
        process.send_signal(signal.SIGKILL)
        until(lambda: not runs(child))
    finally:
        process.kill()
        process.communicate()


MODULE = """
import sys
from laneway import Laneway
app = Laneway("sqlite:///{folder}/q.db")

@app.handler("jobs", isolation="process")
def work(message):
    pass

if "the child" in {place}:
    raise RuntimeError("no license")
"""


@pytest.fixture
def with_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laneway]:
    name = f"cannot_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(folder=tmp_path, place="sys.argv"))
    monkeypatch.syspath_prepend(tmp_path)
    app: Laneway = __import__(name).app
    with app:
        yield app
    del sys.modules[name]


def test_a_system_that_starts_no_children(
    with_module: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts no attempt and stops the worker with one error."""
    app = with_module
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    app.publish("jobs", id="one")
    with pytest.raises(CannotStart, match=r"/nowhere/python") as raised:
        app.run_worker(burst=True)
    assert "\n" not in str(raised.value)
    view = app.engine.find("one", "jobs")
    assert view is not None
    assert (view.state, view.attempts) == ("ready", 0)


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_child_that_cannot_import_its_handler(
    with_module: Laneway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The message has failed, and the worker serves other topics."""
    app = with_module
    if how == "raises":
        monkeypatch.setattr(sys, "argv", ["the child"])
    else:
        (tmp_path / f"cannot_{tmp_path.name}.py").write_text("import os; os._exit(7)")
    app.policy("jobs", retries=0)
    app.handler("others")(lambda _: None)
    app.publish("jobs", id="one")
    app.publish("others")
    summary = app.run_worker(burst=True)
    assert (summary.acked, summary.died) == (1, 1)
    (dead,) = app.topic("jobs").dead_letters()
    assert re.search(
        "cannot be started: (RuntimeError: no license|it ended with exit code 7)", str(dead)
    )
