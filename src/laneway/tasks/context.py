"""
Context variables of a program that go with its calls, from publisher to worker; and loggers that
know which task runs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.errors import BadMessage
from laneway.tasks.request import current_request

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextvars import ContextVar

    from laneway.message import Message, Receipt

PREFIX = "context-"
"""How the headers begin that hold them."""


def middlewares(
    variable: ContextVar[Any], name: str | None
) -> tuple[
    Callable[[Message], Generator[Message, Receipt, None]],
    Callable[[Message | list[Message]], Generator[None, None, None]],
]:
    """
    The middlewares of publishing and of handling that carry a context variable.

    `name`: the name of the header without its prefix, None: the variable's. See `Laneway.carry`.
    """
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
                f"the context variable {variable.name} cannot go with a message: {error}; carry"
                " what JSON can hold"
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


class _About(logging.Filter):
    """Gives each record `task_id`, `task_name`, `topic` and `attempt`; "-" outside of a task."""

    def filter(self, record: logging.LogRecord) -> bool:
        request = current_request()
        record.task_id = request.id if request is not None else "-"
        record.task_name = request.task if request is not None else "-"
        record.topic = request.topic if request is not None else "-"
        record.attempt = request.attempt if request is not None else 0
        return True


_ABOUT = _About()


def get_task_logger(name: str) -> logging.Logger:
    """
    The logger of that name, whose records say which task they were written in: `%(task_id)s`,
    `%(task_name)s`, `%(topic)s`, `%(attempt)s` for a formatter of your own. (With `--log-json`
    every line says it, whatever its logger.)
    """
    logger = logging.getLogger(name)
    if _ABOUT not in logger.filters:
        logger.addFilter(_ABOUT)
    return logger
