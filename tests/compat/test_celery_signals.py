"""Signals: what a program that observes all of its tasks is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from laneway import Retry
from laneway.compat.celery import Celery, signals
from laneway.testing import virtual


@pytest.fixture
def calls() -> Iterator[list[tuple[Any, ...]]]:
    """The arguments of all signals, in their order."""
    received: list[tuple[Any, ...]] = []
    every = [value for value in vars(signals).values() if isinstance(value, signals.Signal)]

    def listen(sender: Any, signal: signals.Signal, **arguments: Any) -> None:
        received.append((signal.name, getattr(sender, "name", sender), arguments))

    for each in every:
        each.connect(listen)
    yield received
    for each in every:
        assert each.disconnect(listen)
        assert not each.disconnect(listen)


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_signals_tell_of_each_run(calls: list[tuple[Any, ...]], kind: str) -> None:
    app = Celery("signals", broker="sqlite://")

    def work(how: str) -> str:
        if how == "retry":
            raise Retry("later", delay=1000)
        if how == "fail":
            raise ValueError("wrong")
        return how

    async def awork(how: str) -> str:
        return work(how)

    task = app.task(name="work", autoretry_for=())(awork if kind == "async" else work)
    with virtual(app.laneway) as world:
        for how in ("well", "retry", "fail"):
            calls.clear()
            task.delay(how)
            world.run()
            names = [name for name, _, _ in calls]
            inside = {"well": "task_success", "retry": "task_retry", "fail": "task_failure"}[how]
            assert names == [
                "before_task_publish",
                "after_task_publish",
                "celeryd_init",
                "celeryd_after_setup",
                "worker_init",
                "worker_process_init",
                "worker_ready",
                "task_prerun",
                inside,
                "task_postrun",
                "worker_shutting_down",
                "worker_process_shutdown",
                "worker_shutdown",
            ]
            arguments = {name: received for name, _, received in calls}
            assert (
                arguments["task_postrun"]["state"]
                == {"well": "SUCCESS", "retry": "RETRY", "fail": "FAILURE"}[how]
            )
            assert arguments["task_prerun"]["args"] == (how,)
            assert (
                arguments["after_task_publish"]["headers"]["id"]
                == arguments["task_prerun"]["task_id"]
            )
            if how == "fail":
                assert str(arguments["task_failure"]["exception"]) == "wrong"
                assert "ValueError" in arguments["task_failure"]["einfo"]


def test_a_receiver_may_want_one_sender_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    app = Celery("signals", broker="sqlite://")
    calls: list[str] = []

    @app.task(name="one")
    def one() -> None:
        pass

    @app.task(name="two")
    def two() -> None:
        pass

    @signals.task_success.connect(sender=one)
    def of_one(**_: Any) -> None:
        calls.append("one")

    @signals.task_success.connect(sender="two")
    def of_two(**_: Any) -> None:
        calls.append("two")
        raise ValueError("its own")

    try:
        with virtual(app.laneway) as world:
            one.delay()
            two.delay()
            assert world.run().acked == 2
    finally:
        signals.task_success.disconnect(of_one, one)
        signals.task_success.disconnect(of_two, "two")
    assert sorted(calls) == ["one", "two"]
    assert "signal task_success" in caplog.text


def test_signals_of_logging(calls: list[tuple[Any, ...]]) -> None:
    """A worker's start sends them: a receiver of setup_logging sets up logging itself."""
    Celery("signals", broker="sqlite://").finalize()
    assert [name for name, _, _ in calls] == [
        "setup_logging",
        "after_setup_logger",
        "after_setup_task_logger",
    ]
    assert calls[1][2]["logger"] is logging.root
