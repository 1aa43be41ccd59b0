"""Handlers in child processes, and several workers under a supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from laneway import Laneway, Message, UsageError
from tests.working.support import Running, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAM = """
import os, sys, time
from laneway import DestinationUnavailable, Laneway, Message, Reject, Retry, SoftTimeLimit

app = Laneway("sqlite:///{folder}/laneway.db", durability="memory")
app.policy("*", backoff=0, retries=0)
folder = "{folder}"

def note(name, text=""):
    with open(f"{{folder}}/{{name}}", "a") as file:
        file.write(f"{{text or os.getpid()}}\\n")

@app.handler("child.*", isolation="process", time_limit=60)
def child(message):
    what = message.topic.removeprefix("child.")
    if what == "kill":
        os.kill(os.getpid(), 9)
    if what == "sleep":
        note("sleeping")
        time.sleep(60)
    if what == "exit":
        os._exit(7)
    if what == "system_exit":
        sys.exit(4)
    if what == "raise":
        raise LookupError("order 42 is unknown")
    if what == "reject":
        raise Reject("no such customer")
    if what == "retry":
        raise Retry("later", delay="1h")
    if what == "unavailable":
        raise DestinationUnavailable("503", retry_after=60)
    note("children")

@app.handler("hang", isolation="process", time_limit=1.5)
def hang(message):
    while True:
        pass

@app.handler("soft", isolation="process", soft_time_limit=0.3, time_limit=30)
def soft(message):
    try:
        time.sleep(60)
    except SoftTimeLimit:
        note("soft", "tidied up")

@app.handler("batch", isolation="process", batch=10)
def batch(messages):
    return [None if message.body % 2 else Reject("even") for message in messages]

@app.handler("work.*")
async def work(message):
    if message.body == "die":
        os._exit(9)
    note("workers")

if __name__ == "__main__":
    app.run_worker(processes=2, concurrency=4)
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laneway]:
    """An application with the program above as a module that child processes can import."""
    name = f"program_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PROGRAM.format(folder=tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__(name)
    with module.app:
        yield module.app
    del sys.modules[name]


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("kill", "killed by signal 9 (SIGKILL)"),
        ("exit", "exit code 7"),
        ("system_exit", "SystemExit: 4"),
        ("raise", "LookupError: order 42 is unknown"),
    ],
)
def test_a_child_that_fails_or_dies(app: Laneway, topic: str, expected: str) -> None:
    """
    The error of a child, or how it died, is the message's error; the worker and the other messages
    continue.
    """
    app.publish(f"child.{topic}", priority=1)
    app.publish("child.fine")
    summary = app.run_worker(burst=True, concurrency=1)
    assert (summary.died, summary.acked) == (1, 1)
    assert expected in (app.topic(f"child.{topic}").dead_letters()[0].error or "")


def test_retry_reject_and_back_off_in_a_child(app: Laneway) -> None:
    """Retry, Reject and DestinationUnavailable have the same effect in a child as elsewhere."""
    app.policy("child.retry", retries=1)
    for topic in ("reject", "retry", "unavailable"):
        app.publish(f"child.{topic}")
    with Running(app, concurrency=3):
        until(lambda: app.topic("child.reject").stats().dead)
        until(lambda: app.topic("child.retry").stats().retried)
        until(
            lambda: (
                app.topic("child.unavailable").stats().delivered
                and not app.topic("child.unavailable").stats().leased
            )
        )
    assert app.topic("child.reject").dead_letters()[0].reason == "no such customer"
    assert app.topic("child.retry").stats().delayed == 1
    assert app.topic("child.unavailable").stats().waiting == 1


@pytest.mark.usefixtures("quick_renewals")
def test_a_lost_lease_kills_its_child(app: Laneway, tmp_path: Path) -> None:
    """When the lease is lost the child is killed, and another message gets a new child."""
    app.policy("*", lease=30)
    app.publish("child.sleep")
    with Running(app, concurrency=1, heartbeat_timeout=600):
        until(lambda: (tmp_path / "sleeping").exists() and (tmp_path / "sleeping").read_text())
        child = int((tmp_path / "sleeping").read_text())
        app.topic("child.sleep").delete()
        until(lambda: not runs(child))
        app.publish("child.fine")
        until(lambda: app.topic("child.fine").stats().done)


def runs(pid: int) -> bool:
    """Whether a process still runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_child_serves_many_messages(app: Laneway, tmp_path: Path) -> None:
    """Children are reused for the next messages."""
    app.publish_many(Message("child.fine", n) for n in range(30))
    assert app.run_worker(burst=True, concurrency=2).acked == 30
    assert len(set((tmp_path / "children").read_text().split())) <= 2


def test_a_child_is_killed_at_its_time_limit(app: Laneway) -> None:
    """A handler that hangs in a child is ended by force."""
    app.publish("hang")
    began = time.monotonic()
    assert app.run_worker(burst=True).died == 1
    assert time.monotonic() - began < 60
    assert "time limit of 1.5 s" in (app.topic("hang").dead_letters()[0].error or "")


def test_the_soft_limit_reaches_into_a_sleeping_child(app: Laneway, tmp_path: Path) -> None:
    """SoftTimeLimit is raised in the child, also in the middle of a sleep."""
    app.publish("soft")
    assert app.run_worker(burst=True).acked == 1
    assert (tmp_path / "soft").read_text() == "tidied up\n"


def test_batches_in_children(app: Laneway) -> None:
    """A batch handler in a child returns an outcome for each message."""
    app.publish_many(Message("batch", n) for n in range(10))
    summary = app.run_worker(burst=True)
    assert (summary.acked, summary.died) == (5, 5)


def start(source: Path) -> subprocess.Popen[bytes]:
    """Start the program as a user would."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, str(source)], cwd=source.parent, env=environment)


