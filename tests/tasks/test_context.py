"""Context variables that go with calls, and loggers that know the task."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any

import pytest

from laneway import BadMessage, Laneway, UsageError, get_task_logger
from laneway.testing import virtual

CUSTOMER: ContextVar[Any] = ContextVar("customer")


def test_only_context_variables_are_carried() -> None:
    """Anything else would fail in each publish."""
    with pytest.raises(UsageError, match="carry: expected a ContextVar, got 'acme'"):
        Laneway("sqlite://").carry("acme", name="customer")  # type: ignore[arg-type]


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
