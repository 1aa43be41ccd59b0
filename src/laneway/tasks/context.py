"""
Context variables that messages carry from publisher to handler, and loggers that know the running
task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any

import msgspec

from laneway.errors import BadMessage, UsageError
from laneway.message import Message, Receipt
from laneway.tasks.request import current_request

PREFIX = "context-"
"""The prefix of their headers."""


def middlewares(
    variable: ContextVar[Any], name: str | None
) -> tuple[
    Callable[[Message], Generator[Message, Receipt, None]],
    Callable[[Message | list[Message]], Generator[None, None, None]],
]:
    """
    The middlewares of publishing and of handling that carry a context variable.

    `name`: the header's name without its prefix, or None for the variable's. See `Laneway.carry`.
    Raises UsageError.
    """
    if not isinstance(variable, ContextVar):
        raise UsageError(f"carry: expected a ContextVar, got {variable!r:.80}")
    header = PREFIX + (name if name is not None else variable.name)
    unset = object()

    def publishing(message: Message) -> Generator[Message, Receipt, None]:
        value = variable.get(unset)
        if value is unset:
            yield message
            return
        try:
            written = msgspec.json.encode(value).decode()
        except (TypeError, ValueError) as error:
            raise BadMessage(
                f"the context variable {variable.name} cannot be carried by a message: {error};"
                " carry a JSON value"
            ) from error
        yield msgspec.structs.replace(message, headers={**(message.headers or {}), header: written})

    def handling(subject: Message | list[Message]) -> Generator[None, None, None]:
        written = None if isinstance(subject, list) else (subject.headers or {}).get(header)
        if written is None:
            yield
            return
        token = variable.set(msgspec.json.decode(written))
        try:
            yield
        finally:
            variable.reset(token)

    return publishing, handling


class _TaskAttributes(logging.Filter):
    """Adds `task_id`, `task_name`, `topic` and `attempt` to each record; "-" outside of a task."""

    def filter(self, record: logging.LogRecord) -> bool:
        request = current_request()
        record.task_id = request.id if request is not None else "-"
        record.task_name = request.task if request is not None else "-"
        record.topic = request.topic if request is not None else "-"
        record.attempt = request.attempt if request is not None else 0
        return True


_TASK_ATTRIBUTES = _TaskAttributes()


def get_task_logger(name: str) -> logging.Logger:
    """
    The logger of that name. Its records have the attributes of the running task: `%(task_id)s`,
    `%(task_name)s`, `%(topic)s`, `%(attempt)s` in a formatter. (With `--log-json` every line has
    them, whatever its logger.)
    """
    logger = logging.getLogger(name)
    if _TASK_ATTRIBUTES not in logger.filters:
        logger.addFilter(_TASK_ATTRIBUTES)
    return logger
