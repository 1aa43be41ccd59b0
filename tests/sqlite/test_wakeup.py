"""Waiting without polling, across threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement
from laneway.units import SECOND

SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "sqlite://" if request.param == "memory" else f"sqlite:///{tmp_path}/q.db"


def in_thread(work: object) -> tuple[threading.Thread, list[object]]:
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(work()))  # type: ignore[operator]
    thread.start()
    return thread, answers


def test_a_publish_wakes_a_waiter(url: str) -> None:
    """Long before its timeout."""
    engine = open_engine(url, Settings())
    began = time.monotonic()
    thread, answers = in_thread(lambda: engine.wait(30))
    engine.put([Draft("a", b"1")])
    thread.join(20)
    assert answers == [True]
    assert time.monotonic() - began < 15


def test_a_waiter_wakes_when_a_message_is_due(url: str) -> None:
    """Also for a delayed message that was published while it waited."""
    engine = open_engine(url, Settings())
    thread, answers = in_thread(lambda: engine.wait(30))
    engine.put([Draft("a", b"1", delay_us=300_000)])
    thread.join(20)
    assert answers == [True]
    assert len(engine.lease(5).leases) == 1


def test_a_waiter_of_another_pool_sleeps_on(url: str) -> None:
    """Until its timeout."""
    engine = open_engine(url, Settings())
    engine.policy_set("code", "a", {"pool": "gpu"})
    engine.put([Draft("a", b"1")])
    assert engine.wait(0.05) is False
    assert engine.wait(5, pool="gpu") is True


def test_a_waiter_for_some_topics_is_not_woken_by_others(url: str) -> None:
    """It could lease nothing, and would look in vain."""
    engine = open_engine(url, Settings())
    engine.put([Draft("a", b"1")])
    assert engine.wait(0.05, topics=["b"]) is False
    assert engine.wait(5, topics=["a"]) is True


def test_interrupt_ends_the_waits_of_this_object(url: str) -> None:
    """The waits answer False."""
    engine = open_engine(url, Settings())
    thread, answers = in_thread(lambda: engine.wait(30))
    while thread.is_alive():
        engine.interrupt()
        thread.join(0.01)
    assert answers == [False]


def test_a_settle_that_frees_a_slot_wakes_a_waiter(url: str) -> None:
    """Concurrency 1: the second message starts when the first is done."""
    engine = open_engine(url, Settings())
    engine.policy_set("code", "a", {"concurrency": 1})
    engine.put([Draft("a", b"1"), Draft("a", b"2")])
    (first,) = engine.lease(5).leases
    thread, answers = in_thread(lambda: engine.wait(30))
    engine.settle([Settlement(first.handle, first.fence)])
    thread.join(20)
    assert answers == [True]


@pytest.mark.parametrize(("startable", "is_notified"), [(1, True), (2, False)])
def test_who_looks_for_what_is_due_soon(
    tmp_path: Path, startable: int, is_notified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that leases does, unless its last free slot is taken: then another one does."""
    monkeypatch.setattr("laneway.engines.sql.wakeup.LOOK_AGAIN", 1000.0)
    engine = open_engine(f"sqlite:///{tmp_path}/q.db", Settings())
    engine.put([Draft("later", b"1", delay_us=900 * SECOND)])
    listener = engine.work_listener("default", None)
    assert listener.poll(0.01) is False
    engine.put([Draft("a", b"1")])
    assert listener.poll(60) is True
    batch = engine.lease(2, startable=startable)
    assert [lease.topic for lease in batch.leases] == ["a"]
    assert batch.next_wake_us is not None
    assert listener.poll(0.01) is is_notified
    listener.close()
    engine.close()


def test_a_publish_wakes_another_process(tmp_path: Path) -> None:
    """
    A waiter in another process wakes at once, also after another waiter was killed.
    """
    url = f"sqlite:///{tmp_path}/q.db"
    engine = open_engine(url, Settings())
    program = (
        "import sys\n"
        "from laneway.engines import open_engine\n"
        "from laneway.engines.base import Settings\n"
        "engine = open_engine(sys.argv[1], Settings())\n"
        "print('waiting', flush=True)\n"
        "while not (leases := engine.lease(1).leases): engine.wait(60)\n"
        "print(leases[0].body.decode(), flush=True)\n"
    )

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, url],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        return process

    dead = start()
    dead.kill()
    dead.communicate()
    alive = start()
    engine.put([Draft("a", b"hello")])
    assert alive.communicate(timeout=30)[0] == "hello\n"


def test_no_socket_is_left_behind(tmp_path: Path) -> None:
    """Neither sockets nor the folder, with several waiters at once and one that times out."""
    engine = open_engine(f"sqlite:///{tmp_path}/q.db", Settings())
    folder = Path(engine._wakeup._folder)  # type: ignore[attr-defined]
    threads = [in_thread(lambda: engine.wait(30))[0] for _ in range(3)]
    for _ in range(20):
        engine.wait(0)
    engine.put([Draft("a", b"1")])
    engine.interrupt()
    for thread in threads:
        thread.join(20)
    assert not folder.exists()


def test_without_sockets_it_polls_and_logs_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For example because the folder belongs to another user."""
    engine = open_engine(f"sqlite:///{tmp_path}/q.db", Settings())
    (tmp_path / "taken").write_text("")
    engine._wakeup._folder = f"{tmp_path}/taken/sockets"  # type: ignore[attr-defined]
    thread, answers = in_thread(lambda: engine.wait(30))
    engine.put([Draft("a", b"1")])
    thread.join(20)
    assert answers == [True]
    engine.wait(0)
    (warnings,) = caplog.messages
    assert "Not a directory" in warnings
