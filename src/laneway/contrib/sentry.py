"""Errors of tasks and handlers in Sentry: `report_errors(app)`."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import sentry_sdk
from sentry_sdk.integrations.logging import ignore_logger

from laneway import Laneway, Message, Reject
from laneway.headers import TASK


def report_errors(app: Laneway, *, each_attempt: bool = False) -> None:
    """
    Send an event to Sentry for each message that becomes a dead letter in this process, or with
    `each_attempt` for each failed attempt.

    An event has the tags `laneway.topic`, `laneway.task` and `laneway.attempt`, the message's id,
    and as its transaction the task's name, or the topic's pattern. Breadcrumbs and tags of a
    handler belong to its message alone. Laneway's own log lines about failures make no events.
    """
    for name in ("laneway.worker", "laneway.task"):
        ignore_logger(name)

    @app.around_handling
    def isolated(message: Message | list[Message]) -> Generator[None, None, None]:
        with sentry_sdk.isolation_scope() as scope:
            _describe(scope, message[0] if isinstance(message, list) else message)
            yield

    def report(message: Message, error: BaseException) -> None:
        with sentry_sdk.isolation_scope() as scope:
            _describe(scope, message)
            cause = error.__cause__
            sentry_sdk.capture_exception(
                cause if isinstance(error, Reject) and cause is not None else error
            )

    (app.on_failure if each_attempt else app.on_dead)(report)


def _describe(scope: Any, message: Message) -> None:
    task = (message.headers or {}).get(TASK)
    scope.set_transaction_name(task or f"{message.topic.partition('.')[0]}.*", source="task")
    scope.set_tag("laneway.topic", message.topic)
    scope.set_tag("laneway.task", task)
    scope.set_tag("laneway.attempt", message.attempt)
    scope.set_context("laneway", {"message": message.id, "key": message.key})
