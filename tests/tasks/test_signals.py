"""Signals by Celery's names, context variables that go with calls, loggers that know the task."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from laneway import BadMessage, Laneway, Retry, get_task_logger, signals
from laneway.testing import virtual

CUSTOMER: ContextVar[Any] = ContextVar("customer")


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
    app = Laneway("sqlite://")

    def work(how: str) -> str:
        if how == "retry":
            raise Retry("later", delay=1000)
        if how == "fail":
            raise ValueError("wrong")
        return how

    async def awork(how: str) -> str:
        return work(how)

    task = app.task(name="work", autoretry_for=())(awork if kind == "async" else work)
    with virtual(app) as world:
        for how in ("well", "retry", "fail"):
            calls.clear()
            task.delay(how)
            world.run()
            names = [name for name, _, _ in calls]
            inside = {"well": "task_success", "retry": "task_retry", "fail": "task_failure"}[how]
            assert names[:4] == [
                "before_task_publish",
                "after_task_publish",
                "worker_ready",
                "task_prerun",
            ]
            assert names[4:] == [inside, "task_postrun", "worker_shutdown"]
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
    app = Laneway("sqlite://")
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
        with virtual(app) as world:
            one.delay()
            two.delay()
            assert world.run().acked == 2
    finally:
        signals.task_success.disconnect(of_one, one)
        signals.task_success.disconnect(of_two, "two")
    assert sorted(calls) == ["one", "two"]
    assert "signal task_success" in caplog.text


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_context_goes_with_a_call(kind: str) -> None:
    """Also with plain messages, and on to what a task calls; it is not left behind."""
    app = Laneway("sqlite://")
    app.carry(CUSTOMER)
    seen: list[Any] = []

    def look(deep: int) -> None:
        seen.append(CUSTOMER.get(None))
        if deep:
            task.delay(deep - 1)

    async def alook(deep: int) -> None:
        look(deep)

    task = app.task(name="look")(alook if kind == "async" else look)

    @app.handler("plain")
    def handle(message: Any) -> None:
        del message
        seen.append(CUSTOMER.get(None))

    with virtual(app) as world:
        token = CUSTOMER.set({"name": "acme"})
        task.delay(2)
        app.publish("plain")
        CUSTOMER.reset(token)
        task.delay(0)
        world.run()
        assert sorted(seen, key=str) == [None, *[{"name": "acme"}] * 4]
        assert CUSTOMER.get(None) is None
        token = CUSTOMER.set(object())
        with pytest.raises(BadMessage, match="context variable customer cannot be carried"):
            task.delay(0)
        CUSTOMER.reset(token)


def test_a_logger_knows_the_task(caplog: pytest.LogCaptureFixture) -> None:
    app = Laneway("sqlite://")
    logger = get_task_logger("of.a.program")
    assert get_task_logger("of.a.program") is logger

    @app.task(name="say", topic="spoken")
    def say() -> None:
        logger.info("hello")

    with virtual(app) as world, caplog.at_level(logging.INFO):
        logger.info("outside")
        job = say.delay()
        world.run()
    outside, inside = [record for record in caplog.records if record.name == "of.a.program"]
    assert (outside.task_id, outside.task_name) == ("-", "-")  # type: ignore[attr-defined]
    assert (inside.task_id, inside.task_name, inside.topic, inside.attempt) == (  # type: ignore[attr-defined]
        job.id,
        "say",
        "spoken",
        1,
    )
