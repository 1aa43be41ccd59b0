"""Dead letters: list, redrive and drop them, page by page."""

from __future__ import annotations

import builtins
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from laneway import arguments, units
from laneway.admin.fingerprints import fingerprint_of
from laneway.admin.views import message_of
from laneway.awaitable import async_variant
from laneway.engines.base import Admin, MessageView
from laneway.errors import BadPolicy
from laneway.message import Message  # msgspec reads the annotation
from laneway.policy import check_topic
from laneway.runtime.runtime import Noun

PAGE = 1_000
"""Dead letters that one transaction redrives or drops."""

AHEAD_US = 10 * units.SECOND
"""For how long ahead dead letters are redriven at a rate, in steps of as long, with pauses."""

PAUSE_SECONDS = 1.0
"""The longest of these pauses, so that a stop is noticed."""


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
    return sum(
        redrive_steps(
            engine, _checked(topic), _ids("redrive", ids), _limit("redrive", limit), rate=rate
        )
    )


def drop(engine: Admin, topic: str | None, ids: Sequence[str] | None, *, limit: int | None) -> int:
    """
    Delete dead letters of a topic, or of all topics (None), oldest first.

    `ids`: only these, or None for all. `limit`: at most this many. Returns the number of deleted
    messages. Raises UsageError, BadMessage if the topic's name is invalid, EngineUnavailable.
    """
    call = "drop_dead_letters"
    return sum(drop_steps(engine, _checked(topic), _ids(call, ids), _limit(call, limit)))


def _ids(call: str, ids: Sequence[str] | None) -> Sequence[str] | None:
    return None if ids is None else arguments.texts(call, "ids", ids)


def _limit(call: str, limit: int | None) -> int:
    return sys.maxsize if limit is None else arguments.whole(call, "limit", limit, least=0)


# Step by step: each step is a transaction


def drop_steps(
    engine: Admin,
    topic: str | None,
    ids: Sequence[str] | None,
    limit: int,
    fingerprint: str | None = None,
) -> Iterator[int]:
    """
    Drop dead letters, the oldest first; yields how many each step has dropped. `ids`: only these,
    or None for all. `fingerprint`: only those with this failure that there are now.
    """
    return _steps(
        _parts(engine, topic, ids, fingerprint, PAGE),
        limit,
        PAGE,
        lambda some, most, _: engine.dead_drop(topic, some, limit=most),
    )


def redrive_steps(
    engine: Admin,
    topic: str | None,
    ids: Sequence[str] | None,
    limit: int,
    fingerprint: str | None = None,
    *,
    rate: float | str | None = None,
    pause: Callable[[float], object] | None = None,
) -> Iterator[int]:
    """
    As `drop_steps`: put them back, all immediately or at a rate. With `pause`, which waits, those
    that are due later than in `AHEAD_US` stay dead until then, so they stay dead after a stop.
    """
    spacing, began_ns, size = spacing_us("redrive", rate), time.monotonic_ns(), PAGE
    if spacing and pause is not None:
        size = max(1, min(PAGE, round(AHEAD_US / spacing)))

    def ahead_us(done: int) -> int:
        """In how many microseconds the next message is due."""
        passed_us = 0 if pause is None else (time.monotonic_ns() - began_ns) // 1000
        return max(0, done * spacing - passed_us)

    def wait(done: int) -> Iterator[int]:
        while pause is not None and (left_us := ahead_us(done) - AHEAD_US) > 0:
            pause(min(PAUSE_SECONDS, left_us / units.SECOND))
            yield 0

    def put_back(some: Sequence[str] | None, most: int, done: int) -> int:
        return engine.dead_redrive(
            topic, some, limit=most, first_us=ahead_us(done), spacing_us=spacing
        )

    return _steps(_parts(engine, topic, ids, fingerprint, size), limit, size, put_back, wait)


def _steps(
    parts: Iterator[Sequence[str] | None],
    limit: int,
    size: int,
    change: Callable[[Sequence[str] | None, int, int], int],
    wait: Callable[[int], Iterator[int]] = lambda _: iter(()),
) -> Iterator[int]:
    """Call `change(ids, number, done)` for each part until `limit` or the end is reached."""
    done = 0
    for some in parts:
        yield from wait(done)
        most = min(size, limit - done)
        count = change(some, most, done) if most and some != [] else 0
        done += count
        yield count
        if done >= limit or (some is None and count < most):
            return


def _parts(
    engine: Admin,
    topic: str | None,
    ids: Sequence[str] | None,
    fingerprint: str | None,
    size: int,
) -> Iterator[Sequence[str] | None]:
    """
    The ids of each step, without an end unless they are named. An empty list at the end of a page
    in which a fingerprint was searched for.
    """
    if fingerprint is not None:
        after, until_us = 0, engine.time_us(topic)
        wanted = None if ids is None else set(ids)
        while page := engine.dead_list(topic, limit=PAGE, after=after):
            after = page[-1][0]
            named = [
                view.id
                for _, view in page
                if fingerprint_of(view.reason, view.error) == fingerprint
                and (wanted is None or view.id in wanted)
                and (view.died_us or 0) <= until_us
            ]
            yield from (named[n : n + size] for n in range(0, len(named), size))
            yield []
            if (page[-1][1].died_us or 0) > until_us:  # it died again meanwhile
                return
        return
    if ids is not None:
        yield from (ids[n : n + size] for n in range(0, len(ids), size))
        return
    while True:
        yield None


def _dead_letter(number: int, view: MessageView) -> DeadLetter:
    died_at = (view.died_us or 0) / units.SECOND
    return DeadLetter(
        number, message_of(view), view.reason or "", view.error, died_at, view.history
    )


def _checked(topic: str | None) -> str | None:
    return None if topic is None else check_topic(topic)


def spacing_us(call: str, rate: float | str | None) -> int:
    """The time between two messages at a rate, in microseconds. Raises BadPolicy."""
    if rate is None:
        return 0
    try:
        return round(units.SECOND / units.rate(rate))
    except ValueError as error:
        raise BadPolicy(f"{call}: rate: {error}") from error


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
