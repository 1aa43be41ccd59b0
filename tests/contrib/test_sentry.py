"""Errors of tasks and handlers in Sentry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from laneway import Laneway, Message
from laneway.testing import virtual

sentry_sdk = pytest.importorskip("sentry_sdk")


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    """What would be sent."""
    found: list[dict[str, Any]] = []

    def take(event: dict[str, Any], hint: dict[str, Any]) -> None:
        del hint
        found.append(event)

    with sentry_sdk.isolation_scope() as scope:
        client = sentry_sdk.Client(
            dsn="http://key@127.0.0.1:1/1", before_send=take, default_integrations=False
        )
        before = sentry_sdk.Scope.get_global_scope().client
        sentry_sdk.Scope.get_global_scope().set_client(client)
        scope.clear()
        yield found
        sentry_sdk.Scope.get_global_scope().set_client(before)
        client.close(timeout=0)


def reported(*, each_attempt: bool) -> None:
    """A task that is tried twice, and a handler that fails once."""
    from laneway.contrib.sentry import report_errors

    app = Laneway("sqlite://")
    report_errors(app, each_attempt=each_attempt)

    @app.task(name="mail", topic="mail.{customer}", retries=1)
    def mail(customer: str) -> None:
        raise LookupError(customer)

    @app.handler("push.*")
    async def push(message: Message) -> None:
        raise ValueError(message.id)

    app.policy("push.*", retries=0)
    with virtual(app) as world:
        app.publish("push.bolt", 1, id="order-1")
        mail.delay("acme")
        world.run_all()


def test_dead_letters(events: list[dict[str, Any]]) -> None:
    """One event for each, with its traceback, the topic and the task; none for a retry."""
    reported(each_attempt=False)
    first, second = sorted(events, key=lambda event: str(event["tags"]["laneway.topic"]))
    assert (first["transaction"], first["tags"]["laneway.task"]) == ("mail", "mail")
    assert first["exception"]["values"][-1]["type"] == "LookupError"
    assert (second["transaction"], second["tags"]["laneway.topic"]) == ("push.*", "push.bolt")
    assert second["contexts"]["laneway"]["message"] == "order-1"
    error = second["exception"]["values"][-1]
    assert (error["type"], error["value"]) == ("ValueError", "order-1")
    assert error["stacktrace"]["frames"][-1]["function"] == "push"


def test_each_attempt(events: list[dict[str, Any]]) -> None:
    """With the option, a failure that is tried again is an event, too."""
    reported(each_attempt=True)
    mails = [event for event in events if event["transaction"] == "mail"]
    assert [event["tags"]["laneway.attempt"] for event in mails] == [1, 2]