def test_several_workers_share_a_burst(app: Laneway, tmp_path: Path) -> None:
    """With processes=2 a supervisor runs two workers; together they handle each message once."""
    app.publish_many(Message(f"work.{n % 5}", n) for n in range(500))
    summary = app.run_worker(burst=True, processes=2, concurrency=4)
    assert summary.acked == 500
    assert len((tmp_path / "workers").read_text().split()) == 500
    assert str(os.getpid()) not in (tmp_path / "workers").read_text().split()


def test_a_worker_that_dies_is_restarted(app: Laneway, tmp_path: Path) -> None:
    """
    A message that kills its worker becomes a dead letter; the next worker handles the other
    messages.
    """
    app.publish("work.bad", "die")
    app.policy(
        "work.*", lease=0.5
    )  # at run time: the program, which does not declare it, would take it away
    app.publish_many(Message("work.good", n) for n in range(10))
    program = start(next(tmp_path.glob("program_*.py")))
    try:
        workers = tmp_path / "workers"
        until(
            lambda: (
                app.topic("work.bad").dead_letters()
                and workers.exists()
                and len(workers.read_text().split()) >= 10
            )
        )
    finally:
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0
    assert app.topic("work.good").dead_letters() == []


def test_sigterm_and_sigint_stop_a_worker(app: Laneway, tmp_path: Path) -> None:
    """A signal stops all workers in order, with exit code 0."""
    for number in (signal.SIGTERM, signal.SIGINT):
        app.publish("work.x", "go")
        before = (
            len((tmp_path / "workers").read_text().split())
            if (tmp_path / "workers").exists()
            else 0
        )
        program = start(next(tmp_path.glob("program_*.py")))
        until(
            lambda: (
                (tmp_path / "workers").exists()
                and len((tmp_path / "workers").read_text().split()) > before  # noqa: B023
            )
        )
        program.send_signal(number)
        assert program.wait(60) == 0
    assert app.topic("work.x").stats().leased == 0


def test_several_processes_need_an_importable_application(tmp_path: Path) -> None:
    """Other processes cannot find an application that no module holds."""
    app = Laneway(f"sqlite:///{tmp_path}/x.db")
    app.handler("*")(print)
    with pytest.raises(UsageError, match="top of a module"):
        app.run_worker(processes=2)


def test_several_processes_need_a_store_that_they_share() -> None:
    """Another process cannot use a store in memory."""
    app = Laneway("sqlite://")
    app.handler("*")(print)
    with app, pytest.raises(UsageError, match="this process only"):
        app.run_worker(processes=2)


def test_reload_restarts_when_the_code_changes(app: Laneway, tmp_path: Path) -> None:
    """
    With reload, a changed source file handles the next message; versions with mistakes are logged,
    and the next change is awaited.
    """
    source = next(tmp_path.glob("program_*.py"))
    seen, log_file = tmp_path / "seen", tmp_path / "log"
    with log_file.open("wb") as stderr:
        command = [sys.executable, "-m", "laneway", "worker", f"{source.stem}:app", "--reload"]
        program = subprocess.Popen(
            command, cwd=source.parent, env={**os.environ, "LANEWAY_URL": ""}, stderr=stderr
        )
    mistakes = 0
    versions = (
        ('note("workers")', 'note("seen", "first")', True),
        ('note("workers")', 'note("seen", "second")', True),
        ('note("workers")', "note(", False),
        ("backoff=0, retries=0", "rate=-1", False),
        ('note("workers")', 'note("seen", "third")', True),
    )
    try:
        for old, new, is_fine in versions:
            source.write_text(PROGRAM.format(folder=tmp_path).replace(old, new))
            os.utime(source, ns=(time.time_ns(), time.time_ns()))
            if is_fine:
                app.publish("work.x", "go")
                until(lambda: published_after(app, seen, new.split('"')[-2]))  # noqa: B023
            else:
                mistakes += 1
                awaited = "waiting for the code to change"
                until(lambda: log_file.read_text().count(awaited) == mistakes)  # noqa: B023
    finally:
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0
    text = log_file.read_text()
    assert "SyntaxError" in text
    assert "rate: expected" in text
    assert "importlib" not in text


def published_after(app: Laneway, seen: Path, text: str) -> bool:
    """
    Whether the version that writes this text has handled a message; if not, publish another one.
    """
    if seen.exists() and text in seen.read_text().split():
        return True
    app.publish("work.x", "go")
    return False
