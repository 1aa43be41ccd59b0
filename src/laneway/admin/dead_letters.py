"""Dead letters: list, redrive and drop them, page by page."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from laneway import arguments, units
from laneway.admin.views import message_of
from laneway.awaitable import async_variant
from laneway.engines.base import Admin, MessageView
from laneway.errors import BadPolicy
from laneway.message import Message  # msgspec reads the annotation
from laneway.policy import check_topic
from laneway.runtime.noun import Noun

PAGE = 1_000
"""Dead letters that one transaction redrives or drops."""


class DeadLetter(msgspec.Struct, frozen=True):
    """
    A message that used up its retries, expired or was rejected.

    `number`: its position in the list, for paging. `reason`: why it is dead. `error`: the last
    error's text. `died_at`: Unix seconds. `history`: the last 20 events of the message.
    """

    number: int
    message: Message
    reason: str
    error: str | None
    died_at: float
    history: list[dict[str, Any]]


def find(engine: Admin, topic: str | None, *, limit: int, after: int) -> list[DeadLetter]:
    """
    List dead letters of a topic, or of all topics (None), oldest first.

    `after`: the number of the previous page's last dead letter, 0 for the first page. Raises
    UsageError, BadMessage if the topic's name is invalid, EngineUnavailable.
    """
    arguments.whole("dead_letters", "limit", limit)
    arguments.whole("dead_letters", "after", after, least=0)
    return [
        _dead_letter(number, view)
        for number, view in engine.dead_list(_checked(topic), limit=limit, after=after)
    ]


def redrive(
    engine: Admin,
    topic: str | None,
    ids: Sequence[str] | None,
    *,
    rate: float | str | None,
    limit: int | None,
) -> int:
    """
    Put dead letters of a topic, or of all topics (None), back into their topics, oldest first.

    `ids`: only these, or None for all. `rate`: messages per second, such as `"10/s"`, or None for
    all immediately. `limit`: at most this many. Returns the number of messages put back. Raises
    UsageError, BadMessage if the topic's name is invalid, BadPolicy if the rate is,
    EngineUnavailable.
    """
    _checked(topic)
    spacing = spacing_us(rate)

    def page(some: Sequence[str] | None, number: int, done: int) -> int:
        return engine.dead_redrive(
            topic, some, limit=number, first_us=done * spacing, spacing_us=spacing
        )

    return _by_pages("redrive", ids, limit, page)


def drop(engine: Admin, topic: str | None, ids: Sequence[str] | None, *, limit: int | None) -> int:
    """
    Delete dead letters of a topic, or of all topics (None), oldest first.

    `ids`: only these, or None for all. `limit`: at most this many. Returns the number of deleted
    messages. Raises UsageError, BadMessage if the topic's name is invalid, EngineUnavailable.
    """
    _checked(topic)
    return _by_pages(
        "drop_dead_letters",
        ids,
        limit,
        lambda some, number, _: engine.dead_drop(topic, some, limit=number),
    )


def _by_pages(
    call: str,
    ids: Sequence[str] | None,
    limit: int | None,
    page: Callable[[Sequence[str] | None, int, int], int],
) -> int:
    """
    Call `page(ids, number, done)` until `limit` or the end is reached; each page is a transaction.
    `done`: dead letters of the previous pages. Returns the total number of dead letters.
    """
    most = sys.maxsize if limit is None else arguments.whole(call, "limit", limit, least=0)
    total = 0
    if ids is not None:
        ids = arguments.texts(call, "ids", ids)
        for first in range(0, len(ids), PAGE):
            total += page(ids[first : first + PAGE], min(PAGE, most - total), total)
        return total
    while (wanted := min(PAGE, most - total)) > 0:
        count = page(None, wanted, total)
        total += count
        if count < wanted:
            break
    return total


def _dead_letter(number: int, view: MessageView) -> DeadLetter:
    died_at = (view.died_us or 0) / units.SECOND
    return DeadLetter(
        number, message_of(view), view.reason or "", view.error, died_at, view.history
    )


def _checked(topic: str | None) -> str | None:
    return None if topic is None else check_topic(topic)


def spacing_us(rate: float | str | None) -> int:
    """The time between two redriven messages, in microseconds. Raises BadPolicy."""
    if rate is None:
        return 0
    try:
        return round(units.SECOND / units.rate(rate))
    except ValueError as error:
        raise BadPolicy(f"redrive: rate: {error}") from error


class DeadLetters(Noun):
    """The dead letters of a topic, or of all topics (None): `app.dead_letters`."""

    def list(
        self, topic: str | None = None, *, limit: int = 50, after: int = 0
    ) -> builtins.list[DeadLetter]:
        """
        List them, oldest first. `after`: the number of the last dead letter of the previous page.
        """
        return find(self._runtime.engine, topic, limit=limit, after=after)

    def redrive(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        rate: float | str | None = None,
        limit: int | None = None,
    ) -> int:
        """
        Put them back into their topics, oldest first: all immediately, or at a rate (`"10/s"`), and
        at most `limit`. Returns the number of messages. Raises BadPolicy for an invalid rate.
        """
        return redrive(self._runtime.engine, topic, ids, rate=rate, limit=limit)

    def drop(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        limit: int | None = None,
    ) -> int:
        """Delete them, oldest first and at most `limit`. Returns the number of messages."""
        return drop(self._runtime.engine, topic, ids, limit=limit)

    alist = async_variant(list)
    aredrive = async_variant(redrive)
    adrop = async_variant(drop)
